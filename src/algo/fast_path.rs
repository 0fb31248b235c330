//! The fast path of a one-step operation, for a blocking call that gets its turn (the time in which
//! it holds the queue of its group) without a wait.
//!
//! The fast path serves calls that repeat an earlier call; [`super::group_state`] keeps the plans
//! of such calls. To the peers, the fast path is identical to the full path [`one_step::run`]: it
//! makes the same stores in the same order. It omits the local state that an operation needs only
//! for a long wait.
//!
//! - [`FastCall::run`] publishes this rank's payload, polls for the payloads of the peers for some
//!   microseconds, and makes the result. If a peer has not yet read the slot that this rank would
//!   overwrite, the call does not start, and the full path runs it.
//! - [`FastCall::wait`] completes the call on the full path. The caller uses it if a payload is
//!   still missing after the polls, or if a peer's control slot belongs to a different operation.
//!
//! The fast path wakes sleeping peers once per call. The time of the wakeup depends on the case:
//!
//! - This rank only receives, and the payloads are in data slots. No peer waits for this rank's
//!   control slot, but a peer may wait until this rank has read the peer's data slot. The caller
//!   wakes the peers after the operation is complete ([`PendingWakeup`]).
//! - This rank has any other role, and the host is oversubscribed (more ranks than cores). The fast
//!   path wakes the peers directly after it has published.
//! - This rank has any other role, and the first poll finds all payloads. The caller wakes the
//!   peers at the end of the turn, because the fence at the end of the turn also orders the wakeup.
//!   Until then, the control slot travels to the peers.
//! - This rank has any other role, and the first poll does not find all payloads. The fast path
//!   wakes the peers before it polls again.

use super::call_arguments::{CallArguments, FastCallKey};
use super::fingerprint::ArgumentsHash;
use super::group_state::{FastPathPlan, GroupState};
use super::operation::Operation;
use super::shared::one_step::{self, OneStepPlan, OneStepRole, PayloadLocation};
use super::shared::sequencer::{SequencerCore, wake_ranks_fenced};
use super::shared::{ShmCursor, ShmSequencer};
use crate::base::buffer::Dst;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::base::sync::{lock, try_lock};
use crate::transport::ctrl_slot::{CtrlSlot, INLINE_BYTES};
use crate::transport::region::{CTRL_SLOT_COUNT, DATA_SLOT_COUNT};
use crate::transport::{Descriptor, SharedDomain};
use crate::wait::policy::spin_until;
use std::sync::{Arc, Mutex, MutexGuard};

/// The maximum number of polls for a rank after the first poll. These polls take some microseconds.
const MAX_POLLS: u32 = 300;

/// The state and the domain of one group, which the operations of the group use in turn.
#[derive(Debug)]
pub struct FastPathState {
    state: Mutex<GroupState>,
    domain: Arc<dyn SharedDomain>,
}

impl FastPathState {
    /// Returns the state of a new group.
    pub fn new(state: GroupState, domain: Arc<dyn SharedDomain>) -> Self {
        Self { state: Mutex::new(state), domain }
    }

    /// Locks the state of the group.
    pub fn lock(&self) -> MutexGuard<'_, GroupState> {
        lock(&self.state)
    }

    /// Locks the state of the group, if no thread holds the lock.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, GroupState>> {
        try_lock(&self.state)
    }
}

/// A call on the fast path, with the lock of the state that it uses.
#[derive(Debug)]
pub struct FastCall<'a> {
    state: MutexGuard<'a, GroupState>,
    domain: &'a dyn SharedDomain,
    /// The key of the plan in `state`.
    key: FastCallKey,
}

/// The state in which the fast path leaves a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastProgress {
    /// The call has not started.
    NotStarted,
    /// The call must wait for other ranks, or found a mismatch. The caller continues with
    /// [`FastCall::wait`].
    Waiting,
    /// A plug-in has accepted the call and continues it.
    Accepted,
    /// The call is complete.
    Done {
        /// Whether peers may sleep until one of the stores of the call. If so, the caller must
        /// perform the [`PendingWakeup`].
        leaves_sleepers: bool,
    },
    /// The call is complete, and had a long wait.
    DoneAfterWait,
}

/// The wakeup of sleeping peers that the fast path leaves to its caller.
#[derive(Debug)]
pub struct PendingWakeup<'a>(&'a dyn SharedDomain);

impl PendingWakeup<'_> {
    /// Wakes the peers that sleep until one of the stores of the call. The caller must have issued
    /// a fence between these stores and this function.
    pub fn wake_fenced(self) {
        let domain = self.0;
        let rank = domain.rank();
        let others = (0..domain.size()).filter(|&other| other != rank);
        wake_ranks_fenced(domain, domain.region(), others);
    }
}

impl<'a> FastCall<'a> {
    /// Prepares a call with this key. Locks the state of the group until the call is dropped.
    #[inline]
    pub fn new(fast_path: &'a FastPathState, key: FastCallKey) -> Self {
        Self { state: fast_path.lock(), domain: &*fast_path.domain, key }
    }

    /// Ends the call. Returns the wakeup of its peers.
    #[inline]
    pub fn into_wakeup(self) -> PendingWakeup<'a> {
        PendingWakeup(self.domain)
    }

    /// Runs the call with this sequence number, without a long wait. Calls `on_published` with the
    /// encoded operation descriptor and the hash of its arguments when the payload of this rank is
    /// published.
    ///
    /// The call does not start if the group has failed, if no plan exists for the key, or if a peer
    /// has not yet read the old contents of the slot.
    ///
    /// # Errors
    /// `Internal` for an operation that does not belong to the plan.
    // A function of its own needs fewer spills than the same code within its caller.
    #[inline(never)]
    pub fn run(
        &mut self,
        arguments: &CallArguments<'_>,
        sequence: u64,
        on_published: impl FnOnce(&[u64; 3], ArgumentsHash),
    ) -> Result<FastProgress> {
        let Self { domain, key, ref mut state } = *self;
        let Some((plan, cursor)) = state.plan_and_cursor(key) else {
            return Ok(FastProgress::NotStarted);
        };
        // The two branches call the same function, but the compiler knows the location in each
        // branch and generates shorter code.
        let call = CallWithPlan { plan, arguments, sequence };
        match plan.step.location() {
            PayloadLocation::CtrlSlot => {
                call.run(PayloadLocation::CtrlSlot, domain, cursor, on_published)
            }
            PayloadLocation::DataSlot => {
                call.run(PayloadLocation::DataSlot, domain, cursor, on_published)
            }
        }
    }

    /// Completes the call on the full path, which may wait until the deadline of `operation`.
    ///
    /// # Errors
    /// As [`ShmSequencer::await_all`].
    #[cold]
    pub fn wait(mut self, operation: &Operation<'_>) -> Result<()> {
        if self.domain.region().abort_record().is_set()
            && let Some(error) = self.domain.failure()
        {
            return Err(error);
        }
        let (plan, cursor) = self.state.plan_and_cursor(self.key).ok_or_else(missing_plan)?;
        let Descriptor { sequence, label, .. } = &operation.descriptor;
        let words = Descriptor::encode_repeat(plan.words, *sequence, label);
        let mut steps = ShmSequencer::resume(self.domain, cursor, operation, words);
        one_step::finish_published(&mut steps, operation, &plan.step)?;
        steps.finish_within_node();
        Ok(())
    }
}

/// A call with its plan.
struct CallWithPlan<'a> {
    plan: &'a FastPathPlan,
    arguments: &'a CallArguments<'a>,
    sequence: u64,
}

impl CallWithPlan<'_> {
    /// Does the work of [`FastCall::run`] for a location that the compiler knows.
    #[inline(always)]
    fn run(
        &self,
        location: PayloadLocation,
        domain: &dyn SharedDomain,
        cursor: &mut ShmCursor,
        on_published: impl FnOnce(&[u64; 3], ArgumentsHash),
    ) -> Result<FastProgress> {
        let Self { plan: prepared, arguments, sequence } = *self;
        let is_oversubscribed = prepared.is_oversubscribed;
        let plan = prepared.step.with_known_location(location);
        let (region, role) = (domain.region(), plan.role);
        if region.abort_record().is_set() {
            return Ok(FastProgress::NotStarted);
        }
        let words = Descriptor::encode_repeat(prepared.words, sequence, arguments.label);
        let mut shm = SequencerCore { domain, region, rank: plan.rank, cursor };
        if shm.publish_payload(&plan, arguments, &words).is_none() {
            return Ok(FastProgress::NotStarted);
        }
        on_published(&words, prepared.arguments_hash);
        // This rank only reads data slots. A peer may wait until this rank has read the peer's data
        // slot, but no peer waits for this rank's control slot.
        let is_slot_receiver = location == PayloadLocation::DataSlot && !plan.is_sender();
        if is_oversubscribed && !is_slot_receiver {
            shm.wake_others();
        }
        let has_all_payloads = shm.poll_senders(role);
        let is_over = has_all_payloads || {
            if !is_oversubscribed && !is_slot_receiver {
                shm.wake_others();
            }
            if is_oversubscribed {
                shm.poll_senders_yielding(role)
            } else {
                shm.poll_senders_again(role, if cfg!(loom) { 1 } else { MAX_POLLS })
            }
        };
        if !(is_over && shm.verify_senders(role)) {
            return Ok(FastProgress::Waiting);
        }
        if role != OneStepRole::Send {
            plan.reduce(arguments, region, shm.cursor.step, arguments.send)?;
        }
        shm.finish(words[2]);
        if role == OneStepRole::Exchange {
            // All peers have published this step. They do not read this rank's next control slot
            // before they enter the next operation.
            shm.prefetch_own_line();
        }
        let leaves_sleepers = is_slot_receiver || has_all_payloads && !is_oversubscribed;
        Ok(FastProgress::Done { leaves_sleepers })
    }
}

/// Returns the error for a plan that was replaced during its call. The call holds the lock of the
/// plans, so this cannot happen.
#[cold]
fn missing_plan() -> Error {
    Error::internal("the plan of a fast call was replaced during the call")
}

impl<'a> SequencerCore<'a> {
    /// Publishes this rank's payload. Returns `None` if a peer has not yet read the old contents of
    /// the slot, or if the arguments do not belong to the plan. The full path then reports the
    /// reason.
    #[inline(always)]
    fn publish_payload(
        &mut self,
        plan: &OneStepPlan,
        arguments: &CallArguments<'_>,
        words: &[u64; 3],
    ) -> Option<()> {
        let slot = self.reserve_part(plan.has_slot_payload(arguments), plan.slot_bytes_used)?;
        self.enter(words, arguments.label);
        let mut inline_payload = [0; INLINE_BYTES];
        let len = plan.pack(arguments, &mut inline_payload, slot).ok()?;
        let finished = self.cursor.step + u64::from(plan.role == OneStepRole::Send);
        let payload = &inline_payload[..len];
        self.store(words, arguments.label, payload, finished, CtrlSlot::publish_unfenced);
        Some(())
    }

    /// Reserves the memory for the payload of the next step.
    ///
    /// - If `is_filled`, the payload goes to the data slot. Returns the part of the slot that the
    ///   next step uses (`slot_bytes_used` bytes), or `None` if a rank has not finished reading the
    ///   old contents of the data slot.
    /// - Otherwise, the payload goes to the control slot. Returns an empty buffer, or `None` if a
    ///   rank has not finished reading the old contents of the control slot.
    #[inline]
    fn reserve_part(&mut self, is_filled: bool, slot_bytes_used: usize) -> Option<Dst<'a>> {
        if !self.can_store(if is_filled { DATA_SLOT_COUNT } else { CTRL_SLOT_COUNT }) {
            return None;
        }
        match is_filled {
            // If the memory of the data slot cannot be allocated, the full path reports the error.
            true => {
                self.region.own_slot_part(self.rank, self.cursor.step + 1, slot_bytes_used).ok()
            }
            false => Some(Dst::empty()),
        }
    }

    /// Returns whether all ranks have finished the step that is `before` steps before the next
    /// step.
    #[inline]
    fn can_store(&mut self, before: u64) -> bool {
        let step = (self.cursor.step + 1).saturating_sub(before);
        self.cursor.finished_by_all >= step || {
            let finished_step =
                self.others().map(|rank| self.region.progress(rank).finished_step()).min();
            // A peer can write any value to its progress word, so the value is limited to this
            // rank's own step.
            let finished_step = finished_step.unwrap_or(step).min(self.cursor.step);
            self.cursor.finished_by_all = self.cursor.finished_by_all.max(finished_step);
            finished_step >= step
        }
    }

    /// Polls once for each rank that this rank waits for. Does not stop at the first failed poll,
    /// so that the CPU requests the cache lines of all control slots in parallel.
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

    /// Polls again for each rank that this rank waits for, at most `max_polls` times per rank.
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

    /// Yields the core to other ranks until all senders have published their payloads, at most a
    /// few times.
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

    /// Prefetches this rank's next control slot for writing. The caches of the peers hold the cache
    /// line of that slot since the peers last read it.
    #[inline]
    fn prefetch_own_line(&self) {
        self.region.ctrl_slot(self.rank, self.cursor.step + 1).prefetch_write();
    }

    /// Returns whether all senders to this rank called the same operation as this rank.
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
