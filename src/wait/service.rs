//! The process's one service thread: it watches descriptors (lifelines today; listeners, control
//! connections and heartbeats later) and calls whoever registered them when something happens.
//!
//! It starts with the first registration and ends with the last one. Callbacks run on it one at a
//! time and must not block; a panic in one is caught and ends only that registration.

use crate::base::error::{Error, Result};
use crate::base::log::Level;
use crate::sys::poll::{Events, Interest, Poller};
use crate::sys::{host, thread, unix};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a watcher wants after it was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Call again when more happens.
    Keep,
    /// Forget the registration.
    Done,
}

/// Something with a descriptor to watch.
pub trait Watched: Send + Sync + Debug {
    /// The descriptor; it must stay open while the registration lasts.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Called on the service thread when the descriptor can be read or was closed by its peer.
    fn on_readable(&self) -> Next;
}

/// A registration; dropping it ends the watch (a callback that is already running finishes).
#[derive(Debug)]
pub struct Watch {
    id: u64,
}

#[derive(Debug)]
struct Service {
    next_id: u64,
    watched: BTreeMap<u64, Arc<dyn Watched>>,
    /// Present while the thread runs.
    thread: Option<Running>,
}

/// What the registering threads and the running one share.
#[derive(Clone, Debug)]
struct Running {
    poller: Arc<Poller>,
    /// A byte here makes the thread look whether anything is left to watch.
    wake: Arc<UnixStream>,
    /// The process that started it: a forked child has the table but no thread.
    pid: u32,
}

/// The token of the wake-up socket; registrations count up from 0 and never get here.
const WAKE: u64 = u64::MAX;

/// How many events one turn takes.
const EVENTS: u16 = 64;

static SERVICE: Mutex<Service> =
    Mutex::new(Service { next_id: 0, watched: BTreeMap::new(), thread: None });

/// Watches a descriptor from now on, starting the service thread if none runs.
///
/// # Errors
/// `System` where the thread or its wake-up socket cannot be made, or the descriptor not be watched.
pub fn watch(watched: Arc<dyn Watched>) -> Result<Watch> {
    let mut service = lock();
    let running = match service.thread.clone().filter(|running| running.pid == host::pid()) {
        Some(running) => running,
        None => {
            service.watched.clear();
            service.thread.insert(start()?).clone()
        }
    };
    let id = service.next_id;
    service.next_id += 1;
    let added = running.poller.add(watched.descriptor(), id, Interest::READ);
    added.map_err(|cause| Error::system("watching a descriptor", &cause))?;
    service.watched.insert(id, watched);
    Ok(Watch { id })
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Outside the lock: the watched object may own further registrations.
        drop(forget(self.id));
    }
}

/// Ends a registration, and with the last one the thread.
fn forget(id: u64) -> Option<Arc<dyn Watched>> {
    let mut service = lock();
    let watched = service.watched.remove(&id)?;
    if let Some(running) = &service.thread {
        // Fails only where the descriptor was closed, which ends the watch too.
        drop(running.poller.remove(watched.descriptor()));
        if service.watched.is_empty() {
            // A full socket means that a wake-up is pending already.
            drop(unix::send(&running.wake, &[1], None));
        }
    }
    Some(watched)
}

fn lock() -> MutexGuard<'static, Service> {
    SERVICE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn start() -> Result<Running> {
    let (ours, theirs) = unix::pair()?;
    let poller = Arc::new(Poller::new()?);
    let added = poller.add(theirs.as_fd(), WAKE, Interest::READ);
    added.map_err(|cause| Error::system("watching a descriptor", &cause))?;
    let running = Running { poller, wake: Arc::new(ours), pid: host::pid() };
    let poller = Arc::clone(&running.poller);
    // Detached: it ends by itself when the last registration goes.
    drop(thread::spawn("dist-service", move || run(&poller, &theirs))?);
    Ok(running)
}

/// The thread: waits for any descriptor or a wake-up, calls those concerned, until nothing is watched.
fn run(poller: &Arc<Poller>, wake: &UnixStream) {
    let mut events = Events::with_room(EVENTS);
    loop {
        if let Err(cause) = poller.wait(&mut events, None) {
            crate::log!(Level::Error, "the service thread cannot wait: {cause}");
            lock().thread = None;
            return;
        }
        for event in events.iter() {
            if event.token == WAKE {
                let mut bytes = [0; 64];
                while unix::receive(wake, &mut bytes).is_ok_and(|(got, _)| got == bytes.len()) {}
            } else {
                call(event.token);
            }
        }
        let mut service = lock();
        if service.watched.is_empty() {
            service.thread = None;
            return;
        }
    }
}

fn call(id: u64) {
    let Some(watched) = lock().watched.get(&id).cloned() else { return };
    let next = catch_unwind(AssertUnwindSafe(|| watched.on_readable()));
    if next.is_err() {
        crate::log!(Level::Error, "a callback of the service thread panicked: {watched:?}");
    }
    if !matches!(next, Ok(Next::Keep)) {
        drop(forget(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::deadline::Deadline;
    use crate::wait::bell::Bell;
    use crate::wait::{Pace, until};
    use std::sync::atomic::{AtomicBool, Ordering};

    #[derive(Debug)]
    struct Flag {
        stream: UnixStream,
        seen: AtomicBool,
        bell: Bell,
    }

    impl Watched for Flag {
        fn descriptor(&self) -> BorrowedFd<'_> {
            self.stream.as_fd()
        }

        fn on_readable(&self) -> Next {
            self.seen.store(true, Ordering::Release);
            self.bell.ring();
            Next::Done
        }
    }

    #[test]
    fn a_closed_peer_is_noticed() {
        let (near, far) = unix::pair().unwrap();
        let flag =
            Arc::new(Flag { stream: near, seen: AtomicBool::new(false), bell: Bell::default() });
        let watch = watch(flag.clone()).unwrap();
        drop(far);
        let pace = Pace { spin: std::time::Duration::ZERO, crowded: true };
        let seen = || flag.seen.load(Ordering::Acquire).then_some(());
        until(&flag.bell, pace, &Deadline::after_ms(10_000), || None, seen).unwrap();
        drop(watch);
    }
}
