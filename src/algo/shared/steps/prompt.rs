//! The short way of an operation that is over with one line of each rank, for a call that blocks and has its turn at once.
//!
//! It does what [`lines::run`](crate::algo::shared::lines::run) does, in the same words and the same order for the others, without
//! what an operation needs that has to wait: it publishes, looks for a moment, and either has all that it needs, or leaves the
//! rest to the long way, which goes on where this one has stopped ([`Operation::is_published`]). Whatever is unusual (a line that
//! differs, somebody who is behind by all lines) is left to that way too.
//!
//! The others' sleepers are rung for once: at the end, where this rank was the last to come, since its line is on its way
//! meanwhile and nothing has to wait for that; else before it looks again.

use super::Lane;
use super::hand::Hand;
use crate::algo::Operation;
use crate::algo::shared::lines::{Heard, Lines, Part};
use crate::base::buffer::Src;
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::transport::SharedDomain;
use crate::transport::line::{INLINE_BYTES, Line};
use crate::transport::region::LINES;

/// How often it looks for a rank again, after the first time: some microseconds.
const LOOKS: u32 = 300;

/// How far an operation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Nothing has happened.
    Untouched,
    /// This rank's line is published.
    Published,
    /// It is over.
    Done,
}

/// Does what can be done of an operation at once. `begins` is called once the others have this rank's line.
///
/// # Errors
/// `Internal` for an operation that is none of these.
pub fn run_promptly(
    domain: &dyn SharedDomain,
    lane: &mut Lane,
    operation: &Operation<'_>,
    (lines, number): (&Lines, u8),
    begins: impl FnOnce(),
) -> Result<Prompt> {
    let mut hand = Hand::of(domain, lane);
    let part = lines.part_of(hand.rank, operation)?;
    if !hand.may_store() {
        return Ok(Prompt::Untouched);
    }
    let mut own = [0; INLINE_BYTES];
    let len = (lines.say)(operation, &mut own)?;
    let words = operation.descriptor.encode_with(number);
    hand.enter(&words);
    let finished = hand.lane.step + u64::from(part == Part::Gives);
    let said = if let Part::Takes(_) = part { 0 } else { len };
    hand.store(&words, &own[..said], finished, Line::put);
    begins();
    let rings_first = domain.pace().crowded;
    if rings_first {
        // Who waits sleeps, and is woken first.
        hand.ring();
    }
    let heard = match part {
        Part::Gives => true,
        Part::Takes(Some(rank)) => hand.look_for(rank),
        Part::Exchanges | Part::Takes(None) => hand.look_for_all(),
    };
    let is_over = heard || {
        if !rings_first {
            hand.ring();
        }
        match part {
            Part::Takes(Some(rank)) => hand.looks_again(rank),
            _ => hand.others().all(|rank| hand.looks_again(rank)),
        }
    };
    let agree = is_over
        && match part {
            Part::Gives => true,
            Part::Takes(Some(rank)) => hand.agrees(rank),
            _ => hand.all_agree(),
        };
    if !agree {
        return Ok(Prompt::Published);
    }
    if part != Part::Gives {
        let (region, rank, step) = (hand.region, hand.rank, hand.lane.step);
        let own = Src::from(&own[..len]);
        (lines.hear)(operation, &Heard { region, rank, step, own })?;
    }
    hand.finish(words[2]);
    if heard && !rings_first {
        hand.ring();
    }
    hand.prepare();
    Ok(Prompt::Done)
}

impl Hand<'_> {
    /// Whether all have finished with what the coming step's line holds.
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

    /// Looks for all, so that all lines are asked for.
    fn look_for_all(&mut self) -> bool {
        let mut all = true;
        for rank in self.others() {
            all &= self.look_for(rank);
        }
        all
    }

    /// Looks for a rank until it has come, or for a while.
    fn looks_again(&self, rank: Rank) -> bool {
        let step = self.lane.step;
        let line = self.region.line(rank, step);
        let looks = if self.domain.pace().crowded || cfg!(loom) { 1 } else { LOOKS };
        (0..looks).any(|_| line.step() >= step)
    }

    fn all_agree(&mut self) -> bool {
        let agree = self.others().all(|rank| self.agrees(rank));
        if agree {
            self.has_seen_all();
        }
        agree
    }
}
