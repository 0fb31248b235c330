//! The entry point for the fuzz target `message_frames`: an engine whose peer sends anything, over
//! streams or over rings in shared memory that the peer may spoil as it likes.
//!
//! A script's first byte chooses between the two, and how soon the memory is used again. Then come
//! steps: what this rank posts, what the peer says and does, and when the engine looks. No threads:
//! only the engine's state, not who attends.
//!
//! Compiled for fuzzing and for tests alone; not a part of the library.
#![allow(clippy::panic, clippy::expect_used, reason = "a panic is how a finding is told")]

mod arena;
mod peer;

use super::frame::{Frame, HEAD_BYTES};
use super::link::{Inflow, Sink};
use super::outstanding::Ended;
use super::state::State;
use super::unexpected::{Body, Message};
use crate::base::buffer::Src;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind};
use crate::base::fuzz::Script;
use crate::base::ids::{Nonce, Rank};
use crate::transport::{Incoming, Outgoing, ProbeRequest, ProbedMessage, Reuse, Room};
use arena::{Arena, Done};
use peer::Peer;
use std::sync::Arc;

const PEER: Rank = 1;
/// Sizes of messages on both sides of every limit: staged, straight, whole, offered.
const SIZES: [usize; 8] = [0, 1, 5, 64, 300, 5000, 16 << 10, 17_000];
/// What this rank sends.
static TEXT: [u8; 17_000] = [b's'; 17_000];
/// What the peer sends without writing it out, at most.
const RUN_BYTES: usize = 128 << 10;
/// The most that this rank posts.
const MOST_POSTED: usize = 64;

/// Runs a script.
///
/// # Panics
/// Where the engine does what it must never do.
pub fn frames(input: &[u8]) {
    let mut script = Script(input);
    let choice = script.byte().unwrap_or_default();
    let reuse = if choice & 2 == 0 { Reuse::Soon } else { Reuse::Late };
    let mut scene = Scene::new((choice & 1 == 1).then_some(reuse));
    while let Some(step) = script.byte() {
        scene.step(step, &mut script);
        scene.settle();
        scene.check();
    }
    scene.state.progress();
    scene.settle();
    scene.check();
    scene.state.leave();
    scene.settle();
    scene.arena.check_end();
}

struct Scene {
    peer: Peer,
    state: State,
    arena: Arena,
    /// Messages that probes took out of matching.
    probed: Vec<ProbedMessage>,
    /// What is left of [`RUN_BYTES`].
    runs: usize,
    /// The group was failed by somebody else, or by time.
    excused: bool,
}

impl Scene {
    /// Over rings in memory that is used again so soon, or over streams.
    fn new(rings: Option<Reuse>) -> Self {
        let peer = Peer::new(rings);
        let state = State::new(peer.domain(), peer.endpoint(), Nonce([7; 16]));
        let mut state = state.expect("a state of two ranks");
        // The peer's process is this one, and what it says where it wants to have something is
        // anything.
        state.may_write = false;
        let (arena, probed) = (Arena::new(), Vec::new());
        Self { peer, state, arena, probed, runs: RUN_BYTES, excused: false }
    }

    fn step(&mut self, step: u8, script: &mut Script<'_>) {
        let mut byte = || script.byte().unwrap_or_default();
        match step % 16 {
            0 => self.state.progress(),
            1 => self.receive(byte(), byte()),
            2 => self.send(byte(), byte()),
            3..=6 => {
                let frame = frame(byte(), byte(), byte(), script);
                self.peer.say(&frame.encode());
            }
            7 => {
                let count = SIZES[usize::from(byte()) % SIZES.len()].min(self.runs);
                self.runs -= count;
                self.peer.say(&vec![b'x'; count]);
            }
            8 => {
                let count = byte();
                self.peer.say(script.take(count.into()));
            }
            9 => {
                self.excused = true;
                self.state.expire();
            }
            10 | 11 => self.peer.listen(usize::from(byte()) << (step >> 4 & 7)),
            12 => self.peer.spoil(byte(), script.number()),
            13 => self.peer.lend(byte(), byte()),
            14 => self.peer.leave(),
            _ if step >> 4 == 15 => {
                self.excused = true;
                self.peer.domain().fail(&Error::new(ErrorKind::Aborted, "somebody failed"));
            }
            _ => match step >> 4 {
                8 | 9 => self.probe(byte()),
                10 | 11 => self.receive_probed(byte()),
                12 | 13 => {
                    let matched = self.probed.pop().and_then(|probed| probed.matched);
                    matched.into_iter().for_each(|matched| self.state.release_matched(matched));
                }
                _ => self.state.progress(),
            },
        }
    }

    fn probe(&mut self, choice: u8) {
        let from = [None, Some(PEER), Some(0), Some(PEER)][usize::from(choice & 3)];
        let tag = (choice & 4 == 0).then_some(u32::from(choice >> 4 & 3));
        let request = ProbeRequest { from, tag, takes: choice & 8 == 0 };
        if let Ok(Some(probed)) = self.state.find_message(&request) {
            self.probed.push(probed);
        }
    }

    fn receive_probed(&mut self, choice: u8) {
        let Some(ProbedMessage { envelope, matched: Some(matched) }) = self.probed.pop() else {
            return;
        };
        let (from, tag, dtype) = (Some(envelope.from), Some(envelope.tag), envelope.dtype);
        if self.arena.posted() >= MOST_POSTED {
            return self.state.release_matched(matched);
        }
        let Some((done, into)) = self.arena.post(SIZES[7]) else {
            return self.state.release_matched(matched);
        };
        let most = into.len();
        let into = if choice & 0x20 == 0 { Room::Lent(into) } else { Room::Grows { most } };
        let message = Incoming { from, tag, dtype, into, deadline: deadline(choice) };
        if self.state.receive_matched(matched, message, done.clone()).is_err() {
            self.arena.refused(&done);
        }
    }

    fn receive(&mut self, who: u8, choice: u8) {
        let (from, tag) = match who % 8 {
            0..4 => (Some(PEER), Some(u32::from(who % 4))),
            4 => (Some(PEER), None),
            5 => (None, None),
            6 => (None, Some(1)),
            _ => (Some(0), None),
        };
        let Some((done, into)) = self.arena.post(SIZES[usize::from(choice) % SIZES.len()]) else {
            return;
        };
        let dtype = if choice & 0x40 == 0 { DataType::U8 } else { DataType::F32 };
        let deadline = deadline(choice);
        let most = into.len();
        let into = if choice & 0x20 == 0 { Room::Lent(into) } else { Room::Grows { most } };
        let message = Incoming { from, tag, dtype, into, deadline };
        if self.state.receive(message, done.clone()).is_err() {
            self.arena.refused(&done);
        }
    }

    fn send(&mut self, who: u8, choice: u8) {
        if self.arena.posted() >= MOST_POSTED {
            return;
        }
        let to = if who & 7 == 7 { 0 } else { PEER };
        let bytes = Src::from(&TEXT[..SIZES[usize::from(choice) % SIZES.len()]]);
        let (tag, dtype, deadline) = (u32::from(who % 4), DataType::U8, deadline(choice));
        let done = self.arena.lend();
        let message = Outgoing { to, tag, dtype, bytes, deadline, synchronous: who & 8 != 0 };
        if self.state.send(message, done.clone()).is_err() {
            self.arena.refused(&done);
        }
    }

    /// What the engine does before it lets go of its lock, and after.
    fn settle(&mut self) {
        self.state.put_all();
        std::mem::take(&mut self.state.ended).into_iter().for_each(Ended::tell);
        self.arena.note();
    }

    /// What must hold at any time.
    fn check(&mut self) {
        self.check_said();
        if let Some(error) = &self.state.failed {
            let names_it = error.culprit() == Some(PEER);
            assert!(self.excused || names_it, "the group failed, and nobody is named: {error:?}");
            return;
        }
        let link = &self.state.links[PEER];
        let most = self.state.limits.held_bytes;
        assert!(link.held + link.owed <= most, "{} bytes are held", link.held);
        assert!(link.used <= most, "{} bytes are to be held", link.used);
        // For a message: an offer and its withdrawal, or a question and what came of it.
        let bound = 3 * self.arena.posted() + 8;
        assert!(link.outbox.len() <= bound, "{} frames wait", link.outbox.len());
        let held = |message: &Message| match &message.body {
            Body::Held(bytes) => bytes.len(),
            Body::Offered(_) | Body::Own(_) => 0,
        };
        let messages = (0..2).flat_map(|rank| self.state.unexpected.of_sender(rank));
        let all = messages.map(|(_, message)| message).chain(self.state.matched.values());
        let mut buffered: usize = all.map(held).sum();
        if let Inflow::Body { sink: Sink::Held(message), .. } = &link.inflow {
            buffered += held(message);
        }
        assert!(link.closed.is_some() || buffered == self.state.buffered, "counted wrong");
    }

    /// What the engine says is frames.
    fn check_said(&mut self) {
        let Some(said) = self.peer.said() else { return };
        while let Some(head) = said.first_chunk::<HEAD_BYTES>() {
            let frame = Frame::decode(head).expect("what an engine says is frames");
            let body = match frame {
                Frame::Eager { len, in_lane: false, .. }
                | Frame::Piece { len, in_lane: false, .. } => len,
                _ => 0,
            };
            let whole = HEAD_BYTES + usize::try_from(body).expect("a length");
            if said.len() < whole {
                break;
            }
            said.drain(..whole);
        }
    }
}

fn deadline(choice: u8) -> Deadline {
    Deadline::after_ms(if choice & 0x80 == 0 { 3_600_000 } else { 0 })
}

/// A frame with values that mean something, mostly.
fn frame(kind: u8, what: u8, choice: u8, script: &mut Script<'_>) -> Frame {
    let (tag, number) = (u32::from(what % 4), u64::from(what >> 2));
    let dtype = if choice & 0x40 == 0 { DataType::U8 } else { DataType::F32 };
    let len = match choice & 0x80 {
        0 => SIZES[usize::from(choice) % SIZES.len()] as u64,
        _ => script.number().unsigned_abs(),
    };
    let attempt = u32::from(choice >> 3 & 7);
    match kind % 10 {
        8 => Frame::Share { number, address: peer::lent_address(), region: len },
        9 => Frame::Wrote { number, len },
        0 => Frame::Eager { tag, dtype, len, in_lane: kind & 0x20 != 0 },
        1 => Frame::Offer { tag, dtype, number, len, lent: None, awaited: false },
        2 => {
            let address =
                if kind & 8 == 0 { peer::lent_address() } else { script.number().cast_unsigned() };
            let place = u16::from(kind >> 4);
            Frame::Offer {
                tag,
                dtype,
                number,
                len,
                lent: Some(super::frame::Lent { address, place }),
                awaited: choice & 1 != 0,
            }
        }
        3 => Frame::Pull { number, attempt },
        4 => Frame::Piece {
            number,
            attempt,
            offset: u64::from(kind >> 3) * 100,
            len,
            in_lane: choice & 1 != 0,
        },
        5 => Frame::Taken { number },
        6 => Frame::Credit { bytes: len },
        _ => Frame::Withdraw { number },
    }
}

/// What a completion is told as.
type Told = Arc<Done>;

#[cfg(test)]
mod tests {
    use super::frames;
    use crate::base::fuzz::replay;

    #[test]
    fn the_frames_corpus() {
        replay("message_frames", frames);
    }
}
