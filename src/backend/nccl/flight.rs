//! An operation that was enqueued, until the device is done with it.

use crate::backend::Fate;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::gpu::Flight;
use crate::device::driver::Handle;
use crate::device::{Context, Event};
use crate::wait::asking::Asking;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The longest pause between two looks at the device.
const LONGEST_NAP: Duration = Duration::from_millis(1);

/// As many events are kept.
const MOST_SPARES: usize = 256;

/// What it is, for messages: what one group has enqueued at once.
#[derive(Clone, Debug)]
pub(super) struct Title {
    /// The first collective, if there is one: its name and its number.
    pub(super) first: Option<(&'static str, u64)>,
    /// How many collectives and messages it is.
    pub(super) calls: usize,
}

impl fmt::Display for Title {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.first, self.calls) {
            (None, 1) => f.write_str("a message"),
            (None, calls) => write!(f, "{calls} messages"),
            (Some((name, sequence)), 1) => write!(f, "{name} #{sequence}"),
            (Some((name, sequence)), calls) => {
                write!(f, "{name} #{sequence} with {} more of its batch", calls - 1)
            }
        }
    }
}

/// Events that nobody uses now. To make one and to destroy it takes the driver longer than to
/// record it.
#[derive(Debug, Default)]
pub(super) struct Spares {
    all: Mutex<Vec<Event>>,
}

/// An event that was recorded, and goes back to the spares.
#[derive(Debug)]
pub(super) struct Mark {
    event: Option<Event>,
    spares: Arc<Spares>,
}

impl Spares {
    /// Marks what is in a stream by now.
    pub(super) fn mark(self: &Arc<Self>, context: &Arc<Context>, stream: Handle) -> Result<Mark> {
        let spare = self.all().pop();
        let event = match spare {
            Some(event) => event,
            None => Event::new(context)?,
        };
        event.record(stream)?;
        Ok(Mark { event: Some(event), spares: Arc::clone(self) })
    }

    fn all(&self) -> MutexGuard<'_, Vec<Event>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mark {
    fn is_over(&self) -> Result<bool> {
        self.event.as_ref().map_or(Ok(true), Event::is_over)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let mut all = self.spares.all();
        if all.len() < MOST_SPARES {
            // Else it is destroyed with this, outside of the lock.
            all.extend(self.event.take());
        }
    }
}

/// One operation.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) title: Title,
    pub(super) deadline: Deadline,
    /// Behind it in its stream.
    mark: Mark,
    /// The device was seen to be done with it before its group failed.
    done: AtomicBool,
    fate: Arc<dyn Fate>,
    /// Nobody fails the group at the deadline: whoever waits is told, and the group goes on.
    is_unwatched: bool,
}

impl InFlight {
    pub(super) fn new(
        title: Title,
        deadline: Deadline,
        mark: Mark,
        (fate, is_unwatched): (Arc<dyn Fate>, bool),
    ) -> Self {
        Self { title, deadline, mark, done: AtomicBool::new(false), fate, is_unwatched }
    }

    /// Whether the device is done with it.
    ///
    /// # Errors
    /// The group's failure, after which the device may be done with it for another reason;
    /// `Backend`.
    pub(super) fn look(&self) -> Result<bool> {
        if self.done.load(Ordering::Acquire) {
            return Ok(true);
        }
        // In this order: an abort comes after the failure, and ends what is in the stream.
        let is_over = self.mark.is_over();
        match self.fate.failure() {
            Some(failure) => Err(failure),
            None => {
                let is_over = is_over?;
                self.done.store(is_over, Ordering::Release);
                Ok(is_over)
            }
        }
    }
}

impl Flight for InFlight {
    fn wait(&self, limit: &Deadline) -> Result<bool> {
        let mut asking = Asking::new(LONGEST_NAP);
        while !self.look()? {
            if limit.has_passed() {
                return Ok(false);
            }
            if self.is_unwatched && self.deadline.has_passed() {
                let message = format!(
                    "{} was enqueued and has not ended within {} ms; NCCL_ASYNC_ERROR_HANDLING=0, so the group goes on",
                    self.title,
                    self.deadline.elapsed().as_millis()
                );
                return Err(Error::new(ErrorKind::Timeout, message));
            }
            asking.again(limit);
        }
        Ok(true)
    }
}
