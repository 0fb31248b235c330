//! Tests the built dist-bench program: it measures libdist alone and against the installed peer
//! libraries. No check depends on a measured time.
#![allow(clippy::unwrap_used, reason = "in a test a broken assumption is a failure")]
#![allow(clippy::print_stdout, reason = "a skipped test says so")]

#[path = "program/mod.rs"]
mod program;
mod program_paths;
#[path = "dist_bench/training.rs"]
mod training;

use program::{FinishedProgram, RunningProgram, TestFolder, wait_until};
use program_paths::DIST_BENCH;
use serde_json::{Value, json};
use std::process::{Command, Stdio};

/// Returns a dist-bench command without the variables of a launcher or a user. Its temporary files
/// are in the test's folder.
fn command(args: &str, folder: &TestFolder) -> Command {
    let mut command = Command::new(DIST_BENCH);
    for name in ["DIST_TRANSPORT", "DIST_HOST_ID", "DIST_ALGORITHM", "DIST_TUNING_FILE"] {
        command.env_remove(name);
    }
    command.env("TMPDIR", &folder.0).env("XDG_CACHE_HOME", folder.path("cache"));
    command.args(args.split_whitespace()).current_dir(&folder.0).stdin(Stdio::null());
    command
}

fn run(args: &str, folder: &TestFolder) -> FinishedProgram {
    RunningProgram::start(command(args, folder), |_| {}).wait()
}

/// Returns the names of the temporary files that remain.
fn left_behind(folder: &TestFolder) -> Vec<String> {
    let entries = std::fs::read_dir(&folder.0).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("dist-bench-")).collect()
}

/// Returns the cells of the result file, each with its operation.
fn cells(folder: &TestFolder) -> Vec<(String, Value)> {
    let value: Value = serde_json::from_slice(&folder.bytes("result.json")).unwrap();
    let cells = value["cells"].as_array().unwrap();
    cells.iter().map(|cell| (cell["op"].as_str().unwrap().to_owned(), cell.clone())).collect()
}

fn assert_all_correct(figures: &Value) {
    assert_eq!(figures["wrong"], json!(0), "{figures}");
    let (p50, p99) = (figures["p50_us"].as_f64().unwrap(), figures["p99_us"].as_f64().unwrap());
    assert!(p50 > 0.0 && p50 <= p99, "{figures}");
}

#[test]
fn all_operations_are_measured_with_correct_results() {
    let folder = TestFolder::new();
    let ended = run("--quick --ops all --sizes 4,96K --json result.json --csv result.csv", &folder);
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{}", ended.stdout);
    let cells = cells(&folder);
    // A barrier has only one size.
    assert_eq!(cells.len(), 19);
    for (op, cell) in &cells {
        assert_all_correct(&cell["ours"]);
        assert_eq!((&cell["ratio"], &cell["ranks"]), (&Value::Null, &json!(2)));
        assert_eq!(
            cell["ours"]["root_p50_us"].is_null(),
            !["broadcast", "scatter"].contains(&op.as_str())
        );
        assert!(ended.stdout.contains(&format!("\n{op}, 2 ranks, rewritten, ordinary")));
    }
    assert_eq!(folder.text("result.csv").lines().count(), 20);
    assert_eq!(left_behind(&folder), [""; 0]);
}

/// Buffers at all offsets in their pages have correct results, with and without bounce buffers for
/// CMA, whatever the processor of the test.
#[test]
fn results_are_correct_at_all_offsets() {
    for bounce in ["0", "1"] {
        let folder = TestFolder::new();
        let args = "--quick --offsets --ops sendrecv,broadcast,all_reduce,all_gather,reduce_scatter,all_to_all \
                    --sizes 300K --calls 3 --json result.json";
        let mut command = command(args, &folder);
        command.env("DIST_CMA_BOUNCE", bounce);
        let ended = RunningProgram::start(command, |_| {}).wait();
        assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{}", ended.stdout);
        let cells = cells(&folder);
        // All pairs for messages, and the pairs with an offset 0 for each collective.
        assert_eq!(cells.len(), 16 + 5 * 7);
        cells.iter().for_each(|(_, cell)| assert_all_correct(&cell["ours"]));
        let pairs: std::collections::HashSet<&str> =
            cells.iter().map(|(_, cell)| cell["buffers"].as_str().unwrap()).collect();
        assert!(pairs.len() == 16 && pairs.contains("offsets 16 and 64"), "{pairs:?}");
    }
}

/// The tuning run reports all algorithms, independent of their speed, and the library accepts the
/// file.
#[test]
fn tuning_file_is_accepted_by_the_library() {
    let folder = TestFolder::new();
    let ended = run("--tune tuned.json --quick --ops all_reduce,all_gather,sendrecv", &folder);
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{}", ended.stdout);
    for expected in
        ["all_reduce, 2 ranks", "all_gather, 2 ranks", "own choice", "one_shot", "staged"]
    {
        assert!(ended.stdout.contains(expected), "{expected}: {}", ended.stdout);
    }
    // The tuning run skips algorithms that run only between nodes.
    assert!(
        !ended.stdout.contains("ring") && !ended.stdout.contains("sendrecv,"),
        "{}",
        ended.stdout
    );
    let file: Value = serde_json::from_slice(&folder.bytes("tuned.json")).unwrap();
    assert!(file["comment"].as_str().unwrap().starts_with("dist-bench --quick"));
    for row in file["rows"].as_array().unwrap() {
        assert_eq!((&row["ranks"], &row["nodes"]), (&json!([2, 2]), &json!([1, 1])));
    }
    let mut tuned = command("--quick --ops all_reduce", &folder);
    tuned.env("DIST_TUNING_FILE", folder.path("tuned.json"));
    let ended = RunningProgram::start(tuned, |_| {}).wait();
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{}", ended.stdout);
    assert_eq!(left_behind(&folder), [""; 0]);
}

#[test]
fn every_call_variant_is_measured() {
    let folder = TestFolder::new();
    for (args, count) in [
        (
            "--ranks 2,3 --mode rewritten,untouched --buffers ordinary,arena --ops all_reduce,gather",
            16,
        ),
        ("--async --transport tcp --ops all_reduce,sendrecv,broadcast --ranks 3", 3),
        ("--out-of-place --dtype bf16 --redop max --ops reduce_scatter,all_gather,scatter", 3),
        ("--dtype f8e5m2 --ops all_reduce,all_to_all --ranks 3 --calls 3 --pairs 1", 2),
    ] {
        let args = format!("--quick --sizes 100K {args} --json result.json");
        let ended = run(&args, &folder);
        assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{args}: {}", ended.stdout);
        let cells = cells(&folder);
        // Each number of ranks has separate cells.
        assert_eq!(cells.len(), count, "{args}");
        cells.iter().for_each(|(_, cell)| assert_all_correct(&cell["ours"]));
    }
}

/// Runs against a peer library. Returns `None` if a part of it is missing: the compiler, the
/// launcher, the header that some packages leave out, or torch.
fn run_against_peer(name: &str, args: &str, folder: &TestFolder) -> Option<FinishedProgram> {
    let ended = run(&format!("{args} --json result.json --peer {name}"), folder);
    if ended.status == 1
        && [": install lib", ": pip install"].iter().any(|t| ended.stderr.contains(t))
    {
        println!("skipped: {}", ended.stderr.trim());
        let reasons = ["not found", "mpi.h", "gloo/", "has no torch"];
        assert!(reasons.iter().any(|reason| ended.stderr.contains(reason)), "{}", ended.stderr);
        return None;
    }
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{}", ended.stdout);
    assert_eq!(left_behind(folder), [""; 0]);
    Some(ended)
}

/// Returns true if a peer library has the operation.
fn peer_supports(name: &str, op: &str, is_in_place: bool) -> bool {
    match name {
        "gloo" => is_in_place || !["all_reduce", "reduce"].contains(&op),
        "gloo-cpp" => op != "reduce_scatter",
        _ => true,
    }
}

/// Runs all operations on three ranks, so that a block is not half of the vector. The ranks may be
/// slow, so the number of calls is small.
fn check_all_operations(names: [&str; 2]) {
    for name in names {
        let folder = TestFolder::new();
        let args = "--ranks 3 --ops all --sizes 4,24K --calls 1 --pairs 1";
        for (more, is_in_place) in [("", true), ("--out-of-place --dtype i8 --redop min", false)] {
            let Some(_) = run_against_peer(name, &format!("{args} {more}"), &folder) else {
                continue;
            };
            let cells = cells(&folder);
            assert_eq!(cells.len(), 19);
            for (op, cell) in cells {
                let peers = cell["peers"].as_array().unwrap();
                assert_eq!(!peers.is_empty(), peer_supports(name, &op, is_in_place), "{name} {op}");
                assert_eq!(cell["left_out"], json!([]), "{name} {op}");
                peers.iter().for_each(assert_all_correct);
            }
        }
    }
}

#[test]
fn mpi_results_are_correct() {
    check_all_operations(["openmpi", "mpich"]);
}

#[test]
fn gloo_results_are_correct() {
    check_all_operations(["gloo", "gloo-cpp"]);
}

#[test]
fn unsupported_peer_is_left_out_of_a_cell() {
    let folder = TestFolder::new();
    let args = "--ops all_reduce,sendrecv --dtype i16 --sizes 4K --calls 1 --pairs 1";
    let Some(ended) = run_against_peer("gloo", args, &folder) else { return };
    let with_peers: Vec<String> = cells(&folder)
        .into_iter()
        .filter(|(_, cell)| !cell["peers"].as_array().unwrap().is_empty())
        .map(|(op, _)| op)
        .collect();
    assert_eq!(with_peers, ["sendrecv"], "{}", ended.stdout);
}

#[test]
fn python_without_torch_is_reported_with_remedy() {
    let folder = TestFolder::new();
    // A fake Python interpreter that has no module.
    std::fs::write(folder.path("python"), "#!/bin/sh\nexit 1\n").unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path("python"), executable).unwrap();
    let mut command = command("--quick --peer gloo", &folder);
    command.env("DIST_BENCH_PYTHON", folder.path("python"));
    let ended = RunningProgram::start(command, |_| {}).wait();
    assert_eq!(ended.status, 1);
    assert!(ended.stderr.contains("has no torch: pip install torch"), "{}", ended.stderr);
    assert!(ended.stderr.contains("DIST_BENCH_PYTHON"), "{}", ended.stderr);
}

#[test]
fn peers_alternate_with_libdist() {
    for name in ["openmpi", "mpich"] {
        let folder = TestFolder::new();
        let args = "--ops all_reduce,barrier --sizes 64 --calls 5 --pairs 6";
        let Some(ended) = run_against_peer(name, args, &folder) else { continue };
        for (op, cell) in cells(&folder) {
            assert_eq!(cell["best_peer"], json!(name), "{op}");
            let [low, ratio, high] =
                ["ratio_low", "ratio", "ratio_high"].map(|part| cell[part].as_f64().unwrap());
            assert!(low <= ratio && ratio <= high, "{op}: {low} {ratio} {high}");
            let runs = |figures: &Value| figures["runs_p50_us"].as_array().unwrap().len();
            // Six runs; six more, at most twice, if the interval was not narrow enough.
            assert!([6, 12, 18].contains(&runs(&cell["ours"])), "{cell}");
            assert_eq!(runs(&cell["ours"]), runs(&cell["peers"][0]));
        }
        assert!(ended.stdout.contains("geometric means"), "{}", ended.stdout);
    }
}

/// Compares a build with itself. Chance decides which run is faster, so every verdict is allowed.
#[test]
fn against_alternates_and_prints_a_verdict() {
    let folder = TestFolder::new();
    let tree = folder.path("tree/target/release");
    std::fs::create_dir_all(&tree).unwrap();
    std::os::unix::fs::symlink(DIST_BENCH, format!("{tree}/dist-bench")).unwrap();
    let args = "--against tree --quick --ops all_reduce,barrier,sendrecv --sizes 4,64K --calls 5";
    let ended = run(&format!("{args} --json result.json --csv result.csv"), &folder);
    assert!(
        [0, 3].contains(&ended.status) && ended.stderr.is_empty(),
        "{} {}",
        ended.stderr,
        ended.stdout
    );
    assert!(ended.stdout.starts_with("This tree against "), "{}", ended.stdout);
    assert!(ended.stdout.contains("5 cells, 6 pairs of runs each\n"), "{}", ended.stdout);
    let cells = cells(&folder);
    assert_eq!(cells.len(), 5);
    let has_slower = cells.iter().any(|(_, cell)| cell["lost"] == json!("slower"));
    assert!(!has_slower || ended.status == 3, "{}", ended.stdout);
    for (op, cell) in &cells {
        let [ours, before] = [&cell["ours"], &cell["peers"][0]];
        assert_eq!(before["engine"], json!("baseline"), "{op}");
        [ours, before].into_iter().for_each(assert_all_correct);
        let runs = |figures: &Value| figures["runs_p50_us"].as_array().unwrap().len();
        // Six pairs; six more, at most twice, if a limit was exceeded.
        assert!([6, 12, 18].contains(&runs(ours)) && runs(ours) == runs(before), "{cell}");
        let [low, ratio, high] =
            ["ratio_low", "ratio", "ratio_high"].map(|part| cell[part].as_f64().unwrap());
        assert!(low <= ratio && ratio <= high, "{op}: {low} {ratio} {high}");
        assert_eq!(cell["lost"] == json!("slower"), low > 1.03, "{op}");
        assert!(ended.stdout.contains(&format!("\n{op}, 2 ranks, rewritten, ordinary")));
    }
    let value: Value = serde_json::from_slice(&folder.bytes("result.json")).unwrap();
    assert_eq!(value["no_slower"], json!(ended.status == 0));
    assert!(value["command"].as_str().unwrap().starts_with("dist-bench --against TREE --quick"));
    let means = value["geometric_means"].as_array().unwrap();
    assert_eq!(means.len(), 3);
    let is_above = means.iter().any(|mean| mean["ratio"].as_f64() > Some(1.005));
    assert_eq!(ended.status == 3, is_above || has_slower, "{}", ended.stdout);
    let verdict = if ended.status == 0 { "no slower, 5 cells" } else { "slower, " };
    let last = ended.stdout.lines().last().unwrap();
    assert!(last.starts_with(&format!("Verdict: {verdict}")), "{last}");
    // The file has one line for each engine of each cell.
    assert_eq!(folder.text("result.csv").lines().count(), 11);
    assert_eq!(left_behind(&folder), [""; 0]);
}

#[test]
fn against_refuses_other_programs() {
    let folder = TestFolder::new();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::write(folder.path("other"), "#!/bin/sh\necho no rank of mine\nexit 4\n").unwrap();
    std::fs::set_permissions(folder.path("other"), executable).unwrap();
    std::fs::create_dir(folder.path("unbuilt")).unwrap();
    std::fs::write(folder.path("unbuilt/Cargo.toml"), "").unwrap();
    for (tree, status, texts) in [
        ("nowhere", 1, ["--against nowhere: not a source tree", "Cargo.toml"]),
        ("unbuilt", 1, ["has no target/release/dist-bench", "--manifest-path unbuilt/Cargo.toml"]),
        ("other", 1, ["baseline: one of its processes ended with status 4", "no rank of mine"]),
        ("other --pairs 5", 2, ["--against needs --pairs 6 or more", "no interval"]),
    ] {
        let ended = run(&format!("--ops barrier --against {tree}"), &folder);
        assert_eq!(ended.status, status, "{tree}: {}", ended.stderr);
        texts
            .iter()
            .for_each(|text| assert!(ended.stderr.contains(text), "{text}: {}", ended.stderr));
    }
    assert_eq!(left_behind(&folder), [""; 0]);
}

#[test]
fn limits_are_printed_first() {
    let folder = TestFolder::new();
    let ended = run("--limits --quick --ops barrier --json result.json", &folder);
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{}", ended.stdout);
    assert!(ended.stdout.starts_with("Limits of this machine\n"), "{}", ended.stdout);
    let value: Value = serde_json::from_slice(&folder.bytes("result.json")).unwrap();
    let rates = value["limits"]["rates"].as_array().unwrap();
    assert!(rates.len() >= 8 && rates.iter().all(|rate| rate["gb_per_s"].as_f64() > Some(0.0)));
}

/// Writes a file with the markers for a report and returns its path.
fn file_with_markers(folder: &TestFolder) -> String {
    let path = folder.path("REPORT.md");
    std::fs::write(&path, "before\n<!-- dist-bench:begin -->\nold\n<!-- dist-bench:end -->\n")
        .unwrap();
    path
}

#[test]
fn report_from_files_equals_report_of_the_run() {
    let folder = TestFolder::new();
    let path = file_with_markers(&folder);
    let measured = |args: &str| {
        let ended = run(&format!("--quick --sizes 64K {args}"), &folder);
        assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{}", ended.stdout);
    };
    measured(&format!("--ranks 2,3 --ops all_reduce,barrier --json a.json --report {path}"));
    let first = folder.text("REPORT.md");
    let names = ["all_reduce", "barrier"];
    let plots = || names.map(|name| folder.text(&format!("docs/plots/{name}.svg")));
    let first_plots = plots();
    assert!(first.starts_with("before\n<!-- dist-bench:begin -->\nlibdist "), "{first}");
    assert!(first.ends_with("<!-- dist-bench:end -->\n") && !first.contains("old"), "{first}");
    assert!(
        first.contains("dist-bench --quick --sizes 64K --ranks 2,3 --ops all_reduce,barrier\n")
    );
    for (name, plot) in names.iter().zip(&first_plots) {
        assert!(first.contains(&format!("![{name}](docs/plots/{name}.svg)")), "{first}");
        assert!(plot.contains("\n3 ranks\n") && plot.contains("\nlibdist\n"), "{plot}");
    }
    // A report from the result file is identical to the first report.
    let again = run(&format!("--report {path} --report-from a.json"), &folder);
    assert_eq!((again.status, again.stderr.as_str(), again.stdout.as_str()), (0, "", ""));
    assert_eq!((folder.text("REPORT.md"), plots()), (first, first_plots));
    // A report from two files has the cells of both files and both commands.
    measured("--ops broadcast --json b.json");
    run(&format!("--report {path} --report-from a.json,b.json"), &folder);
    let both = folder.text("REPORT.md");
    assert!(both.contains("### broadcast\n") && both.contains("### barrier\n"), "{both}");
    assert!(both.contains("--ops broadcast\n"), "{both}");
    assert_eq!(left_behind(&folder), [""; 0]);
}

#[test]
fn all_reduce_has_share_of_its_bound() {
    let folder = TestFolder::new();
    let args = "--limits --quick --ops all_reduce --sizes 4,64K --buffers ordinary,arena";
    let ended = run(&format!("{args} --json result.json"), &folder);
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{}", ended.stdout);
    let bounds: Vec<(Value, Value)> = cells(&folder)
        .iter()
        .map(|(_, cell)| (cell["buffers"].clone(), cell["bound"].clone()))
        .filter(|(_, bound)| !bound.is_null())
        .collect();
    for (buffers, bound) in &bounds {
        let name = if *buffers == json!("arena") { "direct" } else { "cma_read" };
        assert_eq!(bound["engine"], json!(name));
        assert_all_correct(bound);
    }
    // A machine with one core has no bounds, and some machines forbid one of the two kinds of
    // memory access.
    if bounds.is_empty() {
        println!("skipped: this machine has no bounds");
    } else {
        assert!(
            ended.stdout.contains("Shares of the limits of the machine:\n"),
            "{}",
            ended.stdout
        );
        assert!(ended.stdout.contains("2.5 cache lines + 60 ns"), "{}", ended.stdout);
    }
    assert_eq!(left_behind(&folder), [""; 0]);
}

#[test]
fn results_so_far_are_kept_after_a_signal() {
    let folder = TestFolder::new();
    let command = command("--ops barrier,all_reduce --pairs 60000 --json result.json", &folder);
    let program = RunningProgram::start(command, |_| {});
    wait_until("its ranks", || !left_behind(&folder).is_empty());
    program.first_lines(3);
    program.signal("TERM");
    let ended = program.wait();
    assert_eq!((ended.status, ended.stderr.as_str()), (143, "dist-bench: SIGTERM received\n"));
    assert!(cells(&folder).is_empty());
    assert_eq!(left_behind(&folder), [""; 0]);
}

#[test]
fn usage_and_write_errors_are_reported() {
    let folder = TestFolder::new();
    file_with_markers(&folder);
    for (name, text) in [("unmarked.md", "text\n"), ("other.json", "{}")] {
        std::fs::write(folder.path(name), text).unwrap();
    }
    for (args, status, text) in [
        ("--ops allreduce", 2, "expected one of: all_reduce, broadcast"),
        (
            "--dtype bf16 --peer mpich",
            2,
            "--peer: a peer library does not support elements of type bf16",
        ),
        ("--quick --ops barrier --json no/folder.json", 1, "no/folder.json"),
        ("--report-from a.json", 2, "--report <FILE>"),
        ("--report no.md", 1, "no.md"),
        ("--report unmarked.md", 1, "lacks the lines <!-- dist-bench:begin -->"),
        ("--report REPORT.md --report-from no.json", 1, "no.json"),
        (
            "--report REPORT.md --report-from other.json",
            1,
            "is not in the format of dist-bench --json",
        ),
    ] {
        let ended = run(args, &folder);
        assert_eq!(ended.status, status, "{args}: {}", ended.stderr);
        assert!(ended.stderr.contains(text), "{args}: {}", ended.stderr);
    }
    let help = run("--help", &folder);
    assert_eq!((help.status, help.stderr.as_str()), (0, ""));
    assert!(
        help.stdout.contains("order statistics") && help.stdout.lines().all(|l| l.len() <= 110)
    );
}

/// Without a GPU driver, dist-bench prints which library it looked for. `cargo xtask test` runs it
/// with the stubs.
#[test]
fn device_buffers_need_a_driver() {
    for backend in ["nccl", "native"] {
        let folder = TestFolder::new();
        let ended = run(&format!("--quick --sizes 4 --device {backend} --ops barrier"), &folder);
        let is_told = ended.stderr.contains("libcuda.so.1");
        assert!(ended.status == 0 || ended.status == 1 && is_told, "{}", ended.stderr);
    }
}
