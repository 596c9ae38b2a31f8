//! The rows a source's reads brought.

use crate::{Error, Row};

/// One input as it crosses the boundary: rows still text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawInput {
    /// The read's name.
    pub name: String,
    /// Each one JSON object.
    pub rows: Vec<String>,
    /// More rows than the limit were there.
    pub truncated: bool,
}

/// The rows of one read, in its order.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// The read's name.
    pub name: String,
    /// At most as many as the read's limit.
    pub rows: Vec<Row>,
    /// More rows than the limit were there.
    pub truncated: bool,
}

/// All inputs of one job, one per read of its source.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Inputs(Vec<Input>);

impl Inputs {
    /// Reads every row. The first that is not one JSON object makes an error that names its input.
    pub fn parse(raw: impl IntoIterator<Item = RawInput>) -> Result<Self, Error> {
        raw.into_iter().map(Input::parse).collect::<Result<_, _>>().map(Inputs)
    }

    /// The rows of the read of this name.
    pub fn get(&self, name: &str) -> Result<&Input, Error> {
        self.0
            .iter()
            .find(|input| input.name == name)
            .ok_or_else(|| Error::InputNotGiven { input: name.to_owned() })
    }

    /// The first row of the read of this name, or `None` if it found none. For reads by a unique column.
    pub fn first(&self, name: &str) -> Result<Option<&Row>, Error> {
        Ok(self.get(name)?.rows.first())
    }
}

impl Input {
    fn parse(raw: RawInput) -> Result<Self, Error> {
        let label = format!("input `{}`", raw.name);
        let rows = raw
            .rows
            .iter()
            .enumerate()
            .map(|(index, json)| {
                Row::parse(&label, json).map_err(|source| Error::InputRow {
                    input: raw.name.clone(),
                    row: index + 1,
                    source,
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Input { name: raw.name, rows, truncated: raw.truncated })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(rows: &[&str]) -> Result<Inputs, Error> {
        let rows = rows.iter().map(|row| (*row).to_owned()).collect();
        Inputs::parse([RawInput { name: "tracks".to_owned(), rows, truncated: true }])
    }

    #[test]
    fn rows_keep_their_order_and_the_truncated_flag() {
        let inputs = parse(&[r#"{"position": 2}"#, r#"{"position": 1}"#]).unwrap();
        let tracks = inputs.get("tracks").unwrap();
        assert!(tracks.truncated);
        let positions: Vec<_> = tracks.rows.iter().map(|row| row.integer("position").unwrap()).collect();
        assert_eq!(positions, [2, 1]);
    }

    #[test]
    fn a_row_that_does_not_parse_names_its_input() {
        for bad in ["{", "[]", "null", "7", ""] {
            let message = parse(&["{}", bad]).unwrap_err().chain();
            assert!(
                message.starts_with("input `tracks`, row 2: expected one JSON object: "),
                "{bad:?}: {message}"
            );
        }
    }

    #[test]
    fn no_row_is_not_the_same_as_no_input() {
        let inputs = parse(&[]).unwrap();
        assert_eq!(inputs.first("tracks").unwrap(), None);
        assert_eq!(
            inputs.first("video").unwrap_err().chain(),
            "input `video` was not given (declare a read of that name in the manifest)"
        );
    }
}
