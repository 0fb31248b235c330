//! Traces of real processes: the content of their files, the trace of a killed process, and the
//! merge of all traces by `dist-doctor`. Also tests the straggler report about a rank that the
//! other ranks wait for.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "as above; and it says what it has measured"
)]

mod harness;
mod program_paths;
mod worker;

use dist::ffi::types::DIST_ERR_PEER_FAILED;
use harness::TestJob;
use program_paths::DIST_DOCTOR;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The folder with the traces of one test; its drop removes it.
struct TestFolder(PathBuf);

impl TestFolder {
    fn new() -> Self {
        let name = format!("traces-{}-{}", std::process::id(), harness::next_serial());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn prefix(&self) -> String {
        self.0.join("tr_").display().to_string()
    }

    /// Returns the trace of a rank, even if its end is missing.
    fn trace(&self, rank: usize) -> Vec<Value> {
        let text = fs::read_to_string(format!("{}{rank}.json", self.prefix())).unwrap();
        let whole = if text.ends_with("]\n") { text } else { format!("{text}]") };
        serde_json::from_str::<Value>(&whole).unwrap().as_array().unwrap().clone()
    }

    /// Merges all traces with `dist-doctor trace`; returns the merged events and the output.
    fn merge(&self) -> (Vec<Value>, String) {
        let output = self.0.join("merged.json");
        let mut doctor = Command::new(DIST_DOCTOR);
        let doctor = doctor.arg("trace").arg("-o").arg(&output).arg(&self.0).output().unwrap();
        assert!(doctor.status.success(), "{doctor:?}");
        let merged: Value = serde_json::from_slice(&fs::read(&output).unwrap()).unwrap();
        self.check_json(&output);
        let outputs = [doctor.stdout, doctor.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        (merged["traceEvents"].as_array().unwrap().clone(), outputs.concat())
    }

    /// Merges all traces again, with a report for programs.
    fn check_json(&self, output: &Path) {
        let mut doctor = Command::new(DIST_DOCTOR);
        doctor.args(["trace", "--json", "-o"]).arg(output).arg(&self.0);
        let report = doctor.output().unwrap();
        let report: Value = serde_json::from_slice(&report.stdout).unwrap();
        assert_eq!(report["output"], output.to_str().unwrap());
        assert!(report["events"].as_u64().unwrap() > 0, "{report}");
        let hosts = report["hosts"].as_array().unwrap();
        assert_eq!(hosts[0]["source"], "reference", "{report}");
        let ranks = hosts.iter().map(|host| host["ranks"].as_array().unwrap().len()).sum::<usize>();
        assert_eq!(report["files"], ranks, "{report}");
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Starts ranks without a launcher that write traces to a folder, on one host or each on its own
/// host.
fn job(
    folder: &TestFolder,
    size: usize,
    are_on_different_hosts: bool,
    program: impl Fn(usize) -> String,
) -> TestJob {
    let mut job = TestJob::new();
    for rank in 0..size {
        let mut environment = job.environment(rank, size);
        environment.push(("DIST_TRACE_FILE", folder.prefix()));
        if are_on_different_hosts {
            environment.push(("DIST_HOST_ID", format!("host-{rank}")));
        }
        job.start(&rank.to_string(), &environment, &program(rank));
    }
    job
}

fn start_us(event: &Value) -> f64 {
    event["ts"].as_f64().unwrap()
}

fn end_us(event: &Value) -> f64 {
    start_us(event) + event["dur"].as_f64().unwrap()
}

fn events_named<'a>(events: &'a [Value], name: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["name"] == name).collect()
}

/// Asserts that the spans of a thread are nested or disjoint, with 1 ns of rounding.
fn assert_nested(events: &[Value]) {
    let mut spans: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
    let key = |span: &Value| (span["pid"].as_u64(), span["tid"].as_u64());
    spans.sort_by(|a, b| {
        key(a)
            .cmp(&key(b))
            .then(start_us(a).total_cmp(&start_us(b)))
            .then(end_us(b).total_cmp(&end_us(a)))
    });
    let mut open: Vec<&Value> = Vec::new();
    for span in spans {
        open.retain(|outer| key(outer) == key(span) && end_us(outer) > start_us(span) + 0.001);
        for outer in &open {
            assert!(end_us(span) <= end_us(outer) + 0.001, "{span} is not inside of {outer}");
        }
        open.push(span);
    }
}

#[test]
fn trace_has_every_operation_and_its_last_rank() {
    for apart in [false, true] {
        let folder = TestFolder::new();
        let mut job = job(&folder, 3, apart, |rank| {
            let late = if rank == 2 { "gate late\n" } else { "" };
            let message = match rank {
                0 => "send 400 1 5\n",
                1 => "recv 400 0 5\n",
                _ => "",
            };
            format!(
                "init\nbarrier\n{late}all_reduce f32 SUM 100\nbroadcast f64 10 1\n{message}finalize\nleaks\n"
            )
        });
        job.await_reports(&["0", "1", "2"], "barrier");
        // Ranks 0 and 1 reach the all_reduce.
        std::thread::sleep(Duration::from_millis(100));
        job.open_gate("late");
        let ended = job.finish();
        for rank in 0..3 {
            assert!(ended.reports(&rank.to_string()).iter().all(|it| it.status == 0));
            let events = folder.trace(rank);
            assert_eq!(events_named(&events, "libdist_end").len(), 1);
            assert!(
                events.iter().all(|event| event["name"] == "libdist_end" || event["pid"] == rank)
            );
            let collectives: Vec<&Value> =
                events.iter().filter(|event| event["cat"] == "collective").collect();
            let names: Vec<&str> =
                collectives.iter().map(|event| event["name"].as_str().unwrap()).collect();
            assert_eq!(names, ["barrier", "all_reduce", "broadcast"]);
            for (i, (event, (bytes, dtype))) in collectives
                .iter()
                .zip([(0, None), (400, Some("f32")), (80, Some("f64"))])
                .enumerate()
            {
                let args = &event["args"];
                assert_eq!(args["sequence"], i + 1);
                assert_eq!((&args["group"], &args["rank"]), (&"world".into(), &rank.into()));
                assert_eq!((&args["bytes"], args["dtype"].as_str()), (&bytes.into(), dtype));
                assert_eq!(args["state"], "done");
                assert!(args["algorithm"].is_string(), "{event}");
            }
            assert_eq!(collectives[1]["args"]["op"], "SUM");
            assert_eq!(collectives[2]["args"]["root"], 1);
            assert_nested(&events);
            let messages = [
                events_named(&events, "send to rank 1").len(),
                events_named(&events, "recv from rank 0").len(),
            ];
            assert_eq!(messages, [usize::from(rank == 0), usize::from(rank == 1)]);
        }
        // Rank 0 waits in the all_reduce for rank 2, or for a rank that waits for rank 2.
        let events = folder.trace(0);
        let inside = events_named(&events, "all_reduce")[0];
        let waits: Vec<&Value> = events
            .iter()
            .filter(|event| event["cat"] == "wait" && start_us(event) >= start_us(inside))
            .collect();
        assert!(waits.iter().any(|wait| end_us(wait) <= end_us(inside) + 0.001), "{events:?}");
        if !apart {
            assert!(!events_named(&events, "wait for rank 2").is_empty(), "{events:?}");
        }
    }
}

#[test]
fn the_merged_trace_has_all_ranks_in_the_order_of_time() {
    let folder = TestFolder::new();
    let job = job(&folder, 3, false, |_| {
        "init\ntimes 50 0 all_reduce f32 SUM 10\nbarrier\nfinalize\n".to_owned()
    });
    job.finish();
    let (events, output) = folder.merge();
    assert!(output.contains("ranks 0-2 on ") && output.contains("the reference clock"), "{output}");
    let times: Vec<f64> = events.iter().filter_map(|event| event["ts"].as_f64()).collect();
    assert!(times.is_sorted() && times[0].abs() < f64::EPSILON);
    for sequence in 1..=51 {
        let of_all: Vec<&Value> = events
            .iter()
            .filter(|event| event["cat"] == "collective" && event["args"]["sequence"] == sequence)
            .collect();
        assert_eq!(of_all.len(), 3);
        // No rank left before the last one arrived; the clock readings of the processes differ by
        // up to 5 µs.
        let last = of_all.iter().map(|event| start_us(event)).fold(f64::MIN, f64::max);
        assert!(of_all.iter().all(|event| end_us(event) >= last - 5.0), "{of_all:?}");
    }
    for rank in 0..3 {
        let name = events.iter().find(|e| e["name"] == "process_name" && e["pid"] == rank).unwrap();
        assert!(name["args"]["name"].as_str().unwrap().starts_with(&format!("rank {rank} on ")));
    }
    assert_nested(&events);
}

#[test]
fn trace_of_killed_rank_is_merged_with_the_failure() {
    let folder = TestFolder::new();
    let mut job = job(&folder, 3, false, |_| {
        "init\nbarrier\nloop all_reduce f32 SUM 1000\nfinalize\n".to_owned()
    });
    job.await_reports(&["0", "1", "2"], "ready");
    let written = format!("{}1.json", folder.prefix());
    job.wait_until("the trace to be written", |_| {
        fs::read_to_string(&written).is_ok_and(|text| text.contains("\"barrier\""))
    });
    job.kill("1");
    let ended = job.finish();
    ended.report("0", "all_reduce f32 SUM 1000").assert_failed(DIST_ERR_PEER_FAILED, &["rank 1 "]);
    let (events, output) = folder.merge();
    assert!(output.contains("tr_1.json has no end"), "{output}");
    for rank in 0..3 {
        let barriers =
            events_named(&events, "barrier").into_iter().filter(|event| event["pid"] == rank);
        assert_eq!(barriers.count(), 1, "rank {rank}");
    }
    for rank in [0, 2] {
        let failure = events.iter().find(|e| e["cat"] == "failure" && e["pid"] == rank).unwrap();
        assert_eq!(failure["name"], "failed: PeerFailed");
        assert!(failure["args"]["error"].as_str().unwrap().contains("rank 1 (pid "));
    }
}

#[test]
fn full_disk_ends_only_the_trace() {
    let job = TestJob::without_launcher(2, |rank| {
        let trace = if rank == 0 { "trace /dev/full\n" } else { "" };
        let untrace = if rank == 0 { "untrace\nuntrace\n" } else { "" };
        format!("init\n{trace}all_reduce f32 SUM 10\nbarrier\n{untrace}barrier\nfinalize\nleaks\n")
    });
    let ended = job.finish();
    let reports = ended.reports("0");
    let stopped: Vec<_> = reports.iter().filter(|report| report.command == "untrace").collect();
    assert_ne!(stopped[0].status, 0);
    assert!(stopped[0].message.contains("/dev/full"), "{stopped:?}");
    stopped[1].assert_succeeded();
    let others = reports.iter().filter(|report| report.command != "untrace");
    others.chain(&ended.reports("1")).for_each(|report| {
        report.assert_succeeded();
    });
}

/// The sleep of the last rank before each operation. The test tries a longer one if a shorter one
/// is too small for a verdict on this machine.
const DELAYS_MS: [u64; 3] = [40, 160, 640];

/// Returns the verdicts of all ranks and their logs after a loop in which the last rank sleeps for
/// `nap_ms` before each call. With an algorithm in `message_algorithm`, the ranks are on different
/// hosts.
fn run_with_straggler(
    size: usize,
    message_algorithm: Option<&str>,
    nap_ms: u64,
) -> Vec<(Value, String)> {
    let mut job = TestJob::new();
    for rank in 0..size {
        let mut environment = job.environment(rank, size);
        environment.push(("DIST_LOG_LEVEL", "WARN".to_owned()));
        if let Some(algorithm) = message_algorithm {
            environment.push(("DIST_HOST_ID", format!("host-{rank}")));
            environment.push(("DIST_ALGORITHM", format!("all_reduce={algorithm}")));
        }
        let nap = if rank + 1 == size { nap_ms } else { 0 };
        // Without a straggler the loop has no sleep, and the machine has more ranks than cores.
        let times = 2400_u64.checked_div(nap_ms).map_or(1000, |times| times.max(20));
        let program =
            format!("init\ntimes {times} {nap} all_reduce f32 SUM 1000\ndescribe\nfinalize\n");
        job.start(&rank.to_string(), &environment, &program);
    }
    let ended = job.finish();
    (0..size)
        .map(|rank| {
            let name = rank.to_string();
            let report = ended.report(&name, "describe");
            (
                serde_json::from_str(&report.assert_succeeded().message).unwrap(),
                ended.stderr_text(&name),
            )
        })
        .collect()
}

/// Returns true if all other ranks, and only they, name the last rank once.
fn is_last_rank_named(verdicts: &[(Value, String)]) -> bool {
    let late = verdicts.len() - 1;
    let is_warned_once = |log: &str| {
        let mut warnings = log.lines().filter(|line| line.contains("delays the other ranks"));
        let is_late_rank_named =
            warnings.next().is_some_and(|line| line.contains(&format!("rank {late} (pid ")));
        is_late_rank_named && warnings.next().is_none()
    };
    let names = |(rank, (verdict, log)): (usize, &(Value, String))| {
        println!("rank {rank} of {}: {} {}", late + 1, verdict["straggler"], verdict["skew"]);
        match rank == late {
            true => verdict["straggler"].is_null(),
            false => verdict["straggler"]["rank"] == late && is_warned_once(log),
        }
    };
    verdicts.iter().enumerate().all(names)
}

#[test]
fn repeatedly_late_rank_is_named_as_straggler() {
    // On one host the ranks see each other's arrival; between hosts a message reports for which
    // rank its sender waited. (In a ring only the neighbour sees it.)
    for (size, apart) in
        [(4, None), (2, None), (4, Some("linear")), (4, Some("recursive_doubling"))]
    {
        let late = size - 1;
        let mut tries =
            DELAYS_MS.iter().map(|&nap_ms| (nap_ms, run_with_straggler(size, apart, nap_ms)));
        let first_named = tries.find(|(_, verdicts)| is_last_rank_named(verdicts));
        let (nap_ms, verdicts) =
            first_named.unwrap_or_else(|| panic!("{size} ranks, {apart:?}: not named"));
        for (verdict, _) in &verdicts[..late] {
            let skew = verdict["skew"].as_array().unwrap();
            let one = skew.iter().find(|one| one["rank"] == late).unwrap();
            assert_eq!(one["operation"], "all_reduce");
            // The lower bound of the histogram bucket below the sleep.
            assert!(one["p50_us"].as_u64().unwrap() >= nap_ms * 1000 * 2 / 5, "{one}");
        }
    }
}

#[test]
fn equal_ranks_have_no_straggler() {
    // Other work on the machine may really delay one rank in one run, but not in all three runs.
    let has_none = |(verdict, log): &(Value, String)| {
        println!("{} {}", verdict["straggler"], verdict["skew"]);
        verdict["straggler"].is_null() && !log.contains("delays the other ranks")
    };
    for apart in [None, Some("linear")] {
        assert!((0..3).any(|_| run_with_straggler(4, apart, 0).iter().all(has_none)), "{apart:?}");
    }
}
