//! The entry point of the fuzz target `message_frames`: an engine whose peer sends arbitrary bytes.
//! The peer uses streams, or rings in shared memory that it may corrupt.
//!
//! The first byte of a script selects streams or rings, and the reuse policy of the shared memory.
//! The other bytes are steps: requests of this rank, frames and actions of the peer, and polls of
//! the engine. The run has no threads: it covers the engine's state, but not the choice of the
//! thread that makes progress.
//!
//! Compiled only for fuzzing and for tests; not a part of the library.
#![allow(clippy::panic, clippy::expect_used, reason = "a fuzz target reports a finding by a panic")]

mod arena;
mod peer;

use super::frame::{HEADER_BYTES, MessageFrame};
use super::outstanding::CompletedMessage;
use super::state::MatchingState;
use crate::base::buffer::Src;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind};
use crate::base::fuzz::FuzzScript;
use crate::base::ids::{Nonce, Rank};
use crate::transport::{
    ProbeRequest, ProbedMessage, ReceiveBuffer, ReceiveRequest, ReusePolicy, SendRequest,
};
use arena::{FuzzArena, FuzzCompletion};
use peer::FuzzPeer;
use std::sync::Arc;

const PEER: Rank = 1;
/// Message sizes below and above each limit: the size of the staging buffer, of a direct receive,
/// and of an eager message.
const SIZES: [usize; 8] = [0, 1, 5, 64, 300, 5000, 16 << 10, 17_000];
/// The bytes that this rank sends.
static SEND_BYTES: [u8; 17_000] = [b's'; 17_000];
/// The maximum number of filler bytes that the peer sends.
const MAX_FILL_BYTES: usize = 128 << 10;
/// The maximum number of messages that this rank posts.
const MAX_POSTED: usize = 64;

/// Runs a script.
///
/// # Panics
/// If the engine violates one of its invariants.
pub fn frames(input: &[u8]) {
    let mut script = FuzzScript(input);
    let choice = script.next_byte().unwrap_or_default();
    let reuse = if choice & 2 == 0 { ReusePolicy::WhileCached } else { ReusePolicy::AfterEviction };
    let mut scene = FuzzScene::new((choice & 1 == 1).then_some(reuse));
    while let Some(step) = script.next_byte() {
        scene.step(step, &mut script);
        scene.complete_ended();
        scene.check();
    }
    scene.state.progress();
    scene.complete_ended();
    scene.check();
    scene.state.leave();
    scene.complete_ended();
    scene.arena.check_end();
}

struct FuzzScene {
    peer: FuzzPeer,
    state: MatchingState,
    arena: FuzzArena,
    /// The messages that probes have removed from matching.
    probed: Vec<ProbedMessage>,
    /// The number of filler bytes that the peer may still send.
    fill_left: usize,
    /// Whether another rank or an expired message has failed the group.
    is_failure_expected: bool,
}

impl FuzzScene {
    /// Creates an engine and its peer. They use rings with this reuse policy, or streams if it is
    /// `None`.
    fn new(rings: Option<ReusePolicy>) -> Self {
        let peer = FuzzPeer::new(rings);
        let state = MatchingState::new(peer.domain(), peer.endpoint(), Nonce([7; 16]));
        let mut state = state.expect("a state of two ranks");
        // The peer's process is this process, and the addresses in its split put requests are
        // arbitrary.
        state.puts.set_can_write(false);
        let (arena, probed) = (FuzzArena::new(), Vec::new());
        Self { peer, state, arena, probed, fill_left: MAX_FILL_BYTES, is_failure_expected: false }
    }

    fn step(&mut self, step: u8, script: &mut FuzzScript<'_>) {
        let mut byte = || script.next_byte().unwrap_or_default();
        match step % 16 {
            0 => self.state.progress(),
            1 => self.receive(byte(), byte()),
            2 => self.send(byte(), byte()),
            3..=6 => {
                let frame = arbitrary_frame(byte(), byte(), byte(), script);
                self.peer.send_bytes(&frame.encode());
            }
            7 => {
                let count = SIZES[usize::from(byte()) % SIZES.len()].min(self.fill_left);
                self.fill_left -= count;
                self.peer.send_bytes(&vec![b'x'; count]);
            }
            8 => {
                let count = byte();
                self.peer.send_bytes(script.take_bytes(count.into()));
            }
            9 => {
                self.is_failure_expected = true;
                self.state.expire();
            }
            10 | 11 => self.peer.receive_bytes(usize::from(byte()) << (step >> 4 & 7)),
            12 => self.peer.corrupt_position(byte(), script.next_number()),
            13 => self.peer.expose(byte(), byte()),
            14 => self.peer.leave(),
            _ if step >> 4 == 15 => {
                self.is_failure_expected = true;
                self.peer.domain().fail(&Error::new(ErrorKind::Aborted, "another rank failed"));
            }
            _ => match step >> 4 {
                8 | 9 => self.probe(byte()),
                10 | 11 => self.receive_probed(byte()),
                12 | 13 => {
                    let matched = self.probed.pop().and_then(|probed| probed.match_id);
                    matched.into_iter().for_each(|matched| self.state.release_matched(matched));
                }
                _ => self.state.progress(),
            },
        }
    }

    fn probe(&mut self, choice: u8) {
        let from = [None, Some(PEER), Some(0), Some(PEER)][usize::from(choice & 3)];
        let tag = (choice & 4 == 0).then_some(u32::from(choice >> 4 & 3));
        let request = ProbeRequest { from, tag, is_matched_probe: choice & 8 == 0 };
        if let Ok(Some(probed)) = self.state.find_message(&request) {
            self.probed.push(probed);
        }
    }

    fn receive_probed(&mut self, choice: u8) {
        let Some(ProbedMessage { envelope, match_id: Some(matched) }) = self.probed.pop() else {
            return;
        };
        let (from, tag, dtype) = (Some(envelope.from), Some(envelope.tag), envelope.dtype);
        if self.arena.posted() >= MAX_POSTED {
            return self.state.release_matched(matched);
        }
        let Some((done, into)) = self.arena.post_receive(SIZES[7]) else {
            return self.state.release_matched(matched);
        };
        let most = into.len();
        let into = if choice & 0x20 == 0 {
            ReceiveBuffer::Borrowed(into)
        } else {
            ReceiveBuffer::Allocated { max_bytes: most }
        };
        let message = ReceiveRequest { from, tag, dtype, buffer: into, deadline: deadline(choice) };
        if self.state.receive_matched(matched, message, done.clone()).is_err() {
            self.arena.forget(&done);
        }
    }

    fn receive(&mut self, selector: u8, choice: u8) {
        let (from, tag) = match selector % 8 {
            0..4 => (Some(PEER), Some(u32::from(selector % 4))),
            4 => (Some(PEER), None),
            5 => (None, None),
            6 => (None, Some(1)),
            _ => (Some(0), None),
        };
        let Some((done, into)) = self.arena.post_receive(SIZES[usize::from(choice) % SIZES.len()])
        else {
            return;
        };
        let dtype = if choice & 0x40 == 0 { DataType::U8 } else { DataType::F32 };
        let deadline = deadline(choice);
        let most = into.len();
        let into = if choice & 0x20 == 0 {
            ReceiveBuffer::Borrowed(into)
        } else {
            ReceiveBuffer::Allocated { max_bytes: most }
        };
        let message = ReceiveRequest { from, tag, dtype, buffer: into, deadline };
        if self.state.receive(message, done.clone()).is_err() {
            self.arena.forget(&done);
        }
    }

    fn send(&mut self, selector: u8, choice: u8) {
        if self.arena.posted() >= MAX_POSTED {
            return;
        }
        let to = if selector & 7 == 7 { 0 } else { PEER };
        let bytes = Src::from(&SEND_BYTES[..SIZES[usize::from(choice) % SIZES.len()]]);
        let (tag, dtype, deadline) = (u32::from(selector % 4), DataType::U8, deadline(choice));
        let done = self.arena.post_send();
        let message =
            SendRequest { to, tag, dtype, bytes, deadline, is_synchronous: selector & 8 != 0 };
        if self.state.send(message, done.clone()).is_err() {
            self.arena.forget(&done);
        }
    }

    /// Runs the steps of the engine before and after it releases its lock.
    fn complete_ended(&mut self) {
        self.state.flush_all();
        self.state.requests.take_completed().into_iter().for_each(CompletedMessage::notify);
        self.arena.record_completions();
    }

    /// Checks the invariants that hold at any time.
    fn check(&mut self) {
        self.check_received();
        if let Some(error) = &self.state.failure {
            let names_it = error.culprit() == Some(PEER);
            assert!(
                self.is_failure_expected || names_it,
                "the group failed without a culprit: {error:?}"
            );
            return;
        }
        let [own, link] = [0, PEER].map(|rank| self.state.peers.link(rank));
        let most = self.state.peers.limits().held_bytes;
        assert!(
            link.held_cost + link.owed_credit <= most,
            "{} bytes are buffered for the peer",
            link.held_cost
        );
        assert!(link.used_credit <= most, "{} bytes of credit are in use", link.used_credit);
        // For each message, the queue may have an RTS and its cancellation, or a CTS and the frame
        // that follows the CTS.
        let bound = 3 * self.arena.posted() + 8;
        assert!(link.send_queue.len() <= bound, "{} frames are queued", link.send_queue.len());
        assert!(
            self.state.buffered_bytes() <= own.held_cost + link.held_cost,
            "the engine buffers more bytes than it counts"
        );
    }

    /// Checks that the engine sends valid frames.
    fn check_received(&mut self) {
        let Some(received) = self.peer.received() else { return };
        while let Some(head) = received.first_chunk::<HEADER_BYTES>() {
            let frame = MessageFrame::decode(head).expect("the engine sends valid frames");
            let body = match frame {
                MessageFrame::Eager { len, is_bulk: false, .. }
                | MessageFrame::Fragment { len, is_bulk: false, .. } => len,
                _ => 0,
            };
            let whole = HEADER_BYTES + usize::try_from(body).expect("a valid length");
            if received.len() < whole {
                break;
            }
            received.drain(..whole);
        }
    }
}

fn deadline(choice: u8) -> Deadline {
    Deadline::after_ms(if choice & 0x80 == 0 { 3_600_000 } else { 0 })
}

/// Returns a frame whose values are mostly meaningful.
fn arbitrary_frame(kind: u8, fields: u8, choice: u8, script: &mut FuzzScript<'_>) -> MessageFrame {
    let (tag, number) = (u32::from(fields % 4), u64::from(fields >> 2));
    let dtype = if choice & 0x40 == 0 { DataType::U8 } else { DataType::F32 };
    let len = match choice & 0x80 {
        0 => SIZES[usize::from(choice) % SIZES.len()] as u64,
        _ => script.next_number().unsigned_abs(),
    };
    let attempt = u32::from(choice >> 3 & 7);
    match kind % 10 {
        8 => {
            MessageFrame::SplitPut { number, address: peer::exposed_address(), region_address: len }
        }
        9 => MessageFrame::PutDone { number, len },
        0 => MessageFrame::Eager { tag, dtype, len, is_bulk: kind & 0x20 != 0 },
        1 => MessageFrame::Rts { tag, dtype, number, len, exposed: None, is_awaited: false },
        2 => {
            let address = if kind & 8 == 0 {
                peer::exposed_address()
            } else {
                script.next_number().cast_unsigned()
            };
            let place = u16::from(kind >> 4);
            MessageFrame::Rts {
                tag,
                dtype,
                number,
                len,
                exposed: Some(super::frame::ExposedBuffer { address, slot: place }),
                is_awaited: choice & 1 != 0,
            }
        }
        3 => MessageFrame::Cts { number, attempt },
        4 => MessageFrame::Fragment {
            number,
            attempt,
            offset: u64::from(kind >> 3) * 100,
            len,
            is_bulk: choice & 1 != 0,
        },
        5 => MessageFrame::Fin { number },
        6 => MessageFrame::Credit { bytes: len },
        _ => MessageFrame::CancelRts { number },
    }
}

/// The shared completion of a message.
type SharedCompletion = Arc<FuzzCompletion>;

#[cfg(test)]
mod tests {
    use super::frames;
    use crate::base::fuzz::replay_corpus;

    #[test]
    fn frames_corpus_replays() {
        replay_corpus("message_frames", frames);
    }
}
