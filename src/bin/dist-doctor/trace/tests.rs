//! Merging made-up traces of hosts whose clocks differ by what is known.

use super::*;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

const MS: i64 = 1_000_000;

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
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

    /// Merges what is in the folder: the report, and the file.
    fn merge(&self, places: &[&str]) -> Result<Value, Failure> {
        let output = self.path("merged.json");
        let places = places.iter().map(|place| self.path(place).into_os_string()).collect();
        main(&Options { places, output: output.clone().into_os_string() })?;
        Ok(serde_json::from_slice(&fs::read(output).unwrap()).unwrap())
    }

    fn refusal(&self, places: &[&str]) -> String {
        let failure = self.merge(places).unwrap_err();
        assert_eq!(failure.status, 2);
        assert!(!self.path("merged.json").exists() && !self.path("merged.json.part").exists());
        failure.message
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// A rank on a host, by whose clock the true time `t` is `t * speed + ahead`.
#[derive(Clone, Copy)]
struct Rank {
    rank: usize,
    host: &'static str,
    ahead: i64,
    speed: f64,
}

impl Rank {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "made-up times"
    )]
    fn clock(&self, ns: i64) -> i64 {
        (ns as f64 * self.speed) as i64 + self.ahead
    }

    fn head(&self) -> Value {
        json!({"name": "libdist_trace", "ph": "M", "pid": self.rank, "tid": 0, "args": {
            "version": 1, "host": self.host, "pid": 100 + self.rank, "clock": self.host,
            "monotonic_ns": self.clock(0), "wall_ns": 1_700_000_000_000_000_000_i64,
        }})
    }

    #[allow(clippy::cast_precision_loss, reason = "made-up times")]
    fn operation(&self, name: &str, sequence: i64, (begun, ended): (i64, i64)) -> Value {
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

fn text(lines: &[Value], end: &str) -> String {
    let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
    format!("[\n{}{end}", lines.join(",\n"))
}

const END: &str = ",\n{\"name\":\"libdist_end\",\"ph\":\"M\",\"args\":{\"dropped\":0}}\n]\n";

/// All-reduces of two ranks, one every `every` ns, which the one or the other begins later, and
/// which end 20 us after that.
fn pair(folder: &Folder, ranks: [Rank; 2], count: i64, every: i64) {
    for rank in ranks {
        let mut lines = vec![rank.head()];
        for i in 0..count {
            let at = i * every;
            let (first, second) = (at + i * 37 % 90_000, at + i * 53 % 110_000);
            let ended = first.max(second) + 20_000;
            let begun = if rank.rank == ranks[0].rank { first } else { second };
            // The label of a call follows its name.
            let name = if i % 2 == 0 { "all_reduce" } else { "all_reduce \"layer3.weight\"" };
            lines.push(rank.operation(name, i + 1, (begun, ended)));
        }
        folder.write(&format!("tr_{}.json", rank.rank), &text(&lines, END));
    }
}

fn aligned(folder: &Folder) -> Alignment {
    let mut index = Index::default();
    for rank in 0..2 {
        index.read(&folder.path(&format!("tr_{rank}.json"))).unwrap();
    }
    clocks::align(&index.sources)
}

const NEAR: Rank = Rank { rank: 0, host: "near", ahead: 7 * MS, speed: 1.0 };

#[test]
fn a_constant_offset_is_found_from_common_operations() {
    let folder = Folder::new("offset");
    let far = Rank { rank: 1, host: "far", ahead: 90_000 * MS, speed: 1.0 };
    pair(&folder, [NEAR, far], 500, MS);
    let alignment = aligned(&folder);
    let Found::Operations { count, off_ns } = alignment.hosts[1].found else { panic!("not set") };
    assert_eq!((count, alignment.hosts[0].found), (500, Found::Reference));
    let wrong = alignment.hosts[1].offset_ns - (NEAR.ahead - far.ahead);
    assert!(wrong.abs() <= off_ns && off_ns <= 25_000, "{wrong} of {off_ns}");
}

#[test]
fn clocks_that_drift_apart_are_followed() {
    let folder = Folder::new("drift");
    // 20 parts in a million, for a hundred seconds: two milliseconds.
    let far = Rank { rank: 1, host: "far", ahead: 90_000 * MS, speed: 1.000_02 };
    pair(&folder, [NEAR, far], 2000, 50 * MS);
    let alignment = aligned(&folder);
    for at in [0, 30_000 * MS, 100_000 * MS] {
        let wrong = alignment.correct("far", far.clock(at)) - NEAR.clock(at);
        assert!(wrong.abs() < 60_000, "{wrong} ns at {at}");
    }
}

#[test]
fn the_merged_file_is_in_the_order_of_true_time_and_begins_at_zero() {
    let folder = Folder::new("order");
    let far = Rank { rank: 1, host: "far", ahead: -6 * MS, speed: 1.0 };
    // A later clock, so that nothing is before its beginning.
    let far = Rank { ahead: far.ahead + 20 * MS, ..far };
    pair(&folder, [NEAR, far], 100, MS);
    let merged = folder.merge(&["tr_"]).unwrap();
    let events = merged["traceEvents"].as_array().unwrap();
    let times: Vec<f64> = events.iter().filter_map(|event| event["ts"].as_f64()).collect();
    assert_eq!((events.len(), times.len(), times[0]), (200, 200, 0.0));
    assert!(times.is_sorted());
    // Every operation ends on no rank before it has begun on the other.
    for sequence in 1..=100 {
        let both: Vec<&Value> =
            events.iter().filter(|event| event["args"]["sequence"] == sequence).collect();
        let begins = |event: &Value| event["ts"].as_f64().unwrap();
        let ends = |event: &Value| begins(event) + event["dur"].as_f64().unwrap();
        assert!(ends(both[0]) >= begins(both[1]) && ends(both[1]) >= begins(both[0]));
    }
}

#[test]
fn hosts_without_a_common_operation_are_set_by_the_wall() {
    let folder = Folder::new("wall");
    let far = Rank { rank: 1, host: "far", ahead: 500 * MS, speed: 1.0 };
    for rank in [NEAR, far] {
        // Of a kind that a rank may leave before others come.
        let lines = [rank.head(), rank.operation("broadcast", 1, (MS, 2 * MS))];
        folder.write(&format!("tr_{}.json", rank.rank), &text(&lines, END));
    }
    let alignment = aligned(&folder);
    assert_eq!(alignment.hosts[1].found, Found::Wall);
    assert_eq!(alignment.correct("far", far.clock(MS)), NEAR.clock(MS));
}

#[test]
fn a_host_is_set_by_one_that_was_set() {
    let folder = Folder::new("chain");
    let middle = Rank { rank: 1, host: "middle", ahead: 40 * MS, speed: 1.0 };
    let far = Rank { rank: 2, host: "far", ahead: 900 * MS, speed: 1.0 };
    let at = |sequence: i64| (sequence * MS, sequence * MS + 30_000);
    let write = |rank: Rank, sequences: &[i64]| {
        let mut lines = vec![rank.head()];
        lines.extend(sequences.iter().map(|&n| rank.operation("barrier", n, at(n))));
        folder.write(&format!("tr_{}.json", rank.rank), &text(&lines, END));
    };
    write(NEAR, &[1, 2]);
    write(middle, &[1, 2, 3, 4]);
    write(far, &[3, 4]);
    let mut index = Index::default();
    (0..3).for_each(|rank| index.read(&folder.path(&format!("tr_{rank}.json"))).unwrap());
    let alignment = clocks::align(&index.sources);
    let wrong = alignment.correct("far", far.clock(5 * MS)) - NEAR.clock(5 * MS);
    assert!(wrong.abs() <= 60_000, "{wrong}");
    assert!(matches!(alignment.hosts[2].found, Found::Operations { count: 2, .. }));
}

#[test]
fn the_trace_of_a_killed_process_counts_up_to_where_it_was_cut() {
    let folder = Folder::new("cut");
    pair(&folder, [NEAR, Rank { rank: 1, ..NEAR }], 10, MS);
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
fn a_process_that_took_over_a_rank_is_another() {
    let folder = Folder::new("again");
    for (name, pid) in [("a.json", 5), ("b.json", 6)] {
        let mut head = NEAR.head();
        head["args"]["pid"] = json!(pid);
        folder.write(name, &text(&[head, NEAR.operation("barrier", 1, (MS, 2 * MS))], END));
    }
    // Other files of the folder are none of its business.
    folder.write("dump_0.json", "{\"format\": \"libdist flight recorder\"}");
    let merged = folder.merge(&[""]).unwrap();
    let pids: Vec<&Value> =
        merged["traceEvents"].as_array().unwrap().iter().map(|event| &event["pid"]).collect();
    assert_eq!(pids, [&json!(0), &json!(1)]);
}

#[test]
fn what_is_no_trace_is_refused_with_its_name_and_line() {
    let folder = Folder::new("refused");
    let good = NEAR.operation("barrier", 1, (MS, 2 * MS));
    folder.write("good.json", &text(&[NEAR.head(), good.clone()], END));
    let mut old = NEAR.head();
    old["args"]["version"] = json!(99);
    let mut bad_time = good.clone();
    bad_time["ts"] = json!(-1.0);
    for (lines, why) in [
        (vec![good.clone()], "no trace of libdist"),
        (vec![old], "its version is 99"),
        (
            vec![json!({"name": "libdist_trace", "args": {"version": 1}})],
            "lacks a part of the clock",
        ),
        (vec![NEAR.head(), json!([1]), good], "line 3 is no event"),
        (vec![NEAR.head(), bad_time], "line 3: ts is no time"),
        (vec![NEAR.head(), json!({"pid": "x", "ts": 1})], "line 3: pid is no rank"),
    ] {
        folder.write("bad.json", &text(&lines, END));
        let message = folder.refusal(&["good.json", "bad.json"]);
        assert!(message.contains("bad.json: ") && message.contains(why), "{message}");
    }
    folder.write("bad.json", "");
    assert!(folder.refusal(&["bad.json"]).contains("no event"));
    folder.write("bad.json", &"x".repeat(3 << 20));
    assert!(folder.refusal(&["bad.json"]).contains("line 1 has more than"));
    assert!(folder.refusal(&["nothing"]).contains("no such file"));
    fs::remove_file(folder.path("good.json")).unwrap();
    assert!(folder.refusal(&[""]).contains("no trace among these files"));
}
