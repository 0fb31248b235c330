//! The process's one service thread: it watches descriptors (lifelines today; listeners, control
//! connections and heartbeats later) and calls whoever registered them when something happens.
//!
//! It starts with the first registration and ends with the last one. Callbacks run on it one at a
//! time and must not block; a panic in one is caught and ends only that registration.

use crate::base::error::{Error, Result};
use crate::base::log::Level;
use crate::sys::poll::{self, Interest};
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

#[derive(Debug, Default)]
struct Service {
    next_id: u64,
    watched: BTreeMap<u64, Arc<dyn Watched>>,
    /// Present while the thread runs. A byte makes it look at the table again.
    wake: Option<Wake>,
}

/// The running thread's wake-up socket, and the process that started it: a forked child has the table
/// but no thread.
#[derive(Debug)]
struct Wake {
    socket: UnixStream,
    pid: u32,
}

static SERVICE: Mutex<Service> =
    Mutex::new(Service { next_id: 0, watched: BTreeMap::new(), wake: None });

/// Watches a descriptor from now on, starting the service thread if none runs.
///
/// # Errors
/// `System` where the thread or its wake-up socket cannot be made.
pub fn watch(watched: Arc<dyn Watched>) -> Result<Watch> {
    let mut service = lock();
    if service.wake.as_ref().is_none_or(|wake| wake.pid != host::pid()) {
        service.watched.clear();
        service.wake = Some(start()?);
    }
    let id = service.next_id;
    service.next_id += 1;
    service.watched.insert(id, watched);
    poke(&service);
    Ok(Watch { id })
}

impl Drop for Watch {
    fn drop(&mut self) {
        let removed = {
            let mut service = lock();
            let removed = service.watched.remove(&self.id);
            poke(&service);
            removed
        };
        // Outside the lock: the watched object may own further registrations.
        drop(removed);
    }
}

fn lock() -> MutexGuard<'static, Service> {
    SERVICE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn start() -> Result<Wake> {
    let (ours, theirs) = unix::pair()?;
    // Detached: it ends by itself when the last registration goes.
    drop(thread::spawn("dist-service", move || run(&theirs))?);
    Ok(Wake { socket: ours, pid: host::pid() })
}

fn poke(service: &Service) {
    if let Some(wake) = &service.wake {
        // A full socket means that a wake-up is pending already; a closed one, that the thread ended.
        drop(unix::send(&wake.socket, &[1], None));
    }
}

/// The thread: waits for any descriptor or a wake-up, calls those concerned, until the table is empty.
fn run(wake: &UnixStream) {
    loop {
        let watched: Vec<(u64, Arc<dyn Watched>)> = {
            let mut service = lock();
            if service.watched.is_empty() {
                service.wake = None;
                return;
            }
            service.watched.iter().map(|(&id, watched)| (id, Arc::clone(watched))).collect()
        };
        match wait_for_any(wake, &watched) {
            Ok(ready) => ready.into_iter().for_each(|index| call(&watched[index])),
            Err(error) => {
                crate::log!(Level::Error, "the service thread cannot poll: {error}");
                let mut service = lock();
                service.wake = None;
                return;
            }
        }
    }
}

fn wait_for_any(wake: &UnixStream, watched: &[(u64, Arc<dyn Watched>)]) -> Result<Vec<usize>> {
    let mut interests = vec![Interest::readable(wake.as_fd())];
    interests.extend(watched.iter().map(|(_, w)| Interest::readable(w.descriptor())));
    poll::wait_forever(&mut interests)?;
    if interests[0].is_ready() {
        let mut bytes = [0; 64];
        while unix::receive(wake, &mut bytes).is_ok_and(|(got, _)| got == bytes.len()) {}
    }
    Ok((0..watched.len()).filter(|&i| interests[i + 1].is_ready()).collect())
}

fn call((id, watched): &(u64, Arc<dyn Watched>)) {
    let next = catch_unwind(AssertUnwindSafe(|| watched.on_readable()));
    if next.is_err() {
        let error =
            Error::internal(format!("a callback of the service thread panicked: {watched:?}"));
        crate::log!(Level::Error, "{error}");
    }
    if !matches!(next, Ok(Next::Keep)) {
        let removed = lock().watched.remove(id);
        drop(removed);
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
