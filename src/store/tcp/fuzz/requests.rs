//! Requests that make sense, of four clients, to the server's session and to a model of it: both
//! must give the same answers, wake the same clients in the same order, and refuse the same
//! requests for the same reason.
//!
//! A script begins with a byte that says how much fits into the store. Each step's first byte is
//! the client and whether it leaves, its second the request; names and values are a few, so that
//! requests meet.

use super::super::proto::{Bytes, Request};
use super::super::session::{ConnectionId, Session};
use super::model::Model;
use crate::base::fuzz::Script;

/// How many names there are.
const KEYS: u8 = 8;
/// How much one step may add to a value.
const RUN_BYTES: usize = 300;

/// Runs a script.
///
/// # Panics
/// Where the session differs from the model.
pub fn requests(input: &[u8]) {
    let mut script = Script(input);
    let max_bytes = match script.byte() {
        Some(tight) if tight & 1 == 1 => 100 * usize::from(tight),
        _ => 1 << 30,
    };
    let mut session = Session::new(max_bytes);
    let mut model = Model::new(max_bytes);
    while let Some(step) = script.byte() {
        let who = ConnectionId::from(step & 3);
        if step >> 2 == 63 {
            leave(&mut session, &mut model, who);
        } else {
            let Some(request) = request(&mut script) else { break };
            ask(&mut session, &mut model, who, &request);
        }
        session.check();
    }
    (0..4).for_each(|who| leave(&mut session, &mut model, who));
    assert!(session.is_idle(), "somebody who has gone still waits");
    for name in 0..KEYS {
        ask(&mut session, &mut model, 0, &Request::Get(key(name)));
    }
}

fn ask(session: &mut Session, model: &mut Model, who: ConnectionId, request: &Request<'_>) {
    let (mut answer, mut woken) = (Vec::new(), Vec::new());
    let served = session.serve(who, request.clone(), &mut answer, &mut woken);
    let (expected, expected_woken) = model.serve(who, request);
    assert_eq!(woken, expected_woken, "woken by {request:?}");
    match expected {
        Ok(mut expected) => {
            assert_eq!(served, Ok(()), "{request:?}");
            if *request == Request::ListKeys {
                // In no order: the same bytes are as much as the sum can tell, and the length.
                answer.sort_unstable();
                expected.sort_unstable();
            }
            assert_eq!(answer, expected, "the answer to {request:?}");
        }
        Err(refusal) => {
            assert_eq!(served, Err(refusal), "{request:?}");
            leave(session, model, who);
        }
    }
}

fn leave(session: &mut Session, model: &mut Model, who: ConnectionId) {
    let mut woken = Vec::new();
    session.forget(who, &mut woken);
    assert_eq!(woken, model.forget(who), "woken as {who} left");
}

/// One request, from two bytes at least.
fn request(script: &mut Script<'_>) -> Option<Request<'static>> {
    let kind = script.byte()?;
    let name = key(script.byte()?);
    Some(match kind % 18 {
        0 => Request::Set(name, value(script)),
        1 => Request::CompareSet(name, value(script), value(script)),
        2 => Request::Get(name),
        3 => Request::Add(name, amount(script)),
        4 => Request::Check(keys(name, script)),
        5 => Request::Wait(keys(name, script)),
        6 => Request::NumKeys,
        7 => Request::DeleteKey(name),
        8 => Request::Append(name, value(script)),
        9 => Request::MultiGet(keys(name, script)),
        10 => {
            let names = keys(name, script);
            Request::MultiSet(names.into_iter().map(|name| (name, value(script))).collect())
        }
        11 => Request::CancelWait,
        12 => Request::Ping(u32::from(kind)),
        13 => Request::QueuePush(name, value(script)),
        14 => Request::QueuePop(name),
        15 => Request::QueueLen(name),
        16 => Request::ListKeys,
        _ => Request::Barrier(name, amount(script)),
    })
}

/// One of eight names, of which one is empty and one long.
fn key(number: u8) -> Bytes<'static> {
    match number % KEYS {
        0 => Bytes::Borrowed(b""),
        1 => Bytes::Owned(vec![b'l'; 200]),
        letter => Bytes::Owned(vec![b'a' + letter]),
    }
}

fn keys(first: Bytes<'static>, script: &mut Script<'_>) -> Vec<Bytes<'static>> {
    let count = script.byte().unwrap_or_default() % 5;
    if count == 4 {
        return Vec::new();
    }
    let others = script.take(usize::from(count)).iter().map(|&name| key(name));
    std::iter::once(first).chain(others).collect()
}

/// Up to 15 bytes of the script, or a run of one byte; by its first byte.
fn value(script: &mut Script<'_>) -> Bytes<'static> {
    let length = usize::from(script.byte().unwrap_or_default());
    if length < 16 {
        return Bytes::Owned(script.take(length).to_vec());
    }
    Bytes::Owned(vec![b'0' + script.byte().unwrap_or_default() % 11; length * RUN_BYTES / 255])
}

/// A small number, or any.
fn amount(script: &mut Script<'_>) -> i64 {
    match script.byte().unwrap_or_default() {
        0 => script.number(),
        small => i64::from(small.cast_signed()) % 5,
    }
}
