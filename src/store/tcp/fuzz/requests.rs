//! Fuzzes the request handler with valid requests of four clients, and compares it with the
//! reference model. The two must give the same replies, wake the same clients in the same order,
//! and reject the same requests for the same reason.
//!
//! The first byte of a script selects the size of the store. In each step, the first byte selects
//! the client and whether it disconnects, and the second byte selects the request. The script can
//! only select a few names and values, so that different requests often use the same name.

use super::super::proto::{Bytes, StoreRequest};
use super::super::request_handler::RequestHandler;
use super::super::waiters::ConnectionId;
use super::model::StoreModel;
use crate::base::fuzz::FuzzScript;

/// The number of keys.
const KEY_COUNT: u8 = 8;
/// The largest number of bytes that one step may add to a value.
const MAX_RUN_BYTES: usize = 300;

/// Runs a script.
///
/// # Panics
/// If the handler differs from the model.
pub fn requests(input: &[u8]) {
    let mut script = FuzzScript(input);
    let max_bytes = match script.next_byte() {
        Some(tight) if tight & 1 == 1 => 100 * usize::from(tight),
        _ => 1 << 30,
    };
    let mut handler = RequestHandler::new(max_bytes);
    let mut model = StoreModel::new(max_bytes);
    while let Some(step) = script.next_byte() {
        let connection = ConnectionId::from(step & 3);
        if step >> 2 == 63 {
            check_leave(&mut handler, &mut model, connection);
        } else {
            let Some(request) = next_request(&mut script) else { break };
            check_request(&mut handler, &mut model, connection, &request);
        }
        handler.assert_consistent();
    }
    (0..4).for_each(|connection| check_leave(&mut handler, &mut model, connection));
    assert!(handler.is_idle(), "a removed connection still waits");
    for name in 0..KEY_COUNT {
        check_request(&mut handler, &mut model, 0, &StoreRequest::Get(key(name)));
    }
}

fn check_request(
    handler: &mut RequestHandler,
    model: &mut StoreModel,
    connection: ConnectionId,
    request: &StoreRequest<'_>,
) {
    let (mut answer, mut woken) = (Vec::new(), Vec::new());
    let served = handler.serve(connection, request.clone(), &mut answer, &mut woken);
    let (expected, expected_woken) = model.serve(connection, request);
    assert_eq!(woken, expected_woken, "woken by {request:?}");
    match expected {
        Ok(mut expected) => {
            assert_eq!(served, Ok(()), "{request:?}");
            if *request == StoreRequest::ListKeys {
                // The order of keys is arbitrary. Compare the sorted bytes and the length.
                answer.sort_unstable();
                expected.sort_unstable();
            }
            assert_eq!(answer, expected, "the reply to {request:?}");
        }
        Err(refusal) => {
            assert_eq!(served, Err(refusal), "{request:?}");
            check_leave(handler, model, connection);
        }
    }
}

fn check_leave(handler: &mut RequestHandler, model: &mut StoreModel, connection: ConnectionId) {
    let mut woken = Vec::new();
    handler.remove_connection(connection, &mut woken);
    assert_eq!(woken, model.remove_connection(connection), "woken when {connection} left");
}

/// Reads one request from at least two bytes.
fn next_request(script: &mut FuzzScript<'_>) -> Option<StoreRequest<'static>> {
    let kind = script.next_byte()?;
    let name = key(script.next_byte()?);
    Some(match kind % 18 {
        0 => StoreRequest::Set(name, value(script)),
        1 => StoreRequest::CompareSet(name, value(script), value(script)),
        2 => StoreRequest::Get(name),
        3 => StoreRequest::Add(name, amount(script)),
        4 => StoreRequest::Check(keys(name, script)),
        5 => StoreRequest::Wait(keys(name, script)),
        6 => StoreRequest::NumKeys,
        7 => StoreRequest::DeleteKey(name),
        8 => StoreRequest::Append(name, value(script)),
        9 => StoreRequest::MultiGet(keys(name, script)),
        10 => {
            let names = keys(name, script);
            StoreRequest::MultiSet(names.into_iter().map(|name| (name, value(script))).collect())
        }
        11 => StoreRequest::CancelWait,
        12 => StoreRequest::Ping(u32::from(kind)),
        13 => StoreRequest::QueuePush(name, value(script)),
        14 => StoreRequest::QueuePop(name),
        15 => StoreRequest::QueueLen(name),
        16 => StoreRequest::ListKeys,
        _ => StoreRequest::Barrier(name, amount(script)),
    })
}

/// Returns one of eight keys. One of them is empty, and one is long.
fn key(number: u8) -> Bytes<'static> {
    match number % KEY_COUNT {
        0 => Bytes::Borrowed(b""),
        1 => Bytes::Owned(vec![b'l'; 200]),
        letter => Bytes::Owned(vec![b'a' + letter]),
    }
}

fn keys(first: Bytes<'static>, script: &mut FuzzScript<'_>) -> Vec<Bytes<'static>> {
    let count = script.next_byte().unwrap_or_default() % 5;
    if count == 4 {
        return Vec::new();
    }
    let others = script.take_bytes(usize::from(count)).iter().map(|&name| key(name));
    std::iter::once(first).chain(others).collect()
}

/// Returns a value. Its length byte in the script selects one of two kinds: up to 15 bytes of the
/// script, or a longer run of one byte.
fn value(script: &mut FuzzScript<'_>) -> Bytes<'static> {
    let length = usize::from(script.next_byte().unwrap_or_default());
    if length < 16 {
        return Bytes::Owned(script.take_bytes(length).to_vec());
    }
    Bytes::Owned(vec![
        b'0' + script.next_byte().unwrap_or_default() % 11;
        length * MAX_RUN_BYTES / 255
    ])
}

/// Returns a small number, or an arbitrary one.
fn amount(script: &mut FuzzScript<'_>) -> i64 {
    match script.next_byte().unwrap_or_default() {
        0 => script.next_number(),
        small => i64::from(small.cast_signed()) % 5,
    }
}
