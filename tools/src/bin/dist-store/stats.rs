//! The command stats: the latency and contents of the store, and the ranks that have joined.

use crate::client::StoreClient;
use crate::formatting::{escape_bytes, format_duration, quote_bytes};
use crate::{CommandResult, Failure, cli, print};
use dist::api::membership::rendezvous::status::{
    RendezvousStatus, is_rendezvous_key, rendezvous_statuses,
};
use dist::base::error::Result;
use dist_terminal::{Alignment, text_table};
use dist_tools::{count_text, ranges_text};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The number of measured round trips. The program shows their median.
const PING_COUNT: usize = 100;
/// The program names the keys of this number of values, the largest ones.
const LARGEST_VALUES_SHOWN: usize = 5;
/// The program shows the processes of this number of ranks of each group.
const PROCESSES_NAMED: usize = 16;
/// A longer key is shortened to this number of bytes.
const KEY_BYTES_SHOWN: usize = 128;

pub(crate) fn run(options: &cli::StatsArgs) -> CommandResult {
    let client = StoreClient::connect(&options.location)?;
    let report = StoreReport::read(&client)?;
    if options.json {
        print(format!("{:#}\n", report.json()))?;
    } else {
        print(report.text())?;
    }
    Ok(0)
}

/// The results of the command.
struct StoreReport {
    store: String,
    connect_time: Duration,
    round_trip_time: Duration,
    /// The number of clients that have joined as workers.
    workers: i64,
    keys: i64,
    /// `None` if the server cannot list its keys. This is so for older versions of torch.
    contents: Option<StoreContents>,
}

impl StoreReport {
    fn read(client: &StoreClient) -> std::result::Result<Self, Failure> {
        let round_trip_time = measure_round_trip(client)?;
        let workers = client.tcp.worker_count(&client.deadline())?;
        let (keys, contents) = match client.keys(b"") {
            Ok(keys) => (
                i64::try_from(keys.len()).unwrap_or(i64::MAX),
                Some(StoreContents::read(client, &keys)?),
            ),
            Err(error) => {
                // If the server replies to other requests, it cannot list its keys.
                let number = client.store.num_keys(&client.deadline()).map_err(|_| error)?;
                (number, None)
            }
        };
        let (store, connect_time) = (client.store.describe(), client.connect_time);
        Ok(Self { store, connect_time, round_trip_time, workers, keys, contents })
    }

    fn text(&self) -> String {
        let (connected, round_trip) =
            (format_duration(self.connect_time), format_duration(self.round_trip_time));
        let mut text = format!(
            "{}\nconnected in {connected}\nround trip {round_trip} (median of {PING_COUNT})\n",
            self.store
        );
        if self.workers > 0 {
            text += &format!("clients that have joined as workers: {}\n", self.workers);
        }
        match &self.contents {
            Some(contents) => {
                text += &contents.format_summary();
                contents.groups().iter().for_each(|group| text += &format_group(group));
            }
            None => text += &format!("keys: {} (this server cannot list them)\n", self.keys),
        }
        text
    }

    fn json(&self) -> Value {
        let contents = self.contents.as_ref();
        json!({
            "store": self.store,
            "connect_us": self.connect_time.as_secs_f64() * 1e6,
            "round_trip_us": self.round_trip_time.as_secs_f64() * 1e6,
            "workers": self.workers,
            "keys": self.keys,
            "value_bytes": contents.map(|contents| contents.bytes),
            "largest": contents.map(StoreContents::largest_json),
            "groups": contents.map(|it| it.groups().iter().map(group_json).collect::<Vec<_>>()),
        })
    }
}

/// Measures the median time of a CHECK without keys.
fn measure_round_trip(client: &StoreClient) -> Result<Duration> {
    let mut times = Vec::with_capacity(PING_COUNT);
    for _ in 0..PING_COUNT {
        let started_at = Instant::now();
        client.store.check(&[], &client.deadline())?;
        times.push(started_at.elapsed());
    }
    times.sort_unstable();
    Ok(times[PING_COUNT / 2])
}

/// A summary of keys and values.
#[derive(Default)]
struct StoreContents {
    keys: usize,
    bytes: usize,
    /// The sizes and keys of the largest values, in descending order.
    largest: Vec<(usize, Vec<u8>)>,
    /// The rendezvous entries of ranks.
    rendezvous_entries: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl StoreContents {
    fn read(client: &StoreClient, keys: &[Vec<u8>]) -> std::result::Result<Self, Failure> {
        let mut contents = Self::default();
        client.for_each_value(keys, |key, value| {
            contents.add(key, value);
            Ok(())
        })?;
        Ok(contents)
    }

    fn add(&mut self, key: &[u8], value: Vec<u8>) {
        self.keys += 1;
        self.bytes += value.len();
        let position = self.largest.partition_point(|(size, _)| *size >= value.len());
        if position < LARGEST_VALUES_SHOWN {
            self.largest.insert(position, (value.len(), key.to_vec()));
            self.largest.truncate(LARGEST_VALUES_SHOWN);
        }
        if is_rendezvous_key(key) {
            self.rendezvous_entries.insert(key.to_vec(), value);
        }
    }

    /// Returns the groups whose ranks have left entries.
    fn groups(&self) -> Vec<RendezvousStatus> {
        let entries = self.rendezvous_entries.iter();
        rendezvous_statuses(entries.map(|(key, value)| (key.as_slice(), value.as_slice())))
    }

    fn largest_json(&self) -> Value {
        let largest = self.largest.iter();
        largest.map(|(size, key)| json!({ "key": escape_bytes(key), "bytes": size })).collect()
    }

    fn format_summary(&self) -> String {
        let (keys, bytes) = (count_text(self.keys, "key"), count_text(self.bytes, "byte"));
        let mut text = format!("{keys} with {bytes} of values\n");
        if !self.largest.is_empty() {
            text.push_str("largest values:\n");
        }
        let rows = self
            .largest
            .iter()
            .map(|(size, key)| [format!("  {size}"), quote_bytes(key, KEY_BYTES_SHOWN)]);
        text + &text_table([("", Alignment::Right), ("", Alignment::Left)], rows)
    }
}

/// Returns which ranks of a group have arrived, for programs.
fn group_json(group: &RendezvousStatus) -> Value {
    let arrived = group.arrived.iter();
    json!({
        "name": group.group,
        "prefix": group.prefix,
        // 0 if no rank's entry is readable.
        "size": group.size,
        "complete": group.is_complete,
        "arrived": arrived
            .map(|(rank, process)| json!({ "rank": rank, "process": process }))
            .collect::<Vec<_>>(),
        "missing": group.missing(),
        "problems": group.problems,
    })
}

/// Formats which ranks of a group have arrived at the rendezvous, and the problems of the group.
fn format_group(group: &RendezvousStatus) -> String {
    let (present, missing): (Vec<usize>, _) =
        (group.arrived.keys().copied().collect(), group.missing());
    let name = escape_bytes(group.group.as_bytes());
    let mut text = match group.size {
        // No rank's entry is readable, so the size of the group is unknown.
        0 => format!("{name} of unknown size: "),
        size => format!("{name} of {size}: "),
    };
    text.push_str(&match missing.as_slice() {
        [] if group.size == 0 => format_present(&present),
        [] if group.is_complete => {
            "all ranks have arrived, and the rendezvous is complete".to_owned()
        }
        [] => "all ranks have arrived, but the rendezvous is not complete".to_owned(),
        [_] => format!("{}; {} is missing", format_present(&present), ranges_text(&missing)),
        _ => format!("{}; {} are missing", format_present(&present), ranges_text(&missing)),
    });
    if !group.prefix.is_empty() {
        text.push_str(&format!(
            " (under {})",
            quote_bytes(group.prefix.as_bytes(), KEY_BYTES_SHOWN)
        ));
    }
    text.push('\n');
    for problem in &group.problems {
        text.push_str(&format!("  {}\n", escape_bytes(problem.as_bytes())));
    }
    for (rank, process) in group.arrived.iter().take(PROCESSES_NAMED) {
        text.push_str(&format!("  rank {rank}: {}\n", escape_bytes(process.as_bytes())));
    }
    if present.len() > PROCESSES_NAMED {
        text.push_str(&format!("  and {} more\n", present.len() - PROCESSES_NAMED));
    }
    text
}

fn format_present(present: &[usize]) -> String {
    match present {
        [rank] => format!("rank {rank} has arrived"),
        _ => format!("ranks {} have arrived", ranges_text(present)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(size: usize, ranks: &[usize], is_complete: bool) -> RendezvousStatus {
        let arrived = ranks.iter().map(|&rank| (rank, format!("pid {rank}, host h"))).collect();
        let (group, prefix) = ("world".to_owned(), String::new());
        RendezvousStatus {
            group,
            prefix,
            size,
            arrived,
            is_complete,
            problems: vec!["it\nhurts".to_owned()],
        }
    }

    #[test]
    fn group_line_names_present_and_missing_ranks() {
        let first =
            |group: &RendezvousStatus| format_group(group).lines().next().unwrap().to_owned();
        let text = first(&group(4, &[0, 1, 3], false));
        assert_eq!(text, "world of 4: ranks 0, 1, 3 have arrived; 2 is missing");
        let text = first(&group(8, &[5], false));
        assert_eq!(text, "world of 8: rank 5 has arrived; 0-4, 6, 7 are missing");
        let text = first(&group(2, &[0, 1], true));
        assert_eq!(text, "world of 2: all ranks have arrived, and the rendezvous is complete");
        let text = first(&group(2, &[0, 1], false));
        assert_eq!(text, "world of 2: all ranks have arrived, but the rendezvous is not complete");
        let text = first(&group(0, &[0, 2], false));
        assert_eq!(text, "world of unknown size: ranks 0, 2 have arrived");
        let text = format_group(&group(40, &(0..20).collect::<Vec<_>>(), false));
        assert!(text.contains("\n  it\\nhurts\n  rank 0: pid 0, host h\n"), "{text}");
        assert!(text.ends_with("rank 15: pid 15, host h\n  and 4 more\n"), "{text}");
    }

    #[test]
    fn the_largest_values_are_kept_in_order() {
        let mut contents = StoreContents::default();
        for size in [3, 9, 1, 7, 5, 8, 9] {
            contents.add(format!("k{size}").as_bytes(), vec![0; size]);
        }
        let sizes: Vec<usize> = contents.largest.iter().map(|(size, _)| *size).collect();
        assert_eq!((sizes, contents.bytes), (vec![9, 9, 8, 7, 5], 42));
    }
}
