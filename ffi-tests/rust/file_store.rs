//! The file store between real processes: rendezvous, files of an earlier run, writers that are
//! killed, and full disks.
#![allow(clippy::unwrap_used, reason = "in a test a broken assumption is a failure")]
#![allow(clippy::expect_used, clippy::panic, reason = "in a test a broken assumption is a failure")]
#![allow(clippy::print_stdout, reason = "a test says what it has measured")]

mod harness;
mod worker;

use dist::base::deadline::Deadline;
use dist::ffi::types::{DIST_ERR_MISMATCH, DIST_ERR_SYSTEM, DIST_ERR_TIMEOUT};
use dist::store::Store as _;
use dist::store::file::replay::replay;
use dist::store::file::{FileOptions, FileStore};
use harness::{FinishedJob, TestJob};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A program that uses a group and finalizes.
const USE_AND_LEAVE: &str = "all_reduce f32 SUM 10\nbarrier\nfinalize\nleaks\n";

/// The names of ranks.
const NAMES: [&str; 4] = ["0", "1", "2", "3"];

/// A folder that is removed at the end of the test.
struct TestFolder(PathBuf);

impl TestFolder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let serial = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("file-store-{}-{serial}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn file(&self) -> PathBuf {
        self.0.join("store")
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

fn deadline() -> Deadline {
    Deadline::after_ms(30_000)
}

fn open(path: &Path) -> FileStore {
    FileStore::open(path, &FileOptions::default(), &deadline()).unwrap()
}

/// Returns the command with which a rank joins through a file.
fn init_command(path: &Path, rank: usize, size: usize) -> String {
    format!("init url=file://{}?rank={rank}&world_size={size}", path.display())
}

/// Starts the ranks of a job with a job id, as a launcher sets it.
fn start(path: &Path, size: usize, job_id: &str, then: &str) -> TestJob {
    let mut job = TestJob::new();
    for (rank, name) in NAMES[..size].iter().enumerate() {
        let environment = [("TORCHELASTIC_RUN_ID", job_id.to_owned())];
        job.start(name, &environment, &format!("{}\n{then}", init_command(path, rank, size)));
    }
    job
}

/// Asserts that all ranks have joined, used the group and released their resources.
fn assert_worked(ended: &FinishedJob, size: usize) {
    for name in &NAMES[..size] {
        ended.assert_all_succeeded(name, 6);
        assert_eq!(ended.exit_status(name), 0);
    }
}

#[test]
fn store_file_is_removed_after_each_job() {
    let folder = TestFolder::new();
    let path = folder.file();
    for size in [4, 3, 1] {
        assert_worked(&start(&path, size, "", USE_AND_LEAVE).finish(), size);
        assert!(!path.exists());
    }
    // The rank and the world size may also come from the environment or the options.
    let mut job = TestJob::new();
    job.start_rank(0, 2, &format!("init url=file://{}\n{USE_AND_LEAVE}", path.display()));
    let options = format!("init url=file://{}?world_size=2 rank=1", path.display());
    job.start("1", &[], &format!("{options}\n{USE_AND_LEAVE}"));
    assert_worked(&job.finish(), 2);
    assert!(!path.exists());
}

#[test]
fn stale_store_file_is_an_error_on_all_ranks() {
    let folder = TestFolder::new();
    let path = folder.file();
    let mut job = start(&path, 2, "first", "loop barrier\n");
    job.await_reports(&NAMES[..2], "ready");
    // A surplus rank gets an error and has no effect on the other ranks.
    job.start("late", &[("TORCHELASTIC_RUN_ID", "first".to_owned())], &init_command(&path, 1, 2));
    let report = job.await_report("late", &init_command(&path, 1, 2));
    report.assert_failed(DIST_ERR_MISMATCH, &["2 of 2", "joined already"]);
    let pids = [job.pid("0"), job.pid("1")];
    job.kill("0");
    job.kill("1");
    drop(job.finish());
    assert!(path.exists());

    let shown = path.display().to_string();
    let of_another = ["job \"first\"", "job \"second\"", "remove the file", &shown];
    let dead = pids.map(|pid| format!("process {pid} on host "));
    let of_an_earlier = ["without leaving", "remove the file", &shown];
    for (job_id, parts) in [("second", of_another.as_slice()), ("first", &of_an_earlier)] {
        let ended = start(&path, 2, job_id, "leaks\n").finish();
        for (rank, name) in NAMES[..2].iter().enumerate() {
            let report = ended.report(name, &init_command(&path, rank, 2));
            report.assert_failed(DIST_ERR_MISMATCH, parts).assert_within_ms(2000);
            assert!(dead.iter().any(|dead| report.message.contains(dead)), "{report:?}");
            ended.report(name, "leaks").assert_succeeded();
        }
    }
    fs::remove_file(&path).unwrap();
    assert_worked(&start(&path, 2, "first", USE_AND_LEAVE).finish(), 2);
    assert!(!path.exists());
}

#[test]
fn failed_start_leaves_no_file() {
    let folder = TestFolder::new();
    let path = folder.file();
    let mut job = TestJob::new();
    for rank in [0, 2] {
        let program = format!("{} connect_timeout_ms=500\nleaks\n", init_command(&path, rank, 4));
        job.start(NAMES[rank], &[], &program);
    }
    let ended = job.finish();
    for rank in [0, 2] {
        let what = format!("{} connect_timeout_ms=500", init_command(&path, rank, 4));
        ended
            .report(NAMES[rank], &what)
            .assert_failed(DIST_ERR_TIMEOUT, &["rank"])
            .assert_within_ms(3000);
        ended.report(NAMES[rank], "leaks").assert_succeeded();
    }
    assert!(!path.exists());
    assert_worked(&start(&path, 4, "", USE_AND_LEAVE).finish(), 4);
}

#[test]
fn killed_writer_leaves_a_readable_file() {
    const TURNS: u64 = 16;
    const BYTES: usize = 3_000_000;
    let folder = TestFolder::new();
    let path = folder.file();
    let mut torn = 0;
    for turn in 0..TURNS {
        let keeper = open(&path);
        let mut job = TestJob::new();
        let program = format!("file_store {}\nfill value {BYTES}\n", path.display());
        job.start("writer", &[], &program);
        job.await_report("writer", "ready");
        // Each kill happens at a different time of a write, on machines of any speed.
        std::thread::sleep(Duration::from_micros(turn * 700));
        job.kill("writer");
        drop(job.finish());
        let bytes = fs::read(&path).unwrap();
        let (_, whole) = replay(&bytes).unwrap();
        torn += usize::from(whole < bytes.len());
        // Open stores and new stores continue to work.
        assert_eq!(keeper.add(b"n", 1, &deadline()).unwrap(), 1);
        let newcomer = open(&path);
        assert_eq!(newcomer.add(b"n", 1, &deadline()).unwrap(), 2);
        for store in [&keeper, &newcomer] {
            let value = store.get(b"value", &deadline()).unwrap();
            assert_eq!(value.len(), BYTES);
            assert!(value.iter().all(|&byte| byte == value[0]));
        }
        let bytes = fs::read(&path).unwrap();
        assert_eq!(replay(&bytes).unwrap().1, bytes.len());
        drop(keeper);
        drop(newcomer);
        assert!(!path.exists());
    }
    println!("{torn} of {TURNS} writers died in the middle of a record");
}

#[test]
fn concurrent_counters_lose_no_increment() {
    let folder = TestFolder::new();
    let path = folder.file();
    let keeper = open(&path);
    let mut job = TestJob::new();
    for name in &NAMES[..3] {
        let program = format!("file_store {}\ncount n 200 6\nunstore\nleaks\n", path.display());
        job.start(name, &[], &program);
    }
    let ended = job.finish();
    for name in &NAMES[..3] {
        ended.assert_all_succeeded(name, 5);
    }
    assert_eq!(keeper.get(b"n", &deadline()).unwrap(), b"3600");
}

/// Checks a store whose disk is almost full; `why` is the expected reason in the error.
fn check_store_without_space(mut job: TestJob, why: &str) {
    let nothing = "nothing was stored";
    let report = job.await_report("0", "fill large 5000000");
    report.assert_failed(DIST_ERR_SYSTEM, &[why, nothing]);
    let ended = job.finish();
    // The small values fill the disk up to its last byte.
    ended.report("0", "fill small 300").assert_failed(DIST_ERR_SYSTEM, &[why, nothing]);
    for what in ["set before v", "get before v", "get between w", "unstore", "leaks"] {
        ended.report("0", what).assert_succeeded();
    }
    assert_eq!(ended.exit_status("0"), 0);
}

/// Returns the commands of a worker whose store is on an almost full disk.
fn program_without_space(path: &Path) -> String {
    format!(
        "file_store {}\nset before v\nfill large 5000000\nget before v\nset between w\nfill small 300\n\
         get between w\nunstore\nleaks\n",
        path.display()
    )
}

#[test]
fn full_disk_is_an_error_and_store_stays_usable() {
    let folder = TestFolder::new();
    let mount = "mount -t tmpfs -o size=600k none \"$1\" && shift && exec \"$@\"";
    let words = ["-rm", "sh", "-c", mount, "sh"];
    // The mount is in a separate namespace, so that the kernel removes it in every case.
    let small_disk = || {
        let mut command = Command::new("unshare");
        command.args(words).arg(&folder.0);
        command
    };
    if !small_disk().arg("true").status().is_ok_and(|status| status.success()) {
        println!("skipped: no file system can be mounted here");
        return;
    }
    let mut command = small_disk();
    command.env(worker::NAME_VARIABLE, "0");
    let mut job = TestJob::new();
    job.start_under("0", command, &program_without_space(&folder.file()));
    check_store_without_space(job, "is full");
}

#[test]
fn file_size_limit_is_an_error_without_sigxfsz() {
    let folder = TestFolder::new();
    let mut job = TestJob::new();
    let program = format!("limit_file_size 600000\n{}", program_without_space(&folder.file()));
    job.start("0", &[], &program);
    check_store_without_space(job, "maximum file size");
    assert!(!folder.file().exists());
}
