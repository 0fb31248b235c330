//! `dist-bench --training`: training steps of a tiny model with each candidate.

use super::{command, left_behind, run};
use crate::program::{RunningProgram, TestFolder};
use serde_json::{Value, json};

/// Returns the candidates of the only workload in a result file of `--training`.
fn training_candidates(folder: &TestFolder) -> Vec<Value> {
    let value: Value = serde_json::from_slice(&folder.bytes("result.json")).unwrap();
    let workloads = value["training"].as_array().unwrap();
    assert_eq!(workloads.len(), 1);
    let workload = &workloads[0];
    assert_eq!((&workload["model"], &workload["ranks"]), (&json!("tiny"), &json!(2)));
    assert_eq!((&workload["gradients"], &workload["left_out"]), (&json!(12), &json!([])));
    workload["candidates"].as_array().unwrap().clone()
}

#[test]
fn libdist_reducers_average_correctly() {
    let folder = TestFolder::new();
    let path = folder.path("REPORT.md");
    let marks = "<!-- dist-bench-training:begin -->\n<!-- dist-bench-training:end -->\n";
    std::fs::write(&path, marks).unwrap();
    let names = ["arena", "ordinary", "retryable", "bf16"];
    let args = format!(
        "--training --model tiny --gradient-us 100 --pairs 2 --steps 3 --candidates {} --json result.json --report {path}",
        names.join(",")
    );
    let ended = run(&args, &folder);
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{}", ended.stdout);
    let candidates = training_candidates(&folder);
    let candidate_names: Vec<&Value> =
        candidates.iter().map(|candidate| &candidate["candidate"]).collect();
    assert_eq!(candidate_names, names.map(|name| json!(name)).iter().collect::<Vec<&Value>>());
    for candidate in &candidates {
        assert_eq!(candidate["wrong"], json!(0), "{candidate}");
        let number = |name: &str| candidate[name].as_f64().unwrap();
        // The model has twelve gradients of 100 µs each.
        assert!(number("local_ms") >= 1.2 && number("step_ms") >= 1.2, "{candidate}");
        assert!(number("peak_bytes") > 1e6 && number("bytes_copied") >= 0.0, "{candidate}");
        assert_eq!(candidate["runs"].as_array().unwrap().len(), 2);
        // Two pairs are too few for an interval, and no peer library has run for a ratio.
        assert!(candidate["exposed_low_ms"].is_null() && candidate["by_horovod"].is_null());
    }
    // Gradients in the reducer's memory are not copied. Gradients in the caller's memory are copied
    // to the buckets and back.
    let copied = |index: usize| candidates[index]["bytes_copied"].as_u64().unwrap();
    assert!(copied(0) == 0 && copied(1) > 0, "{} {}", copied(0), copied(1));
    assert!(
        ended.stdout.contains("tiny model, 2 ranks, sleep of 100 us per gradient:"),
        "{}",
        ended.stdout
    );
    let first = folder.text("REPORT.md");
    assert!(
        first.contains("| libdist, arena |") && first.contains("2 pairs of 3 steps"),
        "{first}"
    );
    let again = run(&format!("--training --report {path} --report-from result.json"), &folder);
    assert_eq!((again.status, again.stderr.as_str()), (0, ""));
    assert_eq!(folder.text("REPORT.md"), first);
    assert!(folder.text("docs/plots/training.svg").starts_with("<svg "));
    assert_eq!(left_behind(&folder), [""; 0]);
}

#[test]
fn a_training_candidate_without_programs_is_left_out() {
    let folder = TestFolder::new();
    std::fs::write(folder.path("python"), "#!/bin/sh\nexit 1\n").unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path("python"), executable).unwrap();
    let args = "--training --quick --model tiny --compute none --json result.json --candidates";
    for (candidates, status, text) in [
        ("torch-gloo,arena", 0, "torch-gloo is skipped: "),
        ("torch-gloo", 1, "all candidates are skipped"),
    ] {
        let mut command = command(&format!("{args} {candidates}"), &folder);
        command.env("DIST_BENCH_PYTHON", folder.path("python"));
        let ended = RunningProgram::start(command, |_| {}).wait();
        assert_eq!(ended.status, status, "{}", ended.stderr);
        assert!(
            ended.stderr.contains(text) && ended.stderr.contains("DIST_BENCH_PYTHON"),
            "{}",
            ended.stderr
        );
    }
    assert_eq!(training_candidates(&folder).len(), 1);
}

#[test]
fn other_libraries_average_correctly() {
    let folder = TestFolder::new();
    let args = "--training --quick --model tiny --gradient-us 100 --ranks 2 --json result.json";
    let ended = run(&format!("{args} --candidates arena,torch-gloo,openmpi,horovod"), &folder);
    assert_eq!(ended.status, 0, "{} {}", ended.stderr, ended.stdout);
    for line in ended.stderr.lines().filter(|line| line.starts_with("dist-bench: ")) {
        println!("skipped: {line}");
        assert!(line.contains(" is skipped: "), "{}", ended.stderr);
    }
    for candidate in training_candidates(&folder) {
        assert_eq!(candidate["wrong"], json!(0), "{candidate}");
    }
}
