//! Tests the form of the programs' output: JSON for scripts; and on a terminal the progress of long
//! operations, colours, and the width of the help texts. `script` of util-linux makes the
//! terminals.
#![allow(clippy::unwrap_used, reason = "in a test a broken assumption is a failure")]
#![allow(clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "a skipped test prints the reason")]

#[path = "program/mod.rs"]
mod program;
mod program_paths;

use program::{FinishedProgram, RunningProgram, TestFolder, wait_until};
use program_paths::{DIST_BENCH, DIST_DOCTOR, DIST_STORE, DISTRUN};
use serde_json::{Value, json};
use std::process::{Command, Stdio};

/// The start of a sequence that sets a colour or another style, and its last character.
const STYLE: (&str, char) = ("\u{1b}[", 'm');

/// Runs a shell command on a terminal with these variables. Returns its output, or `None` if this
/// machine has no `script`.
fn on_terminal(line: &str, variables: &[(&str, &str)]) -> Option<FinishedProgram> {
    if Command::new("script").arg("--version").output().is_err() {
        println!("skipped: script (util-linux) is not installed");
        return None;
    }
    let mut command = Command::new("script");
    command.args(["-qec", line, "/dev/null"]).stdin(Stdio::null());
    // CI: the log of an integration server shows colours, whatever the terminal is.
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES", "CI"] {
        command.env_remove(name);
    }
    command.env("TERM", "xterm").envs(variables.iter().copied());
    Some(RunningProgram::start(command, |_| {}).wait())
}

/// Returns true if a text has a sequence that sets a style.
fn has_style(text: &str) -> bool {
    text.split(STYLE.0).skip(1).any(|rest| {
        rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').starts_with(STYLE.1)
    })
}

/// Starts a store. Returns the server and its port.
fn start_store() -> (RunningProgram, String) {
    let mut serve = Command::new(DIST_STORE);
    serve.args(["serve", "--port", "0"]).stdin(Stdio::null());
    let server = RunningProgram::start(serve, |_| {});
    let port = server.first_lines(1)[0].rsplit_once(':').unwrap().1.to_owned();
    (server, port)
}

/// Starts a command of dist-store.
fn start_client(port: &str, words: &[&str]) -> RunningProgram {
    let mut command = Command::new(DIST_STORE);
    command.args(words).args(["--port", port]).stdin(Stdio::null());
    RunningProgram::start(command, |_| {})
}

/// Sets a key.
fn set(port: &str, key: &str, value: &str) {
    assert_eq!(start_client(port, &["set", key, value]).wait().status, 0);
}

/// Runs a command of dist-store, and returns its output, which must be JSON.
fn json_of(port: &str, words: &[&str]) -> Vec<Value> {
    let ended = start_client(port, words).wait();
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{words:?}");
    json_values(&ended.stdout)
}

/// Returns the JSON values in a text, one after the other.
fn json_values(text: &str) -> Vec<Value> {
    let values = serde_json::Deserializer::from_str(text).into_iter();
    values.collect::<Result<_, _>>().unwrap_or_else(|cause| panic!("{cause}: {text}"))
}

#[test]
fn store_commands_print_json() {
    let (_server, port) = start_store();
    let watch = start_client(&port, &["watch", "--json", "--interval", "5"]);
    // The first change that is printed shows that the program watches.
    let mut round = 0;
    wait_until("a change", || {
        round += 1;
        set(&port, "start", &round.to_string());
        !watch.folder.text("out").is_empty()
    });
    set(&port, "a", "1\n2");
    let has_line = |key: &str| {
        watch.folder.text("out").contains(key) && watch.folder.text("out").ends_with('\n')
    };
    wait_until("the change of a", || has_line("\"a\""));
    set(&port, "b", "\\");
    let found = json_of(&port, &["get", "a", "b", "--json"]);
    assert_eq!(found[0], json!({ "key": "a", "value": "1\\n2" }));
    assert_eq!(found[1], json!({ "key": "b", "value": "\\\\" }));
    wait_until("the change of b", || has_line("\"b\""));
    let changes = json_values(&watch.folder.text("out"));
    let change = changes.iter().find(|change| change["key"] == "a").unwrap();
    assert_eq!(change["new"], "1\\n2");
    assert!(change["old"].is_null() && change["time"].is_string(), "{changes:?}");
    assert_eq!(json_of(&port, &["list", "--json"]).len(), 3);
    assert_eq!(json_of(&port, &["stats", "--json"])[0]["keys"], 3);
    let bench =
        json_of(&port, &["bench", "--seconds", "0.05", "--bytes", "1K", "--json"]).remove(0);
    assert_eq!((&bench["bytes"], &bench["seconds"]), (&json!(1024), &json!(0.05)));
    let calls: Vec<&Value> = bench["calls"].as_array().unwrap().iter().collect();
    let names: Vec<&str> = calls.iter().map(|call| call["call"].as_str().unwrap()).collect();
    assert_eq!(names, ["set", "get", "add", "check", "wait"]);
    for call in calls {
        for figure in ["calls_per_second", "median_us", "p99_us"] {
            assert!(call[figure].as_f64().unwrap() > 0.0, "{figure}: {call}");
        }
    }
}

/// A command that waits 3 s for a key, on a store of its own.
fn waiting_command() -> (RunningProgram, String) {
    let (server, port) = start_store();
    (server, format!("{DIST_STORE} wait no-key --timeout 3 --port {port}"))
}

#[test]
fn a_wait_is_shown_after_two_seconds() {
    let (_server, line) = waiting_command();
    let Some(ended) = on_terminal(&line, &[]) else { return };
    let shown = "2s: waiting for \"no-key\"";
    assert!(ended.stdout.contains(shown), "{:?}", ended.stdout);
    assert!(!ended.stdout.contains("1s: waiting"), "{:?}", ended.stdout);
    assert!(!has_style(&ended.stdout), "{:?}", ended.stdout);
    // The line is removed before the message.
    let (_, rest) = ended.stdout.rsplit_once("waiting for \"no-key\"").unwrap();
    assert!(rest.contains("\u{1b}[2K") && rest.contains("dist-store: timed out"), "{rest:?}");
    assert_eq!(ended.status, 4);
}

#[test]
fn simple_terminals_and_files_show_no_progress() {
    let (_server, line) = waiting_command();
    let (redirected, simple) = (format!("{line} 2>/dev/null"), [("TERM", "dumb")]);
    let Some(ended) = on_terminal(&redirected, &[]) else { return };
    assert_eq!(ended.stdout, "");
    let ended = on_terminal(&line, &simple).unwrap();
    assert!(ended.stdout.starts_with("dist-store: timed out"), "{:?}", ended.stdout);
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap());
    command.args(words).env("TERM", "xterm").stdin(Stdio::null());
    let ended = RunningProgram::start(command, |_| {}).wait();
    assert!(ended.stderr.starts_with("dist-store: timed out"), "{}", ended.stderr);
}

#[test]
fn distrun_reports_ranks_that_do_not_end() {
    let folder = TestFolder::new();
    let program = "if [ $RANK = 0 ]; then sleep 0.5; exit 3; fi\n\
                   trap '' TERM\nwhile :; do sleep 0.1; done\n";
    std::fs::write(folder.path("rank.sh"), program).unwrap();
    let options = "--nproc-per-node 2 --shutdown-timeout 3";
    let line = format!("{DISTRUN} {options} sh {}", folder.path("rank.sh"));
    let report = "distrun: 1 rank still running; SIGKILL follows in 1 s";
    let Some(ended) = on_terminal(&line, &[]) else { return };
    assert_eq!(ended.status, 3, "{:?}", ended.stdout);
    assert_eq!(ended.stdout.matches(report).count(), 1, "{:?}", ended.stdout);
    // Not in a log.
    let log = folder.path("log");
    let ended = on_terminal(&format!("{line} 2>{log}"), &[]).unwrap();
    assert_eq!((ended.status, folder.text("log").contains("still running")), (3, false));
    assert!(folder.text("log").contains("rank 0 failed first"), "{}", folder.text("log"));
}

#[test]
fn a_measurement_shows_its_progress_above_its_results() {
    let line = format!("{DIST_BENCH} --quick --ops barrier,all_reduce --sizes 4");
    let Some(ended) = on_terminal(&line, &[]) else { return };
    assert_eq!(ended.status, 0, "{:?}", ended.stdout);
    for part in ["1 of 2, ", "2 of 2, ", ": barrier ", ", 2 ranks, run 1, libdist"] {
        assert!(ended.stdout.contains(part), "{part}: {:?}", ended.stdout);
    }
    assert!(ended.stdout.contains("Average bus bandwidth of 1 cell"), "{:?}", ended.stdout);
    assert!(!has_style(&ended.stdout), "{:?}", ended.stdout);
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    for program in [DISTRUN, DIST_STORE, DIST_DOCTOR, DIST_BENCH] {
        let line = format!("{program} -h");
        let Some(ended) = on_terminal(&line, &[]) else { return };
        assert!(has_style(&ended.stdout), "{:?}", ended.stdout);
        for variable in [("NO_COLOR", "1"), ("TERM", "dumb")] {
            let ended = on_terminal(&line, &[variable]).unwrap();
            assert!(ended.stdout.contains("--help"), "{:?}", ended.stdout);
            assert!(!has_style(&ended.stdout), "{variable:?}: {:?}", ended.stdout);
        }
        let ended = on_terminal(&format!("{line} | cat"), &[]).unwrap();
        assert!(!has_style(&ended.stdout), "{:?}", ended.stdout);
    }
}

#[test]
fn help_has_the_width_of_the_terminal() {
    for program in [DISTRUN, DIST_STORE, DIST_DOCTOR, DIST_BENCH] {
        for width in [60, 80] {
            let line = format!("stty cols {width} rows 24 && {program} --help");
            let Some(ended) = on_terminal(&line, &[("NO_COLOR", "1")]) else { return };
            assert_eq!(ended.status, 0, "{:?}", ended.stdout);
            let longest = ended.stdout.lines().map(|line| line.trim_end().chars().count()).max();
            let longest = longest.unwrap();
            assert!((width - 20..=width).contains(&longest), "{program} has {longest} columns");
        }
    }
}
