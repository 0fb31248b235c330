//! The short way of an operation that is over with one line of each rank, for a call that blocks and has its turn at once.
//!
//! It is for calls whose like has been there before: what is the same for all of these is kept as a [`Routine`].
//!
//! It does what [`lines::run`](crate::algo::shared::lines::run) does, in the same words and the same order for the others, without
//! what an operation needs that has to wait: it publishes, looks for a moment, and either has all that it needs, or leaves the
//! rest to the long way, which goes on where this one has stopped
//! ([`Operation::is_published`](crate::algo::Operation::is_published)). Whatever is unusual (a line that differs, somebody who is
//! behind by all lines) is left to that way too.
//!
//! The others' sleepers are rung for once: where this rank was the last to come by whoever calls this, with the end of the
//! turn, whose fence serves for both, since the line is on its way meanwhile; else before it looks again.

use super::Lane;
use super::hand::{self, Hand};
use crate::algo::Plain;
use crate::algo::plain::Key;
use crate::algo::shared::lines::{Heard, Lines, Part};
use crate::base::buffer::Src;
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::base::spin;
use crate::kernel::Folding;
use crate::transport::line::{INLINE_BYTES, Line};
use crate::transport::region::LINES;
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
    lines: &'static Lines,
    part: Part,
    /// The words of the descriptor, with any sequence number.
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
        (lines, number): (&'static Lines, u8),
        domain: &dyn SharedDomain,
    ) -> Result<Self> {
        let words = plain.descriptor(0).encode_with(number);
        let (rank, crowded) = (domain.rank(), domain.pace().crowded);
        let (part, folding) = (lines.part_of(rank, plain)?, plain.folding());
        Ok(Self { key, lines, part, words, rank, crowded, folding })
    }

    /// Whose it is.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Does what can be done at once of the operation with this sequence number. `begins` is called once the others have this
    /// rank's line, with the words of its descriptor.
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
        let Self { part, lines, rank, crowded, folding, .. } = *self;
        let mut hand = Hand { domain, region: domain.region(), rank, lane };
        if !hand.may_store() {
            return Ok(Prompt::Untouched);
        }
        let mut own = [0; INLINE_BYTES];
        let len = (lines.say)(plain, &mut own)?;
        let words = Descriptor::repeat(&self.words, sequence);
        hand.enter(&words);
        let finished = hand.lane.step + u64::from(part == Part::Gives);
        let said = if let Part::Takes(_) = part { 0 } else { len };
        hand.store(&words, &own[..said], finished, Line::put);
        begins(&words);
        if crowded {
            hand.ring();
        }
        let heard = hand.look_at(part);
        let is_over = heard || {
            if !crowded {
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
            let (region, step, own) = (hand.region, hand.lane.step, Src::from(&own[..len]));
            (lines.hear)(plain, &Heard { region, rank, step, own, folding })?;
        }
        hand.finish(words[2]);
        if part == Part::Exchanges {
            // The others have finished too, and do not look there yet.
            hand.claim();
        }
        Ok(if heard && !crowded { Prompt::Unheard } else { Prompt::Done })
    }
}

/// After a fence, wakes whoever waits for what an operation has stored that was [`Prompt::Unheard`].
pub fn ring_fenced(domain: &dyn SharedDomain) {
    let rank = domain.rank();
    let others = (0..domain.size()).filter(|&other| other != rank);
    hand::ring_fenced(domain, domain.region(), others);
}

impl Hand<'_> {
    /// Whether all have finished with what the coming step's line holds.
    #[inline]
    fn may_store(&mut self) -> bool {
        let step = (self.lane.step + 1).saturating_sub(LINES);
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
