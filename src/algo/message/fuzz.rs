//! The entry point for the fuzz target `collective_frames`: an exchange with a peer that says right
//! things, spoilt ones and anything else.
//!
//! A script's first byte says how much time there is, how the peer ends and how many messages are
//! posted; then come how many bytes the streams take at once, a byte for each message, and the
//! steps of what the peer says.
//!
//! Compiled for fuzzing and for tests alone; not a part of the library.
#![allow(clippy::panic, clippy::expect_used, reason = "a panic is how a finding is told")]

use super::exchange::{Call, Exchange};
use super::lane::Lane;
use super::{SEGMENT, Team};
use crate::algo::Operation;
use crate::algo::pattern::slices::owned;
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::LateDeadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::fuzz::Script;
use crate::base::ids::{Nonce, Rank, WorldSize};
use crate::base::label::Label;
use crate::base::op::ReduceOp;
use crate::transport::frame::{HEADER_BYTES, Header, Kind};
use crate::transport::{Attendant, Channel, Descriptor, Endpoint, Extent, OpKind, PeerName, Wish};
use crate::wait::Pace;
use serde_json::Value;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

const LANES: u8 = 2;
const PEER: Rank = 1;
const GROUP: Nonce = Nonce(*b"the fuzzed group");
const SIZES: [usize; 8] = [0, 1, 7, 64, 100, 4096, 5000, SEGMENT + 3];
/// What is posted at most, so that the memory that a script takes stays small.
const MOST_BYTES: usize = 600 << 10;
/// What lies in buffers before anything comes, and between them.
const UNTOUCHED: u8 = 0xee;
const GUARD: usize = 32;
/// After so many calls the streams take and give all that there is.
const SHORT_CALLS: usize = 2000;
/// How often it is waited for a peer that says nothing more.
const RESTS: usize = 5;

/// Runs a script.
///
/// # Panics
/// Where an exchange takes what was not sent, writes elsewhere, or does not end.
pub fn frames(input: &[u8]) {
    let mut script = Script(input);
    let (mode, chunk) = (script.byte().unwrap_or_default(), script.byte().unwrap_or_default());
    let sizes = sizes(script.take(usize::from(mode >> 4 & 3) + 1));
    let streams = Streams::new(usize::from(chunk), mode & 1 == 0);
    let deadline = LateDeadline::after_ms(if mode & 2 == 0 { 60_000 } else { 0 });
    let mut lane = Lane::new(GROUP, 0, 2);
    lane.enter(barrier());
    let past = Past { chain: lane.chain() };
    let total: usize = sizes.iter().map(|&(_, size)| size + GUARD).sum();
    let mut memory = vec![UNTOUCHED; total + GUARD];
    let text = vec![b's'; SIZES[7]];
    let room = Dst::from(memory.as_mut_slice());
    let (send, recv) = (Src::empty(), Dst::empty());
    let operation = Operation::of(now(), send, recv, &deadline);
    let mut call = Call::begin(&streams, &mut lane, &operation, mode & 4 != 0);
    let members = [0, PEER];
    let team = Team::of(&members, 0).expect("a member");
    let mut exchange = call.exchange(team);
    let (mut expected, mut received, mut start) = (Vec::new(), 0, GUARD);
    for &(is_sent, size) in &sizes {
        if is_sent {
            exchange.send(PEER, Src::from(&text[..size]));
        } else {
            received += 1;
            expected.extend(stripes(&exchange, received, start, size));
            exchange.receive(PEER, room.slice(start, size));
            start += size + GUARD;
        }
    }
    let presence = presence(&exchange);
    streams.fill(&mut script, &expected, &presence, &past);
    let heard = streams.unread();
    let outcome = exchange.finish();
    let is_right = model(&heard, &expected, &presence, &past, &memory, outcome.is_ok());
    match outcome {
        Ok(()) => assert!(is_right, "what came is not what was to come"),
        Err(error) => {
            assert!(mode & 2 != 0 || !is_right, "all that was to come came: {error}");
            let is_own = error.kind() == ErrorKind::Aborted;
            assert!(is_own || error.culprit() == Some(PEER), "it names nobody: {error:?}");
        }
    }
    check_guards(&memory, &sizes);
}

/// Directions and sizes of the messages.
fn sizes(choices: &[u8]) -> Vec<(bool, usize)> {
    let mut left = MOST_BYTES;
    let size = |&choice: &u8| {
        let size = SIZES[usize::from(choice >> 1) % SIZES.len()];
        let size = if size <= left { size } else { 0 };
        left -= size;
        (choice & 1 == 1, size)
    };
    choices.iter().map(size).collect()
}

fn barrier() -> Descriptor {
    let (dtype, op, root) = (None, None, None);
    Descriptor {
        kind: OpKind::Barrier,
        dtype,
        op,
        root,
        extent: Extent::Count(0),
        sequence: 1,
        algorithm: 0,
        part: 0,
        label: Label::NONE,
    }
}

fn now() -> Descriptor {
    let (dtype, op) = (Some(DataType::U8), Some(ReduceOp::Sum));
    Descriptor {
        kind: OpKind::AllReduce,
        dtype,
        op,
        root: None,
        extent: Extent::Count(64),
        sequence: 2,
        algorithm: 0,
        part: 0,
        label: Label::NONE,
    }
}

/// The operation before this one.
struct Past {
    chain: u64,
}

/// A stripe that is to come.
struct Stripe {
    lane: u8,
    header: Header,
    start: usize,
    len: usize,
}

/// What a message of the peer is to look like.
fn stripes(exchange: &Exchange<'_>, number: u64, start: usize, size: usize) -> Vec<Stripe> {
    let count = if size >= SEGMENT { LANES } else { 1 };
    let stripe = |lane: u8| {
        let part = owned(size, count.into(), lane.into());
        let header = exchange.header(lane, count, number, size);
        Stripe { lane, header, start: start + part.start, len: part.len() }
    };
    (0..count).map(stripe).collect()
}

fn presence(exchange: &Exchange<'_>) -> Header {
    Header { kind: Kind::Presence, ..exchange.header(0, 1, 0, 0) }
}

/// Follows what came on the streams; whether all stripes have, and where they have, what is in the
/// buffers.
fn model(
    heard: &[Vec<u8>],
    expected: &[Stripe],
    presence: &Header,
    past: &Past,
    memory: &[u8],
    is_over: bool,
) -> bool {
    let mut rest: Vec<&[u8]> = heard.iter().map(Vec::as_slice).collect();
    for Stripe { lane, header, start, len } in expected {
        let stream = &mut rest[usize::from(*lane)];
        loop {
            let Some((bytes, behind)) = stream.split_first_chunk::<HEADER_BYTES>() else {
                return false;
            };
            *stream = behind;
            let Ok(found) = Header::decode(bytes) else { return false };
            if (Header { excuse: None, ..found }) == *header {
                break;
            }
            let chain = match found.descriptor.sequence {
                1 => past.chain,
                2 => presence.chain,
                _ => return false,
            };
            if found.kind != Kind::Presence || found.chain != chain {
                return false;
            }
        }
        let Some((payload, behind)) = stream.split_at_checked(*len) else { return false };
        *stream = behind;
        assert!(!is_over || &memory[*start..start + len] == payload, "other bytes than came");
    }
    true
}

fn check_guards(memory: &[u8], sizes: &[(bool, usize)]) {
    let is_untouched = |bytes: &[u8]| bytes.iter().all(|&byte| byte == UNTOUCHED);
    assert!(is_untouched(&memory[..GUARD]), "something was written before the buffers");
    let mut start = GUARD;
    for &(_, size) in sizes.iter().filter(|(is_sent, _)| !is_sent) {
        let guard = &memory[start + size..start + size + GUARD];
        assert!(is_untouched(guard), "something was written behind a buffer");
        start += size + GUARD;
    }
    assert!(is_untouched(&memory[start..]), "something was written where nothing was posted");
}

/// The streams between this rank and the peer, whose bytes are all there from the beginning.
#[derive(Debug)]
struct Streams {
    names: [PeerName; 2],
    /// At most so many bytes go at once.
    chunk: usize,
    /// The peer leaves when it has said all; else somebody fails the group then.
    leaves: bool,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    incoming: [Vec<u8>; LANES as usize],
    /// How much of them has been taken.
    taken: [usize; LANES as usize],
    calls: usize,
    rests: usize,
    failure: Option<Error>,
    /// The peer says this again and again.
    flood: Option<[u8; HEADER_BYTES]>,
}

impl Streams {
    fn new(chunk: usize, leaves: bool) -> Self {
        let name = |rank| PeerName { rank, pid: 1, host: "here".into() };
        Self { names: [name(0), name(PEER)], chunk, leaves, inner: Mutex::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unread(&self) -> Vec<Vec<u8>> {
        self.inner().incoming.to_vec()
    }

    /// The peer says what the script says.
    fn fill(&self, script: &mut Script<'_>, expected: &[Stripe], presence: &Header, past: &Past) {
        let mut inner = self.inner();
        let mut next = expected.iter();
        let mut say = |lane: u8, bytes: &[u8]| inner.incoming[usize::from(lane)].extend(bytes);
        while let Some(step) = script.byte() {
            let lane = step >> 3 & 1;
            match step & 7 {
                0 => {
                    for stripe in next.by_ref() {
                        say(stripe.lane, &stripe.header.encode());
                        say(stripe.lane, &vec![b'r'; stripe.len]);
                    }
                }
                1 | 2 => {
                    let Some(stripe) = next.next() else { continue };
                    let mut header = stripe.header.encode();
                    if step & 7 == 2 {
                        let place = usize::from(script.byte().unwrap_or_default());
                        header[place % HEADER_BYTES] ^= script.byte().unwrap_or_default();
                    }
                    say(stripe.lane, &header);
                    say(stripe.lane, &vec![step; stripe.len]);
                }
                3 => say(lane, &presence.encode()),
                4 => {
                    let (chain, descriptor) = (past.chain, barrier());
                    say(lane, &Header { chain, descriptor, ..*presence }.encode());
                }
                5 => {
                    let mut header = presence.encode();
                    let place = usize::from(script.byte().unwrap_or_default());
                    header[place % HEADER_BYTES] ^= script.byte().unwrap_or_default();
                    say(lane, &header);
                }
                _ => {
                    let count = script.byte().unwrap_or_default();
                    say(lane, script.take(count.into()));
                }
            }
        }
    }

    /// How much of so many bytes goes.
    fn portion(&self, inner: &mut Inner, len: usize) -> usize {
        inner.calls += 1;
        let is_short = self.chunk > 0 && inner.calls < SHORT_CALLS;
        if is_short { len.min(self.chunk) } else { len }
    }

    fn ended() -> Error {
        Error::new(ErrorKind::Aborted, "somebody ended the group")
    }
}

impl Endpoint for Streams {
    fn rank(&self) -> Rank {
        0
    }

    fn size(&self) -> WorldSize {
        2
    }

    fn peer(&self, rank: Rank) -> &PeerName {
        &self.names[rank]
    }

    fn lanes(&self) -> u8 {
        LANES
    }

    fn pace(&self) -> Pace {
        Pace::PATIENT
    }

    fn try_send(&self, to: Rank, _: Channel, parts: &[Src<'_>]) -> Result<usize> {
        assert_eq!(to, PEER);
        let len = parts.iter().map(|part| part.len()).sum();
        Ok(self.portion(&mut self.inner(), len))
    }

    fn try_receive(&self, from: Rank, channel: Channel, into: Dst<'_>) -> Result<usize> {
        let Channel::Collective(lane) = channel else { panic!("{channel:?}") };
        assert_eq!(from, PEER);
        let mut inner = self.inner();
        let count = self.portion(&mut inner, into.len());
        let Inner { incoming, taken, flood, .. } = &mut *inner;
        let (stream, at) = (&mut incoming[usize::from(lane)], &mut taken[usize::from(lane)]);
        if let Some(mark) = flood {
            *stream = mark.repeat(count.div_ceil(HEADER_BYTES));
            *at = 0;
        }
        let count = count.min(stream.len() - *at);
        into.slice(0, count).copy_from(Src::from(&stream[*at..*at + count]));
        *at += count;
        let is_over = incoming.iter().zip(taken).all(|(stream, taken)| stream.len() == *taken);
        if count == 0 && !into.is_empty() && is_over {
            if self.leaves {
                let error = Error::new(ErrorKind::PeerFailed, "the peer has left");
                return Err(error.with_culprit(PEER));
            }
            inner.failure.get_or_insert_with(Self::ended);
        }
        Ok(count)
    }

    fn rest(&self, _: &[Wish], _: Duration) {
        let mut inner = self.inner();
        inner.rests += 1;
        if inner.rests >= RESTS {
            inner.failure.get_or_insert_with(Self::ended);
        }
    }

    fn ready(&self, _: &mut Vec<Rank>) {}

    fn set_attendant(&self, _: Weak<dyn Attendant>) {}

    fn pause_attendant(&self, _: bool) {}

    fn describe(&self) -> Value {
        Value::Null
    }

    fn failure(&self) -> Option<Error> {
        self.inner().failure.clone()
    }

    fn fail(&self, error: &Error) {
        self.inner().failure.get_or_insert_with(|| error.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::fuzz::replay;

    #[test]
    fn a_peer_that_never_stops_saying_that_it_is_there_does_not_stop_the_clock() {
        let streams = Streams::new(0, false);
        let deadline = LateDeadline::after_ms(20);
        let mut lane = Lane::new(GROUP, 0, 2);
        lane.enter(barrier());
        let (send, recv) = (Src::empty(), Dst::empty());
        let operation = Operation::of(now(), send, recv, &deadline);
        let mut call = Call::begin(&streams, &mut lane, &operation, false);
        let mut exchange = call.exchange(Team::of(&[0, PEER], 0).unwrap());
        streams.inner().flood = Some(presence(&exchange).encode());
        let mut memory = [0];
        exchange.receive(PEER, Dst::from(&mut memory[..]));
        let error = exchange.finish().unwrap_err();
        assert_eq!((error.kind(), error.culprit()), (ErrorKind::Timeout, Some(PEER)));
    }

    #[test]
    fn the_frames_corpus() {
        replay("collective_frames", frames);
    }
}
