//! The staging memory of a group, and what the device copies to it and from it.
//!
//! There is as much for what comes in as for what goes out, each with a stream of its own and in
//! two halves, so that the device copies both ways while the host works on a third piece. A half
//! that the device may still use is *busy*: it is neither used again nor given back until its event
//! was seen to be over. Where the device hangs, that is never, and the memory is left to it.
#![allow(
    unsafe_code,
    reason = "copies are left to the device, of which the compiler knows nothing"
)]

use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::log::LogLevel;
use crate::device::{CudaContext, CudaEvent, CudaStream, PinnedMemory};
use crate::wait::poll_backoff::PollBackoff;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

/// The longest pause between two looks at the device.
const MAX_POLL_INTERVAL: Duration = Duration::from_micros(200);

/// How long a device has for copies that it has begun, once an operation has failed.
const DRAIN_WAIT: Duration = Duration::from_secs(5);

/// What ends a wait for the device early.
#[derive(Clone, Copy)]
pub(super) struct StagingWaitLimits<'a> {
    pub(super) deadline: &'a Deadline,
    pub(super) check_failure: &'a dyn Fn() -> Option<Error>,
}

/// One direction.
#[derive(Debug)]
pub(super) struct StagingDoubleBuffer {
    context: Arc<CudaContext>,
    stream: CudaStream,
    events: [CudaEvent; 2],
    is_busy: [bool; 2],
    /// Which half was begun last.
    newest_half: usize,
    /// Something was left to the device that no event is behind: it is never known to be over.
    is_untracked: bool,
    /// The bytes of a half.
    half_bytes: usize,
    /// Both halves, from the first use on.
    memory: Option<PinnedMemory>,
}

/// Both directions.
#[derive(Debug)]
pub(super) struct StagingBuffers {
    /// From the device.
    pub(super) from_device: StagingDoubleBuffer,
    /// To the device.
    pub(super) to_device: StagingDoubleBuffer,
}

impl StagingWaitLimits<'_> {
    /// Looks at the device until it is done with something.
    ///
    /// # Errors
    /// What `is_over` says, why the wait was halted, or `Timeout`.
    pub(super) fn wait(
        &self,
        what: &dyn Display,
        is_over: impl Fn() -> Result<bool>,
    ) -> Result<()> {
        let mut poller = PollBackoff::new(MAX_POLL_INTERVAL);
        while !is_over()? {
            if let Some(error) = (self.check_failure)() {
                return Err(error);
            }
            if self.deadline.has_passed() {
                let ms = self.deadline.elapsed().as_millis();
                let message = format!("{what}: the device was not done with it within {ms} ms");
                return Err(Error::new(ErrorKind::Timeout, message));
            }
            poller.wait_before_retry(self.deadline);
        }
        Ok(())
    }
}

impl StagingDoubleBuffer {
    pub(super) fn new(context: &Arc<CudaContext>, chunk: usize) -> Result<Self> {
        let stream = CudaStream::new(context, false)?;
        let events = [CudaEvent::new(context)?, CudaEvent::new(context)?];
        let context = Arc::clone(context);
        Ok(Self {
            context,
            stream,
            events,
            is_busy: [false; 2],
            newest_half: 0,
            is_untracked: false,
            half_bytes: chunk,
            memory: None,
        })
    }

    /// The memory of a half.
    pub(super) fn half_memory(&mut self, half: usize) -> Result<Dst<'static>> {
        let pinned = match self.memory.take() {
            Some(memory) => memory,
            None => PinnedMemory::new(&self.context, 2 * self.half_bytes)?,
        };
        let view = pinned.view().slice(half * self.half_bytes, self.half_bytes);
        self.memory = Some(pinned);
        Ok(view)
    }

    /// Has the device copy from its memory into a half, which must not be busy.
    pub(super) fn copy_from_device(
        &mut self,
        half: usize,
        copies: &[(Src<'_>, Dst<'_>)],
    ) -> Result<()> {
        self.begin_copies(half, copies, |stream, from, into| {
            // SAFETY: the staging memory stays while it is busy; the caller's is lent until the
            // operation ends, which waits for the event, or says that it could not.
            unsafe { stream.copy_to_host(from, into) }
        })
    }

    /// Has the device copy from a half, which must not be busy, into its memory.
    pub(super) fn copy_to_device(
        &mut self,
        half: usize,
        copies: &[(Src<'_>, Dst<'_>)],
    ) -> Result<()> {
        self.begin_copies(half, copies, |stream, from, into| {
            // SAFETY: as above.
            unsafe { stream.copy_to_device(from, into) }
        })
    }

    fn begin_copies(
        &mut self,
        half: usize,
        copies: &[(Src<'_>, Dst<'_>)],
        copy: impl Fn(&CudaStream, Src<'_>, Dst<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut copies = copies.iter().filter(|(from, _)| !from.is_empty()).peekable();
        if copies.peek().is_none() {
            return Ok(());
        }
        if self.is_busy[half] {
            return Err(Error::internal("staging memory is used while the device copies"));
        }
        // Before the first: one of several may fail.
        self.is_busy[half] = true;
        self.newest_half = half;
        let submitted = copies.try_for_each(|(from, into)| copy(&self.stream, *from, *into));
        // Behind what was begun, also where that is not all.
        let marked = self.events[half].record(self.stream.handle());
        self.is_untracked |= marked.is_err();
        submitted.and(marked)
    }

    /// Waits until the device is done with a half.
    ///
    /// # Errors
    /// As [`StagingWaitLimits::wait`].
    pub(super) fn wait_half(&mut self, half: usize, limits: StagingWaitLimits<'_>) -> Result<()> {
        if self.is_busy[half] {
            limits.wait(&"a copy", || self.events[half].is_over())?;
            self.is_busy[half] = false;
        }
        Ok(())
    }

    /// Whether the device is done with a half.
    ///
    /// # Errors
    /// `Backend`.
    pub(super) fn is_half_free(&mut self, half: usize) -> Result<bool> {
        if self.is_busy[half] && self.events[half].is_over()? {
            self.is_busy[half] = false;
        }
        Ok(!self.is_busy[half])
    }

    /// The halves in the order in which copies were begun.
    pub(super) fn oldest_first(&self) -> [usize; 2] {
        [1 - self.newest_half, self.newest_half]
    }

    /// Somebody else may use the memory for ever.
    pub(super) fn leak_memory(&mut self) {
        self.is_untracked = true;
    }

    /// After an error: waits until the device is done with all that it was given, for as long as
    /// that may take; false where it is not.
    fn drain(&mut self, limit: &Deadline) -> bool {
        let limits = StagingWaitLimits { deadline: limit, check_failure: &|| None };
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
                "staging memory of device {device} is still in use, and left"
            );
            return;
        }
        // SAFETY: the device is done with it, and views of it end with the operation that they were
        // made for.
        unsafe { memory.free() }
    }
}

impl StagingBuffers {
    pub(super) fn new(context: &Arc<CudaContext>, chunk: usize) -> Result<Self> {
        Ok(Self {
            from_device: StagingDoubleBuffer::new(context, chunk)?,
            to_device: StagingDoubleBuffer::new(context, chunk)?,
        })
    }

    /// After an error: nothing of the caller's is read or written any more, or the error says so.
    pub(super) fn drain(&mut self, error: Error) -> Error {
        let limit = Deadline::after(DRAIN_WAIT);
        let is_drained = self.from_device.drain(&limit) & self.to_device.drain(&limit);
        if is_drained {
            return error;
        }
        error.context("the device has not ended its copies, and may still use the buffers")
    }
}
