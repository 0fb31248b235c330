//! Log and error messages of the sequencer's waits: the missing ranks, the ranks that have left,
//! and the first mismatch between two ranks.

use super::ShmSequencer;
use crate::algo::mismatch_text::{LabelMismatch, describe_against};
use crate::base::error::{Error, ErrorKind, RankFault};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::transport::Descriptor;
use crate::transport::ctrl_slot::CtrlSlot;
use crate::transport::heartbeat::{format_activity_answer, without_contradiction};
use crate::transport::region::CTRL_SLOT_COUNT;
use crate::wait::slow_wait::DisplaySeconds;

impl ShmSequencer<'_> {
    /// Returns whether a rank and this rank have both published a step, but with different call
    /// fingerprints (hashes over all operations that a rank has issued).
    pub(super) fn has_mismatch(&self, rank: Rank, step: u64) -> bool {
        let region = self.shm.region;
        let (ours, theirs) = (region.ctrl_slot(self.shm.rank, step), region.ctrl_slot(rank, step));
        let both = || ours.step() == step && theirs.step() == step;
        both() && ours.call_fingerprint() != theirs.call_fingerprint() && both()
    }

    /// Returns the error about a rank that has left or died.
    pub(in crate::algo::shared) fn departure_error(&self, rank: Rank) -> Option<Error> {
        if !self.shm.domain.has_ended(rank) {
            return None;
        }
        self.shm.domain.death(rank).or_else(|| {
            let name = self.shm.domain.peer(rank);
            let doing = self.shm.region.describe_progress(rank);
            let message = format!("{name} has left the group; it {doing}");
            let error = Error::new(ErrorKind::PeerFailed, message).with_culprit(name.rank);
            Some(error.with_fault(RankFault::Left))
        })
    }

    /// Returns the error about a dead rank that this rank needs in the operation, and that has not
    /// entered it. Such an operation can never complete. The rank for which this rank waits may be
    /// another one, which is alive and itself needs the dead rank. Of several, returns the rank
    /// that died first, because the others may have ended because of its death.
    pub(super) fn needed_death(&self) -> Option<Error> {
        let Self { shm, operation, .. } = self;
        if !shm.domain.has_deaths() {
            return None;
        }
        let Descriptor { kind, root, .. } = operation.descriptor;
        let order_key = operation.descriptor.order_key();
        let is_missing = |&rank: &Rank| {
            kind.needs_rank(root, shm.rank, rank)
                && !shm.region.progress(rank).has_entered(order_key)
        };
        let first = shm.domain.first_death()?;
        let is_first = |rank: Rank| first.culprit() == Some(shm.domain.peer(rank).rank);
        if shm.others().filter(is_missing).any(is_first) {
            return Some(first);
        }
        shm.others().filter(is_missing).find_map(|rank| shm.domain.death(rank))
    }

    /// Logs a long wait.
    #[cold]
    pub(super) fn log_long_wait(&self, waited: DisplaySeconds, arrived: &impl Fn(Rank) -> bool) {
        let missing: Vec<Rank> = self.others().filter(|&rank| !arrived(rank)).collect();
        crate::log!(
            LogLevel::Warn,
            "{} of group {}: {} has waited {waited} for {}",
            self.operation.descriptor,
            self.operation.group,
            self.shm.domain.peer(self.shm.rank),
            self.describe_ranks(&missing)
        );
    }

    /// Returns a text with the name and the last known activity of each rank.
    fn describe_ranks(&self, ranks: &[Rank]) -> String {
        let region = self.shm.region;
        let describe_rank = |(&rank, answer): (&Rank, Option<String>)| {
            let is_in_operation = region.progress(rank).is_in_operation();
            let (name, doing) = (self.shm.domain.peer(rank), region.describe_progress(rank));
            let answer = answer.map(|answer| without_contradiction(answer, is_in_operation));
            format!("{name}, which {doing}{}", format_activity_answer(answer.as_deref()))
        };
        ranks
            .iter()
            .zip(self.shm.domain.query_activities(ranks))
            .map(describe_rank)
            .collect::<Vec<_>>()
            .join("; ")
    }

    pub(super) fn timeout_error(&self, arrived: impl Fn(Rank) -> bool) -> Error {
        let missing: Vec<Rank> = self.others().filter(|&rank| !arrived(rank)).collect();
        let deadline = self.operation.deadline();
        let message = format!(
            "{} of {} timed out after {} ms (allowed: {} ms) waiting for {}",
            self.operation.descriptor,
            self.shm.domain.peer(self.shm.rank),
            deadline.elapsed().as_millis(),
            deadline.timeout().as_millis(),
            self.describe_ranks(&missing)
        );
        let error = Error::new(ErrorKind::Timeout, message);
        match missing.first() {
            Some(&rank) => error.with_culprit(self.shm.domain.peer(rank).rank),
            None => error,
        }
    }

    /// Returns the error for the first operation in which the calls of this rank and another rank
    /// differ. The search goes back as far as the control slots of both ranks.
    pub(super) fn mismatch_error(&self, rank: Rank) -> Error {
        let region = self.shm.region;
        let first = self.shm.cursor.step.saturating_sub(CTRL_SLOT_COUNT - 1).max(1);
        let first_mismatch =
            (first..=self.shm.cursor.step).find(|&step| self.has_mismatch(rank, step));
        let step = first_mismatch.unwrap_or(self.shm.cursor.step);
        let (ours, theirs) = (region.ctrl_slot(self.shm.rank, step), region.ctrl_slot(rank, step));
        let called = |rank: Rank, slot: &CtrlSlot| {
            slot.descriptor().map(|descriptor| region.with_label(rank, descriptor))
        };
        let (one, other) = (called(self.shm.rank, ours), called(rank, theirs));
        let algorithm_name = self.shm.cursor.algorithm_name;
        let describe = |one: Option<Descriptor>, other: Option<Descriptor>| match one {
            None => "an unreadable operation".to_owned(),
            Some(one) => describe_against(&one, &other.unwrap_or(one), algorithm_name),
        };
        let (me, peer) = (self.shm.domain.peer(self.shm.rank), self.shm.domain.peer(rank));
        let (own_call, peer_call) = (describe(one, other), describe(other, one));
        // If the two calls are equal, the ranks differed in an operation that is older than all
        // control slots.
        let message = if own_call == peer_call {
            format!(
                "ranks called different operations: {me} and {peer} agree on {own_call}, but not on the calls before it"
            )
        } else {
            let calls = match one.filter(|it| !it.label.is_none()) {
                Some(Descriptor { sequence, .. }) => {
                    let labels = |rank| region.labels(rank).labels_of(sequence);
                    LabelMismatch::find(&labels(self.shm.rank), &labels(rank)).to_string()
                }
                None => String::new(),
            };
            format!(
                "ranks called different operations: {me} called {own_call}, but {peer} called {peer_call}{calls}"
            )
        };
        Error::new(ErrorKind::Mismatch, message).with_culprit(self.shm.domain.peer(rank).rank)
    }
}
