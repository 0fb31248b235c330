//! How the store answers, what is in it, and which ranks have come.

use crate::client::Client;
use crate::text::{count, escaped, quoted, ranks, span};
use crate::{Failure, Outcome, cli, say};
use dist::api::rendezvous::attendance::{Attendance, attendance, concerns};
use dist::base::error::Result;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How many pings the round trip is the median of.
const PINGS: usize = 100;
/// How many keys with large values are named.
const LARGEST: usize = 5;
/// How many ranks of a group are named with their processes.
const PROCESSES_NAMED: usize = 16;
/// How much of a key is shown.
const KEY_SHOWN: usize = 128;

pub(crate) fn run(options: &cli::Stats) -> Outcome {
    let client = Client::connect(&options.place)?;
    let trip = round_trip(&client)?;
    say(format!("{}\n", client.store.describe()))?;
    say(format!("connected in {}\n", span(client.took)))?;
    say(format!("round trip {} (median of {PINGS})\n", span(trip)))?;
    let joined = client.tcp.arrivals(&client.deadline())?;
    if joined > 0 {
        say(format!("clients that have joined as workers: {joined}\n"))?;
    }
    let keys = match client.keys(b"") {
        Ok(keys) => keys,
        Err(error) => {
            // A server that is still there but cannot list its keys is an older torch's.
            let number = client.store.num_keys(&client.deadline()).map_err(|_| error)?;
            say(format!("keys, which this server cannot list: {number}\n"))?;
            return Ok(0);
        }
    };
    let contents = Contents::read(&client, &keys)?;
    say(contents.tell())?;
    let told = contents.meetings.iter().map(|(key, value)| (key.as_slice(), value.as_slice()));
    for group in attendance(told) {
        say(tell(&group))?;
    }
    Ok(0)
}

/// The median time of a request that asks for nothing.
fn round_trip(client: &Client) -> Result<Duration> {
    let mut times = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let began = Instant::now();
        client.store.check(&[], &client.deadline())?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(times[PINGS / 2])
}

/// What the keys and values come to.
#[derive(Default)]
struct Contents {
    keys: usize,
    bytes: usize,
    /// The largest values, the largest first.
    largest: Vec<(usize, Vec<u8>)>,
    /// What ranks have written to find each other.
    meetings: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Contents {
    fn read(client: &Client, keys: &[Vec<u8>]) -> std::result::Result<Self, Failure> {
        let mut contents = Self::default();
        client.each_value(keys, |key, value| {
            contents.add(key, value);
            Ok(())
        })?;
        Ok(contents)
    }

    fn add(&mut self, key: &[u8], value: Vec<u8>) {
        self.keys += 1;
        self.bytes += value.len();
        let place = self.largest.partition_point(|(size, _)| *size >= value.len());
        if place < LARGEST {
            self.largest.insert(place, (value.len(), key.to_vec()));
            self.largest.truncate(LARGEST);
        }
        if concerns(key) {
            self.meetings.insert(key.to_vec(), value);
        }
    }

    fn tell(&self) -> String {
        let (keys, bytes) = (count(self.keys, "key"), count(self.bytes, "byte"));
        let mut text = format!("{keys} with {bytes} of values\n");
        if !self.largest.is_empty() {
            text.push_str("largest values:\n");
        }
        for (size, key) in &self.largest {
            text.push_str(&format!("{size:>10}  {}\n", quoted(key, KEY_SHOWN)));
        }
        text
    }
}

/// Which ranks of a group have come, and what is wrong with them.
fn tell(group: &Attendance) -> String {
    let (here, missing): (Vec<usize>, _) = (group.here.keys().copied().collect(), group.missing());
    let name = escaped(group.group.as_bytes());
    let mut text = match group.size {
        // No entry can be read.
        0 => format!("{name} of unknown size: "),
        size => format!("{name} of {size}: "),
    };
    text.push_str(&match missing.as_slice() {
        [] if group.size == 0 => are_here(&here),
        [] if group.met => "all ranks are here and have met".to_owned(),
        [] => "all ranks are here, but have not met yet".to_owned(),
        [_] => format!("{}; {} is missing", are_here(&here), ranks(&missing)),
        _ => format!("{}; {} are missing", are_here(&here), ranks(&missing)),
    });
    if !group.prefix.is_empty() {
        text.push_str(&format!(" (under {})", quoted(group.prefix.as_bytes(), KEY_SHOWN)));
    }
    text.push('\n');
    for complaint in &group.complaints {
        text.push_str(&format!("  {}\n", escaped(complaint.as_bytes())));
    }
    for (rank, who) in group.here.iter().take(PROCESSES_NAMED) {
        text.push_str(&format!("  rank {rank}: {}\n", escaped(who.as_bytes())));
    }
    if here.len() > PROCESSES_NAMED {
        text.push_str(&format!("  and {} more\n", here.len() - PROCESSES_NAMED));
    }
    text
}

fn are_here(here: &[usize]) -> String {
    match here {
        [rank] => format!("rank {rank} is here"),
        _ => format!("ranks {} are here", ranks(here)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(size: usize, here: &[usize], met: bool) -> Attendance {
        let here = here.iter().map(|&rank| (rank, format!("pid {rank}, host h"))).collect();
        let (group, prefix) = ("world".to_owned(), String::new());
        Attendance { group, prefix, size, here, met, complaints: vec!["it\nhurts".to_owned()] }
    }

    #[test]
    fn it_is_said_who_is_here_and_who_is_missing() {
        let first = |group: &Attendance| tell(group).lines().next().unwrap().to_owned();
        let text = first(&group(4, &[0, 1, 3], false));
        assert_eq!(text, "world of 4: ranks 0, 1, 3 are here; 2 is missing");
        let text = first(&group(8, &[5], false));
        assert_eq!(text, "world of 8: rank 5 is here; 0-4, 6, 7 are missing");
        let text = first(&group(2, &[0, 1], true));
        assert_eq!(text, "world of 2: all ranks are here and have met");
        let text = first(&group(2, &[0, 1], false));
        assert_eq!(text, "world of 2: all ranks are here, but have not met yet");
        let text = first(&group(0, &[0, 2], false));
        assert_eq!(text, "world of unknown size: ranks 0, 2 are here");
        let text = tell(&group(40, &(0..20).collect::<Vec<_>>(), false));
        assert!(text.contains("\n  it\\nhurts\n  rank 0: pid 0, host h\n"), "{text}");
        assert!(text.ends_with("rank 15: pid 15, host h\n  and 4 more\n"), "{text}");
    }

    #[test]
    fn the_largest_values_are_kept_in_order() {
        let mut contents = Contents::default();
        for size in [3, 9, 1, 7, 5, 8, 9] {
            contents.add(format!("k{size}").as_bytes(), vec![0; size]);
        }
        let sizes: Vec<usize> = contents.largest.iter().map(|(size, _)| *size).collect();
        assert_eq!((sizes, contents.bytes), (vec![9, 9, 8, 7, 5], 42));
    }
}
