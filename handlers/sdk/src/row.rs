//! One row of a table, as the host read it.

use crate::Error;
use serde_json::{Map, Value};

/// The declared columns of one row.
///
/// Bigint, numeric and uuid are strings, timestamps RFC 3339 in UTC with microseconds, NULL is null.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// What the row is, for messages: `the job's row`, ``input `deck` ``.
    label: String,
    columns: Map<String, Value>,
}

impl Row {
    /// A row of these columns; `label` says in messages which one it is.
    pub fn new(label: impl Into<String>, columns: Map<String, Value>) -> Self {
        Row { label: label.into(), columns }
    }

    /// Reads a row from the JSON object the host sends.
    pub fn parse(label: impl Into<String>, json: &str) -> Result<Self, serde_json::Error> {
        Ok(Row::new(label, serde_json::from_str(json)?))
    }

    /// The column's value, null for NULL, or `None` if the column was not read.
    pub fn get(&self, column: &str) -> Option<&Value> {
        self.columns.get(column)
    }

    /// The column's value, null for NULL.
    pub fn value(&self, column: &str) -> Result<&Value, Error> {
        self.get(column)
            .ok_or_else(|| Error::ColumnNotGiven { row: self.label.clone(), column: column.to_owned() })
    }

    /// A text column (or bigint, numeric, uuid, timestamp, which arrive as text) that is not NULL.
    pub fn text(&self, column: &str) -> Result<&str, Error> {
        let value = self.value(column)?;
        value.as_str().ok_or_else(|| self.kind_error(column, "text", value))
    }

    /// An integer column that is not NULL, of any width: a bigint's text is read as a number.
    pub fn integer(&self, column: &str) -> Result<i64, Error> {
        let value = self.value(column)?;
        let integer = match value {
            Value::String(text) => text.parse().ok(),
            other => other.as_i64(),
        };
        integer.ok_or_else(|| self.kind_error(column, "an integer", value))
    }

    /// Whether the column is NULL.
    pub fn is_null(&self, column: &str) -> Result<bool, Error> {
        Ok(self.value(column)?.is_null())
    }

    fn kind_error(&self, column: &str, expected: &'static str, found: &Value) -> Error {
        let found = match found {
            Value::Null => "NULL",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "text",
            Value::Array(_) => "an array",
            Value::Object(_) => "an object",
        };
        Error::ColumnKind { row: self.label.clone(), column: column.to_owned(), expected, found }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(json: &str) -> Row {
        Row::parse("input `deck`", json).unwrap()
    }

    fn message<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
        result.unwrap_err().chain()
    }

    #[test]
    fn columns_are_read_by_kind() {
        let row = row(r#"{"title": "Q3", "position": 4, "views": "9007199254740993", "error": null}"#);
        assert_eq!(row.text("title").unwrap(), "Q3");
        assert_eq!(row.integer("position").unwrap(), 4);
        assert_eq!(row.integer("views").unwrap(), 9_007_199_254_740_993);
        assert_eq!(row.value("error").unwrap(), &Value::Null);
        assert!(row.is_null("error").unwrap());
        assert_eq!(row.get("body"), None);
    }

    #[test]
    fn a_wrong_kind_names_row_and_column_but_not_the_value() {
        let row = row(r#"{"title": null, "position": 4.5}"#);
        assert_eq!(message(row.text("title")), "input `deck`: column `title`: expected text, found NULL");
        assert_eq!(
            message(row.integer("position")),
            "input `deck`: column `position`: expected an integer, found a number"
        );
    }

    #[test]
    fn a_column_that_was_not_read_is_an_error_and_not_null() {
        assert_eq!(
            message(row("{}").is_null("title")),
            "input `deck`: column `title` was not given (name it in the manifest)"
        );
    }
}
