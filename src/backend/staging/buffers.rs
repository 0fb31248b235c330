//! The staging buffers of a group: pinned host memory through which data moves to and from the GPU,
//! and the copies between this memory and the GPU.
//!
//! There are two double buffers, one for copies from the device and one for copies to the device.
//! Each double buffer has its own stream and two halves, so that the device copies in both
//! directions while the host works on the other halves.
//!
//! ```text
//! round 2       half 0                    half 1
//! from_device   host reads piece 2        device copies piece 3 from the GPU into this half
//! to_device     host writes result 2      device copies result 1 from this half to the GPU
//! ```
//!
//! A half that the device may still use is *busy*. A busy half is neither reused nor freed until
//! the event behind its copies is complete. If the device hangs, the event never completes, and the
//! memory is leaked.
#![allow(unsafe_code, reason = "the device copies memory without the compiler's knowledge")]

use crate::backend::GroupFailureState;
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::log::LogLevel;
use crate::device::{CudaContext, CudaEvent, CudaStream, PinnedMemory};
use crate::wait::poll_backoff::PollBackoff;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

/// The maximum pause between two polls of the device.
const MAX_POLL_INTERVAL: Duration = Duration::from_micros(200);

/// The time for which the host waits for the copies of the device after an operation or the group
/// has failed.
pub(super) const DRAIN_WAIT: Duration = Duration::from_secs(5);

/// The conditions that end a wait for the device early.
#[derive(Clone, Copy, Debug)]
pub(super) struct StagingWaitLimits<'a> {
    pub(super) deadline: &'a Deadline,
    /// The failure state of the group; `None` if the wait continues after a failure.
    pub(super) failure_state: Option<&'a dyn GroupFailureState>,
}

/// The staging buffer for copies in one direction. It has two halves.
#[derive(Debug)]
pub(super) struct StagingDoubleBuffer {
    context: Arc<CudaContext>,
    /// True if the copies go from the device to the host.
    is_from_device: bool,
    stream: CudaStream,
    events: [CudaEvent; 2],
    is_busy: [bool; 2],
    /// The half whose copies began last.
    newest_half: usize,
    /// True if the device, or the engine that sends and receives messages, may use the memory and
    /// no event tracks this use. The memory then counts as in use forever.
    is_untracked: bool,
    /// The size of a half in bytes.
    half_bytes: usize,
    /// The memory of both halves. It is allocated at the first use.
    memory: Option<PinnedMemory>,
}

/// The double buffers of both directions.
#[derive(Debug)]
pub(super) struct StagingBuffers {
    /// The buffer for copies from the device.
    pub(super) from_device: StagingDoubleBuffer,
    /// The buffer for copies to the device.
    pub(super) to_device: StagingDoubleBuffer,
}

impl StagingWaitLimits<'_> {
    /// Polls the device until `is_over` returns true. `what` describes the awaited work for the
    /// error text.
    ///
    /// # Errors
    /// The error of `is_over`, the failure of the group, or `Timeout`.
    pub(super) fn wait(
        &self,
        what: &dyn Display,
        is_over: impl Fn() -> Result<bool>,
    ) -> Result<()> {
        let mut poller = PollBackoff::new(MAX_POLL_INTERVAL);
        while !is_over()? {
            self.failure_state.map_or(Ok(()), GroupFailureState::check_failure)?;
            if self.deadline.has_passed() {
                let ms = self.deadline.elapsed().as_millis();
                let message = format!("{what} did not complete on the device within {ms} ms");
                return Err(Error::new(ErrorKind::Timeout, message));
            }
            poller.wait_before_retry(self.deadline);
        }
        Ok(())
    }

    /// Waits for the work that was in the caller's stream before the operation: polls until
    /// `is_complete` returns true.
    ///
    /// # Errors
    /// The errors of [`StagingWaitLimits::wait`].
    pub(super) fn await_stream(&self, is_complete: impl Fn() -> Result<bool>) -> Result<()> {
        self.wait(&"the earlier work of the stream", is_complete)
    }
}

impl StagingDoubleBuffer {
    fn new(context: &Arc<CudaContext>, is_from_device: bool, chunk: usize) -> Result<Self> {
        Ok(Self {
            context: Arc::clone(context),
            is_from_device,
            stream: CudaStream::new(context, false)?,
            events: [CudaEvent::new(context)?, CudaEvent::new(context)?],
            is_busy: [false; 2],
            newest_half: 0,
            is_untracked: false,
            half_bytes: chunk,
            memory: None,
        })
    }

    /// Returns the memory of a half. Allocates the memory at the first use.
    pub(super) fn half_memory(&mut self, half: usize) -> Result<Dst<'static>> {
        let pinned = match self.memory.take() {
            Some(memory) => memory,
            None => PinnedMemory::new(&self.context, 2 * self.half_bytes)?,
        };
        let view = pinned.view().slice(half * self.half_bytes, self.half_bytes);
        self.memory = Some(pinned);
        Ok(view)
    }

    /// Begins copies between device memory and a half, in the direction of the buffer. The half
    /// must not be busy.
    pub(super) fn begin_copies(
        &mut self,
        half: usize,
        copies: &[(Src<'_>, Dst<'_>)],
    ) -> Result<()> {
        let mut copies = copies.iter().filter(|(from, _)| !from.is_empty()).peekable();
        if copies.peek().is_none() {
            return Ok(());
        }
        if self.is_busy[half] {
            return Err(Error::internal("staging memory is reused while the device copies it"));
        }
        // The half becomes busy before the first copy, because a later copy may fail while the
        // first one is running.
        self.is_busy[half] = true;
        self.newest_half = half;
        let submitted = copies.try_for_each(|&(from, into)| match self.is_from_device {
            // SAFETY: the staging memory stays allocated while it is busy. The caller's memory
            // stays valid until the operation ends. Before it ends, the operation waits for the
            // event, or reports that the device may still use the memory.
            true => unsafe { self.stream.copy_to_host(from, into) },
            // SAFETY: as above.
            false => unsafe { self.stream.copy_to_device(from, into) },
        });
        // The event is recorded behind the copies that have begun, even if a copy has failed.
        let marked = self.events[half].record(self.stream.handle());
        self.is_untracked |= marked.is_err();
        submitted.and(marked)
    }

    /// Waits until the device has completed the copies of a half.
    ///
    /// # Errors
    /// The errors of [`StagingWaitLimits::wait`].
    pub(super) fn wait_half(&mut self, half: usize, limits: StagingWaitLimits<'_>) -> Result<()> {
        if self.is_busy[half] {
            limits.wait(&"a copy", || self.events[half].is_over())?;
            self.is_busy[half] = false;
        }
        Ok(())
    }

    /// Returns true if the device has completed the copies of a half.
    ///
    /// # Errors
    /// `Backend`.
    pub(super) fn is_half_free(&mut self, half: usize) -> Result<bool> {
        if self.is_busy[half] && self.events[half].is_over()? {
            self.is_busy[half] = false;
        }
        Ok(!self.is_busy[half])
    }

    /// Returns the halves in the order in which their copies began.
    pub(super) fn oldest_first(&self) -> [usize; 2] {
        [1 - self.newest_half, self.newest_half]
    }

    /// Marks the memory as in use forever, so that it is never freed.
    pub(super) fn leak_memory(&mut self) {
        self.is_untracked = true;
    }

    /// After an error, waits until the device has completed all copies. Returns false if it is not
    /// certain at `limit` that all copies are complete.
    fn drain(&mut self, limit: &Deadline) -> bool {
        let limits = StagingWaitLimits { deadline: limit, failure_state: None };
        let halves_done = [0, 1].map(|half| self.wait_half(half, limits).is_ok());
        halves_done == [true; 2] && !self.is_untracked
    }
}

impl Drop for StagingDoubleBuffer {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        if self.is_busy != [false; 2] || self.is_untracked {
            let device = self.context.device();
            crate::log!(
                LogLevel::Error,
                "staging memory of device {device} is still in use, and is leaked"
            );
            return;
        }
        // SAFETY: the device has completed its copies, and no view of the memory outlives the
        // operation for which it was made.
        unsafe { memory.free() }
    }
}

impl StagingBuffers {
    pub(super) fn new(context: &Arc<CudaContext>, chunk: usize) -> Result<Self> {
        Ok(Self {
            from_device: StagingDoubleBuffer::new(context, true, chunk)?,
            to_device: StagingDoubleBuffer::new(context, false, chunk)?,
        })
    }

    /// After an error, waits until no copy uses the caller's buffers, and returns the error. If
    /// copies are still running at the limit, the function adds to the error text that the device
    /// may still use the buffers.
    pub(super) fn drain(&mut self, error: Error) -> Error {
        let limit = Deadline::after(DRAIN_WAIT);
        let is_drained = self.from_device.drain(&limit) & self.to_device.drain(&limit);
        if is_drained { error } else { undrained_error(error) }
    }
}

/// Adds to an error text that the device may still use the buffers.
pub(super) fn undrained_error(error: Error) -> Error {
    error.context("the device did not complete its copies, and may still use the buffers")
}
