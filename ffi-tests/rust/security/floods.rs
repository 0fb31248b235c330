//! Connections of strangers in large numbers, to a rank and to the store that it hosts.

use super::strangers::{forged_hello, read_store};
use super::{
    ANSWER_BYTES, HELLO_BYTES, PORT_RANGE, assert_both_succeeded, connect, secret_of, start_rank,
    start_rank_on,
};
use crate::harness::{TestHost, TestJob, free_port};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The number of idle connections of a stranger.
const IDLE_CONNECTIONS: usize = 400;

/// Opens idle connections to a port until there are [`IDLE_CONNECTIONS`], or until `stop`. Waits
/// until the port has a listener.
fn hold_connections(port: u16, stop: &AtomicBool) -> Vec<TcpStream> {
    let mut held = Vec::new();
    while held.len() < IDLE_CONNECTIONS && !stop.load(Ordering::Acquire) {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => held.push(stream),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    held
}

#[test]
fn idle_strangers_do_not_prevent_init_with_few_descriptors() {
    for has_secret in [true, false] {
        let program = "init connect_timeout_ms=60000\nall_reduce f32 SUM 1000\ngate end\n\
                       all_reduce f32 SUM 300000\nfinalize\nleaks\n";
        let mut job = TestJob::new();
        let rank_port = free_port();
        let mut variables = vec![(PORT_RANGE, rank_port.to_string())];
        variables.extend(has_secret.then(|| secret_of(&job)));
        let limited = ["sh", "-c", "ulimit -n 256; exec \"$0\" \"$@\""].map(str::to_owned);
        let host = TestHost::in_namespace("host-0", "127.0.0.1", limited.to_vec());
        start_rank_on(&mut job, &host, 0, 2, &variables, program);
        let (stop, store_port) = (AtomicBool::new(false), job.port);
        std::thread::scope(|scope| {
            let at_rank = scope.spawn(|| hold_connections(rank_port, &stop));
            let at_store = scope.spawn(|| hold_connections(store_port, &stop));
            let at_store = at_store.join().unwrap();
            assert_eq!(at_store.len(), IDLE_CONNECTIONS);
            start_rank(&mut job, 1, &variables[1..], program);
            job.await_reports(&["0", "1"], "at end");
            job.wait_until("all connections", |_| at_rank.is_finished());
            stop.store(true, Ordering::Release);
            assert_eq!(at_rank.join().unwrap().len(), IDLE_CONNECTIONS);
            job.open_gate("end");
        });
        assert_both_succeeded(&job.finish(), program);
    }
}

/// The resources of a process: descriptors, threads and resident KiB.
fn resources(pid: u32) -> [usize; 3] {
    let count = |folder: &str| fs::read_dir(format!("/proc/{pid}/{folder}")).unwrap().count();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let resident = line.trim().trim_end_matches(" kB").parse().unwrap();
    [count("fd"), count("task"), resident]
}

/// Opens a connection, sends bytes, and leaves it to its fate.
fn send_once(port: u16, bytes: &[u8]) {
    let mut stream = connect(port);
    // The peer may close the connection at any time.
    drop(stream.write_all(bytes));
}

/// Returns the number of connections of the attack. `HOSTILE_CONNECTIONS` sets a larger one.
fn hostile_connections() -> usize {
    let wanted = std::env::var("HOSTILE_CONNECTIONS").ok();
    wanted.map_or(8000, |text| text.parse().unwrap())
}

#[test]
fn hostile_connections_do_not_grow_the_process() {
    let rounds = hostile_connections() / 8;
    let program = "init\nall_reduce f32 SUM 1000\ngate attacked\nall_reduce f32 SUM 300000\n\
                   finalize\nleaks\n";
    let mut job = TestJob::new();
    let rank_port = free_port();
    let variables = [secret_of(&job), (PORT_RANGE, rank_port.to_string())];
    start_rank(&mut job, 0, &variables, program);
    start_rank(&mut job, 1, &variables[..1], program);
    job.await_reports(&["0", "1"], "at attacked");
    let pid = job.pid("0");
    let content = read_store(job.port, true);
    let hello = forged_hello(&content, 1, 2, &[7; 48]);
    let half_hello = &hello[..10];
    let mut challenge = vec![66, 3, 2];
    challenge.resize(51, 9);
    let (garbage, long) = ([0xa5; 300], vec![0x5a; 1_000_000]);
    let attack = |rounds: usize| {
        for _ in 0..rounds {
            for bytes in [&garbage[..], half_hello, &hello, &[]] {
                send_once(rank_port, bytes);
            }
            for bytes in [&garbage[..], &challenge, &challenge[..30], &[]] {
                send_once(job.port, bytes);
            }
        }
        send_once(rank_port, &long);
        send_once(job.port, &long);
        // The process has handled all connections before it answers this one.
        let mut last = connect(rank_port);
        last.write_all(&[7; HELLO_BYTES]).unwrap();
        let mut reply = Vec::new();
        drop(last.take(ANSWER_BYTES as u64).read_to_end(&mut reply));
    };
    // The first connections allocate the tables.
    attack(rounds / 10);
    let before = resources(pid);
    attack(rounds);
    // The store still has to read the last connections. The process closes them soon.
    let limit = Instant::now() + Duration::from_secs(20);
    let mut after = resources(pid);
    while after[0] > before[0] + 50 && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(50));
        after = resources(pid);
    }
    println!("descriptors, threads, KiB: {before:?}, then {after:?}");
    assert_eq!(after[1], before[1], "threads");
    assert!(after[0] <= before[0] + 50, "descriptors: {before:?}, then {after:?}");
    assert!(after[2] <= before[2] + 4096, "memory: {before:?}, then {after:?}");
    job.open_gate("attacked");
    assert_both_succeeded(&job.finish(), program);
}
