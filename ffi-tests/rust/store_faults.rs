//! The store after the death of processes: of its server, or of a client during a wait. Every
//! process is real and is killed with SIGKILL.
#![allow(clippy::unwrap_used, reason = "in a test a broken assumption is a failure")]
#![allow(clippy::expect_used, clippy::panic, reason = "in a test a broken assumption is a failure")]
#![allow(clippy::print_stdout, reason = "a test says what it has measured")]

mod harness;
mod worker;

use dist::base::deadline::Deadline;
use dist::ffi::types::DIST_ERR_CONNECTION;
use dist::store::Store;
use dist::store::tcp::{ClientOptions, TcpStore};
use harness::TestJob;

/// The limit on a busy machine for the error of a waiting client after the server's death, in
/// microseconds.
const MAX_IMMEDIATE_US: u64 = 1_000_000;

/// The program of a process that hosts the store until a gate opens or it is killed.
const SERVER_PROGRAM: &str =
    "store server=yes\nset here yes\nget here yes\ngate end\nunstore\nleaks\n";

/// The commands that wait.
const WAIT_COMMANDS: [&str; 4] = ["get absent x", "wait absent", "pop empty", "meet corner 9"];

fn deadline() -> Deadline {
    Deadline::after_ms(30_000)
}

/// Starts a server and `clients` clients for each command that waits; the clients stop at a gate
/// before it.
fn start_waiting_clients(clients: usize, unix_socket: &str) -> (TestJob, Vec<String>) {
    let mut job = TestJob::new();
    let environment =
        vec![("MASTER_PORT", job.port.to_string()), ("DIST_STORE_UNIX", unix_socket.to_owned())];
    job.start("server", &environment, SERVER_PROGRAM);
    job.await_report("server", "get here yes");
    let mut names = Vec::new();
    for (kind, wait) in WAIT_COMMANDS.iter().enumerate() {
        for client in 0..clients {
            let name = format!("client-{kind}-{client}");
            let program =
                format!("store timeout_ms=60000\ngate go\n{wait}\nadd alive\nunstore\nleaks\n");
            job.start(&name, &environment, &program);
            job.await_report(&name, "at go");
            names.push(name);
        }
    }
    (job, names)
}

/// Creates a client in this process.
fn observer(job: &TestJob) -> TcpStore {
    let host = "127.0.0.1".to_owned();
    let options = ClientOptions { host, port: job.port, ..ClientOptions::default() };
    TcpStore::connect(options, &deadline()).unwrap()
}

/// Lets the clients wait, and returns when the store shows all clients of the barrier.
fn release_clients(job: &mut TestJob, store: &dyn Store, clients: usize) {
    job.open_gate("go");
    let all = clients.to_string().into_bytes();
    job.wait_until("the clients have come to the barrier", |_| {
        store.check(&[b"corner"], &deadline()).unwrap()
            && store.get(b"corner", &deadline()).unwrap() == all
    });
}

#[test]
fn dead_server_ends_every_wait_immediately() {
    for unix_socket in ["on", "off"] {
        let (mut job, names) = start_waiting_clients(2, unix_socket);
        let store = observer(&job);
        release_clients(&mut job, &store, 2);
        let killed_at = job.kill("server");
        let ended = job.finish();
        let mut last_us = 0;
        for (name, wait) in names.iter().zip(WAIT_COMMANDS.iter().flat_map(|wait| [wait, wait])) {
            let report = ended.report(name, wait);
            last_us = last_us.max(report.at_us.saturating_sub(killed_at));
            report.assert_failed(DIST_ERR_CONNECTION, &["127.0.0.1"]);
            assert!(
                report.at_us < killed_at + MAX_IMMEDIATE_US,
                "{report:?}, killed at {killed_at}"
            );
            // A later call does not wait either.
            ended.report(name, "add alive").assert_failed(DIST_ERR_CONNECTION, &["127.0.0.1"]);
            ended.report(name, "leaks").assert_succeeded();
        }
        println!("Unix socket {unix_socket}: {} waits ended within {last_us} us", names.len());
    }
}

#[test]
fn dead_clients_do_not_affect_others() {
    for unix_socket in ["on", "off"] {
        let (mut job, names) = start_waiting_clients(2, unix_socket);
        let store = observer(&job);
        release_clients(&mut job, &store, 2);
        let victims: Vec<_> = names.iter().filter(|name| name.ends_with("-0")).collect();
        for victim in &victims {
            job.kill(victim);
        }
        // The values that the survivors wait for arrive, and each queue item goes to a living
        // client.
        store.multi_set(&[(b"absent", b"x")], &deadline()).unwrap();
        store.queue_push(b"empty", b"item", &deadline()).unwrap();
        for _ in 0..7 {
            store.add(b"corner", 1, &deadline()).unwrap();
        }
        store.barrier(b"corner", 9, &deadline()).unwrap();
        for name in names.iter().filter(|name| !victims.contains(name)) {
            job.await_report(name, "leaks");
        }
        assert_eq!(store.get(b"alive", &deadline()).unwrap(), b"4");
        job.open_gate("end");
        let ended = job.finish();
        for (name, wait) in names.iter().zip(WAIT_COMMANDS.iter().flat_map(|wait| [wait, wait])) {
            if name.ends_with("-1") {
                ended.report(name, wait).assert_succeeded();
                ended.report(name, "leaks").assert_succeeded();
            }
        }
        ended.report("server", "leaks").assert_succeeded();
    }
}
