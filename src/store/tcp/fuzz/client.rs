//! Fuzzes the client with a server that sends arbitrary bytes and then stops. Every call of the
//! client must end, and must return no more bytes than the server sent.
//!
//! The first byte of a script selects how the server stops, and whether the calls use a connection
//! or a store. The next bytes select the calls. The last bytes are the bytes that the server sends.

use super::super::client::TcpStore;
use super::super::connection::StoreConnection;
use super::super::proto::{Bytes, StoreRequest};
use super::super::request_failure::RequestFailure;
use crate::base::fuzz::FuzzScript;
use crate::base::{Deadline, Error, ErrorKind};
use crate::store::Store as _;
use crate::sys::stream::SocketStream;
use crate::sys::unix;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

const CALL_COUNT: usize = 4;
/// The number of the client's first PING. It is fixed, so that a run does not depend on the process
/// id.
const NONCE: u32 = 9059;
/// The time limit of each call. It is far above the time that a call needs, because the server has
/// already stopped.
const LIMIT_MS: u64 = 60_000;

/// Runs a script.
///
/// # Panics
/// If the client violates an invariant.
pub fn client(input: &[u8]) {
    let mut script = FuzzScript(input);
    let Some(mode) = script.next_byte() else { return };
    let calls = script.take_bytes(CALL_COUNT);
    let Some((connection, server)) = connection_with_input(script.0) else { return };
    if mode & 1 == 0 {
        // The server stops sending, but keeps its receiving side open.
        let outcome = server.shutdown(Shutdown::Write);
        outcome.expect("cannot shut one direction down");
    } else {
        drop(server);
    }
    let deadline = Deadline::after_ms(LIMIT_MS);
    let received = if mode & 2 == 0 {
        call_connection(connection, calls, &deadline)
    } else {
        call_store(&TcpStore::from_connection(connection), calls, &deadline)
    };
    assert!(received <= script.0.len(), "read {received} of {} bytes", script.0.len());
    assert!(!deadline.has_passed(), "the client waited for a server that had ended");
}

/// Returns a connection whose peer has sent `bytes`, or `None` if they exceed the socket's buffer.
fn connection_with_input(bytes: &[u8]) -> Option<(StoreConnection, UnixStream)> {
    let (client_end, server_end) = unix::pair().expect("cannot create a pair of sockets");
    let stream = SocketStream::from_unix(client_end).expect("cannot create a stream");
    let sent = if bytes.is_empty() { 0 } else { unix::send(&server_end, bytes, None).ok()? };
    (sent == bytes.len())
        .then(|| (StoreConnection::new(stream, false).with_nonce(NONCE), server_end))
}

fn keys() -> Vec<Bytes<'static>> {
    [&b"/a"[..], b"/b", b"/c"].map(Bytes::Borrowed).to_vec()
}

fn total_len(values: &[Vec<u8>]) -> usize {
    values.iter().map(Vec::len).sum()
}

/// Makes calls on the connection until a call fails. Returns the number of received bytes.
fn call_connection(mut connection: StoreConnection, calls: &[u8], deadline: &Deadline) -> usize {
    let mut received = 0;
    for call in calls {
        match connection_call(&mut connection, *call, deadline) {
            Ok(count) => received += count,
            Err(RequestFailure::Timeout) => panic!("call {call} waited"),
            Err(_) => break,
        }
    }
    received
}

fn connection_call(
    connection: &mut StoreConnection,
    call: u8,
    deadline: &Deadline,
) -> Result<usize, RequestFailure> {
    let (keys, key) = (keys(), Bytes::Borrowed(&b"/k"[..]));
    Ok(match call % 13 {
        0 => connection.validate(None, false, deadline).map(|()| 0)?,
        1 => connection.ping(deadline).map(|()| 0)?,
        2 => connection.read_i64(deadline).map(|_| 0)?,
        3 => connection.read_bytes(deadline)?.len(),
        4 => connection.read_ready(deadline).map(|_| 0)?,
        5 => connection.wait(&keys, deadline).map(|_| 0)?,
        6 => connection.barrier(&key, 2, deadline).map(|_| 0)?,
        7 => connection.get(&key, deadline)?.map_or(0, |value| value.len()),
        8 => connection.multi_get(&keys, deadline)?.map_or(0, |values| total_len(&values)),
        9 => {
            connection.send(&[StoreRequest::ListKeys], deadline)?;
            total_len(&connection.read_list(deadline)?)
        }
        10 => connection.pop(&key, deadline)?.map_or(0, |value| value.len()),
        11 => {
            let missing = connection.find_missing(&keys)?;
            assert!(missing.iter().all(|&position| position < keys.len()));
            0
        }
        _ => {
            let _either = connection.is_usable();
            0
        }
    })
}

/// Makes calls on a store that cannot connect again after it lost its connection.
fn call_store(store: &TcpStore, calls: &[u8], deadline: &Deadline) -> usize {
    let mut received = 0;
    for call in calls {
        match store_call(store, *call, deadline) {
            Ok(count) => received += count,
            Err(error) => assert!(
                matches!(error.kind(), ErrorKind::Connection | ErrorKind::NotANumber),
                "call {call}: {error}"
            ),
        }
    }
    received
}

fn store_call(store: &TcpStore, call: u8, deadline: &Deadline) -> Result<usize, Error> {
    let keys = [&b"a"[..], b"b", b"c"];
    Ok(match call % 18 {
        0 => store.set(b"k", b"v", deadline).map(|()| 0)?,
        1 => store.get(b"k", deadline)?.len(),
        2 => store.add(b"k", 1, deadline).map(|_| 0)?,
        3 => store.compare_set(b"k", b"a", b"b", deadline)?.len(),
        4 => store.wait(&keys, deadline).map(|()| 0)?,
        5 => store.check(&keys, deadline).map(|_| 0)?,
        6 => {
            let count = store.num_keys(deadline)?;
            assert!(count >= 0, "{count} keys");
            0
        }
        7 => store.delete_key(b"k", deadline).map(|_| 0)?,
        8 => store.append(b"k", b"v", deadline).map(|()| 0)?,
        9 => {
            let values = store.multi_get(&keys, deadline)?;
            assert_eq!(values.len(), keys.len());
            total_len(&values)
        }
        10 => store.multi_set(&[(b"a", b"1"), (b"b", b"2")], deadline).map(|()| 0)?,
        11 => total_len(&store.list_keys(deadline)?),
        12 => store.queue_push(b"q", b"i", deadline).map(|()| 0)?,
        13 => store.queue_pop(b"q", deadline)?.len(),
        14 => store.queue_try_pop(b"q", deadline)?.map_or(0, |item| item.len()),
        15 => {
            let length = store.queue_len(b"q", deadline)?;
            assert!(length >= 0, "{length} items");
            0
        }
        16 => store.barrier(b"b", 2, deadline).map(|()| 0)?,
        _ => store.worker_count(deadline).map(|_| 0)?,
    })
}
