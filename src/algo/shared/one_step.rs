//! Operations that are over with one step: what a rank has for the others lies beside its step
//! number, so that one cache line goes from each to each, or in its slot, and goes from each to
//! each in one hop.
//!
//! The rows say what a rank has to say ([`OneStepAlgorithm::pack`]) and what comes of what all have
//! said ([`OneStepAlgorithm::reduce`]); the way between is the same for all, and there is a short
//! one for calls that block ([`super::sequencer::prompt`]).

use super::sequencer::ShmSequencer;
use crate::algo::fold::{copy_contribution_with, with_vectors};
use crate::algo::{CallArguments, Operation};
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, Result};
use crate::base::ids::{Rank, WorldSize};
use crate::base::op::ReduceOp;
use crate::kernel::{self, ResolvedFold};
use crate::transport::ctrl_slot::INLINE_BYTES;
use crate::transport::region::Region;

/// Such an operation.
#[derive(Clone, Copy, Debug)]
pub struct OneStepAlgorithm {
    /// Who has something to say, and to whom.
    pub senders: OneStepSenders,
    /// Where it is said.
    pub location: PayloadLocation,
    /// Writes what this rank has to say, if it is a speaker: as many bytes as it sends.
    pub pack: fn(&CallArguments<'_>, Dst<'_>) -> Result<()>,
    /// Makes the result, where this rank is one of those that are spoken to.
    pub reduce: fn(&CallArguments<'_>, &Contributions<'_>) -> Result<()>,
}

/// Who speaks to whom.
#[derive(Clone, Copy, Debug)]
pub enum OneStepSenders {
    /// All to all.
    All,
    /// The root to the others.
    Root,
    /// The others to the root.
    Others,
}

/// Where a rank says what it has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadLocation {
    /// Beside the step number, at most [`INLINE_BYTES`].
    CtrlSlot,
    /// In its slot.
    DataSlot,
}

/// What this rank does in an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OneStepRole {
    /// It speaks, and waits for all others.
    Exchange,
    /// It speaks, and waits for nobody.
    Send,
    /// It has nothing to say, and waits for one, or for all others.
    Receive(Option<Rank>),
}

impl OneStepRole {
    /// Whether others wait for what it says.
    pub(super) fn is_sender(self) -> bool {
        !matches!(self, Self::Receive(_))
    }
}

impl OneStepAlgorithm {
    /// What a rank does.
    ///
    /// # Errors
    /// `Internal` for an operation without the root that it needs.
    pub(super) fn role_of(&self, rank: Rank, arguments: &CallArguments<'_>) -> Result<OneStepRole> {
        let root = match self.senders {
            OneStepSenders::All => return Ok(OneStepRole::Exchange),
            OneStepSenders::Root | OneStepSenders::Others => arguments.root()?,
        };
        Ok(match (self.senders, rank == root) {
            (OneStepSenders::Root, true) | (OneStepSenders::Others, false) => OneStepRole::Send,
            (OneStepSenders::Root, false) => OneStepRole::Receive(Some(root)),
            (_, _) => OneStepRole::Receive(None),
        })
    }

    /// How much of its slot each rank uses: the same for all, none where it is said elsewhere.
    pub(super) fn slot_bytes_used(&self, arguments: &CallArguments<'_>, size: WorldSize) -> usize {
        match self.location {
            PayloadLocation::CtrlSlot => 0,
            PayloadLocation::DataSlot => arguments.total_bytes(size),
        }
    }

    /// Whether this rank writes to its slot: to be read by others, or by itself, where that is not
    /// what the caller has.
    pub(super) fn has_slot_payload(
        &self,
        arguments: &CallArguments<'_>,
        role: OneStepRole,
    ) -> bool {
        self.location == PayloadLocation::DataSlot
            && (role.is_sender() || !is_sent_unchanged(arguments))
    }

    /// Says what this rank has to say at its place, which is the `ctrl_slot` or the `slot`; how
    /// much of the line others are to have.
    ///
    /// # Errors
    /// What [`OneStepAlgorithm::pack`] returns.
    #[inline(always)]
    pub(super) fn pack_payload(
        &self,
        (arguments, role): (&CallArguments<'_>, OneStepRole),
        line: &mut [u8; INLINE_BYTES],
        slot: Dst<'_>,
    ) -> Result<usize> {
        let len = arguments.send.len();
        if self.location == PayloadLocation::CtrlSlot {
            (self.pack)(arguments, Dst::from(&mut line[..len]))?;
        } else if self.has_slot_payload(arguments, role) {
            (self.pack)(arguments, slot.slice(0, len))?;
        }
        Ok(if self.location == PayloadLocation::CtrlSlot && role.is_sender() { len } else { 0 })
    }

    /// What this rank has said, or would have, for itself. What others take away from its slot lies
    /// with the caller too, if it is the same.
    #[inline(always)]
    pub(super) fn own_payload<'a>(
        &self,
        arguments: &CallArguments<'a>,
        line: &'a [u8; INLINE_BYTES],
        slot: Src<'a>,
    ) -> Src<'a> {
        match self.location {
            PayloadLocation::CtrlSlot => Src::from(&line[..arguments.send.len()]),
            PayloadLocation::DataSlot if is_sent_unchanged(arguments) => arguments.send,
            PayloadLocation::DataSlot => slot.slice(0, arguments.send.len()),
        }
    }
}

/// Whether what a rank says is what it sends.
fn is_sent_unchanged(arguments: &CallArguments<'_>) -> bool {
    arguments.op != Some(ReduceOp::PremulSum)
}

/// What all speakers have said, where it lies until this rank goes on.
#[derive(Debug)]
pub struct Contributions<'a> {
    pub(super) region: &'a Region,
    pub(super) rank: Rank,
    pub(super) step: u64,
    /// How much of a slot it was said in, if it was in one.
    pub(super) slot_bytes_used: usize,
    /// What this rank has said, or would have.
    pub(super) own_payload: Src<'a>,
    /// How it is folded, in a reduction.
    pub(super) resolved_fold: Option<ResolvedFold>,
}

impl<'a> Contributions<'a> {
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
        self.fold_prefix(self.size(), dst, part)
    }

    /// [`Contributions::fold`] of what the ranks from 0 to `vectors - 1` have said.
    ///
    /// # Errors
    /// As [`Contributions::fold`].
    #[inline]
    pub fn fold_prefix(
        &self,
        vectors: usize,
        dst: Dst<'_>,
        part: impl Fn(Rank) -> Src<'a>,
    ) -> Result<()> {
        let resolved_fold =
            self.resolved_fold.ok_or_else(|| Error::internal("a fold without an operator"))?;
        with_vectors(vectors, part, |vectors| resolved_fold.fold(dst, vectors));
        Ok(())
    }

    /// The first bytes of what a rank has said.
    pub fn payload_of(&self, rank: Rank, len: usize) -> Src<'a> {
        if rank == self.rank {
            self.own_payload.slice(0, len)
        } else if self.slot_bytes_used == 0 {
            self.region.inline_payload(rank, self.step, len)
        } else {
            self.region.slot_part(rank, self.step, self.slot_bytes_used).slice(0, len)
        }
    }
}

/// One step.
///
/// # Errors
/// As [`ShmSequencer::await_all`].
pub fn run(
    steps: &mut ShmSequencer<'_>,
    operation: &Operation<'_>,
    row: &OneStepAlgorithm,
) -> Result<()> {
    let arguments = &CallArguments::of(operation);
    let (role, slot_bytes_used) =
        (row.role_of(steps.rank(), arguments)?, row.slot_bytes_used(arguments, steps.size()));
    let slot = match row.has_slot_payload(arguments, role) {
        true => steps.unpublished_part(slot_bytes_used)?,
        false => Some(Dst::empty()),
    };
    let mut line = [0; INLINE_BYTES];
    let len = match slot {
        Some(slot) => row.pack_payload((arguments, role), &mut line, slot)?,
        None => 0,
    };
    match role {
        OneStepRole::Exchange => steps.publish_and_await_all(&line[..len])?,
        OneStepRole::Send => return steps.publish_finished(&line[..len]),
        OneStepRole::Receive(Some(rank)) => {
            steps.publish_unnotified()?;
            steps.poll_first(rank);
            steps.await_rank(rank)?;
        }
        OneStepRole::Receive(None) => {
            steps.publish_unnotified()?;
            steps.await_all()?;
        }
    }
    let own_payload = row.own_payload(arguments, &line, steps.part(steps.rank(), slot_bytes_used));
    (row.reduce)(
        arguments,
        &steps.contributions((own_payload, slot_bytes_used), arguments.resolved_fold()),
    )
}

/// Says this rank's vector.
pub(super) fn pack_vector(arguments: &CallArguments<'_>, into: Dst<'_>) -> Result<()> {
    kernel::copy(into, arguments.send);
    Ok(())
}

/// Says what this rank contributes to a reduction.
pub(super) fn pack_contribution(arguments: &CallArguments<'_>, into: Dst<'_>) -> Result<()> {
    copy_contribution_with(
        arguments.op()?,
        (arguments.dtype(), arguments.factor),
        into,
        arguments.send,
    );
    Ok(())
}
