//! Tests that merge sample traces of hosts with known clock differences.

use super::*;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

const MS: i64 = 1_000_000;

/// A folder that is removed at the end of the test.
struct TraceFolder(PathBuf);

impl TraceFolder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("dist-trace-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Merges the traces in the folder, and returns the parsed output file.
    fn merge(&self, inputs: &[&str]) -> Result<Value, Failure> {
        let output = self.path("merged.json");
        let inputs = inputs.iter().map(|input| self.path(input).into_os_string()).collect();
        main(&TraceOptions { inputs, output: output.clone().into_os_string(), json: false })?;
        Ok(serde_json::from_slice(&fs::read(output).unwrap()).unwrap())
    }

    fn merge_error(&self, inputs: &[&str]) -> String {
        let failure = self.merge(inputs).unwrap_err();
        assert_eq!(failure.status, 2);
        assert!(!self.path("merged.json").exists() && !self.path("merged.json.part").exists());
        failure.message
    }
}

impl Drop for TraceFolder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// A rank on a host. Its clock shows `t * clock_rate + clock_offset` at the true time `t`.
#[derive(Clone, Copy)]
struct SampleRank {
    rank: usize,
    host: &'static str,
    clock_offset: i64,
    clock_rate: f64,
}

impl SampleRank {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "sample times are small"
    )]
    fn clock(&self, ns: i64) -> i64 {
        (ns as f64 * self.clock_rate) as i64 + self.clock_offset
    }

    fn first_event(&self) -> Value {
        json!({"name": "libdist_trace", "ph": "M", "pid": self.rank, "tid": 0, "args": {
            "version": 1, "host": self.host, "pid": 100 + self.rank, "clock": self.host,
            "monotonic_ns": self.clock(0), "wall_ns": 1_700_000_000_000_000_000_i64,
        }})
    }

    #[allow(clippy::cast_precision_loss, reason = "sample times are small")]
    fn operation_event(&self, name: &str, sequence: i64, (begun, ended): (i64, i64)) -> Value {
        let (begun, ended) = (self.clock(begun), self.clock(ended));
        json!({
            "name": name, "cat": "collective", "ph": "X", "pid": self.rank, "tid": 128,
            "ts": begun as f64 / 1000.0, "dur": (ended - begun) as f64 / 1000.0,
            "args": {
                "group": "world", "group_id": "00ff", "rank": self.rank, "ranks": 2,
                "sequence": sequence, "bytes": 8, "state": "done",
            },
        })
    }
}

fn trace_text(lines: &[Value], end: &str) -> String {
    let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
    format!("[\n{}{end}", lines.join(",\n"))
}

const TRACE_END: &str = ",\n{\"name\":\"libdist_end\",\"ph\":\"M\",\"args\":{\"dropped\":0}}\n]\n";

/// Writes traces of two ranks with one all-reduce per `every` ns. The later rank alternates, and
/// both end 20 us after the later start.
fn write_two_traces(folder: &TraceFolder, ranks: [SampleRank; 2], count: i64, every: i64) {
    for rank in ranks {
        let mut lines = vec![rank.first_event()];
        for i in 0..count {
            let at = i * every;
            let (first, second) = (at + i * 37 % 90_000, at + i * 53 % 110_000);
            let ended = first.max(second) + 20_000;
            let begun = if rank.rank == ranks[0].rank { first } else { second };
            // The label of a call follows its name.
            let name = if i % 2 == 0 { "all_reduce" } else { "all_reduce \"layer3.weight\"" };
            lines.push(rank.operation_event(name, i + 1, (begun, ended)));
        }
        folder.write(&format!("tr_{}.json", rank.rank), &trace_text(&lines, TRACE_END));
    }
}

fn align_two_ranks(folder: &TraceFolder) -> ClockAlignment {
    let mut index = TraceIndex::default();
    for rank in 0..2 {
        index.read_file(&folder.path(&format!("tr_{rank}.json"))).unwrap();
    }
    clock_alignment::align_clocks(&index.sources)
}

const NEAR_RANK: SampleRank =
    SampleRank { rank: 0, host: "near", clock_offset: 7 * MS, clock_rate: 1.0 };

#[test]
fn a_constant_offset_is_found_from_common_operations() {
    let folder = TraceFolder::new("offset");
    let far = SampleRank { rank: 1, host: "far", clock_offset: 90_000 * MS, clock_rate: 1.0 };
    write_two_traces(&folder, [NEAR_RANK, far], 500, MS);
    let alignment = align_two_ranks(&folder);
    let ClockSource::CommonOperations { count, max_error_ns: off_ns } = alignment.hosts[1].source
    else {
        panic!("not set")
    };
    assert_eq!((count, alignment.hosts[0].source), (500, ClockSource::Reference));
    let wrong = alignment.hosts[1].offset_ns - (NEAR_RANK.clock_offset - far.clock_offset);
    assert!(wrong.abs() <= off_ns && off_ns <= 25_000, "{wrong} of {off_ns}");
}

#[test]
fn clock_drift_is_corrected() {
    let folder = TraceFolder::new("drift");
    // 20 ppm during 100 s are 2 ms.
    let far = SampleRank { rank: 1, host: "far", clock_offset: 90_000 * MS, clock_rate: 1.000_02 };
    write_two_traces(&folder, [NEAR_RANK, far], 2000, 50 * MS);
    let alignment = align_two_ranks(&folder);
    for at in [0, 30_000 * MS, 100_000 * MS] {
        let wrong = alignment.to_common_clock("far", far.clock(at)) - NEAR_RANK.clock(at);
        assert!(wrong.abs() < 60_000, "{wrong} ns at {at}");
    }
}

#[test]
fn merged_events_are_ordered_by_true_time_from_zero() {
    let folder = TraceFolder::new("order");
    let far = SampleRank { rank: 1, host: "far", clock_offset: -6 * MS, clock_rate: 1.0 };
    // Increase the clock offset, so that no time is negative.
    let far = SampleRank { clock_offset: far.clock_offset + 20 * MS, ..far };
    write_two_traces(&folder, [NEAR_RANK, far], 100, MS);
    let merged = folder.merge(&["tr_"]).unwrap();
    let events = merged["traceEvents"].as_array().unwrap();
    let times: Vec<f64> = events.iter().filter_map(|event| event["ts"].as_f64()).collect();
    assert_eq!((events.len(), times.len(), times[0]), (200, 200, 0.0));
    assert!(times.is_sorted());
    // No rank ends an operation before the other rank has begun it.
    for sequence in 1..=100 {
        let both: Vec<&Value> =
            events.iter().filter(|event| event["args"]["sequence"] == sequence).collect();
        let begins = |event: &Value| event["ts"].as_f64().unwrap();
        let ends = |event: &Value| begins(event) + event["dur"].as_f64().unwrap();
        assert!(ends(both[0]) >= begins(both[1]) && ends(both[1]) >= begins(both[0]));
    }
}

#[test]
fn hosts_without_common_operation_use_wall_clock() {
    let folder = TraceFolder::new("wall");
    let far = SampleRank { rank: 1, host: "far", clock_offset: 500 * MS, clock_rate: 1.0 };
    for rank in [NEAR_RANK, far] {
        // A broadcast: a rank may leave it before the other ranks enter.
        let lines = [rank.first_event(), rank.operation_event("broadcast", 1, (MS, 2 * MS))];
        folder.write(&format!("tr_{}.json", rank.rank), &trace_text(&lines, TRACE_END));
    }
    let alignment = align_two_ranks(&folder);
    assert_eq!(alignment.hosts[1].source, ClockSource::WallClock);
    assert_eq!(alignment.to_common_clock("far", far.clock(MS)), NEAR_RANK.clock(MS));
}

#[test]
fn hosts_are_aligned_through_a_third_host() {
    let folder = TraceFolder::new("chain");
    let middle = SampleRank { rank: 1, host: "middle", clock_offset: 40 * MS, clock_rate: 1.0 };
    let far = SampleRank { rank: 2, host: "far", clock_offset: 900 * MS, clock_rate: 1.0 };
    let at = |sequence: i64| (sequence * MS, sequence * MS + 30_000);
    let write = |rank: SampleRank, sequences: &[i64]| {
        let mut lines = vec![rank.first_event()];
        lines.extend(sequences.iter().map(|&n| rank.operation_event("barrier", n, at(n))));
        folder.write(&format!("tr_{}.json", rank.rank), &trace_text(&lines, TRACE_END));
    };
    write(NEAR_RANK, &[1, 2]);
    write(middle, &[1, 2, 3, 4]);
    write(far, &[3, 4]);
    let mut index = TraceIndex::default();
    (0..3).for_each(|rank| index.read_file(&folder.path(&format!("tr_{rank}.json"))).unwrap());
    let alignment = clock_alignment::align_clocks(&index.sources);
    let wrong = alignment.to_common_clock("far", far.clock(5 * MS)) - NEAR_RANK.clock(5 * MS);
    assert!(wrong.abs() <= 60_000, "{wrong}");
    assert!(matches!(alignment.hosts[2].source, ClockSource::CommonOperations { count: 2, .. }));
}

#[test]
fn truncated_trace_is_merged_up_to_the_cut() {
    let folder = TraceFolder::new("cut");
    write_two_traces(&folder, [NEAR_RANK, SampleRank { rank: 1, ..NEAR_RANK }], 10, MS);
    let whole = fs::read_to_string(folder.path("tr_1.json")).unwrap();
    let cut = whole.find("\"sequence\":5").unwrap();
    folder.write("tr_1.json", &whole[..cut]);
    let merged = folder.merge(&["tr_0.json", "tr_1.json"]).unwrap();
    let of_rank = |rank: i32| {
        merged["traceEvents"].as_array().unwrap().iter().filter(|e| e["pid"] == rank).count()
    };
    assert_eq!((of_rank(0), of_rank(1)), (10, 4));
}

#[test]
fn second_process_of_a_rank_gets_its_own_pid() {
    let folder = TraceFolder::new("again");
    for (name, pid) in [("a.json", 5), ("b.json", 6)] {
        let mut head = NEAR_RANK.first_event();
        head["args"]["pid"] = json!(pid);
        folder.write(
            name,
            &trace_text(&[head, NEAR_RANK.operation_event("barrier", 1, (MS, 2 * MS))], TRACE_END),
        );
    }
    // Files in the folder that are no traces are ignored.
    folder.write("dump_0.json", "{\"format\": \"libdist flight recorder\"}");
    let merged = folder.merge(&[""]).unwrap();
    let pids: Vec<&Value> =
        merged["traceEvents"].as_array().unwrap().iter().map(|event| &event["pid"]).collect();
    assert_eq!(pids, [&json!(0), &json!(1)]);
}

#[test]
fn malformed_traces_are_refused_with_name_and_line() {
    let folder = TraceFolder::new("refused");
    let good = NEAR_RANK.operation_event("barrier", 1, (MS, 2 * MS));
    folder.write("good.json", &trace_text(&[NEAR_RANK.first_event(), good.clone()], TRACE_END));
    let mut old = NEAR_RANK.first_event();
    old["args"]["version"] = json!(99);
    let mut bad_time = good.clone();
    bad_time["ts"] = json!(-1.0);
    for (lines, expected) in [
        (vec![good.clone()], "not a trace of libdist"),
        (vec![old], "version 99 is not supported"),
        (
            vec![json!({"name": "libdist_trace", "args": {"version": 1}})],
            "lacks a field of the clock",
        ),
        (vec![NEAR_RANK.first_event(), json!([1]), good], "line 3 is not a trace event"),
        (vec![NEAR_RANK.first_event(), bad_time], "line 3: ts is not a time"),
        (vec![NEAR_RANK.first_event(), json!({"pid": "x", "ts": 1})], "line 3: pid is not a rank"),
    ] {
        folder.write("bad.json", &trace_text(&lines, TRACE_END));
        let message = folder.merge_error(&["good.json", "bad.json"]);
        assert!(message.contains("bad.json: ") && message.contains(expected), "{message}");
    }
    folder.write("bad.json", "");
    assert!(folder.merge_error(&["bad.json"]).contains("no event"));
    folder.write("bad.json", &"x".repeat(3 << 20));
    assert!(folder.merge_error(&["bad.json"]).contains("line 1 has more than"));
    assert!(folder.merge_error(&["nothing"]).contains("no such file"));
    fs::remove_file(folder.path("good.json")).unwrap();
    assert!(folder.merge_error(&[""]).contains("no trace among these files"));
}
