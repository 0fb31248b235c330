//! The secret of a job's store: the launcher passes it only to the ranks and shows it to no other
//! process, and a rank without the secret reports an error.
#![allow(clippy::unwrap_used, reason = "in a test a broken assumption is a failure")]
#![allow(clippy::expect_used, clippy::panic, reason = "in a test a broken assumption is a failure")]
#![allow(clippy::print_stdout, reason = "the harness tells of a job that failed")]

mod harness;
mod program_paths;
mod worker;

use dist::base::deadline::Deadline;
use dist::base::error::ErrorKind;
use dist::ffi::types::{
    DIST_ERR_AUTH, DIST_ERR_INVALID_ARGUMENT, DIST_ERR_SYSTEM, DIST_ERR_TIMEOUT,
};
use dist::store::Store as _;
use dist::store::tcp::{ClientOptions, Secret, Server, ServerOptions, TcpStore};
use harness::{CommandReport, TestJob};
use program_paths::DISTRUN;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The time limit of any wait on a busy machine.
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

/// The exit status and output of a finished distrun.
struct LauncherOutput {
    status: i32,
    out: String,
    err: String,
}

impl LauncherOutput {
    /// Returns the output of a rank.
    fn of_rank(&self, rank: usize) -> Vec<&str> {
        let prefix = format!("[{rank}] ");
        self.out.lines().filter_map(|line| line.strip_prefix(prefix.as_str())).collect()
    }
}

/// Runs distrun to its end in the folder of the secrets, with these additional variables. The
/// output must fit into a pipe.
fn distrun(variables: &[(&str, &str)], arguments: &[&str]) -> LauncherOutput {
    let mut command = Command::new(DISTRUN);
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
    LauncherOutput { status, out, err }
}

/// A shell command that prints where a rank of the job finds its secret.
const SHOW_SECRET_SOURCE: &str =
    "echo file=$DIST_STORE_SECRET_FILE fd=${DIST_STORE_SECRET_FD:+some}";

/// Runs distrun with that command and returns its output.
fn secret_source(variables: &[(&str, &str)], flags: &[&str]) -> String {
    let ended = distrun(variables, &[flags, &["sh", "-c", SHOW_SECRET_SOURCE]].concat());
    assert_eq!(ended.status, 0, "{}", ended.err);
    ended.out.trim_end().split_once("] ").unwrap().1.to_owned()
}

/// Returns the secrets that the ranks of a new job find. After each secret that is visible in the
/// environment or the command line of the rank or its launcher, the result has a line "told".
fn secrets_seen_by_ranks(ranks: usize) -> Vec<String> {
    let script = "s=$(cat /proc/self/fd/$DIST_STORE_SECRET_FD); echo $s; for p in $$ $PPID; do \
                  grep -qaF $s /proc/$p/environ /proc/$p/cmdline && echo told; done; \
                  grep -qaF RANK= /proc/$$/environ && grep -qaF distrun /proc/$PPID/cmdline";
    let ended = distrun(&[], &["--nproc-per-node", &ranks.to_string(), "sh", "-c", script]);
    assert_eq!(ended.status, 0, "{}", ended.err);
    (0..ranks).map(|rank| ended.of_rank(rank).join("\n")).collect()
}

#[test]
fn secret_is_visible_to_ranks_of_its_job_only() {
    let (first, second) = (secrets_seen_by_ranks(3), secrets_seen_by_ranks(1));
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
fn ranks_get_the_requested_secret() {
    let file = SecretFile::new("of the user\n", 0o600);
    let named = format!("file={} fd=", file.path());
    let relative = file.0.file_name().unwrap().to_str().unwrap();
    let from_user = &[(FILE, file.path())];
    assert_eq!(secret_source(&[], &[]), "file= fd=some");
    assert_eq!(secret_source(&[], &["--secret-file", relative]), named);
    assert_eq!(secret_source(from_user, &[]), named);
    assert_eq!(secret_source(&[(FILE, "/no/such")], &["--secret-file", file.path()]), named);
    // distrun does not pass an inherited descriptor in place of this job's secret.
    assert_eq!(secret_source(&[(FD, "0")], &["--secret-file", file.path()]), named);
    assert_eq!(secret_source(&[(FD, "0")], &[]), "file= fd=some");
    assert_eq!(secret_source(&[(FILE, file.path()), (FD, "0")], &["--no-secret"]), "file= fd=");
    let second = ["--nnodes", "2", "--node-rank", "1"];
    assert_eq!(secret_source(from_user, &second), named);
    assert_eq!(secret_source(&[], &[&second[..], &["--no-secret"]].concat()), "file= fd=");
}

/// The other nodes could not know a secret that distrun makes.
#[test]
fn job_of_several_nodes_needs_a_secret_or_a_choice() {
    for node in ["0", "1"] {
        let ended = distrun(&[], &["--nnodes", "2", "--node-rank", node, "echo", "started"]);
        assert_eq!((ended.status, ended.out.as_str()), (2, ""), "{}", ended.err);
        for option in ["--secret-file", "--no-secret"] {
            assert!(ended.err.contains(option), "{}", ended.err);
        }
    }
}

/// A program that a rank executes after `dist_init` cannot read the secret.
#[test]
fn executed_children_of_ranks_do_not_inherit_the_secret() {
    let read = "shell cat /proc/self/fd/$DIST_STORE_SECRET_FD 2>/dev/null || echo closed";
    let mut job = TestJob::new();
    let mut launcher = Command::new(DISTRUN);
    launcher.args(["--nproc-per-node", "2"]);
    job.start_under("distrun", launcher, &format!("{read} # before\ninit\n{read}\nfinalize\n"));
    let ended = job.finish();
    for rank in ["0", "1"] {
        // Until the rank has read the secret, a shell that starts the rank must pass it on.
        assert_eq!(ended.report(rank, &format!("{read} # before")).message.trim_end().len(), 64);
        assert_eq!(ended.report(rank, read).message.trim_end(), "closed");
        ended.assert_all_succeeded(rank, 5);
    }
}

#[test]
fn world_readable_secret_file_is_refused() {
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

/// Runs the failing initialization of one of two ranks. Asserts that the process has released its
/// resources, and returns the report.
fn run_single_worker(variables: &[(&'static str, &str)]) -> CommandReport {
    let mut job = TestJob::new();
    let mut environment = job.environment(0, 2);
    environment.extend(variables.iter().map(|(name, value)| (*name, (*value).to_owned())));
    job.start("0", &environment, "init\nleaks\n");
    let ended = job.finish();
    ended.report("0", "leaks").assert_succeeded();
    ended.report("0", "init")
}

#[test]
fn unreadable_secret_is_an_immediate_error() {
    let file = SecretFile::new("of the user", 0o600);
    let open = SecretFile::new("of the user", 0o644);
    let empty = SecretFile::new("\n", 0o600);
    for (variables, parts) in [
        (&[(FILE, open.path())][..], [FILE, "mode 0644", "chmod 600"]),
        (&[(FILE, empty.path())], [FILE, empty.path(), "is empty"]),
        (&[(FILE, file.path()), (FD, "0")], [FILE, FD, "unset one"]),
        (&[(FD, "999999")], [FD, "descriptor 999999", "not inherited"]),
        (&[(FD, "0")], [FD, "descriptor 0", "regular file"]),
        (&[(FD, "three")], [FD, "three", "not an integer"]),
    ] {
        let report = run_single_worker(variables);
        assert!(!report.message.contains("of the user"), "{report:?}");
        report.assert_failed(DIST_ERR_INVALID_ARGUMENT, &parts).assert_within_ms(2000);
    }
    let missing = run_single_worker(&[(FILE, "/no/such")]);
    missing.assert_failed(DIST_ERR_SYSTEM, &[FILE, "/no/such"]).assert_within_ms(2000);
}

/// The program of every rank.
const PROGRAM: &str = "init\nall_reduce f32 SUM 10\nbarrier\nfinalize\nleaks\n";

#[test]
fn secret_works_with_any_store_host() {
    let file = SecretFile::new("of the user", 0o600);
    let mut launched = TestJob::new();
    let mut launcher = Command::new(DISTRUN);
    launcher.args(["--nproc-per-node", "2"]);
    launched.start_under("distrun", launcher, PROGRAM);
    let mut by_hand = TestJob::new();
    for rank in 0..2 {
        let mut environment = by_hand.environment(rank, 2);
        environment.push((FILE, file.path().to_owned()));
        by_hand.start(&rank.to_string(), &environment, PROGRAM);
    }
    for job in [launched, by_hand] {
        let ended = job.finish();
        for rank in ["0", "1"] {
            ended.assert_all_succeeded(rank, 6);
        }
    }
}

/// Returns the four bytes with which a store answers the first requests of a torch client, and
/// whether it then closes the connection.
fn greeting_for_torch(port: u16) -> ([u8; 4], bool) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    // The requests are VALIDATE with its magic number, and PING with the number 1.
    stream.write_all(&[0x00, 0xce, 0xf7, 0x85, 0x3c, 0x0d, 1, 0, 0, 0]).unwrap();
    let mut reply = [0; 4];
    stream.read_exact(&mut reply).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    (reply, stream.read(&mut [0]).unwrap() == 0)
}

/// Returns a client of the store at this port, with or without a secret, over TCP only or any
/// transport.
fn client(port: u16, secret: Option<&[u8]>, tcp_only: bool) -> dist::base::Result<TcpStore> {
    let secret = secret.map(|bytes| Secret::from_bytes(bytes).unwrap());
    let options = ClientOptions {
        host: "127.0.0.1".to_owned(),
        port,
        secret,
        tcp_only,
        ..ClientOptions::default()
    };
    TcpStore::connect(options, &Deadline::after(LIMIT))
}

fn server(secret: Option<&[u8]>) -> Arc<Server> {
    let secret = secret.map(|bytes| Secret::from_bytes(bytes).unwrap());
    let bind = "127.0.0.1".to_owned();
    Server::start(ServerOptions { bind, secret, ..ServerOptions::default() }).unwrap()
}

#[test]
fn clients_without_the_secret_are_refused() {
    let (with, without) = (server(Some(b"right")), server(None));
    let (with, without) = (with.port(), without.port());
    for tcp_only in [true, false] {
        let store = client(with, Some(b"right"), tcp_only).unwrap();
        let deadline = Deadline::after(LIMIT);
        store.set(b"key", b"value", &deadline).unwrap();
        assert_eq!(store.get(b"key", &deadline).unwrap(), b"value");
        for (port, secret, why) in [
            (with, None, "DIST_STORE_SECRET_FILE"),
            (with, Some(&b"wrong"[..]), "another job's store"),
            (without, Some(b"right"), "has no secret"),
        ] {
            let error = client(port, secret, tcp_only).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Auth, "{error}");
            assert!(error.message().contains(why), "{error}");
            assert!(error.message().contains(&format!("127.0.0.1:{port}")), "{error}");
        }
        client(without, None, tcp_only).unwrap();
    }
    assert_eq!(greeting_for_torch(with), (*b"AUTH", true));
}

/// Every connection proves the secret separately: the main connection first, and another one for a
/// wait.
#[test]
fn a_client_with_the_secret_may_have_many_connections() {
    let server = server(Some(b"right"));
    let deadline = Deadline::after(LIMIT);
    let store = client(server.port(), Some(b"right"), true).unwrap();
    std::thread::scope(|scope| {
        let waiting: Vec<_> =
            (0..3).map(|_| scope.spawn(|| store.get(b"late", &deadline))).collect();
        let other = client(server.port(), Some(b"right"), true).unwrap();
        other.set(b"late", b"value", &deadline).unwrap();
        for waiter in waiting {
            assert_eq!(waiter.join().unwrap().unwrap(), b"value");
        }
    });
}

#[test]
fn store_without_secret_is_rejected_by_clients() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let error = std::thread::scope(|scope| {
        // The fake server closes the connection at an unknown operation, as torch's server does. It
        // ends at any other operation.
        scope.spawn(|| {
            let mut first = [66];
            while first == [66] {
                listener.accept().unwrap().0.read_exact(&mut first).unwrap();
            }
        });
        let options = ClientOptions {
            host: "127.0.0.1".to_owned(),
            port,
            secret: Some(Secret::from_bytes(b"right").unwrap()),
            ..ClientOptions::default()
        };
        let error = TcpStore::connect(options, &Deadline::after_ms(300)).unwrap_err();
        TcpStream::connect(("127.0.0.1", port)).unwrap().write_all(&[0]).unwrap();
        error
    });
    assert_eq!(error.kind(), ErrorKind::Auth, "{error}");
    assert!(error.message().contains("torch's"), "{error}");
}

#[test]
fn launcher_store_refuses_other_clients() {
    // The rank has started when it has written its port. It runs until the test has finished its
    // checks.
    let gate = SecretFile::new("", 0o600);
    let script = "echo $MASTER_PORT >$GATE; until [ ! -e $GATE ]; do sleep 0.01; done";
    std::thread::scope(|scope| {
        let job = scope.spawn(|| distrun(&[("GATE", gate.path())], &["sh", "-c", script]));
        let deadline = Deadline::after(LIMIT);
        let port = loop {
            assert!(!deadline.has_passed(), "the rank does not tell its port");
            let text = fs::read_to_string(gate.path()).unwrap();
            match text.strip_suffix('\n') {
                Some(port) => break port.parse().unwrap(),
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        let (greeting, stranger) = (greeting_for_torch(port), client(port, None, false));
        fs::remove_file(gate.path()).unwrap();
        assert_eq!(job.join().unwrap().status, 0);
        assert_eq!(greeting, (*b"AUTH", true));
        assert_eq!(stranger.unwrap_err().kind(), ErrorKind::Auth);
    });
}

#[test]
fn rank_without_the_secret_is_refused() {
    let file = SecretFile::new("of the user", 0o600);
    let mut job = TestJob::new();
    let mut environment = job.environment(0, 2);
    environment.push((FILE, file.path().to_owned()));
    job.start("0", &environment, "init connect_timeout_ms=3000\nleaks\n");
    let environment = job.environment(1, 2);
    job.start("1", &environment, "init connect_timeout_ms=3000\nleaks\n");
    let ended = job.finish();
    let report = ended.report("1", "init connect_timeout_ms=3000");
    report.assert_failed(DIST_ERR_AUTH, &["requires the job's secret", FILE]);
    ended.report("1", "leaks").assert_succeeded();
    ended.report("0", "init connect_timeout_ms=3000").assert_failed(DIST_ERR_TIMEOUT, &["1"]);
}
