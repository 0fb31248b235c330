//! Operations that are over with one step: what a rank has for the others lies beside its step
//! number, so that one cache line goes from each to each, or in its slot, and goes from each to
//! each in one hop.
//!
//! The rows say what a rank has to say ([`OneStep::say`]) and what comes of what all have said
//! ([`OneStep::hear`]); the way between is the same for all, and there is a short one for calls
//! that block ([`super::steps::prompt`]).

use super::steps::Steps;
use crate::algo::fold::{contribute_by, with_all};
use crate::algo::{Operation, Plain};
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, Result};
use crate::base::ids::{Rank, WorldSize};
use crate::base::op::ReduceOp;
use crate::kernel::{self, Folding};
use crate::transport::line::INLINE_BYTES;
use crate::transport::region::Region;

/// Such an operation.
#[derive(Clone, Copy, Debug)]
pub struct OneStep {
    /// Who has something to say, and to whom.
    pub speakers: Speakers,
    /// Where it is said.
    pub place: Place,
    /// Writes what this rank has to say, if it is a speaker: as many bytes as it sends.
    pub say: fn(&Plain<'_>, Dst<'_>) -> Result<()>,
    /// Makes the result, where this rank is one of those that are spoken to.
    pub hear: fn(&Plain<'_>, &Heard<'_>) -> Result<()>,
}

/// Who speaks to whom.
#[derive(Clone, Copy, Debug)]
pub enum Speakers {
    /// All to all.
    All,
    /// The root to the others.
    Root,
    /// The others to the root.
    Others,
}

/// Where a rank says what it has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Beside the step number, at most [`INLINE_BYTES`].
    Line,
    /// In its slot.
    Slot,
}

/// What this rank does in an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// It speaks, and waits for all others.
    Exchanges,
    /// It speaks, and waits for nobody.
    Gives,
    /// It has nothing to say, and waits for one, or for all others.
    Takes(Option<Rank>),
}

impl Part {
    /// Whether others wait for what it says.
    pub(super) fn is_heard(self) -> bool {
        !matches!(self, Self::Takes(_))
    }
}

impl OneStep {
    /// What a rank does.
    ///
    /// # Errors
    /// `Internal` for an operation without the root that it needs.
    pub(super) fn part_of(&self, rank: Rank, plain: &Plain<'_>) -> Result<Part> {
        let root = match self.speakers {
            Speakers::All => return Ok(Part::Exchanges),
            Speakers::Root | Speakers::Others => plain.root()?,
        };
        Ok(match (self.speakers, rank == root) {
            (Speakers::Root, true) | (Speakers::Others, false) => Part::Gives,
            (Speakers::Root, false) => Part::Takes(Some(root)),
            (_, _) => Part::Takes(None),
        })
    }

    /// How much of its slot each rank uses: the same for all, none where it is said elsewhere.
    pub(super) fn room(&self, plain: &Plain<'_>, size: WorldSize) -> usize {
        match self.place {
            Place::Line => 0,
            Place::Slot => plain.bytes_in_all(size),
        }
    }

    /// Whether this rank writes to its slot: to be read by others, or by itself, where that is not
    /// what the caller has.
    pub(super) fn fills_slot(&self, plain: &Plain<'_>, part: Part) -> bool {
        self.place == Place::Slot && (part.is_heard() || !is_said_as_it_is(plain))
    }

    /// Says what this rank has to say at its place, which is the `line` or the `slot`; how much of
    /// the line others are to have.
    ///
    /// # Errors
    /// What [`OneStep::say`] returns.
    #[inline(always)]
    pub(super) fn speak(
        &self,
        (plain, part): (&Plain<'_>, Part),
        line: &mut [u8; INLINE_BYTES],
        slot: Dst<'_>,
    ) -> Result<usize> {
        let len = plain.send.len();
        if self.place == Place::Line {
            (self.say)(plain, Dst::from(&mut line[..len]))?;
        } else if self.fills_slot(plain, part) {
            (self.say)(plain, slot.slice(0, len))?;
        }
        Ok(if self.place == Place::Line && part.is_heard() { len } else { 0 })
    }

    /// What this rank has said, or would have, for itself. What others take away from its slot lies
    /// with the caller too, if it is the same.
    #[inline(always)]
    pub(super) fn own<'a>(
        &self,
        plain: &Plain<'a>,
        line: &'a [u8; INLINE_BYTES],
        slot: Src<'a>,
    ) -> Src<'a> {
        match self.place {
            Place::Line => Src::from(&line[..plain.send.len()]),
            Place::Slot if is_said_as_it_is(plain) => plain.send,
            Place::Slot => slot.slice(0, plain.send.len()),
        }
    }
}

/// Whether what a rank says is what it sends.
fn is_said_as_it_is(plain: &Plain<'_>) -> bool {
    plain.op != Some(ReduceOp::PremulSum)
}

/// What all speakers have said, where it lies until this rank goes on.
#[derive(Debug)]
pub struct Heard<'a> {
    pub(super) region: &'a Region,
    pub(super) rank: Rank,
    pub(super) step: u64,
    /// How much of a slot it was said in, if it was in one.
    pub(super) room: usize,
    /// What this rank has said, or would have.
    pub(super) own: Src<'a>,
    /// How it is folded, in a reduction.
    pub(super) folding: Option<Folding>,
}

impl<'a> Heard<'a> {
    /// The one who has heard it.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// How many there are.
    pub fn size(&self) -> WorldSize {
        self.region.geometry().ranks
    }

    /// Folds what all have said, or a part of it, in the order of ranks.
    ///
    /// # Errors
    /// `Internal` for an operation that does not reduce.
    #[inline]
    pub fn fold(&self, dst: Dst<'_>, part: impl Fn(Rank) -> Src<'a>) -> Result<()> {
        self.fold_first(self.size(), dst, part)
    }

    /// [`Heard::fold`] of what the ranks from 0 to `vectors - 1` have said.
    ///
    /// # Errors
    /// As [`Heard::fold`].
    #[inline]
    pub fn fold_first(
        &self,
        vectors: usize,
        dst: Dst<'_>,
        part: impl Fn(Rank) -> Src<'a>,
    ) -> Result<()> {
        let folding = self.folding.ok_or_else(|| Error::internal("a fold without an operator"))?;
        with_all(vectors, part, |vectors| folding.fold(dst, vectors));
        Ok(())
    }

    /// The first bytes of what a rank has said.
    pub fn of(&self, rank: Rank, len: usize) -> Src<'a> {
        if rank == self.rank {
            self.own.slice(0, len)
        } else if self.room == 0 {
            self.region.payload(rank, self.step, len)
        } else {
            self.region.part(rank, self.step, self.room).slice(0, len)
        }
    }
}

/// One step.
///
/// # Errors
/// As [`Steps::await_all`].
pub fn run(steps: &mut Steps<'_>, operation: &Operation<'_>, row: &OneStep) -> Result<()> {
    let plain = &Plain::of(operation);
    let (part, room) = (row.part_of(steps.rank(), plain)?, row.room(plain, steps.size()));
    let slot = match row.fills_slot(plain, part) {
        true => steps.part_to_fill(room)?,
        false => Some(Dst::empty()),
    };
    let mut line = [0; INLINE_BYTES];
    let len = match slot {
        Some(slot) => row.speak((plain, part), &mut line, slot)?,
        None => 0,
    };
    match part {
        Part::Exchanges => steps.exchange(&line[..len])?,
        Part::Gives => return steps.give(&line[..len]),
        Part::Takes(Some(rank)) => {
            steps.note()?;
            steps.look_for(rank);
            steps.await_rank(rank)?;
        }
        Part::Takes(None) => {
            steps.note()?;
            steps.await_all()?;
        }
    }
    let own = row.own(plain, &line, steps.part(steps.rank(), room));
    (row.hear)(plain, &steps.heard((own, room), plain.folding()))
}

/// Says this rank's vector.
pub(super) fn say_vector(plain: &Plain<'_>, into: Dst<'_>) -> Result<()> {
    kernel::copy(into, plain.send);
    Ok(())
}

/// Says what this rank contributes to a reduction.
pub(super) fn say_contribution(plain: &Plain<'_>, into: Dst<'_>) -> Result<()> {
    contribute_by(plain.op()?, (plain.dtype(), plain.factor), into, plain.send);
    Ok(())
}
