//! The short way of an operation that is over with one step, for a call that blocks and has its
//! turn at once.
//!
//! It is for calls whose like has been there before: what is the same for all of these is kept as a
//! [`Routine`].
//!
//! It does what [`one_step::run`](crate::algo::shared::one_step::run) does, in the same words and
//! the same order for the others, without what an operation needs that has to wait: it publishes,
//! looks for a moment, and either has all that it needs, or leaves the rest to the long way, which
//! goes on where this one has stopped
//! ([`Operation::is_published`](crate::algo::Operation::is_published)). Whatever is unusual (a line
//! that differs, somebody who is behind by all lines or slots) is left to that way too.
//!
//! The others' sleepers are rung for once: where this rank was the last to come by whoever calls
//! this, with the end of the turn, whose fence serves for both, since the line is on its way
//! meanwhile; else before it looks again. Where nobody waits for what it has published, but only
//! until it has taken what others have in their few slots, they are rung for once it has.

use super::Lane;
use super::hand::{self, Hand};
use crate::algo::Plain;
use crate::algo::plain::Key;
use crate::algo::shared::one_step::{Heard, OneStep, Part, Place};
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::base::label::Label;
use crate::base::spin;
use crate::kernel::Folding;
use crate::transport::line::{INLINE_BYTES, Line};
use crate::transport::region::{LINES, SLOTS};
use crate::transport::{Descriptor, SharedDomain};

/// How often it looks for a rank again, after the first time: some microseconds.
const LOOKS: u32 = 300;

/// How far an operation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Nothing has happened.
    Untouched,
    /// It has begun: this rank's line is published, or a plug-in has it.
    Published,
    /// It is over.
    Done,
    /// It is over, and whoever sleeps until this rank's line is there has not been rung for.
    Unheard,
    /// It is over, and has taken longer than a moment.
    Waited,
}

/// What all calls of one key have in common on this rank.
#[derive(Clone, Copy, Debug)]
pub struct Routine {
    key: Key,
    row: &'static OneStep,
    part: Part,
    /// How much of its slot each rank uses.
    room: usize,
    /// The words of the descriptor, with any sequence number and without a label.
    words: [u64; 3],
    rank: Rank,
    /// Who waits here sleeps, and is woken first.
    crowded: bool,
    folding: Option<Folding>,
}

impl Routine {
    /// Of a call that goes by the algorithm with this number.
    ///
    /// # Errors
    /// `Internal` for an operation without what its lines need.
    pub fn of(
        (plain, key): (&Plain<'_>, Key),
        (row, number): (&'static OneStep, u8),
        domain: &dyn SharedDomain,
    ) -> Result<Self> {
        let words = Plain { label: &Label::NONE, ..*plain }.descriptor(0).encode_with(number);
        let (rank, crowded) = (domain.rank(), domain.pace().crowded);
        let (part, folding) = (row.part_of(rank, plain)?, plain.folding());
        let room = row.room(plain, domain.size());
        Ok(Self { key, row, part, room, words, rank, crowded, folding })
    }

    /// Whose it is.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Does what can be done at once of the operation with this sequence number. `begins` is called
    /// once the others have this rank's line, with the words of its descriptor.
    ///
    /// # Errors
    /// `Internal` for an operation that is not its own.
    pub fn run(
        &self,
        domain: &dyn SharedDomain,
        lane: &mut Lane,
        (plain, sequence): (&Plain<'_>, u64),
        begins: impl FnOnce(&[u64; 3]),
    ) -> Result<Prompt> {
        // Each place has code of its own, without what the other one takes.
        match self.row.place {
            Place::Line => self.run_at(Place::Line, (domain, lane), (plain, sequence), begins),
            Place::Slot => self.run_at(Place::Slot, (domain, lane), (plain, sequence), begins),
        }
    }

    /// At a place that the compiler knows.
    #[inline(always)]
    fn run_at(
        &self,
        place: Place,
        (domain, lane): (&dyn SharedDomain, &mut Lane),
        (plain, sequence): (&Plain<'_>, u64),
        begins: impl FnOnce(&[u64; 3]),
    ) -> Result<Prompt> {
        let Self { part, room, rank, crowded, folding, .. } = *self;
        let row = OneStep { place, ..*self.row };
        let room = if place == Place::Slot { room } else { 0 };
        let mut hand = Hand { domain, region: domain.region(), rank, lane };
        let Some(slot) = hand.free_part(row.fills_slot(plain, part), room) else {
            return Ok(Prompt::Untouched);
        };
        let words = Descriptor::repeat(&self.words, sequence, plain.label);
        hand.enter(&words, plain.label);
        let mut line = [0; INLINE_BYTES];
        let len = row.speak((plain, part), &mut line, slot)?;
        let finished = hand.lane.step + u64::from(part == Part::Gives);
        hand.store((&words, plain.label), &line[..len], finished, Line::put);
        begins(&words);
        // Somebody may wait until this rank has read its slot, and for nothing else that it does.
        let is_taker = place == Place::Slot && !part.is_heard();
        if crowded && !is_taker {
            hand.ring();
        }
        let heard = hand.look_at(part);
        let is_over = heard || {
            if !crowded && !is_taker {
                hand.ring();
            }
            if crowded {
                hand.look_in_turns(part)
            } else {
                hand.look_again(part, if cfg!(loom) { 1 } else { LOOKS })
            }
        };
        if !(is_over && hand.agree(part)) {
            return Ok(Prompt::Published);
        }
        if part != Part::Gives {
            let own = row.own(plain, &line, slot.as_src());
            let (region, step) = (hand.region, hand.lane.step);
            (row.hear)(plain, &Heard { region, rank, step, room, own, folding })?;
        }
        hand.finish(words[2]);
        if part == Part::Exchanges {
            // The others have finished too, and do not look there yet.
            hand.claim();
        }
        Ok(if is_taker || heard && !crowded { Prompt::Unheard } else { Prompt::Done })
    }
}

/// After a fence, wakes whoever waits for what an operation has stored that was
/// [`Prompt::Unheard`].
pub fn ring_fenced(domain: &dyn SharedDomain) {
    let rank = domain.rank();
    let others = (0..domain.size()).filter(|&other| other != rank);
    hand::ring_fenced(domain, domain.region(), others);
}

impl<'a> Hand<'a> {
    /// So much of this rank's slot for the coming step, if it is filled, once all have finished
    /// with what that holds; nothing else, once they have with what the line does.
    #[inline]
    fn free_part(&mut self, is_filled: bool, room: usize) -> Option<Dst<'a>> {
        if !self.may_store(if is_filled { SLOTS } else { LINES }) {
            return None;
        }
        match is_filled {
            // Where there is no memory the long way says so.
            true => self.region.own_part(self.rank, self.lane.step + 1, room).ok(),
            false => Some(Dst::empty()),
        }
    }

    /// Whether all have finished with the step that is so many before the coming one.
    #[inline]
    fn may_store(&mut self, before: u64) -> bool {
        let step = (self.lane.step + 1).saturating_sub(before);
        self.lane.all_done >= step || {
            let done = self.others().map(|rank| self.region.progress(rank).done()).min();
            // No further than this rank itself, whatever is written there.
            let done = done.unwrap_or(step).min(self.lane.step);
            self.lane.all_done = self.lane.all_done.max(done);
            done >= step
        }
    }

    /// Looks for all that it needs, so that all lines are asked for.
    fn look_at(&mut self, part: Part) -> bool {
        match part {
            Part::Gives => true,
            Part::Takes(Some(rank)) => self.look_for(rank),
            Part::Exchanges | Part::Takes(None) => {
                let mut all = true;
                for rank in self.others() {
                    all &= self.look_for(rank);
                }
                all
            }
        }
    }

    /// Looks again, so often.
    #[cold]
    fn look_again(&self, part: Part, looks: u32) -> bool {
        match part {
            Part::Gives => true,
            Part::Takes(Some(rank)) => self.looks_again(rank, looks),
            Part::Exchanges | Part::Takes(None) => {
                self.others().all(|rank| self.looks_again(rank, looks))
            }
        }
    }

    /// Gives the core to the others until all have come that it waits for, or a few times.
    fn look_in_turns(&self, part: Part) -> bool {
        let look = || self.look_again(part, 1).then_some(());
        self.give_turns(look, |rank| self.has_published(rank)).is_some()
    }

    /// Looks for a rank until it has come, or so often.
    fn looks_again(&self, rank: Rank, looks: u32) -> bool {
        let step = self.lane.step;
        let line = self.region.line(rank, step);
        spin::look_whether(looks, || line.step() >= step)
    }

    /// Asks for this rank's coming line, which others have had since they read it.
    #[inline]
    fn claim(&self) {
        self.region.line(self.rank, self.lane.step + 1).claim();
    }

    /// Whether those whom it has heard do the same.
    fn agree(&mut self, part: Part) -> bool {
        match part {
            Part::Gives => true,
            Part::Takes(Some(rank)) => self.agrees(rank),
            Part::Exchanges | Part::Takes(None) => {
                let agree = self.others().all(|rank| self.agrees(rank));
                if agree {
                    self.has_seen_all();
                }
                agree
            }
        }
    }
}
