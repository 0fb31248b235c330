//! A store with as many clients as a large job has, and a store with fewer descriptors than
//! clients.
//!
//! The server and the clients are separate processes, so that each has its own limit of open files
//! and the server's memory can be measured alone.
#![allow(clippy::unwrap_used, reason = "in a test a broken assumption is a failure")]

#[path = "program/mod.rs"]
mod program;
mod program_paths;

use dist::base::deadline::Deadline;
use dist::store::tcp::ClientOptions;
use dist::store::tcp::proto::{MAGIC, READY, StoreRequest};
use dist::store::{Store as _, TcpStore};
use dist::sys::limits;
use program::{PROGRAM_TIMEOUT, RunningProgram, wait_until};
use program_paths::DIST_STORE;
use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Instant;

/// The total number of connections to the large store.
const DEFAULT_CLIENTS: usize = 10_000;
/// The minimum number of connections for a meaningful test.
const MIN_CLIENTS: usize = 1_000;
/// The number of processes that open the connections.
const PROCESSES: usize = 4;
/// The number of descriptors that a process needs for other purposes.
const OWN_FILES: usize = 100;
/// The limit for the server's resident memory per waiting connection, in bytes.
const BYTES_PER_CONNECTION: usize = 4096;

/// Environment variable with the port and the number of connections; its presence makes the test
/// binary a client process.
const CLIENTS_VARIABLE: &str = "DIST_TEST_CLIENTS";

/// The key that all clients wait for, as the user writes it and as the protocol sends it.
const KEY: &[u8] = b"go";
const WIRE_KEY: &[u8] = b"/go";

fn start_server(mut command: Command) -> (RunningProgram, u16) {
    command.env_remove("DIST_LOG_LEVEL").env_remove("TORCH_CPP_LOG_LEVEL").stdin(Stdio::null());
    let program = RunningProgram::start(command, |_| {});
    let line = program.first_lines(1).remove(0);
    (program, line.strip_prefix("listening on 127.0.0.1:").unwrap().parse().unwrap())
}

fn store(port: u16) -> TcpStore {
    let options = ClientOptions { host: "127.0.0.1".into(), port, ..ClientOptions::default() };
    TcpStore::connect(options, &deadline()).unwrap()
}

fn deadline() -> Deadline {
    Deadline::after(PROGRAM_TIMEOUT)
}

/// Opens a connection that waits for the key. The client sends a ping before and after the wait
/// request; the second answer shows that the server has registered the wait.
fn open(port: u16) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PROGRAM_TIMEOUT)).unwrap();
    let mut bytes = Vec::new();
    for request in [
        StoreRequest::Validate(MAGIC),
        StoreRequest::Ping(1),
        StoreRequest::Wait(vec![WIRE_KEY.into()]),
        StoreRequest::Ping(2),
    ] {
        request.encode(&mut bytes);
    }
    stream.write_all(&bytes).unwrap();
    stream
}

fn is_served(stream: &mut TcpStream) -> bool {
    let mut pongs = [0; 8];
    stream.read_exact(&mut pongs).is_ok() && pongs == [1, 0, 0, 0, 2, 0, 0, 0]
}

fn is_answered(stream: &mut TcpStream) -> bool {
    let mut answer = [0xff];
    stream.read_exact(&mut answer).is_ok() && answer == [READY]
}

#[test]
#[ignore = "the body of the processes that the other tests start"]
#[allow(clippy::disallowed_methods, reason = "a client is told by its environment what to do")]
fn clients() {
    let Ok(task) = std::env::var(CLIENTS_VARIABLE) else { return };
    let (port, count) = task.split_once(' ').unwrap();
    let (port, count): (u16, usize) = (port.parse().unwrap(), count.parse().unwrap());
    limits::raise_max_open_files().unwrap();
    let mut streams: Vec<TcpStream> = (0..count)
        .map(|_| {
            let mut stream = open(port);
            assert!(is_served(&mut stream));
            stream
        })
        .collect();
    println!("{count} wait");
    let answered_count =
        streams.iter_mut().filter_map(|stream| is_answered(stream).then_some(())).count();
    println!("{answered_count} answered");
    // The connections stay open until the test closes the input.
    drop(std::io::stdin().read_to_end(&mut Vec::new()));
}

fn start_clients(port: u16, count: usize) -> RunningProgram {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["clients", "--exact", "--ignored", "--quiet", "--nocapture", "--test-threads=1"]);
    command.env(CLIENTS_VARIABLE, format!("{port} {count}")).stdin(Stdio::piped());
    RunningProgram::start(command, |_| {})
}

/// Returns the number of descriptors of a process.
fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Returns the resident memory of a process in bytes.
fn memory(pid: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<usize>().unwrap() * 1024
}

/// Returns the number of connections that the limits of this machine allow.
#[allow(clippy::print_stdout, reason = "whoever reads the outcome should know what was tried")]
fn possible_clients() -> usize {
    let limit = limits::raise_max_open_files().unwrap();
    let possible = usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(OWN_FILES);
    if possible < DEFAULT_CLIENTS {
        println!("the limit of open files is {limit}: only {possible} connections");
    }
    assert!(possible >= MIN_CLIENTS, "a limit of {limit} open files is too low for this test");
    possible.min(DEFAULT_CLIENTS) / PROCESSES * PROCESSES
}

#[test]
fn ten_thousand_clients_wait_for_one_key() {
    let began = Instant::now();
    let count = possible_clients();
    let mut command = Command::new(DIST_STORE);
    command.args(["serve", "--port", "0", "--connections", &count.to_string()]);
    let (server, port) = start_server(command);
    let pid = server.child.id();
    let (files, before) = (descriptors(pid), memory(pid));

    let share = count / PROCESSES;
    let mut clients: Vec<RunningProgram> =
        (0..PROCESSES).map(|_| start_clients(port, share)).collect();
    let all = |what: &str| {
        let line = format!("{share} {what}\n");
        wait_until(&line, || clients.iter().all(|it| it.folder.text("out").contains(&line)));
    };
    all("wait");
    assert_eq!(descriptors(pid), files + count);
    let each = memory(pid).saturating_sub(before) / count;
    let connected = began.elapsed();

    store(port).set(KEY, b"", &deadline()).unwrap();
    all("answered");
    let peak = memory(pid).saturating_sub(before) / count;
    println!(
        "{count} connections in {connected:.1?}, all answered after {:.1?}; each takes {each} bytes of \
         the server's memory, {peak} after its answer",
        began.elapsed()
    );
    assert!(each < BYTES_PER_CONNECTION && peak < BYTES_PER_CONNECTION, "{each}, {peak}");

    clients.iter_mut().for_each(|client| drop(client.child.stdin.take()));
    clients.into_iter().for_each(|client| assert_eq!(client.wait().status, 0));
    wait_until("the server to forget its clients", || descriptors(pid) == files);
    assert_eq!(store(port).get(KEY, &deadline()).unwrap(), b"");
    server.signal("TERM");
    let ended = server.wait();
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""));
}

/// The state of a client connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConnectionState {
    /// The client has received no answer.
    Open,
    Served,
    /// The server has closed the connection.
    Refused,
}

/// Checks the connection once without waiting.
fn poll_connection(stream: &mut TcpStream, fate: &mut ConnectionState) {
    let mut bytes = [0; 8];
    stream.set_nonblocking(true).unwrap();
    match stream.peek(&mut bytes) {
        Ok(8) => *fate = ConnectionState::Served,
        Ok(0) => *fate = ConnectionState::Refused,
        // The answer of a server that has no descriptor for the client.
        Ok(_) if bytes.starts_with(b"FULL") => *fate = ConnectionState::Refused,
        Ok(_) => {}
        Err(cause) if cause.kind() == ErrorKind::WouldBlock => {}
        Err(_) => *fate = ConnectionState::Refused,
    }
    stream.set_nonblocking(false).unwrap();
}

#[test]
fn clients_beyond_descriptor_limit_are_refused() {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &format!("ulimit -n 64; exec {DIST_STORE} serve --port 0")]);
    let (server, port) = start_server(command);
    let early = store(port);
    early.set(b"k", b"v", &deadline()).unwrap();
    let mut waiter = open(port);
    assert!(is_served(&mut waiter));

    let mut crowd: Vec<(TcpStream, ConnectionState)> =
        (0..100).map(|_| (open(port), ConnectionState::Open)).collect();
    server.wait_for_stderr("store server: cannot accept more clients: ");
    server.wait_for_stderr("; raise the limit of open files (ulimit -n)");
    wait_until("the server to be full", || {
        crowd
            .iter_mut()
            .filter(|it| it.1 == ConnectionState::Open)
            .for_each(|(stream, fate)| poll_connection(stream, fate));
        let served = crowd.iter().filter(|it| it.1 == ConnectionState::Served).count();
        assert!(served < 64);
        served >= 40
    });

    assert_eq!(early.get(b"k", &deadline()).unwrap(), b"v");
    early.set(KEY, b"", &deadline()).unwrap();
    assert!(is_answered(&mut waiter));
    for (stream, fate) in crowd.iter_mut().filter(|it| it.1 == ConnectionState::Served) {
        assert!(is_served(stream) && is_answered(stream) && *fate == ConnectionState::Served);
    }

    drop(crowd);
    let late = store(port);
    assert_eq!(late.get(b"k", &deadline()).unwrap(), b"v");
    assert_eq!(early.get(b"k", &deadline()).unwrap(), b"v");
}
