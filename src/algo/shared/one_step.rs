//! One-step operations: each sender publishes its payload with one step, and each receiver makes
//! its result from the payloads of all senders. An inline payload is in the control slot, so that
//! one or two cache lines move from each sender to each receiver. A longer payload is in the data
//! slot. Both take one hop.
//!
//! The row of each algorithm defines how a rank packs its payload ([`OneStepAlgorithm::pack`]) and
//! how it makes the result ([`OneStepAlgorithm::reduce`]). This file contains the steps between
//! these two functions, which are the same for all rows. [`crate::algo::fast_path`] is a faster
//! version of these steps for blocking calls.

use super::sequencer::ShmSequencer;
use crate::algo::fold::with_vectors;
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
    /// The ranks that send and the ranks that receive.
    pub senders: OneStepSenders,
    /// The memory that holds the payloads.
    pub location: PayloadLocation,
    /// The function that packs this rank's payload. The destination has the length of the send
    /// buffer.
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
    /// The payload is inline in the control slot, and has at most [`INLINE_BYTES`] bytes.
    CtrlSlot,
    /// The payload is in the data slot.
    DataSlot,
}

/// The role of this rank in an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::algo) enum OneStepRole {
    /// The rank sends, and waits for all other ranks.
    Exchange,
    /// The rank sends, and waits for no rank.
    Send,
    /// The rank does not send. It waits for the given rank, or for all other ranks if `None`.
    Receive(Option<Rank>),
}

impl OneStepAlgorithm {
    /// Returns the role of a rank.
    ///
    /// # Errors
    /// `Internal` for a rooted operation without a root.
    fn role_of(&self, rank: Rank, arguments: &CallArguments<'_>) -> Result<OneStepRole> {
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
}

/// The properties that all calls with equal arguments have in common on one rank. The full path and
/// the fast path both use this plan to pack payloads and to make results.
#[derive(Clone, Copy, Debug)]
pub(in crate::algo) struct OneStepPlan {
    algorithm: OneStepAlgorithm,
    pub(in crate::algo) role: OneStepRole,
    pub(in crate::algo) rank: Rank,
    /// The number of bytes that each rank uses of its data slot. It is the same on all ranks, and 0
    /// for inline payloads.
    pub(in crate::algo) slot_bytes_used: usize,
    resolved_fold: Option<ResolvedFold>,
}

impl OneStepPlan {
    /// Returns the plan of one rank.
    ///
    /// # Errors
    /// `Internal` for an operation that lacks an argument that the algorithm needs.
    pub(in crate::algo) fn of(
        algorithm: &OneStepAlgorithm,
        arguments: &CallArguments<'_>,
        rank: Rank,
        size: WorldSize,
    ) -> Result<Self> {
        let slot_bytes_used = match algorithm.location {
            PayloadLocation::CtrlSlot => 0,
            PayloadLocation::DataSlot => arguments.total_bytes(size),
        };
        let role = algorithm.role_of(rank, arguments)?;
        let resolved_fold = arguments.resolved_fold();
        Ok(Self { algorithm: *algorithm, role, rank, slot_bytes_used, resolved_fold })
    }

    /// Returns the memory that holds the payloads.
    pub(in crate::algo) fn location(&self) -> PayloadLocation {
        self.algorithm.location
    }

    /// Returns the same plan, but with `location` as its location. If the caller passes a constant,
    /// the compiler omits the instructions for the other location.
    #[inline(always)]
    pub(in crate::algo) fn with_known_location(&self, location: PayloadLocation) -> Self {
        let inline = location == PayloadLocation::CtrlSlot;
        let slot_bytes_used = if inline { 0 } else { self.slot_bytes_used };
        let algorithm = OneStepAlgorithm { location, ..self.algorithm };
        Self { algorithm, slot_bytes_used, ..*self }
    }

    /// Returns whether other ranks wait for this rank's payload.
    pub(in crate::algo) fn is_sender(&self) -> bool {
        !matches!(self.role, OneStepRole::Receive(_))
    }

    /// Returns whether this rank packs a payload. A sender packs for the other ranks. A receiver
    /// packs for itself if its contribution differs from the caller's buffer.
    fn has_payload(&self, arguments: &CallArguments<'_>) -> bool {
        self.is_sender() || !is_sent_unchanged(arguments)
    }

    /// Returns whether this rank writes to its data slot.
    pub(in crate::algo) fn has_slot_payload(&self, arguments: &CallArguments<'_>) -> bool {
        self.location() == PayloadLocation::DataSlot && self.has_payload(arguments)
    }

    /// Packs this rank's payload: into `inline_payload` if the location is the control slot,
    /// otherwise into the data slot `slot`. Returns the number of bytes of `inline_payload` to
    /// publish.
    ///
    /// # Errors
    /// The errors of [`OneStepAlgorithm::pack`].
    #[inline(always)]
    pub(in crate::algo) fn pack(
        &self,
        arguments: &CallArguments<'_>,
        inline_payload: &mut [u8; INLINE_BYTES],
        slot: Dst<'_>,
    ) -> Result<usize> {
        if !self.has_payload(arguments) {
            return Ok(0);
        }
        let (is_inline, len) = (self.location() == PayloadLocation::CtrlSlot, arguments.send.len());
        let into = match is_inline {
            true => Dst::from(&mut inline_payload[..len]),
            false => slot.slice(0, len),
        };
        (self.algorithm.pack)(arguments, into)?;
        Ok(if is_inline && self.is_sender() { len } else { 0 })
    }

    /// Makes the result on a receiver, after all senders have published the step. `own_payload` is
    /// this rank's contribution to the result, even if this rank is not a sender.
    ///
    /// # Errors
    /// The errors of [`OneStepAlgorithm::reduce`].
    #[inline(always)]
    pub(in crate::algo) fn reduce(
        &self,
        arguments: &CallArguments<'_>,
        region: &Region,
        step: u64,
        own_payload: Src<'_>,
    ) -> Result<()> {
        let Self { rank, slot_bytes_used, resolved_fold, .. } = *self;
        let contributions =
            Contributions { region, rank, step, slot_bytes_used, own_payload, resolved_fold };
        (self.algorithm.reduce)(arguments, &contributions)
    }

    fn await_senders(&self, steps: &mut ShmSequencer<'_>) -> Result<()> {
        match self.role {
            OneStepRole::Send => Ok(()),
            OneStepRole::Receive(Some(rank)) => steps.await_rank(rank),
            OneStepRole::Exchange | OneStepRole::Receive(None) => steps.await_all(),
        }
    }
}

/// Returns whether a rank's payload equals its send buffer.
pub(in crate::algo) fn is_sent_unchanged(arguments: &CallArguments<'_>) -> bool {
    arguments.op != Some(ReduceOp::PremulSum)
}

/// The payloads of all senders, valid until this rank publishes the next step.
#[derive(Debug)]
pub struct Contributions<'a> {
    region: &'a Region,
    rank: Rank,
    step: u64,
    /// The number of bytes used of each data slot, or 0 for inline payloads.
    slot_bytes_used: usize,
    /// This rank's contribution, even if this rank is not a sender.
    own_payload: Src<'a>,
    /// The fold of a reduction.
    resolved_fold: Option<ResolvedFold>,
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

    /// Folds data of all ranks into `dst`, in rank order. `part` returns the payload of a rank, or
    /// the range of the payload to fold.
    ///
    /// # Errors
    /// `Internal` for an operation that does not reduce.
    #[inline]
    pub fn fold(&self, dst: Dst<'_>, part: impl Fn(Rank) -> Src<'a>) -> Result<()> {
        self.fold_prefix(self.size(), dst, part)
    }

    /// Folds as [`Contributions::fold`], but only the data of ranks 0 to `vectors - 1`.
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
    algorithm: &OneStepAlgorithm,
) -> Result<()> {
    let arguments = &CallArguments::of(operation);
    let plan = OneStepPlan::of(algorithm, arguments, steps.rank(), steps.size())?;
    let slot = match plan.has_slot_payload(arguments) {
        true => steps.next_part(plan.slot_bytes_used)?,
        false => Dst::empty(),
    };
    let mut inline_payload = [0; INLINE_BYTES];
    let len = plan.pack(arguments, &mut inline_payload, slot)?;
    match plan.role {
        OneStepRole::Exchange => steps.publish_and_poll(&inline_payload[..len])?,
        OneStepRole::Send => return steps.publish_finished(&inline_payload[..len]),
        OneStepRole::Receive(sender) => {
            steps.publish_unnotified()?;
            sender.into_iter().for_each(|rank| steps.poll_first(rank));
        }
    }
    plan.await_senders(steps)?;
    // The peers read this rank's slots at this time, so their cache lines move to the peers' cores.
    // If possible, this rank therefore reads its own contribution from the caller's buffer.
    let own_payload = match plan.location() {
        _ if is_sent_unchanged(arguments) => arguments.send,
        PayloadLocation::CtrlSlot => Src::from(&inline_payload[..arguments.send.len()]),
        PayloadLocation::DataSlot => slot.as_src().slice(0, arguments.send.len()),
    };
    plan.reduce(arguments, steps.shm.region, steps.shm.cursor.step, own_payload)
}

/// Completes a one-step operation on the full path, after the fast path has published its step.
///
/// # Errors
/// As [`ShmSequencer::await_all`].
pub(in crate::algo) fn finish_published(
    steps: &mut ShmSequencer<'_>,
    operation: &Operation<'_>,
    plan: &OneStepPlan,
) -> Result<()> {
    if plan.role == OneStepRole::Exchange {
        steps.wake_others();
    }
    plan.await_senders(steps)?;
    let arguments = &CallArguments::of(operation);
    plan.reduce(arguments, steps.shm.region, steps.shm.cursor.step, arguments.send)
}

/// Packs this rank's vector.
pub(super) fn pack_vector(arguments: &CallArguments<'_>, into: Dst<'_>) -> Result<()> {
    kernel::copy(into, arguments.send);
    Ok(())
}

/// Packs this rank's contribution to a reduction.
pub(super) fn pack_contribution(arguments: &CallArguments<'_>, into: Dst<'_>) -> Result<()> {
    match arguments.op()? {
        ReduceOp::PremulSum => {
            kernel::scale_copy(arguments.dtype(), arguments.factor, into, arguments.send);
        }
        _ => kernel::copy(into, arguments.send),
    }
    Ok(())
}
