//! Attacks on jobs of real processes: strangers that read the store, a man in the middle, floods of
//! connections, and ranks with other secrets or settings. The ranks are on two pretended hosts, so
//! they connect over TCP.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![allow(clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "a test says what it has measured")]

mod floods;
#[path = "../harness/mod.rs"]
mod harness;
mod local_users;
mod man_in_the_middle;
mod open_jobs;
mod settings;
mod strangers;
#[path = "../worker/mod.rs"]
mod worker;

use harness::{FinishedJob, TestHost, TestJob};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;

/// The variable with the secret's file.
const SECRET_FILE: &str = "DIST_STORE_SECRET_FILE";
/// The variable with the security setting.
const SECURITY: &str = "DIST_SECURITY";
/// The variable with the ports of a rank.
const PORT_RANGE: &str = "DIST_PORT_RANGE";
/// The secret of the jobs.
const SECRET: &str = "correct horse battery staple";

/// The time limit of any read on a busy machine.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// The length of a hello: 48 bytes in clear text and the proof.
const HELLO_BYTES: usize = 96;
/// The length of the answer to a hello.
const ANSWER_BYTES: usize = 49;
/// The length of the confirmation, and of the end of the handshake.
const CONFIRM_BYTES: usize = 17;

/// The refusals of an acceptor.
const DUPLICATE: u8 = 4;
const REQUIRES_AUTH: u8 = 5;
const WRONG_PROOF: u8 = 7;

/// Writes the job's secret to a file in the job's folder. Returns the variable.
fn secret_of(job: &TestJob) -> (&'static str, String) {
    let path = job.file("secret");
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(&path);
    file.unwrap().write_all(SECRET.as_bytes()).unwrap();
    (SECRET_FILE, path.to_str().unwrap().to_owned())
}

/// Starts a rank of a job of two, on a host of its own.
fn start_rank(job: &mut TestJob, rank: usize, variables: &[(&'static str, String)], program: &str) {
    let host = TestHost::on_this_network(&format!("host-{rank}"));
    start_rank_on(job, &host, rank, 2, variables, program);
}

/// Starts a rank of a job on this host. The variables replace those of the harness.
fn start_rank_on(
    job: &mut TestJob,
    host: &TestHost,
    rank: usize,
    size: usize,
    variables: &[(&'static str, String)],
    program: &str,
) {
    let mut environment = job.environment(rank, size);
    environment.retain(|(name, _)| variables.iter().all(|(other, _)| other != name));
    environment.extend(variables.iter().cloned());
    job.start_on_host(host, &rank.to_string(), &environment, program);
}

/// Asserts that both ranks have executed this program.
fn assert_both_succeeded(ended: &FinishedJob, program: &str) {
    let gates = program.lines().filter(|line| line.starts_with("gate ")).count();
    for rank in ["0", "1"] {
        ended.assert_all_succeeded(rank, program.lines().count() + gates + 1);
    }
}

/// Connects to a rank that listens at this port.
fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(READ_TIMEOUT)).unwrap();
    stream
}

/// Sends bytes to a rank. Returns the first bytes of its reply, at most `limit`.
fn reply_to(port: u16, bytes: &[u8], limit: usize) -> Vec<u8> {
    let mut stream = connect(port);
    stream.write_all(bytes).unwrap();
    let mut reply = vec![0; limit];
    let mut received = 0;
    while received < limit {
        match stream.read(&mut reply[received..]) {
            Ok(count) if count > 0 => received += count,
            Err(cause) if cause.kind() == std::io::ErrorKind::WouldBlock => panic!("no reply"),
            // A connection that is closed with unread bytes is reset.
            _ => break,
        }
    }
    reply.truncate(received);
    reply
}
