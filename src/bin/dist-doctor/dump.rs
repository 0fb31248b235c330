//! One dump of a flight recorder, taken apart and checked: whatever a file says, what comes out is
//! bounded, and everything that indexes something is in range.
//!
//! Must not know: other dumps, or what any of it means.

use crate::text;
use serde_json::Value;

/// What the first field of every dump says.
const FORMAT: &str = "libdist flight recorder";

/// The version that is understood.
const VERSION: u64 = 2;

/// The most entries and groups that are taken from one dump; a recorder keeps less.
const MOST_ENTRIES: usize = 10_000;
const MOST_GROUPS: usize = 10_000;

/// The most ranks of a group.
const MOST_RANKS: usize = 1 << 16;

/// Characters kept of any text.
const LONGEST: usize = 2048;

/// What one process has written.
#[derive(Clone, Debug)]
pub(crate) struct Dump {
    /// Where it was found.
    pub(crate) file: String,
    pub(crate) host: String,
    pub(crate) pid: u64,
    /// The process's rank in the job, where it has one.
    pub(crate) rank: Option<usize>,
    /// What the clock on the wall says at 0 of the other times.
    origin_unix_ns: u64,
    pub(crate) taken_ns: u64,
    pub(crate) groups: Vec<Membership>,
    pub(crate) entries: Vec<Entry>,
}

/// A group that the process is in.
#[derive(Clone, Debug)]
pub(crate) struct Membership {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// By rank; none where the dump does not say.
    pub(crate) members: Vec<Member>,
    pub(crate) failure: Option<Fault>,
}

/// A rank of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) pid: u64,
    pub(crate) host: String,
    pub(crate) global_rank: usize,
}

/// Why something has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: String,
    pub(crate) message: String,
    pub(crate) culprit: Option<usize>,
}

/// How far an operation has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Behind others of its own rank.
    Waiting,
    Running,
    Done,
    /// With this kind of error.
    Failed(String),
}

/// One operation of one rank.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) group: u64,
    pub(crate) rank: usize,
    pub(crate) sequence: u64,
    /// As errors name it: "all_reduce #57 (f32, SUM, count 1000)".
    pub(crate) description: String,
    pub(crate) operation: String,
    /// The label of the call, if it has one.
    pub(crate) label: Option<String>,
    pub(crate) message: Option<Message>,
    pub(crate) state: State,
    pub(crate) issued_ns: u64,
    pub(crate) started_ns: Option<u64>,
    pub(crate) ended_ns: Option<u64>,
}

/// What only a message has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The other rank, where the call names it.
    pub(crate) peer: Option<usize>,
}

impl Dump {
    /// Takes a dump apart.
    ///
    /// # Errors
    /// What is wrong with it, without the file's name.
    pub(crate) fn parse(file: &str, bytes: &[u8]) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(bytes).map_err(|cause| match cause.is_eof() {
            true => format!("it is cut off, or not JSON: {cause}"),
            false => format!("it is not JSON: {cause}"),
        })?;
        if value["format"].as_str() != Some(FORMAT) {
            return Err("it is JSON, but no dump of libdist's flight recorder".to_owned());
        }
        if value["version"].as_u64() != Some(VERSION) {
            let version = text::line(&value["version"].to_string(), 40);
            return Err(format!("it has version {version}, and {VERSION} is understood"));
        }
        let groups = list(&value, "groups", MOST_GROUPS)?;
        let entries = list(&value, "entries", MOST_ENTRIES)?;
        Ok(Self {
            file: file.to_owned(),
            host: words(&value, "host")?,
            pid: number(&value, "pid")?,
            rank: index(&value, "rank")?,
            origin_unix_ns: number(&value, "origin_unix_ns")?,
            taken_ns: number(&value, "taken_ns")?,
            groups: all("groups", groups, Membership::parse)?,
            entries: all("entries", entries, Entry::parse)?,
        })
    }

    /// A time of this process on the clock on the wall.
    pub(crate) fn on_the_wall(&self, ns: u64) -> u64 {
        self.origin_unix_ns.saturating_add(ns)
    }

    /// When it was taken, on the clock on the wall.
    pub(crate) fn taken(&self) -> u64 {
        self.on_the_wall(self.taken_ns)
    }
}

impl Membership {
    fn parse(value: &Value) -> Result<Self, String> {
        let size = index(value, "size")?.filter(|size| (1..=MOST_RANKS).contains(size));
        let size = size.ok_or("a group has an impossible size")?;
        let rank = index(value, "rank")?.filter(|&rank| rank < size);
        let members = match &value["members"] {
            Value::Null => Vec::new(),
            _ => all("members", list(value, "members", MOST_RANKS)?, Member::parse)?,
        };
        if !members.is_empty() && members.len() != size {
            return Err(format!("a group of {size} has {} members", members.len()));
        }
        let failure = match &value["failure"] {
            Value::Null => None,
            failure => Some(Fault {
                kind: words(failure, "kind")?,
                message: words(failure, "message")?,
                culprit: index(failure, "culprit")?.filter(|&culprit| culprit < size),
            }),
        };
        let (id, name) = (id(value, "id")?, words(value, "name")?);
        Ok(Self {
            id,
            name,
            rank: rank.ok_or("a rank is not in its group")?,
            size,
            members,
            failure,
        })
    }
}

impl Member {
    fn parse(value: &Value) -> Result<Self, String> {
        let global_rank = index(value, "global_rank")?.ok_or("a member has no global_rank")?;
        Ok(Self { pid: number(value, "pid")?, host: words(value, "host")?, global_rank })
    }
}

impl Entry {
    fn parse(value: &Value) -> Result<Self, String> {
        let state = match value["state"].as_str() {
            Some("waiting") => State::Waiting,
            Some("running") => State::Running,
            Some("done") => State::Done,
            Some("failed") => State::Failed(words(value, "error")?),
            _ => return Err("an entry has an unknown state".to_owned()),
        };
        let message = match value["kind"].as_str() {
            Some("collective") => None,
            Some("message") => Some(Message { peer: index(value, "peer")? }),
            _ => return Err("an entry has an unknown kind".to_owned()),
        };
        Ok(Self {
            group: id(value, "group")?,
            rank: index(value, "rank")?.ok_or("an entry has no rank")?,
            sequence: number(value, "sequence")?,
            description: words(value, "description")?,
            operation: words(value, "operation")?,
            label: match &value["label"] {
                Value::Null => None,
                _ => Some(words(value, "label")?),
            },
            message,
            state,
            issued_ns: number(value, "issued_ns")?,
            started_ns: time(value, "started_ns")?,
            ended_ns: time(value, "ended_ns")?,
        })
    }

    /// Whether it has begun or waits to, and has not ended.
    pub(crate) fn is_under_way(&self) -> bool {
        matches!(self.state, State::Waiting | State::Running)
    }

    /// Whether it has ended, and not well.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.state, State::Failed(_))
    }
}

/// Parses everything in a list; the error says which one is wrong.
fn all<T>(
    name: &str,
    values: &[Value],
    parse: impl Fn(&Value) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let numbered = values.iter().enumerate();
    numbered.map(|(at, value)| parse(value).map_err(|why| format!("{name}[{at}]: {why}"))).collect()
}

fn list<'a>(value: &'a Value, name: &str, most: usize) -> Result<&'a [Value], String> {
    let list = value[name].as_array().ok_or_else(|| format!("it has no list \"{name}\""))?;
    if list.len() > most {
        return Err(format!("\"{name}\" has {} elements, and {most} at most are read", list.len()));
    }
    Ok(list)
}

/// A text as one printable line.
fn words(value: &Value, name: &str) -> Result<String, String> {
    let found = value[name].as_str().ok_or_else(|| format!("\"{name}\" is missing or no text"))?;
    Ok(text::line(found, LONGEST))
}

fn number(value: &Value, name: &str) -> Result<u64, String> {
    value[name].as_u64().ok_or_else(|| format!("\"{name}\" is missing or no number"))
}

fn time(value: &Value, name: &str) -> Result<Option<u64>, String> {
    match &value[name] {
        Value::Null => Ok(None),
        _ => number(value, name).map(Some),
    }
}

fn index(value: &Value, name: &str) -> Result<Option<usize>, String> {
    let Some(number) = time(value, name)? else { return Ok(None) };
    usize::try_from(number).map(Some).map_err(|_| format!("\"{name}\" is too large"))
}

/// The sixteen hexadecimal digits of a group.
fn id(value: &Value, name: &str) -> Result<u64, String> {
    let digits = value[name].as_str().filter(|digits| digits.len() == 16);
    let id = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    id.ok_or_else(|| format!("\"{name}\" is no id of a group"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made_up;
    use proptest::prelude::*;

    #[test]
    fn what_is_no_dump_is_refused_with_the_reason() {
        for (bytes, reason) in [
            (&b"{\"format\": \"libdist fl"[..], "cut off"),
            (b"\x7fELF\x02\x01", "not JSON"),
            (b"[]", "no dump"),
            (b"{\"format\":\"libdist flight recorder\",\"version\":9}", "version 9"),
            (b"{\"format\":\"libdist flight recorder\",\"version\":2}", "\"groups\""),
        ] {
            let why = Dump::parse("f", bytes).unwrap_err();
            assert!(why.contains(reason), "{why}");
        }
        // Deeper than any dump; the parser has a limit.
        assert!(Dump::parse("f", "[".repeat(1 << 20).as_bytes()).is_err());
    }

    #[test]
    fn impossible_ranks_are_refused() {
        for (field, bad) in [("rank", "4"), ("size", "0"), ("size", "70000"), ("rank", "-1")] {
            let mut value = made_up::dump(1, 3, 3).value();
            value["groups"][0][field] = serde_json::from_str(bad).unwrap();
            assert!(Dump::parse("f", value.to_string().as_bytes()).is_err(), "{field} {bad}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_no_dump(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            prop_assert!(Dump::parse("f", &bytes).is_err());
        }
    }
}
