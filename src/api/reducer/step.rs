//! One synchronised step (a step in which gradients are reduced): the marked gradients, the sent
//! buckets, and the times of events.
//!
//! This module does not depend on when steps begin and end, or on the votes.

use super::device::GradStream;
use super::memory::GradMemory;
use super::options::MissingPolicy;
use super::param::Param;
use super::sparse::SparseInput;
use super::step_log::StepLog;
use super::weights::{StepSums, StepWeights};
use crate::api::work::handle::Work;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// The state of a gradient in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GradMark {
    /// The gradient was not marked.
    Open,
    /// The gradient is ready.
    Ready,
    /// The caller marked the parameter as not used on this rank.
    Unused,
    /// The caller did not mark the gradient before the end.
    Missing,
}

impl GradMark {
    /// Returns whether a parameter with this mark keeps its gradient if no rank used it.
    pub(super) fn keeps_unused(self, missing: MissingPolicy) -> bool {
        self == Self::Unused || missing == MissingPolicy::Skip
    }
}

/// The times of events in a step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepTimes {
    pub(super) begun: Option<Instant>,
    pub(super) first_ready: Option<Instant>,
    pub(super) last_ready: Option<Instant>,
    pub(super) first_sent: Option<Instant>,
    pub(super) ended: Option<Instant>,
}

/// A synchronised step.
#[derive(Debug)]
pub(super) struct ReducerStep {
    pub(super) number: u64,
    pub(super) weight: f64,
    /// Whether this rank has no data and contributes zeros.
    pub(super) is_joined: bool,
    pub(super) marks: Vec<GradMark>,
    /// How often each parameter was marked.
    pub(super) counts: Vec<u32>,
    /// For each bucket, the number of gradients whose state is still [`GradMark::Open`].
    left: Vec<usize>,
    /// Whether no bucket is sent before the end of the step, because the number of marks of each
    /// parameter or the factor of a bucket on a device is not known yet.
    pub(super) is_held_back: bool,
    /// The number of buckets that were sent.
    pub(super) sent: usize,
    pub(super) works: Vec<Arc<Work>>,
    pub(super) sums: Option<Arc<StepSums>>,
    pub(super) log: Arc<StepLog>,
    /// The rows of sparse gradients, by parameter.
    pub(super) sparse: HashMap<usize, SparseInput>,
    /// The order in which gradients became ready.
    pub(super) order: Vec<usize>,
    /// The reason why buckets can no longer be sent.
    pub(super) failure: Option<Error>,
    /// The votes of all ranks, after the ranks have agreed on the step.
    pub(super) votes: Arc<OnceLock<u64>>,
    pub(super) times: StepTimes,
}

impl ReducerStep {
    pub(super) fn new(number: u64, memory: &GradMemory, weight: f64, is_joined: bool) -> Self {
        let params = memory.layout.positions.len();
        let left = memory.layout.buckets.iter().map(|bucket| bucket.params.len()).collect();
        Self {
            number,
            weight,
            is_joined,
            marks: vec![GradMark::Open; params],
            counts: vec![0; params],
            left,
            is_held_back: false,
            sent: 0,
            works: Vec::new(),
            sums: None,
            log: Arc::default(),
            sparse: HashMap::new(),
            order: Vec::new(),
            failure: None,
            votes: Arc::default(),
            times: StepTimes { begun: Some(Instant::now()), ..StepTimes::default() },
        }
    }

    /// Records the state of a gradient.
    pub(super) fn resolve(&mut self, memory: &GradMemory, param: usize, mark: GradMark) {
        let Some(position) = memory.layout.positions[param] else { return };
        self.marks[param] = mark;
        self.left[position.bucket] -= 1;
        if mark == GradMark::Ready {
            let now = Instant::now();
            self.times.first_ready.get_or_insert(now);
            self.times.last_ready = Some(now);
            self.order.push(param);
        }
    }

    /// Returns this rank's contribution to the weights.
    pub(super) fn weights(&self) -> StepWeights {
        let weight = if self.is_joined { 0.0 } else { self.weight };
        StepWeights { is_active: !self.is_joined, weight }
    }

    /// Returns [`Self::failure`], the reason why buckets can no longer be sent, as an error.
    pub(super) fn check_failure(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Returns whether the next bucket can be sent.
    pub(super) fn has_full_bucket(&self) -> bool {
        self.failure.is_none()
            && !self.is_held_back
            && self.left.get(self.sent).is_some_and(|&left| left == 0)
    }

    /// Returns the parameters with a gradient that were not marked.
    pub(super) fn unmarked<'s>(&'s self, params: &'s [Param]) -> impl Iterator<Item = usize> + 's {
        let is_open =
            |&index: &usize| params[index].is_trained() && self.marks[index] == GradMark::Open;
        (0..params.len()).filter(is_open)
    }

    /// Returns the order in which gradients became ready, followed by the remaining gradients.
    pub(super) fn whole_order(&self, params: &[Param]) -> Vec<usize> {
        let is_left =
            |&param: &usize| params[param].is_trained() && self.marks[param] != GradMark::Ready;
        let rest = (0..params.len()).rev().filter(is_left);
        self.order.iter().copied().chain(rest).collect()
    }

    /// Prepares the step for a retry with the same gradients: no bucket counts as sent, and
    /// overwritten gradients are restored.
    ///
    /// # Errors
    /// `Backend` and `Timeout`, from a device.
    pub(super) fn rewind(&mut self, device: Option<&GradStream>, limit: &Deadline) -> Result<()> {
        self.sent = 0;
        self.works.clear();
        self.sums = None;
        self.failure = None;
        let _held = self.log.lock().undo(device)?;
        device.map_or(Ok(()), |stream| stream.drain(limit))
    }
}

/// Returns the error of a second mark of a gradient.
pub(super) fn marked_twice(name: &str, step: u64) -> Error {
    Error::invalid(format!(
        "parameter \"{name}\" was marked twice in step {step}: mark each gradient once, when it is complete"
    ))
}
