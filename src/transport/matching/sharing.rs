//! Long messages that both sides copy at the same time, where both wait for them and have nothing
//! else to do: the receiver reads the front in the sender's memory, as of any message that it
//! reads, and the sender writes the back to the receiver's.
//!
//! * The receiver says where its buffer is once it has begun to read ([`Frame::Share`]). The sender
//!   writes if it gets there before the receiver has come to the end of the front: else that reads
//!   on alone. Which of the two is decided by a compare-and-swap of the word on the sender's
//!   [desk](super::desk). So nobody waits for a sender that does not look.
//! * When the sender has written the back, or cannot, it says how much it was, and the receiver
//!   reads the rest, mostly nothing.
//! * Whoever receives takes its buffer back by failing the group, and then waits until the sender
//!   is in no call that writes ([`attach::write`]), as
//!   [`Progress`](crate::transport::progress::Progress) says.

use super::frame::Frame;
use super::incoming::refuse;
use super::link::{Back, Offer};
use super::outstanding::SendStage;
use super::state::State;
use super::transfer::Reading;
use super::wire::Wire;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::Level;
use crate::transport::progress::Purpose;
use crate::transport::{Outgoing, Room, arena, attach};
use crate::wait::bell::Bell;
use crate::wait::{Pace, until};
use std::time::Duration;

/// How much is written at once; between two such calls others have their turn.
const WRITE_BYTES: usize = 1 << 20;

/// What the front ends at a multiple of: a page, which only one side has to find then.
const GRAIN: usize = 4 << 10;

/// From how many bytes on it is worth two more frames.
const LEAST: usize = 64 << 10;

/// How long a receiver that gives up waits for a sender that writes, and how often it looks.
const PARTING: Duration = Duration::from_millis(100);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// How much of a message its receiver reads.
fn front(len: usize) -> usize {
    len / 2 / GRAIN * GRAIN
}

impl Offer {
    /// How far its receiver reads.
    pub(super) fn read_end(&self) -> usize {
        if self.back == Back::Read { self.len } else { front(self.len) }
    }
}

/// The back of a message that this rank writes to its receiver's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writing {
    peer: Rank,
    number: u64,
    target: attach::Target,
    /// Up to where it has.
    done: usize,
}

impl Writing {
    pub(super) fn is_not_of(&self, peer: Rank) -> bool {
        self.peer != peer
    }
}

impl State {
    /// Whether the sender of what a receive has taken, who waits and looks, may be asked to write.
    pub(super) fn may_share(&self, receive: u64) -> bool {
        let has_room = |into: &Room| matches!(into, Room::Lent(_)) && into.most() >= LEAST;
        self.may_write && self.receives.get(&receive).is_some_and(|it| has_room(&it.message.into))
    }

    /// Asks the sender of a message that is being read to write its back.
    pub(super) fn ask_to_share(&mut self, peer: Rank, number: u64, receive: u64) {
        let region = self.region().address();
        let Some(offer) = self.links[peer].offers.get_mut(&number) else { return };
        let Some(receiving) = self.receives.get_mut(&receive) else { return };
        if offer.len < LEAST {
            return;
        }
        offer.back = Back::Asked;
        let address = receiving.room(0, offer.len).as_mut_ptr().expose_provenance() as u64;
        self.say(peer, Frame::Share { number, address, region });
        self.put(peer);
    }

    /// Whether all has been read of a message that this rank reads, and there is a back.
    pub(super) fn has_front(&self, reading: &Reading) -> bool {
        let offer = self.links[reading.peer].offers.get(&reading.number);
        offer.is_some_and(|it| it.back != Back::Read && it.got == it.read_end())
    }

    /// The front of a message has been read.
    pub(super) fn end_front(&mut self, reading: Reading) {
        let Reading { peer, local, number, lent, .. } = reading;
        let may_keep = || self.domain.region().desk(local).keep(lent.place, number);
        let Some(offer) = self.links[peer].offers.get_mut(&number) else { return };
        match offer.back {
            Back::Asked if !may_keep() => return self.half_read.push(reading),
            Back::Written(len) => offer.got += len,
            Back::Asked | Back::Read => {}
        }
        offer.back = Back::Read;
        if offer.got == offer.len {
            self.has_taken(peer, number);
        } else {
            self.readings.push_back(reading);
        }
    }

    /// A receiver would have this rank write the back of a message.
    pub(super) fn on_share(
        &mut self,
        peer: Rank,
        number: u64,
        (address, region): (u64, u64),
    ) -> Result<()> {
        let is_known = self.was_given(number);
        let Some(sending) = self.sends.get(&number) else {
            return if is_known { Ok(()) } else { refuse("it shares a message that never was") };
        };
        let Outgoing { to, bytes, .. } = sending.message;
        let (SendStage::Offered, Some(place), true) = (sending.stage, sending.place, to == peer)
        else {
            return refuse("it shares a message that it was not offered");
        };
        let Wire::Rings { peer: rank, .. } = self.links[peer].wire else {
            return refuse("it shares a message of another node");
        };
        if self.may_write && self.can_read(peer) && self.desk().share(place, number) {
            let target = attach::Target { rank, address, region };
            self.writings.push_back(Writing { peer, number, target, done: front(bytes.len()) });
        }
        Ok(())
    }

    /// Writes on.
    pub(super) fn write_some(&mut self) {
        let Some(mut writing) = self.writings.pop_front() else { return };
        let Writing { peer, number, target, done } = writing;
        let Some(sending) = self.sends.get(&number) else { return };
        let bytes = sending.message.bytes;
        let part = bytes.slice(done, (bytes.len() - done).min(WRITE_BYTES));
        let address = target.address.wrapping_add(done as u64);
        let to = attach::Target { address, ..target };
        match attach::write(self.domain.as_ref(), Purpose::Message, to, part) {
            Ok(()) => writing.done += part.len(),
            Err(error) if error.kind() != ErrorKind::System => return self.fail(error),
            Err(error) => {
                crate::log!(Level::Debug, "the rest of a message is read: {error}");
                return self.has_written(peer, number, done - front(bytes.len()));
            }
        }
        self.moved += part.len() as u64;
        if writing.done < bytes.len() {
            self.writings.push_back(writing);
        } else {
            self.has_written(peer, number, bytes.len() - front(bytes.len()));
        }
    }

    fn has_written(&mut self, peer: Rank, number: u64, len: usize) {
        self.say(peer, Frame::Wrote { number, len: len as u64 });
        self.put(peer);
    }

    /// Whether somebody waits for the message whose back is written.
    pub(super) fn is_written_for_somebody(&self, writing: &Writing) -> bool {
        self.sends.get(&writing.number).is_some_and(|it| it.done.is_awaited())
    }

    /// A sender has written the back of a message, or as much of it as it could.
    pub(super) fn on_wrote(&mut self, peer: Rank, number: u64, len: u64) -> Result<()> {
        let Some(offer) = self.links[peer].offers.get_mut(&number) else {
            return refuse("it wrote a message that nobody wants");
        };
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if offer.back != Back::Asked || len > offer.len - front(offer.len) {
            return refuse("it wrote what it was not asked for");
        }
        offer.back = Back::Written(len);
        let is_its = |reading: &Reading| reading.is_of(peer, number);
        if let Some(at) = self.half_read.iter().position(is_its) {
            let reading = self.half_read.swap_remove(at);
            self.end_front(reading);
        }
        Ok(())
    }

    /// Whether a sender may be writing to memory of a receive of this rank.
    pub(super) fn is_written_to(&self) -> bool {
        self.links.iter().any(|link| link.offers.values().any(|it| it.back == Back::Asked))
    }

    /// Once the group has failed: waits until nobody writes to the receives of this rank; who still
    /// may, after a while, as an error.
    pub(super) fn outlast_writers(&self) -> Option<Error> {
        if !self.is_written_to() {
            return None;
        }
        let (limit, never) = (Deadline::after(PARTING), Bell::default());
        let writes = |rank: &Rank| {
            self.region().progress(*rank).is_reaching(Purpose::Message)
                && !arena::has_ended(self.domain.peer(*rank).pid)
        };
        let others = || (0..self.domain.size()).filter(|&rank| rank != self.domain.rank());
        while let Some(rank) = others().find(writes) {
            if limit.has_passed() {
                let peer = self.domain.peer(rank);
                let what = "was stopped on its way to the buffer of a receive, and may still write there before it ends";
                let error = Error::new(ErrorKind::PeerFailed, format!("{peer} {what}"));
                return Some(error.with_culprit(peer.rank));
            }
            let slice = limit.capped(LOOK_AGAIN);
            drop(until(&never, Pace::PATIENT, &slice, || None, || None::<()>));
        }
        None
    }
}
