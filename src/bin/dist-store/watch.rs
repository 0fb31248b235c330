//! Telling what changes in the store, by looking at it again and again: the protocol has no
//! subscriptions.

use crate::client::Client;
use crate::text::{count, escaped, quoted, time_of_day};
use crate::{Failure, Outcome, cli, say};
use dist::base::deadline::Deadline;
use dist::wait;
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::time::{Duration, SystemTime};

/// How many bytes of a value are shown.
const SHOWN: usize = 60;

/// What is in the store.
type Values = BTreeMap<Vec<u8>, Vec<u8>>;

pub(crate) fn run(options: &cli::Watch) -> Outcome {
    let client = Client::connect(&options.place)?;
    let end = options.duration.map_or_else(Deadline::never, |limit| Deadline::after(limit.0));
    let interval = Duration::from_millis(options.interval);
    let start = options.start.as_bytes();
    let mut before = look(&client, start)?;
    let (now, store) = (time_of_day(SystemTime::now()), client.store.describe());
    say(format!("{now} {} in {store}\n", count(before.len(), "key")))?;
    while !end.has_passed() {
        wait::pause(interval, &end);
        let after = look(&client, start)?;
        let now = time_of_day(SystemTime::now());
        let lines: String =
            changes(&before, &after).iter().map(|line| format!("{now} {line}\n")).collect();
        if !lines.is_empty() {
            say(lines)?;
        }
        before = after;
    }
    Ok(0)
}

fn look(client: &Client, start: &[u8]) -> Result<Values, Failure> {
    let mut values = Values::new();
    client.each_value(&client.keys(start)?, |key, value| {
        values.insert(key.to_vec(), value);
        Ok(())
    })?;
    Ok(values)
}

/// A line for each key that is not as it was, in the order of the keys.
fn changes(before: &Values, after: &Values) -> Vec<String> {
    let gone = before.keys().filter(|key| !after.contains_key(*key));
    let mut keys: Vec<&Vec<u8>> = after.keys().chain(gone).collect();
    keys.sort_unstable();
    let line = |key: &Vec<u8>| {
        let name = escaped(key);
        match (before.get(key), after.get(key)) {
            (None, Some(new)) => Some(format!("+ {name} = {}", quoted(new, SHOWN))),
            (Some(old), None) => Some(format!("- {name} was {}", quoted(old, SHOWN))),
            (Some(old), Some(new)) if old != new => {
                Some(format!("~ {name} {} -> {}", quoted(old, SHOWN), quoted(new, SHOWN)))
            }
            _ => None,
        }
    };
    keys.into_iter().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_a_line() {
        let of = |pairs: &[(&str, &str)]| -> Values {
            pairs
                .iter()
                .map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec()))
                .collect()
        };
        let before = of(&[("a", "1"), ("b", "2"), ("c", "3")]);
        let after = of(&[("b", "2\n"), ("c", "3"), ("d", "4")]);
        let lines = ["- a was \"1\"", "~ b \"2\" -> \"2\\n\"", "+ d = \"4\""];
        assert_eq!(changes(&before, &after), lines);
        assert!(changes(&after, &after).is_empty());
    }
}
