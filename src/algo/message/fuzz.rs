//! The entry point for the fuzz target `collective_frames`: an exchange with a scripted peer that
//! sends valid headers, corrupted headers and arbitrary bytes.
//!
//! A script is a sequence of bytes:
//!
//! | bytes | meaning |
//! |---|---|
//! | first byte | the timeout, whether the peer leaves, the number of posted messages |
//! | second byte | the maximum number of bytes that a stream moves in one call |
//! | one byte for each message | the direction and the size of the message |
//! | all other bytes | the bytes that the peer sends |
//!
//! This module is compiled for fuzzing and for tests only.
#![allow(clippy::panic, clippy::expect_used, reason = "a fuzz target reports a finding by a panic")]

use super::exchange::{MessageExchange, MessageOperation};
use super::peer_history::PeerHistory;
use super::{SEGMENT_BYTES, Team};
use crate::algo::Operation;
use crate::algo::pattern::slices::owned_slice;
use crate::algo::table::algorithm_name;
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::LazyDeadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::fuzz::FuzzScript;
use crate::base::ids::{Nonce, Rank, WorldSize};
use crate::base::label::Label;
use crate::base::op::ReduceOp;
use crate::base::sync::lock;
use crate::transport::collective_header::{CollectiveHeader, CollectiveMessageKind, HEADER_BYTES};
use crate::transport::{
    Channel, CountSpec, Descriptor, Endpoint, OpKind, PeerName, ProgressHandler, StreamInterest,
};
use crate::wait::WaitPolicy;
use serde_json::Value;
use std::sync::{Mutex, MutexGuard, Weak};
use std::time::Duration;

const STREAM_COUNT: u8 = 2;
const PEER: Rank = 1;
const GROUP: Nonce = Nonce(*b"the fuzzed group");
const SIZES: [usize; 8] = [0, 1, 7, 64, 100, 4096, 5000, SEGMENT_BYTES + 3];
/// The maximum number of posted bytes. It limits the memory that a script takes.
const MAX_POSTED_BYTES: usize = 600 << 10;
/// The value of the buffers before a receive, and of the guard bytes between the buffers.
const FILL_BYTE: u8 = 0xee;
/// The number of guard bytes before and after each buffer.
const GUARD: usize = 32;
/// The number of calls after which a stream moves any number of bytes per call.
const SHORT_CALLS: usize = 2000;
/// The maximum number of sleeps for a peer that sends nothing more.
const MAX_SLEEPS: usize = 5;

/// Runs a script.
///
/// # Panics
/// If an exchange accepts a message that the peer did not send, writes outside the buffers, or does
/// not end.
pub fn frames(input: &[u8]) {
    let mut script = FuzzScript(input);
    let (mode, chunk) =
        (script.next_byte().unwrap_or_default(), script.next_byte().unwrap_or_default());
    let sizes = choose_messages(script.take_bytes(usize::from(mode >> 4 & 3) + 1));
    let streams = ScriptedEndpoint::new(usize::from(chunk), mode & 1 == 0);
    let deadline = LazyDeadline::after_ms(if mode & 2 == 0 { 60_000 } else { 0 });
    let mut history = PeerHistory::new(GROUP, 0, 2, algorithm_name);
    history.enter(previous_descriptor());
    let previous = FuzzPastOperation { call_fingerprint: history.call_fingerprint() };
    let total: usize = sizes.iter().map(|&(_, size)| size + GUARD).sum();
    let mut memory = vec![FILL_BYTE; total + GUARD];
    let text = vec![b's'; SIZES[7]];
    let room = Dst::from(memory.as_mut_slice());
    let (send, recv) = (Src::empty(), Dst::empty());
    let operation = Operation::of(current_descriptor(), send, recv, &deadline);
    let mut call = MessageOperation::begin(&streams, &mut history, &operation, mode & 4 != 0);
    let members = [0, PEER];
    let team = Team::of(&members, 0).expect("a member");
    let mut exchange = call.exchange(team);
    let (mut expected, mut received, mut start) = (Vec::new(), 0, GUARD);
    for &(is_sent, size) in &sizes {
        if is_sent {
            exchange.send(PEER, Src::from(&text[..size]));
        } else {
            received += 1;
            expected.extend(expected_stripes(&exchange, received, start, size));
            exchange.receive(PEER, room.slice(start, size));
            start += size + GUARD;
        }
    }
    let presence = presence_header(&exchange);
    streams.run_script(&mut script, &expected, &presence, &previous);
    let received_bytes = streams.incoming_bytes();
    let outcome = exchange.finish();
    let is_right =
        matches_model(&received_bytes, &expected, &presence, &previous, &memory, outcome.is_ok());
    match outcome {
        Ok(()) => assert!(is_right, "the received bytes differ from the expected bytes"),
        Err(error) => {
            assert!(
                mode & 2 != 0 || !is_right,
                "an operation failed although all expected bytes arrived: {error}"
            );
            let is_own = error.kind() == ErrorKind::Aborted;
            assert!(is_own || error.culprit() == Some(PEER), "the error has no culprit: {error:?}");
        }
    }
    check_guards(&memory, &sizes);
}

/// Returns the directions and sizes of the messages.
fn choose_messages(choices: &[u8]) -> Vec<(bool, usize)> {
    let mut left = MAX_POSTED_BYTES;
    let size = |&choice: &u8| {
        let size = SIZES[usize::from(choice >> 1) % SIZES.len()];
        let size = if size <= left { size } else { 0 };
        left -= size;
        (choice & 1 == 1, size)
    };
    choices.iter().map(size).collect()
}

fn previous_descriptor() -> Descriptor {
    let (dtype, op, root) = (None, None, None);
    Descriptor {
        kind: OpKind::Barrier,
        dtype,
        op,
        root,
        count_spec: CountSpec::Count(0),
        sequence: 1,
        algorithm: 0,
        part: 0,
        label: Label::NONE,
    }
}

fn current_descriptor() -> Descriptor {
    let (dtype, op) = (Some(DataType::U8), Some(ReduceOp::Sum));
    Descriptor {
        kind: OpKind::AllReduce,
        dtype,
        op,
        root: None,
        count_spec: CountSpec::Count(64),
        sequence: 2,
        algorithm: 0,
        part: 0,
        label: Label::NONE,
    }
}

/// The operation before the current one.
struct FuzzPastOperation {
    call_fingerprint: u64,
}

/// An expected stripe.
struct ExpectedStripe {
    stream: u8,
    header: CollectiveHeader,
    start: usize,
    len: usize,
}

/// Returns the stripes that a message of the peer must consist of.
fn expected_stripes(
    exchange: &MessageExchange<'_>,
    number: u64,
    start: usize,
    size: usize,
) -> Vec<ExpectedStripe> {
    let count = if size >= SEGMENT_BYTES { STREAM_COUNT } else { 1 };
    let stripe = |lane: u8| {
        let part = owned_slice(size, count.into(), lane.into());
        let header = exchange.header(lane, count, number, size);
        ExpectedStripe { stream: lane, header, start: start + part.start, len: part.len() }
    };
    (0..count).map(stripe).collect()
}

fn presence_header(exchange: &MessageExchange<'_>) -> CollectiveHeader {
    CollectiveHeader { kind: CollectiveMessageKind::ArrivalNotice, ..exchange.header(0, 1, 0, 0) }
}

/// Parses the bytes that arrived on the streams. Returns whether all expected stripes arrived. If
/// the exchange succeeded, also checks the contents of the buffers.
fn matches_model(
    received_bytes: &[Vec<u8>],
    expected: &[ExpectedStripe],
    presence: &CollectiveHeader,
    past: &FuzzPastOperation,
    memory: &[u8],
    is_over: bool,
) -> bool {
    let mut rest: Vec<&[u8]> = received_bytes.iter().map(Vec::as_slice).collect();
    for ExpectedStripe { stream: lane, header, start, len } in expected {
        let stream = &mut rest[usize::from(*lane)];
        loop {
            let Some((bytes, behind)) = stream.split_first_chunk::<HEADER_BYTES>() else {
                return false;
            };
            *stream = behind;
            let Ok(found) = CollectiveHeader::decode(bytes) else { return false };
            if (CollectiveHeader { blame: None, ..found }) == *header {
                break;
            }
            let fingerprint = match found.descriptor.sequence {
                1 => past.call_fingerprint,
                2 => presence.call_fingerprint,
                _ => return false,
            };
            // A notice of a later operation, or of a later part of this one, does not belong here.
            let is_late = found.descriptor.order_key() > presence.descriptor.order_key();
            if found.kind != CollectiveMessageKind::ArrivalNotice
                || found.call_fingerprint != fingerprint
                || is_late
            {
                return false;
            }
        }
        let Some((payload, behind)) = stream.split_at_checked(*len) else { return false };
        *stream = behind;
        assert!(
            !is_over || &memory[*start..start + len] == payload,
            "the memory differs from the received bytes"
        );
    }
    true
}

fn check_guards(memory: &[u8], sizes: &[(bool, usize)]) {
    let is_untouched = |bytes: &[u8]| bytes.iter().all(|&byte| byte == FILL_BYTE);
    assert!(is_untouched(&memory[..GUARD]), "bytes were written before the buffers");
    let mut start = GUARD;
    for &(_, size) in sizes.iter().filter(|(is_sent, _)| !is_sent) {
        let guard = &memory[start + size..start + size + GUARD];
        assert!(is_untouched(guard), "bytes were written after a buffer");
        start += size + GUARD;
    }
    assert!(is_untouched(&memory[start..]), "bytes were written outside of the posted buffers");
}

/// The streams between this rank and the peer. All bytes that the peer sends are available from the
/// start.
#[derive(Debug)]
struct ScriptedEndpoint {
    names: [PeerName; 2],
    /// The maximum number of bytes per call; 0 for no limit.
    chunk: usize,
    /// Whether the peer leaves after its last byte. If false, the group fails after the last byte.
    has_leaving_peer: bool,
    state: Mutex<ScriptedEndpointState>,
}

#[derive(Debug, Default)]
struct ScriptedEndpointState {
    incoming: [Vec<u8>; STREAM_COUNT as usize],
    /// The number of bytes already received from each stream.
    taken: [usize; STREAM_COUNT as usize],
    calls: usize,
    sleep_count: usize,
    failure: Option<Error>,
    /// A header that the peer sends repeatedly.
    repeated_header: Option<[u8; HEADER_BYTES]>,
}

impl ScriptedEndpoint {
    fn new(chunk: usize, leaves: bool) -> Self {
        let name = |rank| PeerName::new(rank, 1, "here".into());
        Self {
            names: [name(0), name(PEER)],
            chunk,
            has_leaving_peer: leaves,
            state: Mutex::default(),
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, ScriptedEndpointState> {
        lock(&self.state)
    }

    fn incoming_bytes(&self) -> Vec<Vec<u8>> {
        self.lock_state().incoming.to_vec()
    }

    /// Appends the bytes that the script prescribes to the peer's streams.
    fn run_script(
        &self,
        script: &mut FuzzScript<'_>,
        expected: &[ExpectedStripe],
        presence: &CollectiveHeader,
        past: &FuzzPastOperation,
    ) {
        let mut inner = self.lock_state();
        let mut next = expected.iter();
        let mut append = |lane: u8, bytes: &[u8]| inner.incoming[usize::from(lane)].extend(bytes);
        while let Some(step) = script.next_byte() {
            let lane = step >> 3 & 1;
            match step & 7 {
                0 => {
                    for stripe in next.by_ref() {
                        append(stripe.stream, &stripe.header.encode());
                        append(stripe.stream, &vec![b'r'; stripe.len]);
                    }
                }
                1 | 2 => {
                    let Some(stripe) = next.next() else { continue };
                    let mut header = stripe.header.encode();
                    if step & 7 == 2 {
                        let place = usize::from(script.next_byte().unwrap_or_default());
                        header[place % HEADER_BYTES] ^= script.next_byte().unwrap_or_default();
                    }
                    append(stripe.stream, &header);
                    append(stripe.stream, &vec![step; stripe.len]);
                }
                3 => append(lane, &presence.encode()),
                4 => {
                    let (fingerprint, descriptor) = (past.call_fingerprint, previous_descriptor());
                    append(
                        lane,
                        &CollectiveHeader {
                            call_fingerprint: fingerprint,
                            descriptor,
                            ..*presence
                        }
                        .encode(),
                    );
                }
                5 => {
                    let mut header = presence.encode();
                    let place = usize::from(script.next_byte().unwrap_or_default());
                    header[place % HEADER_BYTES] ^= script.next_byte().unwrap_or_default();
                    append(lane, &header);
                }
                _ => {
                    let count = script.next_byte().unwrap_or_default();
                    append(lane, script.take_bytes(count.into()));
                }
            }
        }
    }

    /// Returns the number of bytes that a call moves if the caller asks for `len` bytes.
    fn transfer_len(&self, inner: &mut ScriptedEndpointState, len: usize) -> usize {
        inner.calls += 1;
        let is_short = self.chunk > 0 && inner.calls < SHORT_CALLS;
        if is_short { len.min(self.chunk) } else { len }
    }

    fn aborted_error() -> Error {
        Error::new(ErrorKind::Aborted, "the group was ended")
    }
}

impl Endpoint for ScriptedEndpoint {
    fn rank(&self) -> Rank {
        0
    }

    fn size(&self) -> WorldSize {
        2
    }

    fn peer(&self, rank: Rank) -> &PeerName {
        &self.names[rank]
    }

    fn collective_streams(&self) -> u8 {
        STREAM_COUNT
    }

    fn wait_policy(&self) -> WaitPolicy {
        WaitPolicy::SLEEP_SOON
    }

    fn try_send(&self, to: Rank, _: Channel, parts: &[Src<'_>]) -> Result<usize> {
        assert_eq!(to, PEER);
        let len = parts.iter().map(|part| part.len()).sum();
        Ok(self.transfer_len(&mut self.lock_state(), len))
    }

    fn try_receive(&self, from: Rank, channel: Channel, into: Dst<'_>) -> Result<usize> {
        let Channel::Collective(lane) = channel else { panic!("{channel:?}") };
        assert_eq!(from, PEER);
        let mut inner = self.lock_state();
        let count = self.transfer_len(&mut inner, into.len());
        let ScriptedEndpointState { incoming, taken, repeated_header: flood, .. } = &mut *inner;
        let (stream, at) = (&mut incoming[usize::from(lane)], &mut taken[usize::from(lane)]);
        if let Some(presence) = flood {
            *stream = presence.repeat(count.div_ceil(HEADER_BYTES));
            *at = 0;
        }
        let count = count.min(stream.len() - *at);
        into.slice(0, count).copy_from(Src::from(&stream[*at..*at + count]));
        *at += count;
        let is_over = incoming.iter().zip(taken).all(|(stream, taken)| stream.len() == *taken);
        if count == 0 && !into.is_empty() && is_over {
            if self.has_leaving_peer {
                let error = Error::new(ErrorKind::PeerFailed, "the peer has left");
                return Err(error.with_culprit(PEER));
            }
            inner.failure.get_or_insert_with(Self::aborted_error);
        }
        Ok(count)
    }

    fn wait_for_streams(&self, _: &[StreamInterest], _: Duration) {
        let mut inner = self.lock_state();
        inner.sleep_count += 1;
        if inner.sleep_count >= MAX_SLEEPS {
            inner.failure.get_or_insert_with(Self::aborted_error);
        }
    }

    fn collect_ready_peers(&self, _: &mut Vec<Rank>) {}

    fn set_progress_handler(&self, _: Weak<dyn ProgressHandler>) {}

    fn pause_progress_handler(&self, _: bool) {}

    fn describe(&self) -> Value {
        Value::Null
    }

    fn failure(&self) -> Option<Error> {
        self.lock_state().failure.clone()
    }

    fn fail(&self, error: &Error) {
        self.lock_state().failure.get_or_insert_with(|| error.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::fuzz::replay_corpus;

    #[test]
    fn endless_presence_messages_do_not_defer_the_timeout() {
        let streams = ScriptedEndpoint::new(0, false);
        let deadline = LazyDeadline::after_ms(20);
        let mut lane = PeerHistory::new(GROUP, 0, 2, algorithm_name);
        lane.enter(previous_descriptor());
        let (send, recv) = (Src::empty(), Dst::empty());
        let operation = Operation::of(current_descriptor(), send, recv, &deadline);
        let mut call = MessageOperation::begin(&streams, &mut lane, &operation, false);
        let mut exchange = call.exchange(Team::of(&[0, PEER], 0).unwrap());
        streams.lock_state().repeated_header = Some(presence_header(&exchange).encode());
        let mut memory = [0];
        exchange.receive(PEER, Dst::from(&mut memory[..]));
        let error = exchange.finish().unwrap_err();
        assert_eq!((error.kind(), error.culprit()), (ErrorKind::Timeout, Some(PEER)));
    }

    #[test]
    fn collective_frames_corpus_passes() {
        replay_corpus("collective_frames", frames);
    }
}
