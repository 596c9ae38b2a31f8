//! Two JSON values as a line-by-line difference.

use serde_json::Value;

/// `None` if both are equal, else every line of both, pretty-printed: `-` only in `expected`, `+` only in `decided`.
pub fn lines(expected: &Value, decided: &Value) -> Option<String> {
    if expected == decided {
        return None;
    }
    let (expected, decided) = (format!("{expected:#}"), format!("{decided:#}"));
    let (old, new): (Vec<_>, Vec<_>) = (expected.lines().collect(), decided.lines().collect());
    let common = common_suffix_lengths(&old, &new);
    let (mut o, mut n) = (0, 0);
    let mut out = Vec::new();
    while o < old.len() || n < new.len() {
        if o < old.len() && n < new.len() && old[o] == new[n] {
            out.push(format!("      {}", old[o]));
            (o, n) = (o + 1, n + 1);
        } else if n == new.len() || (o < old.len() && common[o + 1][n] >= common[o][n + 1]) {
            out.push(format!("    - {}", old[o]));
            o += 1;
        } else {
            out.push(format!("    + {}", new[n]));
            n += 1;
        }
    }
    Some(out.join("\n"))
}

/// At `[o][n]`: how many lines the longest common subsequence of `old[o..]` and `new[n..]` has.
fn common_suffix_lengths(old: &[&str], new: &[&str]) -> Vec<Vec<usize>> {
    let mut common = vec![vec![0; new.len() + 1]; old.len() + 1];
    for o in (0..old.len()).rev() {
        for n in (0..new.len()).rev() {
            common[o][n] = if old[o] == new[n] {
                common[o + 1][n + 1] + 1
            } else {
                common[o + 1][n].max(common[o][n + 1])
            };
        }
    }
    common
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn equal_values_have_no_difference() {
        assert_eq!(lines(&json!({ "a": 1, "b": [2] }), &json!({ "b": [2], "a": 1 })), None);
    }

    #[test]
    fn only_what_differs_is_marked() {
        let diff = lines(&json!({ "a": 1, "b": 2, "c": 3 }), &json!({ "a": 1, "b": 5, "c": 3 })).unwrap();
        let expected = r#"
      {
        "a": 1,
    -   "b": 2,
    +   "b": 5,
        "c": 3
      }"#;
        assert_eq!(format!("\n{diff}"), expected);
    }
}
