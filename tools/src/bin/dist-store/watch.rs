//! The command watch: prints the changes in the store. The program polls the store, because the
//! protocol has no subscriptions.

use crate::client::StoreClient;
use crate::formatting::{escape_bytes, format_time_of_day, quote_bytes};
use crate::{CommandResult, Failure, cli, print};
use dist::base::deadline::Deadline;
use dist::wait;
use dist_tools::count_text;
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
    let (now, store) = (format_time_of_day(SystemTime::now()), client.store.describe());
    print(format!("{now} {} in {store}\n", count_text(before.len(), "key")))?;
    while !end.has_passed() {
        wait::pause(interval, &end);
        let after = take_snapshot(&client, start)?;
        let now = format_time_of_day(SystemTime::now());
        let lines: String =
            diff_snapshots(&before, &after).iter().map(|line| format!("{now} {line}\n")).collect();
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

/// Returns one line for each changed key, in the order of keys.
fn diff_snapshots(before: &StoreSnapshot, after: &StoreSnapshot) -> Vec<String> {
    let removed = before.keys().filter(|key| !after.contains_key(*key));
    let mut keys: Vec<&Vec<u8>> = after.keys().chain(removed).collect();
    keys.sort_unstable();
    let line = |key: &Vec<u8>| {
        let name = escape_bytes(key);
        match (before.get(key), after.get(key)) {
            (None, Some(new)) => {
                Some(format!("+ {name} = {}", quote_bytes(new, VALUE_BYTES_SHOWN)))
            }
            (Some(old), None) => {
                Some(format!("- {name} was {}", quote_bytes(old, VALUE_BYTES_SHOWN)))
            }
            (Some(old), Some(new)) if old != new => Some(format!(
                "~ {name} {} -> {}",
                quote_bytes(old, VALUE_BYTES_SHOWN),
                quote_bytes(new, VALUE_BYTES_SHOWN)
            )),
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
        let of = |pairs: &[(&str, &str)]| -> StoreSnapshot {
            pairs
                .iter()
                .map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec()))
                .collect()
        };
        let before = of(&[("a", "1"), ("b", "2"), ("c", "3")]);
        let after = of(&[("b", "2\n"), ("c", "3"), ("d", "4")]);
        let lines = ["- a was \"1\"", "~ b \"2\" -> \"2\\n\"", "+ d = \"4\""];
        assert_eq!(diff_snapshots(&before, &after), lines);
        assert!(diff_snapshots(&after, &after).is_empty());
    }
}
