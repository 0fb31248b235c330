//! Operations that are over with one line of each rank: what a rank has for the others fits beside the step number, so that
//! one cache line goes from each to each, in one hop.
//!
//! The rows say what a rank has to say ([`Lines::say`]) and what comes of what all have said ([`Lines::hear`]); the way
//! between is the same for all, and there is a short one for calls that block ([`super::steps::prompt`]).

use super::steps::Steps;
use crate::algo::fold::with_all;
use crate::algo::{Operation, Plain};
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, Result};
use crate::base::ids::{Rank, WorldSize};
use crate::kernel::Folding;
use crate::transport::line::INLINE_BYTES;
use crate::transport::region::Region;

/// Such an operation.
#[derive(Debug)]
pub struct Lines {
    /// Who has something to say, and to whom.
    pub speakers: Speakers,
    /// Writes what this rank has to say, if it is a speaker, into the first bytes, and how many there are. Nobody has been told
    /// of the operation yet.
    pub say: fn(&Plain<'_>, &mut [u8; INLINE_BYTES]) -> Result<usize>,
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

impl Lines {
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
}

/// What all speakers have said, where it lies until this rank goes on.
#[derive(Debug)]
pub struct Heard<'a> {
    pub(super) region: &'a Region,
    pub(super) rank: Rank,
    pub(super) step: u64,
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
        let folding = self.folding.ok_or_else(|| Error::internal("a fold without an operator"))?;
        with_all(self.size(), part, |vectors| folding.fold(dst, vectors));
        Ok(())
    }

    /// The first bytes of what a rank has said.
    pub fn of(&self, rank: Rank, len: usize) -> Src<'a> {
        if rank == self.rank {
            return self.own.slice(0, len);
        }
        self.region.payload(rank, self.step, len)
    }
}

/// One step.
///
/// # Errors
/// As [`Steps::await_all`].
pub fn run(steps: &mut Steps<'_>, operation: &Operation<'_>, lines: &Lines) -> Result<()> {
    let plain = &Plain::of(operation);
    let mut own = [0; INLINE_BYTES];
    let len = (lines.say)(plain, &mut own)?;
    match lines.part_of(steps.rank(), plain)? {
        Part::Exchanges => steps.exchange(&own[..len])?,
        Part::Gives => return steps.give(&own[..len]),
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
    (lines.hear)(plain, &steps.heard(Src::from(&own[..len]), plain.folding()))
}

/// Copies this rank's vector into what it says.
pub(super) fn say_vector(plain: &Plain<'_>, own: &mut [u8; INLINE_BYTES]) -> Result<usize> {
    let len = plain.send.len();
    Dst::from(&mut own[..len]).copy_from(plain.send);
    Ok(len)
}
