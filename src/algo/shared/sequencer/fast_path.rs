//! The fast path of a one-step operation, for a blocking call that gets its turn at once.
//!
//! The fast path serves calls that repeat an earlier call. A [`FastPathPlan`] keeps everything that
//! the calls with one key have in common.
//!
//! The fast path does the same as [`one_step::run`](crate::algo::shared::one_step::run): its stores
//! have the same contents and the same order for the peers. It omits the state that an operation
//! needs only for a long wait. The fast path publishes, polls for some microseconds, and then
//! either has all payloads or leaves the rest to the full path. The full path continues where the
//! fast path stopped ([`Operation::is_published`](crate::algo::Operation::is_published)). The full
//! path also handles every exception: a control slot that differs, or a rank that is behind by all
//! control slots or data slots.
//!
//! The fast path wakes sleeping peers once. The time depends on the case:
//!
//! - A receiver of payloads in data slots: no peer waits for its control slot, but a peer may wait
//!   until this rank has read the peer's data slot. If the operation completes, the caller wakes
//!   the peers afterwards ([`FastPathOutcome::WakeupPending`], [`wake_sleeping_peers`]).
//! - Any other role on an oversubscribed host: the fast path wakes the peers directly after it has
//!   published.
//! - Any other role, with all payloads there at the first poll: the caller wakes the peers at the
//!   end of the turn. The fence of the turn's end also orders the wakeup, and the control slot
//!   travels to the peers before that.
//! - Any other role, without all payloads: the fast path wakes the peers before it polls again.

use super::ShmCursor;
use super::sequencer_core::{self, SequencerCore};
use crate::algo::CallArguments;
use crate::algo::call_arguments::FastCallKey;
use crate::algo::shared::one_step::{
    Contributions, OneStepAlgorithm, OneStepRole, PayloadLocation,
};
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::base::label::Label;
use crate::kernel::ResolvedFold;
use crate::transport::ctrl_slot::{CtrlSlot, INLINE_BYTES};
use crate::transport::region::{CTRL_SLOT_COUNT, DATA_SLOT_COUNT};
use crate::transport::{Descriptor, SharedDomain};
use crate::wait::policy::spin_until;

/// The maximum number of polls for a rank after the first one: some microseconds.
const MAX_POLLS: u32 = 300;

/// The state in which the fast path leaves an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastPathOutcome {
    /// The operation has not started.
    NotStarted,
    /// The operation has started: this rank's control slot is published, or a plug-in has accepted
    /// the call.
    Published,
    /// The operation is complete.
    Done,
    /// The operation is complete, and the peers that sleep until this rank's control slot is
    /// published have not been woken.
    WakeupPending,
    /// The operation is complete, and had a long wait.
    DoneAfterWait,
}

/// The properties that all calls of one key have in common on this rank.
#[derive(Clone, Copy, Debug)]
pub struct FastPathPlan {
    key: FastCallKey,
    row: &'static OneStepAlgorithm,
    role: OneStepRole,
    /// The number of bytes that each rank uses of its data slot.
    slot_bytes_used: usize,
    /// The words of the descriptor, with any sequence number and without a label.
    words: [u64; 3],
    rank: Rank,
    /// On an oversubscribed host the waiting ranks sleep, so this rank wakes them first.
    is_oversubscribed: bool,
    resolved_fold: Option<ResolvedFold>,
}

impl FastPathPlan {
    /// Returns the plan for a call that runs the algorithm with this number.
    ///
    /// # Errors
    /// `Internal` for an operation that lacks an argument that the algorithm needs.
    pub fn of(
        (arguments, key): (&CallArguments<'_>, FastCallKey),
        (row, number): (&'static OneStepAlgorithm, u8),
        domain: &dyn SharedDomain,
    ) -> Result<Self> {
        let words =
            CallArguments { label: &Label::NONE, ..*arguments }.descriptor(0).encode_with(number);
        let (rank, is_oversubscribed) = (domain.rank(), domain.wait_policy().is_oversubscribed);
        let (role, resolved_fold) = (row.role_of(rank, arguments)?, arguments.resolved_fold());
        let slot_bytes_used = row.slot_bytes_used(arguments, domain.size());
        Ok(Self { key, row, role, slot_bytes_used, words, rank, is_oversubscribed, resolved_fold })
    }

    /// Returns the key of the plan's calls.
    pub fn key(&self) -> FastCallKey {
        self.key
    }

    /// Does the part of the operation with this sequence number that needs no long wait. `on_start`
    /// is called with the words of the descriptor, after this rank has published its control slot.
    ///
    /// # Errors
    /// `Internal` for an operation that does not belong to the plan.
    pub fn run(
        &self,
        domain: &dyn SharedDomain,
        cursor: &mut ShmCursor,
        (arguments, sequence): (&CallArguments<'_>, u64),
        on_start: impl FnOnce(&[u64; 3]),
    ) -> Result<FastPathOutcome> {
        // The compiler generates separate code for each location, without the instructions that
        // only the other location needs.
        match self.row.location {
            PayloadLocation::CtrlSlot => self.run_in_location(
                PayloadLocation::CtrlSlot,
                (domain, cursor),
                (arguments, sequence),
                on_start,
            ),
            PayloadLocation::DataSlot => self.run_in_location(
                PayloadLocation::DataSlot,
                (domain, cursor),
                (arguments, sequence),
                on_start,
            ),
        }
    }

    /// Does the work of [`FastPathPlan::run`] for a location that the compiler knows.
    #[inline(always)]
    fn run_in_location(
        &self,
        location: PayloadLocation,
        (domain, cursor): (&dyn SharedDomain, &mut ShmCursor),
        (arguments, sequence): (&CallArguments<'_>, u64),
        on_start: impl FnOnce(&[u64; 3]),
    ) -> Result<FastPathOutcome> {
        let Self {
            role: part,
            slot_bytes_used,
            rank,
            is_oversubscribed,
            resolved_fold: folding,
            ..
        } = *self;
        let row = OneStepAlgorithm { location, ..*self.row };
        let slot_bytes_used =
            if location == PayloadLocation::DataSlot { slot_bytes_used } else { 0 };
        let mut shm = SequencerCore { domain, region: domain.region(), rank, cursor };
        let Some(slot) = shm.reserve_part(row.has_slot_payload(arguments, part), slot_bytes_used)
        else {
            return Ok(FastPathOutcome::NotStarted);
        };
        let words = Descriptor::encode_repeat(&self.words, sequence, arguments.label);
        shm.enter(&words, arguments.label);
        let mut inline_payload = [0; INLINE_BYTES];
        let len = row.pack_payload((arguments, part), &mut inline_payload, slot)?;
        let finished = shm.cursor.step + u64::from(part == OneStepRole::Send);
        shm.store(
            (&words, arguments.label),
            &inline_payload[..len],
            finished,
            CtrlSlot::publish_unfenced,
        );
        on_start(&words);
        // A peer may wait until this rank has read the peer's data slot. No peer waits for anything
        // else that this rank does.
        let is_slot_receiver = location == PayloadLocation::DataSlot && !part.is_sender();
        if is_oversubscribed && !is_slot_receiver {
            shm.wake_others();
        }
        let has_all_payloads = shm.poll_senders(part);
        let is_over = has_all_payloads || {
            if !is_oversubscribed && !is_slot_receiver {
                shm.wake_others();
            }
            if is_oversubscribed {
                shm.poll_senders_yielding(part)
            } else {
                shm.poll_senders_again(part, if cfg!(loom) { 1 } else { MAX_POLLS })
            }
        };
        if !(is_over && shm.verify_senders(part)) {
            return Ok(FastPathOutcome::Published);
        }
        if part != OneStepRole::Send {
            let own_payload = row.own_payload(arguments, &inline_payload, slot.as_src());
            let (region, step) = (shm.region, shm.cursor.step);
            (row.reduce)(
                arguments,
                &Contributions {
                    region,
                    rank,
                    step,
                    slot_bytes_used,
                    own_payload,
                    resolved_fold: folding,
                },
            )?;
        }
        shm.finish(words[2]);
        if part == OneStepRole::Exchange {
            // The peers have finished too, and do not read that control slot yet.
            shm.prefetch_own_line();
        }
        Ok(if is_slot_receiver || has_all_payloads && !is_oversubscribed {
            FastPathOutcome::WakeupPending
        } else {
            FastPathOutcome::Done
        })
    }
}

/// Wakes the peers that sleep until a store of an operation that ended with
/// [`FastPathOutcome::WakeupPending`]. A fence must precede the call.
pub fn wake_sleeping_peers(domain: &dyn SharedDomain) {
    let rank = domain.rank();
    let others = (0..domain.size()).filter(|&other| other != rank);
    sequencer_core::wake_ranks_fenced(domain, domain.region(), others);
}

impl<'a> SequencerCore<'a> {
    /// If `is_filled`, returns the first `slot_bytes_used` bytes of this rank's data slot for the
    /// next step, or `None` if a rank has not finished with the slot's old contents. If not
    /// `is_filled`, returns an empty buffer, or `None` if a rank has not finished with the control
    /// slot's old contents.
    #[inline]
    fn reserve_part(&mut self, is_filled: bool, slot_bytes_used: usize) -> Option<Dst<'a>> {
        if !self.can_store(if is_filled { DATA_SLOT_COUNT } else { CTRL_SLOT_COUNT }) {
            return None;
        }
        match is_filled {
            // If there is no memory, the full path reports the error.
            true => {
                self.region.own_slot_part(self.rank, self.cursor.step + 1, slot_bytes_used).ok()
            }
            false => Some(Dst::empty()),
        }
    }

    /// Returns whether all ranks have finished the step that is `before` steps before the next one.
    #[inline]
    fn can_store(&mut self, before: u64) -> bool {
        let step = (self.cursor.step + 1).saturating_sub(before);
        self.cursor.finished_by_all >= step || {
            let finished_step =
                self.others().map(|rank| self.region.progress(rank).finished_step()).min();
            // The value is limited to this rank's own step, whatever a peer wrote to its progress
            // word.
            let finished_step = finished_step.unwrap_or(step).min(self.cursor.step);
            self.cursor.finished_by_all = self.cursor.finished_by_all.max(finished_step);
            finished_step >= step
        }
    }

    /// Polls all ranks that this rank waits for, without stopping at the first failed poll, so that
    /// all control slots are requested at once.
    fn poll_senders(&mut self, role: OneStepRole) -> bool {
        match role {
            OneStepRole::Send => true,
            OneStepRole::Receive(Some(rank)) => self.poll_first(rank),
            OneStepRole::Exchange | OneStepRole::Receive(None) => {
                let mut all = true;
                for rank in self.others() {
                    all &= self.poll_first(rank);
                }
                all
            }
        }
    }

    /// Polls the ranks that this rank waits for again, at most `max_polls` times each.
    #[cold]
    fn poll_senders_again(&self, role: OneStepRole, max_polls: u32) -> bool {
        match role {
            OneStepRole::Send => true,
            OneStepRole::Receive(Some(rank)) => self.poll_rank_again(rank, max_polls),
            OneStepRole::Exchange | OneStepRole::Receive(None) => {
                self.others().all(|rank| self.poll_rank_again(rank, max_polls))
            }
        }
    }

    /// Yields the core to other ranks until the payloads of all senders are there, at most a few
    /// times.
    fn poll_senders_yielding(&self, role: OneStepRole) -> bool {
        let poll = || self.poll_senders_again(role, 1).then_some(());
        self.yield_to_missing(poll, |rank| self.has_published(rank)).is_some()
    }

    /// Polls for a rank until it has published the current step, at most `max_polls` times.
    fn poll_rank_again(&self, rank: Rank, max_polls: u32) -> bool {
        let step = self.cursor.step;
        let slot = self.region.ctrl_slot(rank, step);
        spin_until(max_polls, || slot.step() >= step)
    }

    /// Prefetches this rank's next control slot for writing: the peers' caches have held its cache
    /// line since they last read it.
    #[inline]
    fn prefetch_own_line(&self) {
        self.region.ctrl_slot(self.rank, self.cursor.step + 1).prefetch_write();
    }

    /// Returns whether the senders whose payloads this rank has received called the same operation.
    fn verify_senders(&mut self, role: OneStepRole) -> bool {
        match role {
            OneStepRole::Send => true,
            OneStepRole::Receive(Some(rank)) => self.verify_rank(rank),
            OneStepRole::Exchange | OneStepRole::Receive(None) => {
                let all_agree = self.others().all(|rank| self.verify_rank(rank));
                if all_agree {
                    self.record_all_arrived();
                }
                all_agree
            }
        }
    }
}
