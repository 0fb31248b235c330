//! Overrides of the algorithm selection. This file parses the tuning file, and encodes the rules of
//! rank 0 for the other ranks.
//!
//! `docs/tuning.md` describes the format of the tuning file. Each error about a tuning file names
//! the file and the row.

use crate::algo::rules::{AlgorithmRule, RuleSource, find_algorithm, find_operation};
use crate::base::error::{Error, ErrorContext as _, Result};
use crate::sys::small_file;
use serde_json::{Map, Value, json};
use std::ops::RangeInclusive;
use std::path::Path;

/// The maximum size of a tuning file in bytes.
const MAX_FILE_BYTES: usize = 64 << 10;
/// The maximum number of rows of a tuning file.
const MAX_ROWS: usize = 500;

const ROW_KEYS: [&str; 7] =
    ["operation", "algorithm", "min_bytes", "max_bytes", "ranks", "nodes", "comment"];

/// Reads the rules in a tuning file.
pub(super) fn read(path: &str) -> Result<Vec<AlgorithmRule>> {
    read_text(path).and_then(|text| parse_file(&text)).context(|| format!("tuning file \"{path}\""))
}

fn read_text(path: &str) -> Result<String> {
    let unreadable = |cause: std::io::Error| {
        Error::invalid(format!("cannot be read: {cause}")).with_source(cause)
    };
    let file = small_file::open(Path::new(path)).map_err(unreadable)?;
    let mut bytes = vec![0; MAX_FILE_BYTES + 1];
    let len = small_file::read_from_start(&file, &mut bytes).map_err(unreadable)?;
    if len > MAX_FILE_BYTES {
        return Err(Error::invalid(format!("larger than {MAX_FILE_BYTES} bytes")));
    }
    bytes.truncate(len);
    String::from_utf8(bytes).map_err(|cause| Error::invalid("not valid UTF-8").with_source(cause))
}

fn parse_file(text: &str) -> Result<Vec<AlgorithmRule>> {
    let file: Value = serde_json::from_str(text)
        .map_err(|cause| Error::invalid(format!("not valid JSON: {cause}")).with_source(cause))?;
    let rows = file.as_object().filter(|file| {
        file.iter().all(|(key, value)| key == "rows" || key == "comment" && value.is_string())
    });
    let Some(rows) = rows.and_then(|file| file.get("rows")?.as_array()) else {
        let message =
            "must be an object with the list \"rows\" and, optionally, the string \"comment\"";
        return Err(Error::invalid(message));
    };
    if rows.len() > MAX_ROWS {
        return Err(Error::invalid(format!("has more than {MAX_ROWS} rows")));
    }
    let numbered = rows.iter().zip(1..);
    numbered
        .map(|(row, i)| parse_row(row, RuleSource::File(i)).context(|| format!("row {i}")))
        .collect()
}

/// Parses one row of a tuning file.
fn parse_row(row: &Value, source: RuleSource) -> Result<AlgorithmRule> {
    let row = row.as_object().ok_or_else(|| Error::invalid("not an object"))?;
    if let Some(key) = row.keys().find(|key| !ROW_KEYS.contains(&key.as_str())) {
        let message = format!("unknown key \"{key}\"; the keys are {}", ROW_KEYS.join(", "));
        return Err(Error::invalid(message));
    }
    text_of(row, "comment")?;
    let required = |key: &str| {
        text_of(row, key)?
            .ok_or_else(|| Error::invalid(format!("\"{key}\" is missing: a string is required")))
    };
    let kind = find_operation(required("operation")?)?;
    let algorithm = find_algorithm(kind, required("algorithm")?)?;
    let bytes = number_of(row, "min_bytes")?.unwrap_or(0)
        ..=number_of(row, "max_bytes")?.unwrap_or(usize::MAX);
    if kind.is_pairwise() && bytes != (0..=usize::MAX) {
        let message = format!(
            "{} has no min_bytes and no max_bytes: a rank does not know the counts of all other \
             ranks, so the ranks could select different algorithms",
            kind.name()
        );
        return Err(Error::invalid(message));
    }
    let (ranks, nodes) = (range_of(row, "ranks")?, range_of(row, "nodes")?);
    for (what, range) in [("min_bytes and max_bytes", &bytes), ("ranks", &ranks), ("nodes", &nodes)]
    {
        if range.is_empty() {
            let (low, high) = (range.start(), range.end());
            return Err(Error::invalid(format!(
                "{what}: the minimum exceeds the maximum: {low} > {high}"
            )));
        }
    }
    if nodes.start() > ranks.end() {
        let (nodes, ranks) = (nodes.start(), ranks.end());
        let message = format!(
            "{nodes} nodes or more need at least that many ranks, and \"ranks\" allows at most \
             {ranks}"
        );
        return Err(Error::invalid(message));
    }
    Ok(AlgorithmRule { kind, algorithm, bytes, ranks, nodes, source })
}

fn text_of<'r>(row: &'r Map<String, Value>, key: &str) -> Result<Option<&'r str>> {
    let type_error =
        |value: &Value| Error::invalid(format!("\"{key}\" must be a string, not {value}"));
    row.get(key).map(|value| value.as_str().ok_or_else(|| type_error(value))).transpose()
}

fn number_of(row: &Map<String, Value>, key: &str) -> Result<Option<usize>> {
    let number = |value: &Value| usize::try_from(value.as_u64()?).ok();
    let type_error = |value: &Value| {
        Error::invalid(format!("\"{key}\" must be an integer of 0 or more, not {value}"))
    };
    row.get(key).map(|value| number(value).ok_or_else(|| type_error(value))).transpose()
}

fn range_of(row: &Map<String, Value>, key: &str) -> Result<RangeInclusive<usize>> {
    let Some(value) = row.get(key) else { return Ok(0..=usize::MAX) };
    let number = |value: &Value| usize::try_from(value.as_u64()?).ok();
    let ends = value.as_array().and_then(|ends| match ends.as_slice() {
        [low, high] => Some(number(low)?..=number(high)?),
        _ => None,
    });
    ends.ok_or_else(|| {
        let message = format!(
            "\"{key}\" must be a list of two numbers, the minimum and the maximum, not {value}"
        );
        Error::invalid(message)
    })
}

/// Encodes the rules for a peer info.
pub(super) fn encode(rules: &[AlgorithmRule]) -> Value {
    let encode_rule = |rule: &AlgorithmRule| {
        let ends = |range: &RangeInclusive<usize>| [*range.start(), *range.end()];
        let source = match rule.source {
            RuleSource::Options => json!("options"),
            RuleSource::Environment => json!("environment"),
            RuleSource::File(row) => json!(row),
        };
        json!({
            "operation": rule.kind.name(),
            "algorithm": rule.algorithm.name,
            "min_bytes": rule.bytes.start(),
            "max_bytes": rule.bytes.end(),
            "ranks": ends(&rule.ranks),
            "nodes": ends(&rule.nodes),
            "source": source,
        })
    };
    rules.iter().map(encode_rule).collect()
}

/// Decodes the output of [`encode`].
pub(super) fn decode(rules: &Value) -> Option<Vec<AlgorithmRule>> {
    let decode_rule = |row: &Value| {
        let mut row = row.clone();
        let source = row.as_object_mut()?.remove("source")?;
        let source = match source.as_str() {
            Some("options") => RuleSource::Options,
            Some("environment") => RuleSource::Environment,
            Some(_) => return None,
            None => RuleSource::File(usize::try_from(source.as_u64()?).ok()?),
        };
        parse_row(&row, source).ok()
    };
    rules.as_array()?.iter().map(decode_rule).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::OpKind;

    #[test]
    fn rows_parse_and_round_trip() {
        let text = r#"{"comment": "of the cluster", "rows": [
            {"operation": "all_reduce", "min_bytes": 100, "max_bytes": 200, "ranks": [2, 4],
             "nodes": [1, 1], "algorithm": "two_shot", "comment": "measured"},
            {"operation": "barrier", "algorithm": "flags"},
            {"operation": "scatter_v", "algorithm": "linear", "ranks": [2, 4]}]}"#;
        let rules = parse_file(text).unwrap();
        assert_eq!((rules[0].kind, rules[0].algorithm.name), (OpKind::AllReduce, "two_shot"));
        assert_eq!(
            (&rules[0].bytes, &rules[0].ranks, &rules[0].nodes),
            (&(100..=200), &(2..=4), &(1..=1))
        );
        assert_eq!((&rules[1].bytes, rules[1].source), (&(0..=usize::MAX), RuleSource::File(2)));
        let mut all = rules;
        all.push(AlgorithmRule { source: RuleSource::Options, ..all[1].clone() });
        all.push(AlgorithmRule { source: RuleSource::Environment, ..all[1].clone() });
        assert_eq!(decode(&encode(&all)), Some(all));
        assert_eq!(decode(&json!([{ "operation": "barrier" }])), None);
        assert_eq!(decode(&json!(7)), None);
    }

    #[test]
    fn invalid_file_error_names_the_row() {
        let row = |row: &str| {
            parse_file(&format!(
                r#"{{"rows": [{{"operation": "barrier", "algorithm": "flags"}}, {row}]}}"#
            ))
        };
        let barrier = r#""operation": "barrier", "algorithm": "flags""#;
        for (text, word) in [
            (r#"{"operation": "allreduce", "algorithm": "ring"}"#.to_owned(), "all_to_all_v"),
            (r#"{"operation": "barrier", "algorithm": "ring"}"#.to_owned(), "dissemination"),
            (r#"{"operation": "barrier"}"#.to_owned(), "\"algorithm\" is missing"),
            (r#"{"operation": 5, "algorithm": "flags"}"#.to_owned(), "must be a string, not 5"),
            (format!(r#"{{{barrier}, "min_bytes": -1}}"#), "min_bytes"),
            (format!(r#"{{{barrier}, "min_bytes": 2, "max_bytes": 1}}"#), "2 > 1"),
            (
                r#"{"operation": "gather_v", "algorithm": "linear", "min_bytes": 9}"#.to_owned(),
                "gather_v has no min_bytes",
            ),
            (
                r#"{"operation": "all_to_all_v", "algorithm": "pairwise", "max_bytes": 9}"#
                    .to_owned(),
                "no max_bytes",
            ),
            (format!(r#"{{{barrier}, "ranks": [4, 2]}}"#), "4 > 2"),
            (format!(r#"{{{barrier}, "ranks": [2]}}"#), "two numbers"),
            (format!(r#"{{{barrier}, "ranks": [2, 3], "nodes": [4, 9]}}"#), "4 nodes"),
            (format!(r#"{{{barrier}, "max_byte": 1}}"#), "max_bytes"),
            ("7".to_owned(), "not an object"),
        ] {
            let error = row(&text).unwrap_err();
            assert!(
                error.message().starts_with("row 2: ") && error.message().contains(word),
                "{error}"
            );
        }
        for text in ["[]", "{}", "{", r#"{"rows": [], "row": []}"#] {
            assert!(parse_file(text).is_err(), "{text}");
        }
        let many =
            vec![r#"{"operation": "barrier", "algorithm": "flags"}"#; MAX_ROWS + 1].join(",");
        assert!(
            parse_file(&format!(r#"{{"rows": [{many}]}}"#)).unwrap_err().message().contains("500")
        );
        let error = read("/nonexistent/tuning.json").unwrap_err();
        assert!(
            error.message().starts_with("tuning file \"/nonexistent/tuning.json\": cannot be read"),
            "{error}"
        );
    }
}
