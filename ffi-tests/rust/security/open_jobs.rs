//! Jobs on several hosts with and without a secret: the warning of `dist_init`, and the secret of
//! jobs whose launcher hosts a store without secrets, as torchrun does.

use super::{SECURITY, assert_both_succeeded, secret_of, start_rank};
use crate::harness::{FinishedJob, TestJob};
use dist::base::deadline::Deadline;
use dist::base::error::{Error, ErrorKind};
use dist::ffi::types::DIST_ERR_AUTH;
use dist::store::Store as _;
use dist::store::tcp::{ClientOptions, Server, ServerOptions, TcpStore};

const PROGRAM: &str = "init\ndescribe\nall_reduce f32 SUM 1000\nfinalize\nleaks\n";

const LOG_LEVEL: &str = "DIST_LOG_LEVEL";

/// Returns the number of lines of a rank that warn of an open job.
fn warnings(ended: &FinishedJob, rank: &str) -> usize {
    let text = ended.stderr_text(rank);
    text.lines().filter(|line| line.contains("has no secret")).count()
}

#[test]
fn open_job_on_several_hosts_warns_in_one_line() {
    for (has_secret, expected) in [(false, 1), (true, 0)] {
        let mut job = TestJob::new();
        for rank in 0..2 {
            let mut variables = vec![(LOG_LEVEL, "WARN".to_owned())];
            variables.extend(has_secret.then(|| secret_of(&job)));
            start_rank(&mut job, rank, &variables, PROGRAM);
        }
        let ended = job.finish();
        assert_both_succeeded(&ended, PROGRAM);
        assert_eq!((warnings(&ended, "0"), warnings(&ended, "1")), (expected, 0));
        if !has_secret {
            let text = ended.stderr_text("0");
            for part in ["2 hosts", "DIST_STORE_SECRET_FILE", "--secret-file", "WARN"] {
                assert!(text.contains(part), "{text}");
            }
        }
    }
}

#[test]
fn job_on_one_host_does_not_warn() {
    let mut job = TestJob::new();
    for rank in 0..2 {
        let mut environment = job.environment(rank, 2);
        environment.push((LOG_LEVEL, "WARN".to_owned()));
        job.start(&rank.to_string(), &environment, PROGRAM);
    }
    let ended = job.finish();
    assert_both_succeeded(&ended, PROGRAM);
    assert_eq!(warnings(&ended, "0"), 0);
}

/// A store without a secret cannot encrypt, so no rank sends it a key or value.
#[test]
fn open_store_of_the_launcher_is_refused_with_encrypt() {
    let bind = "127.0.0.1".to_owned();
    let server = Server::start(ServerOptions { bind, ..ServerOptions::default() }).unwrap();
    let ended = run_with_open_store(&server, &[(SECURITY, "encrypt".to_owned())]);
    let words = ["DIST_SECURITY=encrypt", "DIST_SECURITY=none", "launcher"];
    for rank in ["0", "1"] {
        ended.report(rank, "init").assert_failed(DIST_ERR_AUTH, &words);
    }
    let client = ClientOptions { port: server.port(), ..ClientOptions::default() };
    let client = ClientOptions { host: "127.0.0.1".to_owned(), ..client };
    let deadline = Deadline::after_ms(20_000);
    let store = TcpStore::connect(client, &deadline).unwrap();
    assert_eq!(store.list_keys(&deadline).unwrap(), Vec::<Vec<u8>>::new());
}

/// Runs a job whose launcher hosts a store without a secret.
fn run_with_open_store(server: &Server, variables: &[(&'static str, String)]) -> FinishedJob {
    let mut job = TestJob::new();
    for rank in 0..2 {
        let mut all = vec![
            secret_of(&job),
            ("MASTER_PORT", server.port().to_string()),
            ("TORCHELASTIC_USE_AGENT_STORE", "True".to_owned()),
            ("TORCHELASTIC_RUN_ID", "a-test".to_owned()),
        ];
        all.extend(variables.iter().cloned());
        start_rank(&mut job, rank, &all, PROGRAM);
    }
    job.finish()
}

#[test]
fn secret_protects_ranks_although_the_launcher_has_none() {
    let bind = "127.0.0.1".to_owned();
    let server = Server::start(ServerOptions { bind, ..ServerOptions::default() }).unwrap();
    let ended = run_with_open_store(&server, &[]);
    assert_both_succeeded(&ended, PROGRAM);
    for rank in ["0", "1"] {
        let description = ended.report(rank, "describe").message;
        assert!(description.contains("\"security\":\"auth\""), "{description}");
    }
    // distrun says that its store has the secret. Another store in its place is refused.
    let ended = run_with_open_store(&server, &[("DIST_STORE_HAS_SECRET", "1".to_owned())]);
    for rank in ["0", "1"] {
        ended.report(rank, "init").assert_failed(DIST_ERR_AUTH, &["has no secret"]);
    }
}

/// Starts the ranks of a job by hand, with the address of its store and no secret.
fn start_by_hand(job: &mut TestJob, variables: &[(&'static str, String)], program: &str) {
    for rank in 0..2 {
        let mut environment = job.environment(rank, 2);
        let replaced = |name: &str| variables.iter().any(|(variable, _)| *variable == name);
        environment.retain(|(name, _)| !replaced(name));
        environment.push(("DIST_TRANSPORT", "tcp".to_owned()));
        environment.extend(variables.iter().cloned());
        job.start(&rank.to_string(), &environment, program);
    }
}

/// Connects to the store of a job without its secret.
fn connect_without_secret(port: u16) -> Result<TcpStore, Error> {
    let host = "127.0.0.1".to_owned();
    let options = ClientOptions { host, port, tcp_only: true, ..ClientOptions::default() };
    TcpStore::connect(options, &Deadline::after_ms(20_000))
}

#[test]
fn ranks_that_are_started_by_hand_on_one_host_get_a_secret() {
    let program = "init\ndescribe\ngate attacked\nall_reduce f32 SUM 1000\nfinalize\nleaks\n";
    for (setting, expected) in
        [(None, "auth"), (Some("encrypt"), "encrypt"), (Some("none"), "none")]
    {
        let mut job = TestJob::new();
        let variables: Vec<_> =
            setting.into_iter().map(|setting| (SECURITY, setting.to_owned())).collect();
        start_by_hand(&mut job, &variables, program);
        job.await_reports(&["0", "1"], "at attacked");
        match connect_without_secret(job.port) {
            Ok(_) => assert_eq!(setting, Some("none")),
            Err(error) => {
                assert_eq!((error.kind(), expected != "none"), (ErrorKind::Auth, true), "{error}");
            }
        }
        job.open_gate("attacked");
        let ended = job.finish();
        assert_both_succeeded(&ended, program);
        let description = ended.report("1", "describe").message;
        assert!(description.contains(&format!("\"security\":\"{expected}\"")), "{description}");
    }
}

/// Rank 0 has a secret from the user, and so gives none.
#[test]
fn rank_without_the_secret_of_rank_0_is_refused_at_once() {
    let mut job = TestJob::new();
    let init = "init connect_timeout_ms=5000";
    for rank in 0..2 {
        let mut environment = job.environment(rank, 2);
        environment.extend((rank == 0).then(|| secret_of(&job)));
        job.start(&rank.to_string(), &environment, init);
    }
    let ended = job.finish();
    ended.report("1", init).assert_failed(DIST_ERR_AUTH, &["secret"]);
}
