//! Parses and checks one dump: the contents of the flight recorder of one process. For any input,
//! the size of the result is limited, and every rank and index in it is valid.
//!
//! This module does not compare dumps, and does not diagnose faults.

use crate::text;
use serde_json::Value;

/// The value of the first field, which every dump has.
const FORMAT_NAME: &str = "libdist flight recorder";

/// The supported version of the format.
const FORMAT_VERSION: u64 = 4;

/// The largest number of entries in a dump. A recorder keeps fewer.
const MAX_ENTRIES: usize = 10_000;
/// The largest number of groups in a dump. A recorder keeps fewer.
const MAX_GROUPS: usize = 10_000;

/// The largest number of ranks in a group.
const MAX_RANKS: usize = 1 << 16;

/// A longer text is shortened to this number of characters.
const MAX_TEXT_CHARS: usize = 2048;

/// The dump of one process.
#[derive(Clone, Debug)]
pub(crate) struct Dump {
    /// The path of the file.
    pub(crate) file: String,
    pub(crate) host: String,
    pub(crate) pid: u64,
    /// The process's rank in the job, if it has one.
    pub(crate) rank: Option<usize>,
    /// The time on the wall clock at which the clock of all other times shows 0.
    origin_unix_ns: u64,
    pub(crate) taken_ns: u64,
    pub(crate) groups: Vec<GroupRecord>,
    pub(crate) entries: Vec<OperationRecord>,
}

/// A group of the process.
#[derive(Clone, Debug)]
pub(crate) struct GroupRecord {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// The members in order of their ranks. Empty if the dump does not list them.
    pub(crate) members: Vec<GroupMember>,
    pub(crate) failure: Option<GroupFailure>,
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupMember {
    pub(crate) pid: u64,
    pub(crate) host: String,
    pub(crate) global_rank: usize,
}

/// The failure of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupFailure {
    pub(crate) kind: String,
    pub(crate) message: String,
    pub(crate) culprit: Option<usize>,
}

/// The progress of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OperationState {
    /// The operation waits for earlier operations of its rank.
    Waiting,
    Running,
    Done,
    /// The operation failed with this kind of error.
    Failed(String),
}

/// One operation of one rank.
#[derive(Clone, Debug)]
pub(crate) struct OperationRecord {
    pub(crate) group: u64,
    pub(crate) rank: usize,
    pub(crate) sequence: u64,
    /// The description that errors use, for example "all_reduce #57 (f32, SUM, count 1000)".
    pub(crate) description: String,
    pub(crate) operation: String,
    /// The label of the call, if any.
    pub(crate) label: Option<String>,
    pub(crate) message: Option<MessageDetails>,
    /// True if the operation is a monitored barrier. These have sequence numbers of their own.
    pub(crate) is_monitored_barrier: bool,
    pub(crate) state: OperationState,
    pub(crate) issued_ns: u64,
    pub(crate) started_ns: Option<u64>,
    pub(crate) ended_ns: Option<u64>,
}

/// The details that only a message (a send or a receive) has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageDetails {
    /// The rank of the peer. `None` if the call does not name it, for example in a receive from any
    /// rank.
    pub(crate) peer: Option<usize>,
}

impl Dump {
    /// Parses a dump.
    ///
    /// # Errors
    /// The defect. The text does not name the file.
    pub(crate) fn parse(file: &str, bytes: &[u8]) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(bytes).map_err(|cause| match cause.is_eof() {
            true => format!("truncated, or not JSON: {cause}"),
            false => format!("not JSON: {cause}"),
        })?;
        if value["format"].as_str() != Some(FORMAT_NAME) {
            return Err("JSON, but not a dump of libdist's flight recorder".to_owned());
        }
        if value["version"].as_u64() != Some(FORMAT_VERSION) {
            let version = text::printable_line(&value["version"].to_string(), 40);
            return Err(format!(
                "version {version} is not supported; this program reads version {FORMAT_VERSION}"
            ));
        }
        let groups = array_field(&value, "groups", MAX_GROUPS)?;
        let entries = array_field(&value, "entries", MAX_ENTRIES)?;
        Ok(Self {
            file: file.to_owned(),
            host: text_field(&value, "host")?,
            pid: number_field(&value, "pid")?,
            rank: optional_index_field(&value, "rank")?,
            origin_unix_ns: number_field(&value, "origin_unix_ns")?,
            taken_ns: number_field(&value, "taken_ns")?,
            groups: parse_all("groups", groups, GroupRecord::parse)?,
            entries: parse_all("entries", entries, OperationRecord::parse)?,
        })
    }

    /// Converts a time in this dump to the wall clock.
    pub(crate) fn to_unix_ns(&self, ns: u64) -> u64 {
        self.origin_unix_ns.saturating_add(ns)
    }

    /// Returns the time on the wall clock at which the dump was taken.
    pub(crate) fn taken_unix_ns(&self) -> u64 {
        self.to_unix_ns(self.taken_ns)
    }
}

impl GroupRecord {
    fn parse(value: &Value) -> Result<Self, String> {
        let size =
            optional_index_field(value, "size")?.filter(|size| (1..=MAX_RANKS).contains(size));
        let size = size.ok_or("the size is missing or invalid")?;
        let rank = optional_index_field(value, "rank")?.filter(|&rank| rank < size);
        let members = match &value["members"] {
            Value::Null => Vec::new(),
            _ => {
                parse_all("members", array_field(value, "members", MAX_RANKS)?, GroupMember::parse)?
            }
        };
        if !members.is_empty() && members.len() != size {
            return Err(format!("the size is {size}, but the list has {} members", members.len()));
        }
        let failure = match &value["failure"] {
            Value::Null => None,
            failure => Some(GroupFailure {
                kind: text_field(failure, "kind")?,
                message: text_field(failure, "message")?,
                culprit: optional_index_field(failure, "culprit")?
                    .filter(|&culprit| culprit < size),
            }),
        };
        let (id, name) = (group_id_field(value, "id")?, text_field(value, "name")?);
        Ok(Self {
            id,
            name,
            rank: rank.ok_or("the rank is missing or not below the size of the group")?,
            size,
            members,
            failure,
        })
    }
}

impl GroupMember {
    fn parse(value: &Value) -> Result<Self, String> {
        let global_rank =
            optional_index_field(value, "global_rank")?.ok_or("\"global_rank\" is missing")?;
        Ok(Self { pid: number_field(value, "pid")?, host: text_field(value, "host")?, global_rank })
    }
}

impl OperationRecord {
    fn parse(value: &Value) -> Result<Self, String> {
        let state = match value["state"].as_str() {
            Some("waiting") => OperationState::Waiting,
            Some("running") => OperationState::Running,
            Some("done") => OperationState::Done,
            Some("failed") => OperationState::Failed(text_field(value, "error")?),
            _ => return Err("the state is missing or unknown".to_owned()),
        };
        let message = match value["kind"].as_str() {
            Some("collective" | "monitored_barrier") => None,
            Some("message") => Some(MessageDetails { peer: optional_index_field(value, "peer")? }),
            _ => return Err("the kind is missing or unknown".to_owned()),
        };
        Ok(Self {
            group: group_id_field(value, "group")?,
            rank: optional_index_field(value, "rank")?.ok_or("\"rank\" is missing")?,
            sequence: number_field(value, "sequence")?,
            description: text_field(value, "description")?,
            operation: text_field(value, "operation")?,
            label: match &value["label"] {
                Value::Null => None,
                _ => Some(text_field(value, "label")?),
            },
            message,
            is_monitored_barrier: value["kind"] == "monitored_barrier",
            state,
            issued_ns: number_field(value, "issued_ns")?,
            started_ns: optional_number_field(value, "started_ns")?,
            ended_ns: optional_number_field(value, "ended_ns")?,
        })
    }

    /// Returns true if the operation is a collective of the group's queue.
    pub(crate) fn is_collective(&self) -> bool {
        self.message.is_none() && !self.is_monitored_barrier
    }

    /// Returns true if the operation has not ended: it waits or runs.
    pub(crate) fn is_under_way(&self) -> bool {
        matches!(self.state, OperationState::Waiting | OperationState::Running)
    }

    /// Returns true if the operation has failed.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.state, OperationState::Failed(_))
    }
}

/// Parses all values of a list. The error names the index of the defective value.
fn parse_all<T>(
    name: &str,
    values: &[Value],
    parse: impl Fn(&Value) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let numbered = values.iter().enumerate();
    numbered
        .map(|(at, value)| parse(value).map_err(|problem| format!("{name}[{at}]: {problem}")))
        .collect()
}

fn array_field<'a>(value: &'a Value, name: &str, max_len: usize) -> Result<&'a [Value], String> {
    let list = value[name].as_array().ok_or_else(|| format!("the list \"{name}\" is missing"))?;
    if list.len() > max_len {
        return Err(format!("\"{name}\" has {} elements; the limit is {max_len}", list.len()));
    }
    Ok(list)
}

/// Reads a text field as one printable line.
fn text_field(value: &Value, name: &str) -> Result<String, String> {
    let text =
        value[name].as_str().ok_or_else(|| format!("\"{name}\" is missing or not a string"))?;
    Ok(text::printable_line(text, MAX_TEXT_CHARS))
}

fn number_field(value: &Value, name: &str) -> Result<u64, String> {
    value[name].as_u64().ok_or_else(|| format!("\"{name}\" is missing or not a number"))
}

fn optional_number_field(value: &Value, name: &str) -> Result<Option<u64>, String> {
    match &value[name] {
        Value::Null => Ok(None),
        _ => number_field(value, name).map(Some),
    }
}

fn optional_index_field(value: &Value, name: &str) -> Result<Option<usize>, String> {
    let Some(number) = optional_number_field(value, name)? else { return Ok(None) };
    usize::try_from(number).map(Some).map_err(|_| format!("\"{name}\" is too large"))
}

/// Reads a group id of 16 hexadecimal digits.
fn group_id_field(value: &Value, name: &str) -> Result<u64, String> {
    let digits = value[name].as_str().filter(|digits| digits.len() == 16);
    let id = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    id.ok_or_else(|| format!("\"{name}\" is not a group id of 16 hexadecimal digits"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample_dumps;
    use proptest::prelude::*;

    #[test]
    fn malformed_dumps_are_refused_with_reason() {
        for (bytes, reason) in [
            (&b"{\"format\": \"libdist fl"[..], "truncated"),
            (b"\x7fELF\x02\x01", "not JSON"),
            (b"[]", "not a dump"),
            (b"{\"format\":\"libdist flight recorder\",\"version\":9}", "version 9"),
            (b"{\"format\":\"libdist flight recorder\",\"version\":4}", "\"groups\""),
        ] {
            let parse_error = Dump::parse("f", bytes).unwrap_err();
            assert!(parse_error.contains(reason), "{parse_error}");
        }
        // The nesting is deeper than in any dump. The parser must stop at a limit.
        assert!(Dump::parse("f", "[".repeat(1 << 20).as_bytes()).is_err());
    }

    #[test]
    fn impossible_ranks_are_refused() {
        for (field, bad) in [("rank", "4"), ("size", "0"), ("size", "70000"), ("rank", "-1")] {
            let mut value = sample_dumps::sample_dump(1, 3, 3).to_value();
            value["groups"][0][field] = serde_json::from_str(bad).unwrap();
            assert!(Dump::parse("f", value.to_string().as_bytes()).is_err(), "{field} {bad}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            prop_assert!(Dump::parse("f", &bytes).is_err());
        }
    }
}
