//! Tests dist-doctor on the dumps of real jobs: the processes hang, die or make mismatching calls,
//! and dist-doctor gets only the dumps of their flight recorders.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::expect_used, reason = "in a test a broken assumption is a failure")]
#![allow(clippy::print_stdout, reason = "a test that fails says what it knows")]

#[path = "doctor/browser.rs"]
mod browser;
mod harness;
mod program_paths;
mod worker;

use dist::ffi::types::{DIST_ERR_MISMATCH, DIST_ERR_PEER_FAILED, DIST_ERR_TIMEOUT};
use harness::TestJob;
use program_paths::{DIST_DOCTOR, DISTRUN};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A folder for the dumps of one job.
struct DumpFolder {
    folder: PathBuf,
}

/// The exit status and the output of dist-doctor.
struct DoctorOutput {
    status: i32,
    out: String,
    err: String,
}

impl DumpFolder {
    fn new() -> Self {
        let name = format!("dumps-{}-{}", std::process::id(), harness::next_serial());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_owned()
    }

    fn dump_path(&self, rank: usize) -> PathBuf {
        self.folder.join(format!("fr_{rank}.json"))
    }

    fn all_exist(&self, size: usize) -> bool {
        (0..size).all(|rank| self.dump_path(rank).exists())
    }

    /// Starts a job whose ranks write their dumps to this folder.
    fn job(&self, size: usize, program: impl Fn(usize) -> String) -> TestJob {
        self.job_with_variables("DIST_FLIGHT_RECORDER_FILE", size, program)
    }

    /// As [`Self::job`], with another variable for the path prefix of the dumps.
    fn job_with_variables(
        &self,
        variable: &'static str,
        size: usize,
        program: impl Fn(usize) -> String,
    ) -> TestJob {
        let mut job = TestJob::new();
        for rank in 0..size {
            let mut environment = job.environment(rank, size);
            environment.push((variable, self.path("fr_")));
            environment.push(("DIST_FLIGHT_RECORDER_TRIGGER", self.path("now")));
            job.start(&rank.to_string(), &environment, &program(rank));
        }
        job
    }

    /// Runs dist-doctor on the dumps.
    fn diagnosis(&self, options: &[&str]) -> DoctorOutput {
        let mut command = Command::new(DIST_DOCTOR);
        let output = command.args(options).arg(self.path("fr_")).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        DoctorOutput {
            status: output.status.code().unwrap(),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }

    /// Checks that the page for a browser has this verdict and a chart.
    fn check_page(&self, line: &str) {
        let path = self.path("page.html");
        let output = self.diagnosis(&["--html", &path]);
        assert_eq!((output.status, output.err.as_str()), (1, ""), "{}", output.out);
        let page = fs::read_to_string(&path).unwrap();
        let escaped =
            [("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("\"", "&quot;"), ("'", "&#39;")]
                .iter()
                .fold(line.to_owned(), |text, (from, to)| text.replace(from, to));
        assert!(page.contains(&format!("<p class=\"verdict\">{escaped}</p>")), "{page}");
        assert!(page.contains("<svg ") && page.ends_with("</html>\n"), "{page}");
    }

    /// Returns the verdict: its line, and the class and the culprits of the first finding. Also
    /// checks the page for a browser.
    fn verdict(&self) -> (String, String, Vec<u64>) {
        let output = self.diagnosis(&[]);
        assert_eq!((output.status, output.err.as_str()), (1, ""), "{}", output.out);
        let line = output.out.lines().next().unwrap().to_owned();
        self.check_page(&line);
        let output = self.diagnosis(&["--json"]);
        assert_eq!(output.status, 1);
        let value: Value = serde_json::from_str(&output.out).unwrap();
        assert_eq!(value["verdict"], line.as_str());
        let first = &value["findings"][0];
        let culprits = first["culprits"].as_array().unwrap().iter();
        let culprits = culprits.map(|culprit| culprit["rank"].as_u64().unwrap()).collect();
        (line, first["class"].as_str().unwrap().to_owned(), culprits)
    }
}

impl Drop for DumpFolder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.diagnosis(&[]).out);
        }
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// Runs dist-doctor on running processes until it names a culprit, and returns its output.
fn diagnose_running(job: &mut TestJob, pids: &[u32]) -> String {
    let mut output = String::new();
    job.wait_until("the verdict about the running processes", |_| {
        let mut command = Command::new(DIST_DOCTOR);
        command.arg("--pid").args(pids.iter().map(u32::to_string));
        let ended = command.output().unwrap();
        output = String::from_utf8(ended.stdout).unwrap();
        ended.status.code() == Some(1) && output.contains("never entered")
    });
    output
}

#[test]
fn running_job_without_a_variable_is_explained() {
    let call = "all_reduce f32 SUM 10";
    let mut job = TestJob::without_launcher(3, |rank| match rank {
        2 => format!("init\nbarrier\ngate end\n{call}\nfinalize\nleaks\n"),
        _ => format!("init\nbarrier\n{call}\nfinalize\nleaks\n"),
    });
    job.await_report("2", "at end");
    let pids = ["0", "1", "2"].map(|name| job.pid(name));
    let output = diagnose_running(&mut job, &pids);
    job.open_gate("end");
    let ended = job.finish();
    let verdict = output.lines().next().unwrap();
    assert!(verdict.starts_with(&format!("rank 2 (pid {}, host ", pids[2])), "{output}");
    assert!(verdict.contains("never entered all_reduce #2 (f32, SUM, count 10)"), "{output}");
    for name in ["DIST_LOG_LEVEL=", "DIST_FLIGHT_RECORDER_FILE=", "DIST_FLIGHT_RECORDER_TRIGGER="] {
        assert!(output.contains(&format!("\nnote: for the next run: {name}")), "{output}");
    }
    for name in ["0", "1", "2"] {
        ended.report(name, "leaks").assert_succeeded();
    }
}

#[test]
fn hang_under_distrun_explains_itself_within_31_s() {
    let program = "init\nbarrier\nif * 2 gate end\nall_reduce f32 SUM 10\nfinalize\nexit 0\n";
    let mut job = TestJob::new();
    let mut command = Command::new(DISTRUN);
    command.args(["--nproc-per-node", "3"]);
    job.start_under("distrun", command, program);
    job.await_report("2", "at end");
    let began = Instant::now();
    let rank = job.pid("2");
    let status = fs::read_to_string(format!("/proc/{rank}/status")).unwrap();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
    let launcher: u32 = parent.trim().parse().unwrap();
    let output = diagnose_running(&mut job, &[launcher]);
    let line = "has waited 30 s for rank 2 (pid ";
    job.wait_until("the line about the wait", |job| job.stderr_text("distrun").contains(line));
    let took = began.elapsed();
    job.open_gate("end");
    let ended = job.finish();
    assert!(output.starts_with("rank 2 (pid "), "{output}");
    // A second is left for a busy machine.
    assert!(took < Duration::from_secs(32), "{took:?}");
    let errors = ended.stderr_text("distrun");
    let explains = |line: &str| line.contains("all_reduce #2") && line.contains("last finished");
    assert!(errors.lines().any(explains), "{errors}");
    assert_eq!(ended.exit_status("distrun"), 0, "{errors}");
}

#[test]
fn failed_job_under_distrun_leaves_dumps() {
    let program = "init\nbarrier\nif * 1 exit 3\nall_reduce f32 SUM 10\nexit 1\n";
    let logs = DumpFolder::new();
    let mut job = TestJob::new();
    let mut command = Command::new(DISTRUN);
    command.args(["--nproc-per-node", "3", "--log-dir", &logs.path("")]);
    job.start_under("distrun", command, program);
    let ended = job.finish();
    let errors = ended.stderr_text("distrun");
    let prefix = logs.path("flight_recorder_");
    assert!(errors.contains(&format!("dist-doctor {prefix}\n")), "{errors}");
    let mut command = Command::new(DIST_DOCTOR);
    let output = command.arg(&prefix).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("rank 1 (pid "), "{text}");
}

#[test]
fn skipped_collective_is_explained_by_errors_and_dumps() {
    let dumps = DumpFolder::new();
    let call = "all_reduce f32 SUM 10 timeout_ms=500";
    // A rank exits immediately after the failure, so the dump must be complete before the call
    // returns the failure.
    let mut job = dumps.job(3, |rank| match rank {
        2 => format!("init\nbarrier\ngate end\n{call}\nfinalize\nleaks\n"),
        _ => format!("init\nbarrier\n{call}\nexit 0\n"),
    });
    for (rank, name) in ["0", "1"].into_iter().enumerate() {
        job.await_report(name, call);
        assert!(dumps.dump_path(rank).exists(), "rank {rank} has told its failure without a dump");
    }
    // The waiting rank makes no call that could fail, but it writes its dump as well.
    job.wait_until("the dump of rank 2", |_| dumps.dump_path(2).exists());
    let (line, class, culprits) = dumps.verdict();
    let pid = job.pid("2");
    job.open_gate("end");
    let ended = job.finish();

    assert_eq!((class.as_str(), culprits), ("behind", vec![2]), "{line}");
    assert!(line.starts_with(&format!("rank 2 (pid {pid}, host ")), "{line}");
    for part in [
        ") never entered all_reduce #2 (f32, SUM, count 10) of group world; it has been in no operation for ",
        "; it last finished barrier #1 of group world; 2 ranks waited for it and failed",
    ] {
        assert!(line.contains(part), "\"{part}\" is missing: {line}");
    }
    let named = format!("rank 2 (pid {pid}, ");
    for name in ["0", "1", "2"] {
        let parts = [named.as_str(), "which last finished barrier #1", "500 ms"];
        ended.report(name, call).assert_failed(DIST_ERR_TIMEOUT, &parts);
    }
    ended.report("2", "leaks").assert_succeeded();
}

#[test]
fn a_killed_rank_is_named_by_the_dumps_of_the_others() {
    let dumps = DumpFolder::new();
    let mut job = dumps.job(3, |_| "init\nloop all_reduce f32 SUM 10\nexit 0\n".to_owned());
    job.await_reports(&["0", "1", "2"], "ready");
    let pid = job.pid("1");
    job.kill("1");
    let ended = job.finish();
    for name in ["0", "2"] {
        ended
            .report(name, "all_reduce f32 SUM 10")
            .assert_failed(DIST_ERR_PEER_FAILED, &["rank 1 (pid "]);
    }
    let (line, class, culprits) = dumps.verdict();
    assert_eq!((class.as_str(), culprits), ("failure", vec![1]), "{line}");
    let died = format!("group world has failed: rank 1 (pid {pid}, host ");
    assert!(line.starts_with(&died) && line.contains("died; it "), "{line}");
    assert!(line.ends_with("; ranks 0, 2 reported this"), "{line}");
    let whole = dumps.diagnosis(&["verdict"]).out;
    assert!(whole.contains("\n  no dump of rank 1\n"), "{whole}");
}

#[test]
fn mismatch_names_both_calls() {
    let dumps = DumpFolder::new();
    // Torch's variable uses its own file names.
    let job = dumps.job_with_variables("TORCH_FR_DUMP_TEMP_FILE", 3, |rank| {
        let call = if rank == 1 { "barrier" } else { "all_reduce f64 MAX 7" };
        format!("init\nall_reduce f32 SUM 1\n{call}\nexit 0\n")
    });
    let ended = job.finish();
    for (name, call) in
        [("0", "all_reduce f64 MAX 7"), ("1", "barrier"), ("2", "all_reduce f64 MAX 7")]
    {
        ended.report(name, call).assert_failed(DIST_ERR_MISMATCH, &["barrier #2"]);
    }
    assert!((0..3).all(|rank| Path::new(&dumps.path(&format!("fr_{rank}"))).exists()));
    let (line, class, culprits) = dumps.verdict();
    assert_eq!((class.as_str(), culprits), ("mismatch", vec![1]), "{line}");
    assert!(line.starts_with("mismatch in group world: rank 1 (pid "), "{line}");
    let both = "called barrier #2 and ranks 0, 2 called all_reduce #2 (f64, MAX, count 7)";
    assert!(line.ends_with(both), "{line}");
}

const HANGING_CALL: &str = "all_reduce f32 SUM 1000";

/// Starts a job of 3 ranks whose rank 1 does not enter the call. Returns when the dumps of all
/// ranks show this.
fn hanging_job(dumps: &DumpFolder) -> TestJob {
    let mut job = dumps.job(3, |rank| {
        let hang = if rank == 1 { "gate end\n" } else { "" };
        format!("init\nbarrier\n{hang}{HANGING_CALL}\nfinalize\nleaks\n")
    });
    job.await_reports(&["0", "1", "2"], "barrier");
    // Repeats the dumps until the ranks have waited long enough for a finding.
    let mut touches = 0;
    loop {
        (0..3).for_each(|rank| drop(fs::remove_file(dumps.dump_path(rank))));
        touches += 1;
        fs::write(dumps.path("now"), format!("{touches}")).unwrap();
        job.wait_until("the dumps of all ranks", |_| dumps.all_exist(3));
        if dumps.diagnosis(&[]).status == 1 && touches > 1 {
            break;
        }
    }
    job
}

#[test]
fn hanging_job_writes_dumps_when_trigger_is_touched() {
    let dumps = DumpFolder::new();
    let job = hanging_job(&dumps);
    let (line, class, culprits) = dumps.verdict();
    assert_eq!((class.as_str(), culprits), ("behind", vec![1]), "{line}");
    assert!(line.contains("never entered all_reduce #2 (f32, SUM, count 1000)"), "{line}");
    assert!(line.ends_with("; 2 ranks wait for it"), "{line}");
    job.open_gate("end");
    let ended = job.finish();
    for name in ["0", "1", "2"] {
        ended.report(name, HANGING_CALL).assert_succeeded();
        ended.report(name, "finalize").assert_succeeded();
        // The recorder's thread has ended as well.
        ended.report(name, "leaks").assert_succeeded();
    }
}

#[test]
fn the_page_shows_the_hang_in_a_browser() {
    let Some(browser) = browser::find() else {
        println!("skipped: Chromium is not installed");
        return;
    };
    let dumps = DumpFolder::new();
    let job = hanging_job(&dumps);
    let (line, ..) = dumps.verdict();
    job.open_gate("end");
    drop(job.finish());
    let page = fs::read_to_string(dumps.path("page.html")).unwrap();
    let found = browser::examine(&browser, &page, &dumps.folder);
    let (number, list) = (browser::number, browser::list);
    assert_eq!(list(&found, "requests"), [] as [Value; 0], "the page loads other files");
    // The verdict is above everything else.
    let verdict = &found["verdict"];
    assert_eq!(verdict["text"], line.as_str());
    let tops = list(&found, "tops");
    assert!(tops.len() >= 3, "{found}");
    assert!(tops.iter().all(|top| top.as_f64().unwrap() >= number(verdict, "bottom")), "{found}");
    // Ranks 0 and 2 wait for rank 1.
    let waits: Vec<(bool, &str)> = list(&found, "waits")
        .iter()
        .map(|cells| {
            let waiter = cells[0].as_str().unwrap();
            assert!(cells[2].as_str().unwrap().starts_with("all_reduce #2"), "{cells}");
            (
                waiter.starts_with("rank 0 ") || waiter.starts_with("rank 2 "),
                cells[1].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(waits, [(true, "rank 1"); 2], "{found}");
    // A row for each rank, and in it the operations from left to right.
    let [chart] = list(&found, "charts") else { panic!("{found}") };
    let labels = list(chart, "labels");
    for rank in 0..3 {
        let name = format!("rank {rank}");
        let label = labels.iter().find(|label| label["text"] == name.as_str()).unwrap();
        assert_eq!(label["culprit"], rank == 1, "{label}");
        let middle = f64::midpoint(number(label, "top"), number(label, "bottom"));
        let in_row = |bar: &&Value| number(bar, "top") < middle && middle < number(bar, "bottom");
        let bars: Vec<&Value> = list(chart, "bars").iter().filter(in_row).collect();
        let states: Vec<&str> = bars.iter().map(|bar| bar["state"].as_str().unwrap()).collect();
        let expected: &[&str] = if rank == 1 { &["done"] } else { &["done", "running"] };
        assert_eq!(states, expected, "{name}: {chart}");
        assert!(bars[0]["title"].as_str().unwrap().starts_with("barrier #1"), "{chart}");
        assert!(bars.is_sorted_by_key(|bar| number(bar, "left")), "{chart}");
        for bar in &bars {
            assert!(number(label, "right") <= number(bar, "left"), "{bar} is over {label}");
            assert!(number(bar, "right") <= number(chart, "right"), "{bar} is cut off");
        }
    }
    // The examination finds a page that loads another file.
    let loading = page.replace("</body>", "<img src=\"other.png\"></body>");
    let found = browser::examine(&browser, &loading, &dumps.folder);
    assert!(list(&found, "requests")[0].as_str().unwrap().ends_with("/other.png"), "{found}");
}

#[test]
fn malformed_dumps_are_refused_by_name() {
    let dumps = DumpFolder::new();
    let output = dumps.diagnosis(&[]);
    assert_eq!(output.status, 2);
    assert!(output.err.contains("fr_: no such file"), "{}", output.err);
    fs::write(dumps.dump_path(0), "{\"format\": \"libdist flight recorder\", \"ver").unwrap();
    let output = dumps.diagnosis(&[]);
    assert_eq!((output.status, output.out.as_str()), (2, ""));
    let expected_lines = ["fr_0.json: truncated", "no readable dump in "];
    assert!(expected_lines.iter().all(|part| output.err.contains(part)), "{}", output.err);
}
