//! The thread that looks after one group's operations on the device: notices errors and deadlines,
//! and ends the communicator.
//!
//! It alone ends it, whoever has failed the group and wherever: it is told by the group's fate, and
//! looks by itself. While nothing is under way it looks ten times a second.

use super::comm::Comm;
use super::flight::{InFlight, Spares};
use super::options::Options;
use super::quiet::{self, Life};
use crate::backend::{Fate, Listener};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::GroupId;
use crate::base::log::Level;
use crate::device::Stream;
use crate::process::thread;
use crate::wait::bell::Bell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often it looks while something is under way, and while nothing is.
const BUSY: Duration = Duration::from_millis(5);
const IDLE: Duration = Duration::from_millis(100);

/// How long a group that is left waits for what is under way, and then for the other ranks.
const PARTING: Duration = Duration::from_secs(5);

/// What the group's threads and the watchdog share.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) comm: Comm,
    /// How long the group's operations have that name no time.
    pub(super) timeout: Duration,
    /// The library's own stream, for callers that name none. Goes after the communicator has ended.
    pub(super) stream: Stream,
    pub(super) fate: Arc<dyn Fate>,
    pub(super) options: Options,
    pub(super) spares: Arc<Spares>,
    flights: Mutex<VecDeque<Arc<InFlight>>>,
    bell: Bell,
    closing: AtomicBool,
    life: Arc<Life>,
    /// An error has been told in the log, where nothing else is done about it.
    told: AtomicBool,
}

impl Listener for Watched {
    fn on_knock(&self) {
        self.bell.ring();
    }
}

impl Watched {
    /// Starts to watch.
    pub(super) fn start(
        comm: Comm,
        (group, timeout): (GroupId, Duration),
        fate: Arc<dyn Fate>,
        options: Options,
    ) -> Result<Arc<Self>> {
        let stream = Stream::new(comm.context(), options.high_priority)?;
        let (closing, told) = (AtomicBool::new(false), AtomicBool::new(false));
        let (flights, bell, life) = (Mutex::default(), Bell::default(), Life::begin(group));
        let ending = Ending(Arc::clone(&life));
        let watched = Arc::new(Self {
            comm,
            timeout,
            stream,
            fate,
            options,
            spares: Arc::default(),
            flights,
            bell,
            closing,
            life,
            told,
        });
        let watcher = Arc::clone(&watched);
        thread::start("dist-nccl", move || {
            // Goes last: who waits for it finds that the thread has let go of everything.
            let _ending = ending;
            watcher.watch();
            drop(watcher);
        })?;
        let listener = Arc::clone(&watched) as Arc<dyn Listener>;
        watched.fate.add_listener(Arc::downgrade(&listener));
        Ok(watched)
    }

    /// An operation has been enqueued. While others are under way, the watchdog looks often enough.
    pub(super) fn add(&self, flight: Arc<InFlight>) {
        let was_idle = self.change(|flights| {
            flights.push_back(flight);
            flights.len() == 1
        });
        if was_idle {
            self.bell.ring();
        }
    }

    /// The group is left. Its ranks end their communicators together, and one thread may have
    /// several of them; so whoever leaves last in this process waits, for all, unless other groups
    /// are used meanwhile, which goes before. Where the group has failed each waits for its own,
    /// which needs nobody else, and until then may use the caller's streams.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.bell.ring();
        let limit = Deadline::after(PARTING * 3);
        let lives = self.life.leave();
        let have_ended = match self.fate.failure() {
            Some(_) => self.life.wait(&limit),
            None => lives.iter().all(|life| life.wait_unless_used(&limit)),
        };
        if !have_ended {
            let which = self.comm.library().signature();
            crate::log!(Level::Error, "NCCL does not end a communicator ({which})");
        }
    }

    /// Fails the group, on all its ranks.
    pub(super) fn fail(&self, error: &Error) {
        self.fate.fail(error);
        self.bell.ring();
    }

    fn flights(&self) -> MutexGuard<'_, VecDeque<Arc<InFlight>>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self) {
        loop {
            if self.fate.failure().is_some() {
                self.comm.abort();
                break;
            }
            if self.closing.load(Ordering::Acquire) {
                self.part();
                break;
            }
            if let Err(error) = self.look() {
                self.handle(&error);
            }
            if let Some(error) = self.comm.overdue() {
                self.fail(&error);
                continue;
            }
            let nap = if self.flights().is_empty() { IDLE } else { BUSY };
            let must_look = || {
                let is_over = self.closing.load(Ordering::Acquire) || self.fate.failure().is_some();
                is_over.then_some(())
            };
            self.bell.doze(nap, || true, must_look);
        }
        self.change(std::mem::take);
    }

    /// Changes what is under way; what `change` gives.
    fn change<T>(&self, change: impl FnOnce(&mut VecDeque<Arc<InFlight>>) -> T) -> T {
        let mut flights = self.flights();
        let changed = change(&mut flights);
        self.life.has_under_way(flights.len());
        changed
    }

    /// What has gone wrong, if anything has.
    fn look(&self) -> Result<()> {
        if let Some(error) = self.comm.asynchronous(self.comm.state_if_free()?) {
            let first = self.flights().front().cloned();
            return Err(match first {
                Some(first) => error.context(format_args!("at {} or later", first.title)),
                None => error,
            });
        }
        loop {
            let Some(first) = self.flights().front().cloned() else { return Ok(()) };
            if !first.look()? {
                break;
            }
            self.change(VecDeque::pop_front);
        }
        let late = |flight: &&Arc<InFlight>| flight.deadline.has_passed();
        let late = self.flights().iter().find(late).cloned();
        // Streams differ: one behind the first may be done.
        match late {
            Some(flight) if !flight.look()? => Err(self.expired(&flight)),
            Some(done) => {
                self.change(|flights| flights.retain(|flight| !Arc::ptr_eq(flight, &done)));
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// The device is not done with an operation in time.
    pub(super) fn expired(&self, flight: &InFlight) -> Error {
        let message = format!(
            "{} was enqueued on device {} and has not ended within {} ms: another rank has not called it, or its device \
             hangs; NCCL does not say which ({})",
            flight.title,
            self.comm.context().device(),
            flight.deadline.elapsed().as_millis(),
            self.comm.library().signature()
        );
        Error::new(ErrorKind::Timeout, message)
    }

    fn handle(&self, error: &Error) {
        if self.options.handles_errors {
            self.fail(error);
        } else if !self.told.swap(true, Ordering::Relaxed) {
            crate::log!(
                Level::Error,
                "NCCL_ASYNC_ERROR_HANDLING=0, so nothing is done about this: {error}"
            );
        }
    }

    /// Leaves in order.
    fn part(&self) {
        let limit = Deadline::after(PARTING);
        let mut is_idle = false;
        while !limit.has_passed() && self.fate.failure().is_none() {
            if let Err(error) = self.look() {
                crate::log!(Level::Warn, "a group is left with operations under way: {error}");
                break;
            }
            is_idle = self.flights().is_empty();
            if is_idle {
                break;
            }
            self.bell.doze(Duration::from_micros(200), || true, || None::<()>);
        }
        if is_idle {
            self.comm.part(&Deadline::after(PARTING), || {
                quiet::moment(|| self.fate.failure().is_some())
            });
        } else {
            self.comm.abort();
        }
    }
}

/// Whatever ends the thread, it has ended.
struct Ending(Arc<Life>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end();
    }
}
