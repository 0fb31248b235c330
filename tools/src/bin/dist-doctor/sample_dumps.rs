//! Sample dumps for tests, one for each rank of a group with the name "world".

use crate::recorder_dump::Dump;
use serde_json::{Value, json};

/// The time on the wall clock at which the clock of a dump shows 0.
const ORIGIN_UNIX_NS: u64 = 1_790_000_000_000_000_000;

const SECOND_NS: u64 = 1_000_000_000;

/// A builder of a dump. Times are in milliseconds.
pub(crate) struct SampleDump(Value);

/// Builds the dump of one rank that has finished `finished_count` operations, one per 10 ms. The
/// dump is taken at 20 s.
pub(crate) fn sample_dump(rank: usize, size: usize, finished_count: u64) -> SampleDump {
    let mut dump = SampleDump(json!({
        "format": "libdist flight recorder", "version": 4, "library": "0.1.0", "reason": "request",
        "host": "a", "pid": 100 + rank, "rank": rank, "world_size": size,
        "origin_unix_ns": ORIGIN_UNIX_NS, "taken_ns": 20 * SECOND_NS, "groups_left_out": 0,
        "groups": [], "entries": [],
    }));
    dump.add_group(1, "world", rank, &(0..size).collect::<Vec<_>>());
    for sequence in 1..=finished_count {
        dump.add_collective(1, rank, sequence, "all_reduce", "f32, SUM, count 10");
        dump.set_outcome("done", sequence * 10, Some(sequence * 10 + 1));
    }
    dump
}

impl SampleDump {
    /// Adds a group of these processes, in which the dump's process is rank `rank`.
    pub(crate) fn add_group(&mut self, id: u64, name: &str, rank: usize, members: &[usize]) {
        let member = |(rank, &global): (usize, &usize)| json!({ "rank": rank, "pid": 100 + global, "host": "a", "global_rank": global });
        let all: Vec<Value> = members.iter().enumerate().map(member).collect();
        let group = json!({
            "id": format!("{id:016x}"), "name": name, "rank": rank, "size": members.len(),
            "members": all, "failure": null,
        });
        self.list_mut("groups").push(group);
    }

    /// Sets the id of the first group and the process id.
    pub(crate) fn set_group_and_pid(&mut self, id: u64, pid: u64) {
        self.0["pid"] = json!(pid);
        self.list_mut("groups")[0]["id"] = json!(format!("{id:016x}"));
    }

    /// Marks group number `at` as failed.
    pub(crate) fn fail_group(
        &mut self,
        at: usize,
        kind: &str,
        message: &str,
        culprit: Option<usize>,
    ) {
        let failure = json!({ "kind": kind, "message": message, "culprit": culprit });
        self.list_mut("groups")[at]["failure"] = failure;
    }

    /// Adds a collective that started at 5 s and still runs.
    pub(crate) fn add_collective(
        &mut self,
        id: u64,
        rank: usize,
        number: u64,
        name: &str,
        arguments: &str,
    ) {
        let what = if arguments.is_empty() { String::new() } else { format!(" ({arguments})") };
        let entry = json!({
            "group": format!("{id:016x}"), "rank": rank, "kind": "collective", "operation": name,
            "sequence": number, "description": format!("{name} #{number}{what}"),
            "issued_ns": 5 * SECOND_NS, "started_ns": 5 * SECOND_NS, "ended_ns": null,
            "state": "running",
        });
        self.list_mut("entries").push(entry);
    }

    /// Adds a monitored barrier with this number. It started at 5 s and still runs.
    pub(crate) fn add_monitored_barrier(&mut self, id: u64, rank: usize, number: u64) {
        self.add_collective(id, rank, number, "monitored_barrier", "");
        let Some(entry) = self.list_mut("entries").last_mut() else { return };
        entry["kind"] = json!("monitored_barrier");
    }

    /// Sets the label of the last operation. An empty text removes the label.
    pub(crate) fn set_label(&mut self, label: &str) {
        let Some(entry) = self.list_mut("entries").last_mut() else { return };
        let Some(description) = entry["description"].as_str().map(str::to_owned) else { return };
        let plain = match (description.find('"'), description.rfind('"')) {
            (Some(first), Some(last)) => {
                format!("{}{}", &description[..first - 1], &description[last + 1..])
            }
            _ => description,
        };
        let (name, arguments) = plain.split_once(" (").unwrap_or((&plain, ""));
        let arguments = if arguments.is_empty() { "" } else { &plain[name.len()..] };
        entry["description"] = match label {
            "" => json!(plain),
            _ => json!(format!("{name} \"{label}\"{arguments}")),
        };
        match (label, entry.as_object_mut()) {
            ("", Some(entry)) => drop(entry.remove("label")),
            _ => entry["label"] = json!(label),
        }
    }

    /// Adds a receive from rank `peer`. It started at 5 s and still runs.
    pub(crate) fn add_receive(&mut self, id: u64, rank: usize, peer: usize) {
        let entry = json!({
            "group": format!("{id:016x}"), "rank": rank, "kind": "message", "operation": "recv",
            "sequence": 1, "description": format!("receive from rank {peer}, tag 7 (f32, count 10)"),
            "peer": peer, "tag": 7, "issued_ns": 5 * SECOND_NS, "started_ns": 5 * SECOND_NS,
            "ended_ns": null, "state": "running",
        });
        self.list_mut("entries").push(entry);
    }

    /// Sets the state of the last operation, and its begin and end in milliseconds.
    pub(crate) fn set_outcome(&mut self, state: &str, began_ms: u64, ended_ms: Option<u64>) {
        let Some(entry) = self.list_mut("entries").last_mut() else { return };
        let state: Vec<&str> = state.split(' ').collect();
        entry["state"] = json!(state[0]);
        entry["error"] = json!(state.get(1));
        entry["issued_ns"] = json!(began_ms * 1_000_000);
        entry["started_ns"] = json!(began_ms * 1_000_000);
        entry["ended_ns"] = json!(ended_ms.map(|ms| ms * 1_000_000));
    }

    fn list_mut(&mut self, name: &str) -> &mut Vec<Value> {
        self.0[name].as_array_mut().unwrap()
    }

    /// Returns the dump as JSON.
    pub(crate) fn to_value(&self) -> Value {
        self.0.clone()
    }

    /// Parses the dump.
    pub(crate) fn to_dump(&self) -> Dump {
        Dump::parse("sample", self.0.to_string().as_bytes()).unwrap()
    }
}
