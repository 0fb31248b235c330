//! The secret of a job's store: that the launcher hands it to the ranks and shows it to nobody, and what
//! a rank says where it cannot have it.
#![allow(clippy::unwrap_used, reason = "in a test a broken assumption is a failure")]
#![allow(clippy::expect_used, clippy::panic, reason = "in a test a broken assumption is a failure")]
#![allow(clippy::print_stdout, reason = "the harness tells of a job that failed")]

mod harness;
mod worker;

use dist::base::deadline::Deadline;
use dist::ffi::types::{DIST_ERR_INVALID_ARGUMENT, DIST_ERR_SYSTEM};
use harness::{Job, Report};
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How long anything here may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

const FILE: &str = "DIST_STORE_SECRET_FILE";
const FD: &str = "DIST_STORE_SECRET_FD";

/// A file with a secret, removed at the end.
struct SecretFile(PathBuf);

impl SecretFile {
    fn new(content: &str, mode: u32) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("secret-{}-{number}", std::process::id());
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(mode).open(&path).unwrap();
        file.write_all(content.as_bytes()).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.0));
    }
}

/// What an ended distrun has left.
struct Ended {
    status: i32,
    out: String,
    err: String,
}

impl Ended {
    /// What this rank has written.
    fn of_rank(&self, rank: usize) -> Vec<&str> {
        let prefix = format!("[{rank}] ");
        self.out.lines().filter_map(|line| line.strip_prefix(prefix.as_str())).collect()
    }
}

/// Runs distrun to its end, in the folder of the secrets, with these variables beside its own. What it writes
/// must fit into a pipe.
fn distrun(variables: &[(&str, &str)], arguments: &[&str]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_distrun"));
    command.current_dir(env!("CARGO_TARGET_TMPDIR")).env_remove(FILE).env_remove(FD);
    command.args(arguments).envs(variables.iter().copied());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Deadline::after(LIMIT);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status.code().unwrap_or(-1);
        }
        if deadline.has_passed() {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let (mut out, mut err) = (String::new(), String::new());
    child.stdout.unwrap().read_to_string(&mut out).unwrap();
    child.stderr.unwrap().read_to_string(&mut err).unwrap();
    Ended { status, out, err }
}

/// Shows where a rank of this job finds its secret.
const WHERE: &str = "echo file=$DIST_STORE_SECRET_FILE fd=${DIST_STORE_SECRET_FD:+some}";

/// The same for a run of distrun on that alone.
fn told(variables: &[(&str, &str)], flags: &[&str]) -> String {
    let ended = distrun(variables, &[flags, &["sh", "-c", WHERE]].concat());
    assert_eq!(ended.status, 0, "{}", ended.err);
    ended.out.trim_end().split_once("] ").unwrap().1.to_owned()
}

/// The secrets that the ranks of a new job find, with a line "told" behind each that can be seen in the
/// environment or on the command line of the rank or its launcher.
fn found_by_ranks(ranks: usize) -> Vec<String> {
    let script = "s=$(cat /proc/self/fd/$DIST_STORE_SECRET_FD); echo $s; for p in $$ $PPID; do \
                  grep -qaF $s /proc/$p/environ /proc/$p/cmdline && echo told; done; \
                  grep -qaF RANK= /proc/$$/environ && grep -qaF distrun /proc/$PPID/cmdline";
    let ended = distrun(&[], &["--nproc-per-node", &ranks.to_string(), "sh", "-c", script]);
    assert_eq!(ended.status, 0, "{}", ended.err);
    (0..ranks).map(|rank| ended.of_rank(rank).join("\n")).collect()
}

#[test]
fn each_rank_finds_the_secret_of_its_own_job_and_nobody_else_sees_it() {
    let (first, second) = (found_by_ranks(3), found_by_ranks(1));
    for secret in first.iter().chain(&second) {
        assert_eq!(secret.len(), 64, "{secret}");
        assert!(secret.bytes().all(|digit| digit.is_ascii_hexdigit()), "{secret}");
    }
    assert!(first.iter().all(|secret| *secret == first[0]));
    assert_ne!(first[0], second[0]);
}

#[test]
fn a_rank_cannot_change_the_secret_of_the_others() {
    let script = "(echo changed >/proc/self/fd/$DIST_STORE_SECRET_FD) 2>/dev/null || echo refused";
    let ended = distrun(&[], &["sh", "-c", script]);
    assert_eq!(ended.of_rank(0), ["refused"], "{}", ended.err);
}

#[test]
fn ranks_are_told_of_the_secret_that_was_asked_for() {
    let file = SecretFile::new("of the user\n", 0o600);
    let named = format!("file={} fd=", file.path());
    let relative = file.0.file_name().unwrap().to_str().unwrap();
    let from_user = &[(FILE, file.path())];
    assert_eq!(told(&[], &[]), "file= fd=some");
    assert_eq!(told(&[], &["--secret-file", relative]), named);
    assert_eq!(told(from_user, &[]), named);
    assert_eq!(told(&[(FILE, "/no/such")], &["--secret-file", file.path()]), named);
    // Somebody else's descriptor is not passed for this job's.
    assert_eq!(told(&[(FD, "0")], &["--secret-file", file.path()]), named);
    assert_eq!(told(&[(FD, "0")], &[]), "file= fd=some");
    assert_eq!(told(&[(FILE, file.path()), (FD, "0")], &["--no-secret"]), "file= fd=");
    // The store of the first of several nodes needs no port that is known.
    let second = ["--nnodes", "2", "--node-rank", "1"];
    assert_eq!(told(&[], &second), "file= fd=");
    assert_eq!(told(from_user, &second), named);
}

#[test]
fn a_file_that_others_may_read_starts_no_job() {
    let file = SecretFile::new("of the user", 0o600);
    let open = SecretFile::new("of the user", 0o640);
    for (path, why) in [(open.path(), "chmod 600"), ("/no/such", "/no/such"), ("/", "regular")] {
        for (variables, flags) in
            [(vec![], vec!["--secret-file", path]), (vec![(FILE, path)], vec![])]
        {
            let ended = distrun(&variables, &[&flags[..], &["echo", "started"]].concat());
            assert_eq!(ended.status, 1, "{}", ended.err);
            assert!(ended.err.contains(why) && ended.err.contains("secret"), "{}", ended.err);
            assert!(!ended.err.contains("of the user") && ended.out.is_empty(), "{}", ended.err);
        }
    }
    let both = distrun(&[], &["--no-secret", "--secret-file", file.path(), "true"]);
    assert_eq!(both.status, 2, "{}", both.err);
}

/// What one of two ranks gets from an initialisation that fails, which leaves nothing.
fn alone(variables: &[(&'static str, &str)]) -> Report {
    let mut job = Job::new();
    let mut environment = job.environment(0, 2);
    environment.extend(variables.iter().map(|(name, value)| (*name, (*value).to_owned())));
    job.start("0", &environment, "init\nleaks\n");
    let ended = job.finish();
    ended.report("0", "leaks").succeeded();
    ended.report("0", "init")
}

#[test]
fn a_rank_that_cannot_have_the_secret_says_so_at_once() {
    let file = SecretFile::new("of the user", 0o600);
    let open = SecretFile::new("of the user", 0o644);
    let empty = SecretFile::new("\n", 0o600);
    for (variables, parts) in [
        (&[(FILE, open.path())][..], [FILE, "mode 0644", "chmod 600"]),
        (&[(FILE, empty.path())], [FILE, empty.path(), "is empty"]),
        (&[(FILE, file.path()), (FD, "0")], [FILE, FD, "unset one"]),
        (&[(FD, "999999")], [FD, "descriptor 999999", "not inherited"]),
        (&[(FD, "0")], [FD, "descriptor 0", "regular file"]),
        (&[(FD, "three")], [FD, "three", "not usable"]),
    ] {
        let report = alone(variables);
        assert!(!report.message.contains("of the user"), "{report:?}");
        report.failed(DIST_ERR_INVALID_ARGUMENT, &parts).within_ms(2000);
    }
    let missing = alone(&[(FILE, "/no/such")]);
    missing.failed(DIST_ERR_SYSTEM, &[FILE, "/no/such"]).within_ms(2000);
}

/// What every rank does.
const PROGRAM: &str = "init\nall_reduce f32 SUM 10\nbarrier\nfinalize\nleaks\n";

#[test]
fn ranks_with_a_secret_work_whoever_hosts_the_store() {
    let file = SecretFile::new("of the user", 0o600);
    let mut launched = Job::new();
    let mut launcher = Command::new(env!("CARGO_BIN_EXE_distrun"));
    launcher.args(["--nproc-per-node", "2"]);
    launched.start_under("distrun", launcher, PROGRAM);
    let mut by_hand = Job::new();
    for rank in 0..2 {
        let mut environment = by_hand.environment(rank, 2);
        environment.push((FILE, file.path().to_owned()));
        by_hand.start(&rank.to_string(), &environment, PROGRAM);
    }
    for job in [launched, by_hand] {
        let ended = job.finish();
        for rank in ["0", "1"] {
            ended.all_succeeded(rank, 6);
        }
    }
}
