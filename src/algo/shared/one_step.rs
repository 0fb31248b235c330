//! One-step operations: each rank publishes its payload with one step. An inline payload is in the
//! control slot, so that one cache line goes from each sender to each receiver. A longer payload is
//! in the data slot, and takes one hop too.
//!
//! A row defines how a rank packs its payload ([`OneStepAlgorithm::pack`]) and how it makes the
//! result from the payloads of all senders ([`OneStepAlgorithm::reduce`]). The code between is the
//! same for all rows. Blocking calls have a fast path for it ([`super::sequencer::fast_path`]).

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

/// The row-specific part of a one-step algorithm.
#[derive(Clone, Copy, Debug)]
pub struct OneStepAlgorithm {
    /// The senders and the receivers of payloads.
    pub senders: OneStepSenders,
    /// The memory that holds the payloads.
    pub location: PayloadLocation,
    /// The function that packs this rank's payload: as many bytes as the rank sends.
    pub pack: fn(&CallArguments<'_>, Dst<'_>) -> Result<()>,
    /// The function that makes the result on a receiver.
    pub reduce: fn(&CallArguments<'_>, &Contributions<'_>) -> Result<()>,
}

/// The senders and receivers of a one-step operation.
#[derive(Clone, Copy, Debug)]
pub enum OneStepSenders {
    /// All ranks send to all ranks.
    All,
    /// The root sends to the other ranks.
    Root,
    /// The other ranks send to the root.
    Others,
}

/// The memory in which a rank publishes its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadLocation {
    /// The payload is inline in the control slot, at most [`INLINE_BYTES`].
    CtrlSlot,
    /// The payload is in the data slot.
    DataSlot,
}

/// The role of this rank in an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OneStepRole {
    /// The rank sends, and waits for all other ranks.
    Exchange,
    /// The rank sends, and waits for no rank.
    Send,
    /// The rank does not send. It waits for one rank, or for all other ranks.
    Receive(Option<Rank>),
}

impl OneStepRole {
    /// Returns whether other ranks wait for this rank's payload.
    pub(super) fn is_sender(self) -> bool {
        !matches!(self, Self::Receive(_))
    }
}

impl OneStepAlgorithm {
    /// Returns the role of a rank.
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

    /// Returns the number of bytes that each rank uses of its data slot: the same on all ranks, and
    /// 0 for inline payloads.
    pub(super) fn slot_bytes_used(&self, arguments: &CallArguments<'_>, size: WorldSize) -> usize {
        match self.location {
            PayloadLocation::CtrlSlot => 0,
            PayloadLocation::DataSlot => arguments.total_bytes(size),
        }
    }

    /// Returns whether this rank writes to its data slot: for other ranks, or for itself if the
    /// payload differs from the caller's buffer.
    pub(super) fn has_slot_payload(
        &self,
        arguments: &CallArguments<'_>,
        role: OneStepRole,
    ) -> bool {
        self.location == PayloadLocation::DataSlot
            && (role.is_sender() || !is_sent_unchanged(arguments))
    }

    /// Packs this rank's payload into `inline_payload`, for the control slot, or into the data slot
    /// `slot`. Returns the number of inline bytes to publish.
    ///
    /// # Errors
    /// Those of [`OneStepAlgorithm::pack`].
    #[inline(always)]
    pub(super) fn pack_payload(
        &self,
        (arguments, role): (&CallArguments<'_>, OneStepRole),
        inline_payload: &mut [u8; INLINE_BYTES],
        slot: Dst<'_>,
    ) -> Result<usize> {
        let len = arguments.send.len();
        if self.location == PayloadLocation::CtrlSlot {
            (self.pack)(arguments, Dst::from(&mut inline_payload[..len]))?;
        } else if self.has_slot_payload(arguments, role) {
            (self.pack)(arguments, slot.slice(0, len))?;
        }
        Ok(if self.location == PayloadLocation::CtrlSlot && role.is_sender() { len } else { 0 })
    }

    /// Returns this rank's own payload, also if it is not a sender. If the payload in the data slot
    /// equals the caller's buffer, returns the caller's buffer: the data slot's cache lines go to
    /// the peers.
    #[inline(always)]
    pub(super) fn own_payload<'a>(
        &self,
        arguments: &CallArguments<'a>,
        inline_payload: &'a [u8; INLINE_BYTES],
        slot: Src<'a>,
    ) -> Src<'a> {
        match self.location {
            PayloadLocation::CtrlSlot => Src::from(&inline_payload[..arguments.send.len()]),
            PayloadLocation::DataSlot if is_sent_unchanged(arguments) => arguments.send,
            PayloadLocation::DataSlot => slot.slice(0, arguments.send.len()),
        }
    }
}

/// Returns whether a rank's payload equals its send buffer.
fn is_sent_unchanged(arguments: &CallArguments<'_>) -> bool {
    arguments.op != Some(ReduceOp::PremulSum)
}

/// The payloads of all senders, valid until this rank publishes the next step.
#[derive(Debug)]
pub struct Contributions<'a> {
    pub(super) region: &'a Region,
    pub(super) rank: Rank,
    pub(super) step: u64,
    /// The number of bytes used of each data slot, or 0 for inline payloads.
    pub(super) slot_bytes_used: usize,
    /// This rank's own payload, also if it is not a sender.
    pub(super) own_payload: Src<'a>,
    /// The fold of a reduction.
    pub(super) resolved_fold: Option<ResolvedFold>,
}

impl<'a> Contributions<'a> {
    /// Returns the receiving rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> WorldSize {
        self.region.geometry().ranks
    }

    /// Folds the payloads of all ranks, or a part of each, in rank order.
    ///
    /// # Errors
    /// `Internal` for an operation that does not reduce.
    #[inline]
    pub fn fold(&self, dst: Dst<'_>, part: impl Fn(Rank) -> Src<'a>) -> Result<()> {
        self.fold_prefix(self.size(), dst, part)
    }

    /// Folds the payloads of ranks 0 to `vectors - 1`, as [`Contributions::fold`] does for all.
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
            self.resolved_fold.ok_or_else(|| Error::internal("the reduction has no operator"))?;
        with_vectors(vectors, part, |vectors| resolved_fold.fold(dst, vectors));
        Ok(())
    }

    /// Returns the first `len` bytes of a rank's payload.
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

/// Runs a one-step operation on the full path.
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
    let mut inline_payload = [0; INLINE_BYTES];
    let len = match slot {
        Some(slot) => row.pack_payload((arguments, role), &mut inline_payload, slot)?,
        None => 0,
    };
    match role {
        OneStepRole::Exchange => steps.publish_and_await_all(&inline_payload[..len])?,
        OneStepRole::Send => return steps.publish_finished(&inline_payload[..len]),
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
    let own_payload =
        row.own_payload(arguments, &inline_payload, steps.part(steps.rank(), slot_bytes_used));
    (row.reduce)(
        arguments,
        &steps.contributions((own_payload, slot_bytes_used), arguments.resolved_fold()),
    )
}

/// Packs this rank's vector.
pub(super) fn pack_vector(arguments: &CallArguments<'_>, into: Dst<'_>) -> Result<()> {
    kernel::copy(into, arguments.send);
    Ok(())
}

/// Packs this rank's contribution to a reduction.
pub(super) fn pack_contribution(arguments: &CallArguments<'_>, into: Dst<'_>) -> Result<()> {
    copy_contribution_with(
        arguments.op()?,
        (arguments.dtype(), arguments.factor),
        into,
        arguments.send,
    );
    Ok(())
}
