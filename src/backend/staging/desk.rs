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
use crate::base::log::Level;
use crate::device::{Context, Event, Pinned, Stream};
use crate::wait::asking::Asking;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

/// The longest pause between two looks at the device.
const LONGEST_NAP: Duration = Duration::from_micros(200);

/// How long a device has for copies that it has begun, once an operation has failed.
const GRACE: Duration = Duration::from_secs(5);

/// What ends a wait for the device early.
#[derive(Clone, Copy)]
pub(super) struct Limits<'a> {
    pub(super) deadline: &'a Deadline,
    pub(super) halted: &'a dyn Fn() -> Option<Error>,
}

/// One direction.
#[derive(Debug)]
pub(super) struct Side {
    context: Arc<Context>,
    stream: Stream,
    events: [Event; 2],
    is_busy: [bool; 2],
    /// Which half was begun last.
    newest: usize,
    /// Something was left to the device that no event is behind: it is never known to be over.
    is_lost: bool,
    /// The bytes of a half.
    chunk: usize,
    /// Both halves, from the first use on.
    memory: Option<Pinned>,
}

/// Both directions.
#[derive(Debug)]
pub(super) struct Desk {
    /// From the device.
    pub(super) inward: Side,
    /// To the device.
    pub(super) outward: Side,
}

impl Limits<'_> {
    /// Looks at the device until it is done with something.
    ///
    /// # Errors
    /// What `is_over` says, why the wait was halted, or `Timeout`.
    pub(super) fn wait(
        &self,
        what: &dyn Display,
        is_over: impl Fn() -> Result<bool>,
    ) -> Result<()> {
        let mut asking = Asking::new(LONGEST_NAP);
        while !is_over()? {
            if let Some(error) = (self.halted)() {
                return Err(error);
            }
            if self.deadline.has_passed() {
                let ms = self.deadline.elapsed().as_millis();
                let message = format!("{what}: the device was not done with it within {ms} ms");
                return Err(Error::new(ErrorKind::Timeout, message));
            }
            asking.again(self.deadline);
        }
        Ok(())
    }
}

impl Side {
    pub(super) fn new(context: &Arc<Context>, chunk: usize) -> Result<Self> {
        let stream = Stream::new(context, false)?;
        let events = [Event::new(context)?, Event::new(context)?];
        let context = Arc::clone(context);
        Ok(Self {
            context,
            stream,
            events,
            is_busy: [false; 2],
            newest: 0,
            is_lost: false,
            chunk,
            memory: None,
        })
    }

    /// The memory of a half.
    pub(super) fn half(&mut self, half: usize) -> Result<Dst<'static>> {
        let made = match self.memory.take() {
            Some(memory) => memory,
            None => Pinned::new(&self.context, 2 * self.chunk)?,
        };
        let view = made.view().slice(half * self.chunk, self.chunk);
        self.memory = Some(made);
        Ok(view)
    }

    /// Has the device copy from its memory into a half, which must not be busy.
    pub(super) fn load(&mut self, half: usize, copies: &[(Src<'_>, Dst<'_>)]) -> Result<()> {
        self.begin(half, copies, |stream, from, into| {
            // SAFETY: the staging memory stays while it is busy; the caller's is lent until the
            // operation ends, which waits for the event, or says that it could not.
            unsafe { stream.copy_to_host(from, into) }
        })
    }

    /// Has the device copy from a half, which must not be busy, into its memory.
    pub(super) fn unload(&mut self, half: usize, copies: &[(Src<'_>, Dst<'_>)]) -> Result<()> {
        self.begin(half, copies, |stream, from, into| {
            // SAFETY: as above.
            unsafe { stream.copy_to_device(from, into) }
        })
    }

    fn begin(
        &mut self,
        half: usize,
        copies: &[(Src<'_>, Dst<'_>)],
        copy: impl Fn(&Stream, Src<'_>, Dst<'_>) -> Result<()>,
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
        self.newest = half;
        let begun = copies.try_for_each(|(from, into)| copy(&self.stream, *from, *into));
        // Behind what was begun, also where that is not all.
        let marked = self.events[half].record(self.stream.handle());
        self.is_lost |= marked.is_err();
        begun.and(marked)
    }

    /// Waits until the device is done with a half.
    ///
    /// # Errors
    /// As [`Limits::wait`].
    pub(super) fn settle(&mut self, half: usize, limits: Limits<'_>) -> Result<()> {
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
    pub(super) fn is_settled(&mut self, half: usize) -> Result<bool> {
        if self.is_busy[half] && self.events[half].is_over()? {
            self.is_busy[half] = false;
        }
        Ok(!self.is_busy[half])
    }

    /// The halves in the order in which copies were begun.
    pub(super) fn in_order(&self) -> [usize; 2] {
        [1 - self.newest, self.newest]
    }

    /// Somebody else may use the memory for ever.
    pub(super) fn leave_memory(&mut self) {
        self.is_lost = true;
    }

    /// After an error: waits until the device is done with all that it was given, for as long as
    /// that may take; false where it is not.
    fn calm(&mut self, limit: &Deadline) -> bool {
        let limits = Limits { deadline: limit, halted: &|| None };
        let settled = [0, 1].map(|half| self.settle(half, limits).is_ok());
        settled == [true; 2] && !self.is_lost
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        if self.is_busy != [false; 2] || self.is_lost {
            let device = self.context.device();
            crate::log!(
                Level::Error,
                "staging memory of device {device} is still in use, and left"
            );
            return;
        }
        // SAFETY: the device is done with it, and views of it end with the operation that they were
        // made for.
        unsafe { memory.free() }
    }
}

impl Desk {
    pub(super) fn new(context: &Arc<Context>, chunk: usize) -> Result<Self> {
        Ok(Self { inward: Side::new(context, chunk)?, outward: Side::new(context, chunk)? })
    }

    /// After an error: nothing of the caller's is read or written any more, or the error says so.
    pub(super) fn calm(&mut self, error: Error) -> Error {
        let limit = Deadline::after(GRACE);
        let is_calm = self.inward.calm(&limit) & self.outward.calm(&limit);
        if is_calm {
            return error;
        }
        error.context("the device has not ended its copies, and may still use the buffers")
    }
}
