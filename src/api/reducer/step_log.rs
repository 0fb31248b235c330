//! The data that the operations of a step record for its end: copies that wait for the agreement,
//! results of sparse gradients, updates of a hook, and statistics.

use super::ballot::Ballot;
use super::device::GradStream;
use super::hook::PowerUpdate;
use super::memory::GradBlock;
use super::sparse::SparseResult;
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, Result};
use crate::base::sync::lock;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A copy that waits for the agreement at the end of the step.
#[derive(Debug)]
pub(super) struct DeferredCopy {
    pub(super) param: usize,
    pub(super) when: DeferredCondition,
    pub(super) bytes: DeferredBytes,
    pub(super) to: Dst<'static>,
}

/// The condition under which a deferred copy is made: always, only if a rank used the parameter, or
/// only if no rank used the parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeferredCondition {
    Always,
    Used,
    Unused,
}

impl DeferredCondition {
    /// Returns the condition of a result that is delivered only if a rank used the parameter, or
    /// always.
    pub(super) fn used_or_always(only_if_used: bool) -> Self {
        if only_if_used { Self::Used } else { Self::Always }
    }
}

/// The source of a deferred copy.
#[derive(Debug)]
pub(super) enum DeferredBytes {
    Owned(Arc<[u8]>),
    InPlace(Src<'static>),
    /// Device memory. `_held` is the block with the bytes, if the bytes are a copy that was set
    /// aside.
    OnDevice {
        bytes: Src<'static>,
        _held: Option<Arc<GradBlock>>,
    },
}

impl DeferredCopy {
    fn copy(&self, device: Option<&GradStream>) -> Result<()> {
        match (&self.bytes, device) {
            (DeferredBytes::Owned(bytes), _) => self.to.copy_from(Src::from(&bytes[..])),
            (DeferredBytes::InPlace(bytes), _) => self.to.copy_from(*bytes),
            (DeferredBytes::OnDevice { bytes, .. }, Some(stream)) => {
                stream.copy(*bytes, self.to)?
            }
            (DeferredBytes::OnDevice { .. }, None) => {
                return Err(Error::internal("the reducer has no stream for a device gradient"));
            }
        }
        Ok(())
    }

    /// Copies if the agreement fulfils the condition. Returns the number of copied bytes.
    fn settle(&self, ballot: &Ballot, device: Option<&GradStream>) -> Result<usize> {
        let applies = match self.when {
            DeferredCondition::Always => true,
            DeferredCondition::Used => ballot.is_used(self.param),
            DeferredCondition::Unused => !ballot.is_used(self.param),
        };
        if !applies {
            return Ok(0);
        }
        self.copy(device)?;
        Ok(self.to.len())
    }
}

/// The data that the buckets of a step record for its end.
#[derive(Debug, Default)]
pub(super) struct StepLog {
    notes: Mutex<StepNotes>,
}

/// The contents of a [`StepLog`].
#[derive(Debug, Default)]
pub(super) struct StepNotes {
    pub(super) deferred: Vec<DeferredCopy>,
    /// The reduced rows of sparse gradients, by parameter.
    pub(super) sparse: Vec<(usize, SparseResult)>,
    /// Updates that a hook keeps if the ranks agree on the step.
    pub(super) hook_updates: Vec<PowerUpdate>,
    pub(super) bytes_reduced: u64,
    /// The number of bytes sent, in the encoding of the hook.
    pub(super) bytes_sent: u64,
    pub(super) bytes_copied: u64,
    /// The sum of the durations of all operations.
    pub(super) communication: Duration,
    pub(super) last_end: Option<Instant>,
}

impl StepLog {
    pub(super) fn lock(&self) -> MutexGuard<'_, StepNotes> {
        lock(&self.notes)
    }
}

impl StepNotes {
    /// Makes the copies that waited for the agreement. Returns all deferred copies, which hold the
    /// device memory of their sources. The caller drops them after the device has completed the
    /// copies.
    ///
    /// # Errors
    /// `Backend`, from a device.
    pub(super) fn settle(
        &mut self,
        ballot: &Ballot,
        device: Option<&GradStream>,
    ) -> Result<Vec<DeferredCopy>> {
        let deferred = std::mem::take(&mut self.deferred);
        for copy in &deferred {
            self.bytes_copied += copy.settle(ballot, device)? as u64;
        }
        Ok(deferred)
    }

    /// Restores the gradients that zeros have overwritten, before the step is retried. Returns the
    /// same as [`Self::settle`].
    ///
    /// # Errors
    /// `Backend`, from a device.
    pub(super) fn undo(&mut self, device: Option<&GradStream>) -> Result<Vec<DeferredCopy>> {
        self.sparse.clear();
        self.hook_updates.clear();
        let deferred = std::mem::take(&mut self.deferred);
        let overwritten = deferred.iter().filter(|copy| copy.when == DeferredCondition::Unused);
        overwritten.map(|copy| copy.copy(device)).collect::<Result<Vec<()>>>()?;
        Ok(deferred)
    }
}
