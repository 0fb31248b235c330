//! The command watch: prints the changes in the store. The program polls the store, because the
//! protocol has no subscriptions.

use crate::client::StoreClient;
use crate::formatting::{escape_bytes, format_time_of_day, quote_bytes};
use crate::{CommandResult, Failure, cli, print};
use dist::base::deadline::Deadline;
use dist::wait;
use dist_tools::count_text;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::time::{Duration, SystemTime};

/// A longer value is shortened to this number of bytes.
const VALUE_BYTES_SHOWN: usize = 60;

/// The keys and values of the store at one time.
type StoreSnapshot = BTreeMap<Vec<u8>, Vec<u8>>;

pub(crate) fn run(options: &cli::WatchArgs) -> CommandResult {
    let client = StoreClient::connect(&options.location)?;
    let end = options.duration.map_or_else(Deadline::never, |limit| Deadline::after(limit.0));
    let interval = Duration::from_millis(options.interval);
    let start = options.start.as_bytes();
    let mut before = take_snapshot(&client, start)?;
    if !options.json {
        let (now, store) = (format_time_of_day(SystemTime::now()), client.store.describe());
        print(format!("{now} {} in {store}\n", count_text(before.len(), "key")))?;
    }
    while !end.has_passed() {
        wait::pause(interval, &end);
        let after = take_snapshot(&client, start)?;
        let now = format_time_of_day(SystemTime::now());
        let changes = diff_snapshots(&before, &after);
        let lines = changes.iter().map(|change| match options.json {
            true => format!("{}\n", change.json(&now)),
            false => format!("{now} {}\n", change.line()),
        });
        let lines: String = lines.collect();
        if !lines.is_empty() {
            print(lines)?;
        }
        before = after;
    }
    Ok(0)
}

fn take_snapshot(client: &StoreClient, start: &[u8]) -> Result<StoreSnapshot, Failure> {
    let mut values = StoreSnapshot::new();
    client.for_each_value(&client.keys(start)?, |key, value| {
        values.insert(key.to_vec(), value);
        Ok(())
    })?;
    Ok(values)
}

/// A key whose value differs between two snapshots. A missing value means that the key does not
/// exist in this snapshot.
struct KeyChange<'a> {
    key: &'a [u8],
    old: Option<&'a Vec<u8>>,
    new: Option<&'a Vec<u8>>,
}

impl KeyChange<'_> {
    fn line(&self) -> String {
        let name = escape_bytes(self.key);
        let quote = |value: &[u8]| quote_bytes(value, VALUE_BYTES_SHOWN);
        match (self.old, self.new) {
            (Some(old), Some(new)) => format!("~ {name} {} -> {}", quote(old), quote(new)),
            (None, Some(new)) => format!("+ {name} = {}", quote(new)),
            (old, None) => format!("- {name} was {}", quote(old.map_or(&[], Vec::as_slice))),
        }
    }

    fn json(&self, time: &str) -> Value {
        let text = |value: Option<&Vec<u8>>| value.map(|value| escape_bytes(value));
        let (old, new) = (text(self.old), text(self.new));
        json!({ "time": time, "key": escape_bytes(self.key), "old": old, "new": new })
    }
}

/// Returns the changed keys in order.
fn diff_snapshots<'a>(before: &'a StoreSnapshot, after: &'a StoreSnapshot) -> Vec<KeyChange<'a>> {
    let removed = before.keys().filter(|key| !after.contains_key(*key));
    let mut keys: Vec<&Vec<u8>> = after.keys().chain(removed).collect();
    keys.sort_unstable();
    let change = |key: &'a Vec<u8>| KeyChange { key, old: before.get(key), new: after.get(key) };
    keys.into_iter().map(change).filter(|change| change.old != change.new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_a_line() {
        let of = |pairs: &[(&str, &str)]| -> StoreSnapshot {
            pairs
                .iter()
                .map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec()))
                .collect()
        };
        let before = of(&[("a", "1"), ("b", "2"), ("c", "3")]);
        let after = of(&[("b", "2\n"), ("c", "3"), ("d", "4")]);
        let lines = ["- a was \"1\"", "~ b \"2\" -> \"2\\n\"", "+ d = \"4\""];
        let changes = diff_snapshots(&before, &after);
        assert_eq!(changes.iter().map(KeyChange::line).collect::<Vec<_>>(), lines);
        let expected = json!({ "time": "now", "key": "b", "old": "2", "new": "2\\n" });
        assert_eq!(changes[1].json("now"), expected);
        assert_eq!(changes[0].json("now")["new"], Value::Null);
        assert!(diff_snapshots(&after, &after).is_empty());
    }
}
