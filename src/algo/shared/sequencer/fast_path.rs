//! The short way of an operation that is over with one step, for a call that blocks and has its
//! turn at once.
//!
//! It is for calls whose like has been there before: what is the same for all of these is kept as a
//! [`FastPathPlan`].
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
use crate::base::spin;
use crate::kernel::ResolvedFold;
use crate::transport::ctrl_slot::{CtrlSlot, INLINE_BYTES};
use crate::transport::region::{CTRL_SLOT_COUNT, DATA_SLOT_COUNT};
use crate::transport::{Descriptor, SharedDomain};

/// How often it looks for a rank again, after the first time: some microseconds.
const MAX_POLLS: u32 = 300;

/// How far an operation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastPathOutcome {
    /// Nothing has happened.
    NotStarted,
    /// It has begun: this rank's line is published, or a plug-in has it.
    Published,
    /// It is over.
    Done,
    /// It is over, and whoever sleeps until this rank's line is there has not been rung for.
    WakeupPending,
    /// It is over, and has taken longer than a moment.
    DoneAfterWait,
}

/// What all calls of one key have in common on this rank.
#[derive(Clone, Copy, Debug)]
pub struct FastPathPlan {
    key: FastCallKey,
    row: &'static OneStepAlgorithm,
    role: OneStepRole,
    /// How much of its slot each rank uses.
    slot_bytes_used: usize,
    /// The words of the descriptor, with any sequence number and without a label.
    words: [u64; 3],
    rank: Rank,
    /// Who waits here sleeps, and is woken first.
    is_oversubscribed: bool,
    resolved_fold: Option<ResolvedFold>,
}

impl FastPathPlan {
    /// Of a call that goes by the algorithm with this number.
    ///
    /// # Errors
    /// `Internal` for an operation without what its lines need.
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

    /// Whose it is.
    pub fn key(&self) -> FastCallKey {
        self.key
    }

    /// Does what can be done at once of the operation with this sequence number. `on_start` is
    /// called once the others have this rank's line, with the words of its descriptor.
    ///
    /// # Errors
    /// `Internal` for an operation that is not its own.
    pub fn run(
        &self,
        domain: &dyn SharedDomain,
        cursor: &mut ShmCursor,
        (arguments, sequence): (&CallArguments<'_>, u64),
        on_start: impl FnOnce(&[u64; 3]),
    ) -> Result<FastPathOutcome> {
        // Each place has code of its own, without what the other one takes.
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

    /// At a place that the compiler knows.
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
            is_oversubscribed: crowded,
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
        let mut line = [0; INLINE_BYTES];
        let len = row.pack_payload((arguments, part), &mut line, slot)?;
        let finished = shm.cursor.step + u64::from(part == OneStepRole::Send);
        shm.store((&words, arguments.label), &line[..len], finished, CtrlSlot::publish_unfenced);
        on_start(&words);
        // Somebody may wait until this rank has read its slot, and for nothing else that it does.
        let is_slot_receiver = location == PayloadLocation::DataSlot && !part.is_sender();
        if crowded && !is_slot_receiver {
            shm.wake_others();
        }
        let has_all_payloads = shm.poll_senders(part);
        let is_over = has_all_payloads || {
            if !crowded && !is_slot_receiver {
                shm.wake_others();
            }
            if crowded {
                shm.poll_senders_yielding(part)
            } else {
                shm.poll_senders_again(part, if cfg!(loom) { 1 } else { MAX_POLLS })
            }
        };
        if !(is_over && shm.verify_senders(part)) {
            return Ok(FastPathOutcome::Published);
        }
        if part != OneStepRole::Send {
            let own_payload = row.own_payload(arguments, &line, slot.as_src());
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
            // The others have finished too, and do not look there yet.
            shm.prefetch_own_line();
        }
        Ok(if is_slot_receiver || has_all_payloads && !crowded {
            FastPathOutcome::WakeupPending
        } else {
            FastPathOutcome::Done
        })
    }
}

/// After a fence, wakes whoever waits for what an operation has stored that was
/// [`FastPathOutcome::WakeupPending`].
pub fn wake_sleeping_peers(domain: &dyn SharedDomain) {
    let rank = domain.rank();
    let others = (0..domain.size()).filter(|&other| other != rank);
    sequencer_core::wake_ranks_fenced(domain, domain.region(), others);
}

impl<'a> SequencerCore<'a> {
    /// So much of this rank's slot for the coming step, if it is filled, once all have finished
    /// with what that holds; nothing else, once they have with what the line does.
    #[inline]
    fn reserve_part(&mut self, is_filled: bool, slot_bytes_used: usize) -> Option<Dst<'a>> {
        if !self.can_store(if is_filled { DATA_SLOT_COUNT } else { CTRL_SLOT_COUNT }) {
            return None;
        }
        match is_filled {
            // Where there is no memory the long way says so.
            true => {
                self.region.own_slot_part(self.rank, self.cursor.step + 1, slot_bytes_used).ok()
            }
            false => Some(Dst::empty()),
        }
    }

    /// Whether all have finished with the step that is so many before the coming one.
    #[inline]
    fn can_store(&mut self, before: u64) -> bool {
        let step = (self.cursor.step + 1).saturating_sub(before);
        self.cursor.finished_by_all >= step || {
            let finished_step =
                self.others().map(|rank| self.region.progress(rank).finished_step()).min();
            // No further than this rank itself, whatever is written there.
            let finished_step = finished_step.unwrap_or(step).min(self.cursor.step);
            self.cursor.finished_by_all = self.cursor.finished_by_all.max(finished_step);
            finished_step >= step
        }
    }

    /// Looks for all that it needs, so that all lines are asked for.
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

    /// Looks again, so often.
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

    /// Gives the core to the others until all have come that it waits for, or a few times.
    fn poll_senders_yielding(&self, role: OneStepRole) -> bool {
        let poll = || self.poll_senders_again(role, 1).then_some(());
        self.yield_to_missing(poll, |rank| self.has_published(rank)).is_some()
    }

    /// Looks for a rank until it has come, or so often.
    fn poll_rank_again(&self, rank: Rank, max_polls: u32) -> bool {
        let step = self.cursor.step;
        let line = self.region.ctrl_slot(rank, step);
        spin::spin_until(max_polls, || line.step() >= step)
    }

    /// Asks for this rank's coming line, which others have had since they read it.
    #[inline]
    fn prefetch_own_line(&self) {
        self.region.ctrl_slot(self.rank, self.cursor.step + 1).prefetch_write();
    }

    /// Whether those whom it has heard do the same.
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
