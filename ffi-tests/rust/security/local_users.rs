//! Another user of the host that a job runs on: it connects to the abstract sockets of the job, and
//! takes their names before the job does.

use crate::harness::{FinishedJob, TestJob, next_serial};
use std::io::{Read as _, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// A user without rights.
const OTHER_USER: libc::c_long = 65_534;

/// The longest delay by an attack, in milliseconds.
const MAX_DELAY_MS: u64 = 1000;

/// Runs a function on a thread that belongs to another user. Returns `None` unless this process
/// belongs to root.
#[allow(unsafe_code, reason = "the standard library cannot change the user of one thread")]
fn as_other_user<T: Send>(action: impl FnOnce() -> T + Send) -> Option<T> {
    // SAFETY: the call cannot fail and touches no memory.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: only root can act as another user");
        return None;
    }
    let run = || {
        // SAFETY: the raw system call changes the user of the calling thread only.
        let status =
            unsafe { libc::syscall(libc::SYS_setresuid, OTHER_USER, OTHER_USER, OTHER_USER) };
        assert_eq!(status, 0);
        action()
    };
    std::thread::scope(|scope| Some(scope.spawn(run).join().unwrap()))
}

fn abstract_name(name: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(name).unwrap()
}

/// Asserts that the process at the other end closes the connection without sending a byte.
fn assert_closed_without_answer(mut stream: UnixStream, name: &str) {
    let began = Instant::now();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    match stream.read(&mut [0; 64]) {
        Ok(received) => assert_eq!(received, 0, "{name} has answered"),
        Err(cause) => assert_eq!(cause.kind(), std::io::ErrorKind::ConnectionReset, "{name}"),
    }
    assert!(began.elapsed() < Duration::from_millis(MAX_DELAY_MS), "{name}");
}

/// The first bytes that a peer of each kind of socket sends: none, a client of the store (VALIDATE
/// and PING), a neighbour, a survivor, and a rank of a local job.
fn greetings() -> [Vec<u8>; 5] {
    let padded = |start: &[u8]| {
        let mut bytes = start.to_vec();
        bytes.resize(64, 0);
        bytes
    };
    let of_store = vec![0x00, 0xce, 0xf7, 0x85, 0x3c, 0x0d, 1, 0, 0, 0];
    [Vec::new(), of_store, padded(b"libdistn"), padded(b"libdistr"), b"ldj2\x01\0\0\0".to_vec()]
}

#[test]
fn abstract_sockets_of_a_job_refuse_another_user() {
    let program = "init\nall_reduce f32 SUM 1000\ngate attacked\nall_reduce f32 SUM 300000\n\
                   finalize\nleaks\n";
    let mut job = TestJob::without_launcher(2, |_| program.to_owned());
    job.await_reports(&["0", "1"], "at attacked");
    let names = job.abstract_sockets();
    for kind in ["libdist-store-", "libdist-request-"] {
        assert!(names.iter().any(|name| name.starts_with(kind)), "{names:?}");
    }
    // Both ranks have a socket for neighbours, whose name is a random number.
    let is_neighbour = |name: &&String| name.len() == "libdist-".len() + 32;
    assert!(names.iter().filter(is_neighbour).count() >= 2, "{names:?}");
    for name in &names {
        for greeting in greetings() {
            let connect = || {
                let mut stream = UnixStream::connect_addr(&abstract_name(name)).unwrap();
                // The process may close the connection before the bytes arrive.
                drop(stream.write_all(&greeting));
                stream
            };
            let Some(stranger) = as_other_user(connect) else { break };
            assert_closed_without_answer(stranger, name);
        }
    }
    job.open_gate("attacked");
    let ended = job.finish();
    for rank in ["0", "1"] {
        ended.assert_all_succeeded(rank, 8);
    }
}

/// Returns the first name of the socket of a local job, which any user can compute.
fn job_socket_name(job: &str) -> String {
    let hash = job.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("libdist-job-{hash:016x}")
}

#[test]
fn other_user_with_the_name_of_a_slurm_job_gets_nothing() {
    let id = format!("{}-{}", std::process::id(), next_serial());
    // SAFETY: the call cannot fail and touches no memory.
    #[allow(unsafe_code, reason = "the standard library does not return the user")]
    let user = unsafe { libc::geteuid() };
    let name = job_socket_name(&format!("slurm-{id}-0-{user}"));
    let listen = || UnixListener::bind_addr(&abstract_name(&name)).unwrap();
    let Some(squatter) = as_other_user(listen) else { return };
    let mut job = TestJob::new();
    for rank in 0..2 {
        let environment = [
            ("SLURM_PROCID", rank.to_string()),
            ("SLURM_NTASKS", "2".to_owned()),
            ("SLURM_NNODES", "1".to_owned()),
            ("SLURM_JOB_ID", id.clone()),
            ("SLURM_STEP_ID", "0".to_owned()),
        ];
        let program = "init\ndescribe\nall_reduce f32 SUM 1000\nfinalize\nleaks\n";
        job.start(&rank.to_string(), &environment, program);
    }
    let ended = job.finish();
    assert_started_with_secret(&ended);
    assert_no_bytes(&squatter);
}

/// The other user takes the name of the Unix socket of the store, over which ranks that are started
/// by hand get the secret.
#[test]
fn other_user_with_the_name_of_a_store_gets_nothing() {
    let mut job = TestJob::new();
    let name = format!("libdist-store-127.0.0.1-{}", job.port);
    let listen = || UnixListener::bind_addr(&abstract_name(&name)).unwrap();
    let Some(squatter) = as_other_user(listen) else { return };
    for rank in 0..2 {
        let mut environment = job.environment(rank, 2);
        environment.push(("DIST_TRANSPORT", "tcp".to_owned()));
        let program = "init\ndescribe\nall_reduce f32 SUM 1000\nfinalize\nleaks\n";
        job.start(&rank.to_string(), &environment, program);
    }
    let ended = job.finish();
    assert_started_with_secret(&ended);
    assert_no_bytes(&squatter);
}

/// Asserts that the job was not delayed, and has made a secret without any action of its user.
fn assert_started_with_secret(ended: &FinishedJob) {
    for rank in ["0", "1"] {
        ended.assert_all_succeeded(rank, 6);
        ended.report(rank, "init").assert_within_ms(2 * MAX_DELAY_MS);
        assert!(ended.report(rank, "describe").message.contains("\"security\":\"auth\""));
    }
}

/// Asserts that no process has sent bytes to the listener of another user.
fn assert_no_bytes(squatter: &UnixListener) {
    squatter.set_nonblocking(true).unwrap();
    while let Ok((mut victim, _)) = squatter.accept() {
        victim.set_nonblocking(false).unwrap();
        assert_eq!(victim.read(&mut [0; 64]).unwrap(), 0, "a rank has sent bytes to another user");
    }
}
