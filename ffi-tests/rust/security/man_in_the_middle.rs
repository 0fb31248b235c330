//! A man in the middle between the two ranks of a job. It forwards the connections of rank 1 to the
//! store, and replaces the port of rank 0 in the store's replies. Then rank 1 connects to it in
//! place of rank 0.

use super::{
    ANSWER_BYTES, CONFIRM_BYTES, DUPLICATE, HELLO_BYTES, PORT_RANGE, READ_TIMEOUT, WRONG_PROOF,
    assert_both_succeeded, reply_to, secret_of, start_rank,
};
use crate::harness::{FinishedJob, TestJob, free_port};
use dist::ffi::types::{DIST_ERR_AUTH, DIST_OK};
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// A message of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    Hello,
    Answer,
    Confirmation,
    End,
}

/// What the man in the middle does with the handshakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tampering {
    Nothing,
    /// Inverts a bit of this byte of this message.
    Flip(Message, usize),
    /// Returns the proof of a hello to its author, as the answer.
    Reflect,
    /// Answers all connections after the first one with the answer of the first one.
    RepeatAnswer,
    /// Ends the connection after this message, which it does not forward.
    Cut(Message),
}

/// The recorded handshake of one connection.
#[derive(Clone, Debug, Default)]
struct Recording {
    hello: Vec<u8>,
    answer: Vec<u8>,
    confirmation: Vec<u8>,
}

/// The state that all connections of the man in the middle share.
#[derive(Debug)]
struct Middle {
    tampering: Tampering,
    recordings: Mutex<Vec<Recording>>,
    connections: AtomicUsize,
    is_over: AtomicBool,
}

/// Accepts connections on a port until the test ends, each on its own thread.
fn serve(
    port: u16,
    middle: &Arc<Middle>,
    forward: impl Fn(TcpStream, &Middle) -> io::Result<()> + Send + Sync + 'static,
) {
    let (listener, forward) = (TcpListener::bind(("127.0.0.1", port)).unwrap(), Arc::new(forward));
    let middle = Arc::clone(middle);
    thread::spawn(move || {
        for stream in listener.incoming() {
            if middle.is_over.load(Ordering::Acquire) {
                return;
            }
            let (stream, forward, middle) = (stream.unwrap(), forward.clone(), middle.clone());
            stream.set_read_timeout(Some(READ_TIMEOUT)).unwrap();
            // A broken connection is the end of it.
            thread::spawn(move || drop(forward(stream, &middle)));
        }
    });
}

/// Copies bytes until the end of the source, and changes each piece by `edit`.
fn copy(mut from: &TcpStream, mut to: &TcpStream, edit: impl Fn(Vec<u8>) -> Vec<u8>) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count) = from.read(&mut buffer) {
        if count == 0 || to.write_all(&edit(buffer[..count].to_vec())).is_err() {
            break;
        }
    }
    drop(to.shutdown(Shutdown::Write));
}

fn splice(client: &TcpStream, server: &TcpStream, edit: impl Fn(Vec<u8>) -> Vec<u8> + Sync) {
    thread::scope(|scope| {
        scope.spawn(|| copy(client, server, |piece| piece));
        copy(server, client, edit);
    });
}

fn replace(piece: &[u8], old: &str, new: &str) -> Vec<u8> {
    assert_eq!(old.len(), new.len());
    let mut bytes = piece.to_vec();
    for at in 0..bytes.len() {
        if bytes[at..].starts_with(old.as_bytes()) {
            bytes[at..at + new.len()].copy_from_slice(new.as_bytes());
        }
    }
    bytes
}

impl Middle {
    /// Reads a message and applies the tampering.
    fn receive(&self, mut from: &TcpStream, message: Message) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0];
        from.read_exact(&mut bytes)?;
        let is_refusal = match message {
            Message::Hello | Message::Confirmation => false,
            Message::Answer => bytes[0] != 0,
            Message::End => bytes[0] != b'T',
        };
        if !is_refusal {
            bytes.resize(
                match message {
                    Message::Hello => HELLO_BYTES,
                    Message::Answer => ANSWER_BYTES,
                    Message::Confirmation | Message::End => CONFIRM_BYTES,
                },
                0,
            );
            from.read_exact(&mut bytes[1..])?;
        }
        match self.tampering {
            Tampering::Cut(last) if last == message => Err(io::ErrorKind::Other.into()),
            Tampering::Flip(flipped, at) if flipped == message => {
                bytes[at] ^= 1;
                Ok(bytes)
            }
            _ => Ok(bytes),
        }
    }

    /// Forwards one connection between the ranks.
    fn forward(&self, client: &TcpStream, port: u16) -> io::Result<()> {
        let (mut to_client, mut to_server) = (client, &TcpStream::connect(("127.0.0.1", port))?);
        to_server.set_read_timeout(Some(READ_TIMEOUT))?;
        let index = self.connections.fetch_add(1, Ordering::AcqRel);
        let hello = self.receive(client, Message::Hello)?;
        to_server.write_all(&hello)?;
        let mut answer = self.receive(to_server, Message::Answer)?;
        match self.tampering {
            Tampering::Reflect => {
                answer = [&[0][..], &hello[HELLO_BYTES - ANSWER_BYTES + 1..]].concat();
            }
            Tampering::RepeatAnswer if index > 0 => {
                answer.clone_from(&self.recordings.lock().unwrap()[0].answer);
            }
            _ => {}
        }
        to_client.write_all(&answer)?;
        let confirmation = self.receive(client, Message::Confirmation)?;
        to_server.write_all(&confirmation)?;
        let recording = Recording { hello, answer, confirmation };
        self.recordings.lock().unwrap().push(recording);
        let end = self.receive(to_server, Message::End)?;
        to_client.write_all(&end)?;
        splice(client, to_server, |piece| piece);
        Ok(())
    }
}

/// Runs a job whose rank 1 is behind the man in the middle. Calls `on_gate` when both ranks are at
/// the gate, if the program has one. Returns the job and the number of intercepted connections.
fn run(
    tampering: Tampering,
    program: impl Fn(usize) -> String,
    on_gate: impl Fn(u16, &[Recording]),
) -> (FinishedJob, usize) {
    let mut job = TestJob::new();
    let (rank_port, middle_port, store_port) = (free_port(), free_port(), free_port());
    let middle = Arc::new(Middle {
        tampering,
        recordings: Mutex::default(),
        connections: AtomicUsize::new(0),
        is_over: AtomicBool::new(false),
    });
    serve(middle_port, &middle, move |client, middle| middle.forward(&client, rank_port));
    let job_port = job.port;
    let (old, new) = (format!("127.0.0.1:{rank_port}"), format!("127.0.0.1:{middle_port}"));
    serve(store_port, &middle, move |client, _| {
        let server = TcpStream::connect(("127.0.0.1", job_port))?;
        splice(&client, &server, |piece| replace(&piece, &old, &new));
        Ok(())
    });
    let secret = secret_of(&job);
    let interface = ("DIST_SOCKET_IFNAME", "127.0.0.1".to_owned());
    let first = [secret.clone(), interface.clone(), (PORT_RANGE, rank_port.to_string())];
    start_rank(&mut job, 0, &first, &program(0));
    // The store must exist before the man in the middle connects to it.
    job.wait_until("the store", |_| TcpStream::connect(("127.0.0.1", job_port)).is_ok());
    let second = [secret, interface, ("MASTER_PORT", store_port.to_string())];
    start_rank(&mut job, 1, &second, &program(1));
    if program(0).contains("gate attacked") {
        job.await_reports(&["0", "1"], "at attacked");
        on_gate(rank_port, &middle.recordings.lock().unwrap());
        job.open_gate("attacked");
    }
    let ended = job.finish();
    middle.is_over.store(true, Ordering::Release);
    for port in [middle_port, store_port] {
        drop(TcpStream::connect(("127.0.0.1", port)));
    }
    (ended, middle.connections.load(Ordering::Acquire))
}

/// Both ranks use a stream in each direction before the gate, and further streams after it.
const PROGRAM: &str = "init\nall_reduce f32 SUM 1000\ngate attacked\n\
                       send 70000 PEER 1 async=yes\nrecv 70000 PEER 1\nsettle\n\
                       all_reduce f32 SUM 300000\nfinalize\nleaks\n";

fn program(rank: usize) -> String {
    PROGRAM.replace("PEER", &(1 - rank).to_string())
}

#[test]
fn recorded_handshakes_cannot_be_repeated() {
    let (ended, connections) = run(Tampering::Nothing, program, |port, recordings| {
        assert!(!recordings.is_empty());
        for recording in recordings {
            // The whole handshake again, and the hello for another purpose.
            let all = [&recording.hello[..], &recording.confirmation].concat();
            assert_eq!(reply_to(port, &all, ANSWER_BYTES), [DUPLICATE]);
            let mut moved = recording.hello.clone();
            moved[10..12].copy_from_slice(&[3, 0]);
            assert_eq!(reply_to(port, &moved, ANSWER_BYTES), [WRONG_PROOF]);
        }
    });
    assert_both_succeeded(&ended, PROGRAM);
    assert!(connections >= 2, "{connections} connections were intercepted");
}

const INIT: &str = "init connect_timeout_ms=4000";

/// Runs a job that only creates its group. Returns the statuses of both ranks.
fn init_statuses(tampering: Tampering) -> [i32; 2] {
    let (ended, connections) = run(tampering, |_| format!("{INIT}\nleaks\n"), |_, _| {});
    assert!(connections > 0, "no connection was intercepted");
    [0, 1].map(|rank: usize| {
        let report = ended.report(&rank.to_string(), INIT);
        println!("{tampering:?}, rank {rank}: {} {}", report.status, report.message);
        ended.report(&rank.to_string(), "leaks").assert_succeeded();
        report.status
    })
}

#[test]
fn changed_and_returned_proofs_are_refused() {
    for tampering in [
        Tampering::Flip(Message::Hello, HELLO_BYTES - 1),
        Tampering::Flip(Message::Hello, 50),
        Tampering::Flip(Message::Answer, 20),
        Tampering::Flip(Message::Confirmation, 3),
        Tampering::Flip(Message::End, 16),
        Tampering::Reflect,
    ] {
        let [first, second] = init_statuses(tampering);
        assert_eq!(second, DIST_ERR_AUTH, "{tampering:?}");
        assert_ne!(first, DIST_OK, "{tampering:?}");
    }
}

#[test]
fn changed_ranks_and_purposes_are_refused() {
    // The purpose, the epoch, the sender and the group.
    for byte in [10, 12, 16, 24] {
        let statuses = init_statuses(Tampering::Flip(Message::Hello, byte));
        assert!(statuses.iter().all(|&status| status != DIST_OK), "byte {byte}: {statuses:?}");
    }
}

#[test]
fn answer_of_another_connection_is_refused() {
    const COLLECTIVE: &str = "all_reduce f32 SUM 1000 timeout_ms=4000";
    // `init` uses the stream for messages, and the collective one of its own.
    let program = |_| format!("init\n{COLLECTIVE}\nfinalize\n");
    let (ended, connections) = run(Tampering::RepeatAnswer, program, |_, _| {});
    assert!(connections >= 2, "{connections} connections were intercepted");
    ended.report("1", "init").assert_succeeded();
    let received = ended.report("0", COLLECTIVE);
    assert_ne!(received.status, DIST_OK, "{received:?}");
}

#[test]
fn cut_handshakes_end_within_the_time_limit() {
    for message in [Message::Hello, Message::Answer, Message::Confirmation, Message::End] {
        let statuses = init_statuses(Tampering::Cut(message));
        assert!(statuses.iter().all(|&status| status != DIST_OK), "{message:?}: {statuses:?}");
    }
}
