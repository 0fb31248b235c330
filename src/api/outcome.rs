//! The outcome of a work: pending, then done, once; and the actions that run at that moment.

use super::callbacks::{Callback, CallbackKey, Function, Posted};
use crate::base::error::Result;
use crate::base::sync::{AtomicU32, Mutex, MutexGuard, Ordering};
use crate::transport::Delivery;
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

/// An action that runs when a work ends.
pub(super) enum Then {
    /// At once, on the thread that ends the work; must not block. With a number by which it may be
    /// removed.
    Now(u64, Function),
    /// On the callback thread.
    Call(Callback),
}

/// How a work ended, and when.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) result: Result<Option<Delivery>>,
    pub(super) at: Instant,
}

enum State {
    Pending(Vec<Then>),
    /// With the callbacks that were posted, as long as they have not been called.
    Done(Arc<Ended>, Vec<Posted>),
}

/// Pending, then done: the change happens once, also if several threads try.
pub(super) struct Outcome {
    /// 1 once `state` says that it is done, for those who only ask.
    done: AtomicU32,
    state: Mutex<State>,
}

impl Outcome {
    pub(super) fn new() -> Self {
        Self { done: AtomicU32::new(0), state: Mutex::new(State::Pending(Vec::new())) }
    }

    /// Ends it, and gives what is to be done then; `None` where it has ended before, which stays as
    /// it was.
    pub(super) fn settle(&self, ended: Ended) -> Option<Vec<Then>> {
        let mut state = self.lock();
        let State::Pending(then) = &mut *state else { return None };
        let then = std::mem::take(then);
        let posted = then.iter().filter_map(Then::posted).collect();
        *state = State::Done(Arc::new(ended), posted);
        self.done.store(1, Ordering::Release);
        Some(then)
    }

    pub(super) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire) != 0
    }

    pub(super) fn ended(&self) -> Option<Arc<Ended>> {
        match &*self.lock() {
            State::Pending(_) => None,
            State::Done(ended, _) => Some(Arc::clone(ended)),
        }
    }

    /// Notes what is to be done at the end; gives it back where that has come.
    pub(super) fn then(&self, then: Then) -> Option<(Then, Arc<Ended>)> {
        match &mut *self.lock() {
            State::Pending(list) => {
                list.push(then);
                None
            }
            State::Done(ended, posted) => {
                posted.retain(Posted::is_waiting);
                posted.extend(then.posted());
                Some((then, Arc::clone(ended)))
            }
        }
    }

    /// How many hooks there are.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(super) fn hooks(&self) -> usize {
        match &*self.lock() {
            State::Pending(list) => list.len(),
            State::Done(..) => 0,
        }
    }

    /// Removes the hook with this number, unless the end has come.
    pub(super) fn remove_hook(&self, id: u64) {
        let mut state = self.lock();
        let State::Pending(list) = &mut *state else { return };
        let at = list.iter().position(|then| matches!(then, Then::Now(own, _) if *own == id));
        let removed = at.map(|at| list.remove(at));
        drop(state);
        drop(removed);
    }

    /// Withdraws the first callback with this key that has not been called; false where there is
    /// none.
    pub(super) fn withdraw(&self, key: CallbackKey) -> bool {
        let mut state = self.lock();
        let withdrawn = match &mut *state {
            State::Pending(list) => {
                let is_it = |then: &Then| matches!(then, Then::Call(callback) if callback.has(key));
                list.iter().position(is_it).and_then(|at| list.remove(at).withdraw())
            }
            State::Done(_, posted) => posted.iter().find_map(|posted| posted.withdraw(key)),
        };
        drop(state);
        // The caller's function is dropped without the lock.
        withdrawn.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outcome").field("ended", &self.ended()).finish_non_exhaustive()
    }
}

impl Ended {
    /// The outcome without what only a message has.
    pub(super) fn plain(&self) -> Result<()> {
        self.result.as_ref().map(drop).map_err(Clone::clone)
    }
}

impl Then {
    /// A number that no other hook has.
    pub(super) fn next_id() -> u64 {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    /// Does it.
    pub(super) fn run(self, outcome: &Result<()>) {
        match self {
            Self::Now(_, hook) => hook(outcome),
            Self::Call(callback) => callback.post(outcome.clone()),
        }
    }

    fn posted(&self) -> Option<Posted> {
        match self {
            Self::Now(..) => None,
            Self::Call(callback) => Some(callback.posted()),
        }
    }

    fn withdraw(self) -> Option<Function> {
        match self {
            Self::Now(..) => None,
            Self::Call(callback) => callback.withdraw(),
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::base::sync::AtomicUsize;
    use loom::sync::Arc;
    use loom::thread;

    /// Two threads end it, a third registers what is to be done then: one ends it, and it is done
    /// once.
    #[test]
    fn loom_a_work_ends_once() {
        loom::model(|| {
            let shared = Arc::new((Outcome::new(), AtomicUsize::new(0), AtomicUsize::new(0)));
            let enders: Vec<_> = (0..2)
                .map(|_| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || {
                        // What the operation has written.
                        shared.2.store(7, Ordering::Relaxed);
                        let ended = Ended { result: Ok(None), at: Instant::now() };
                        let Some(then) = shared.0.settle(ended) else { return 0 };
                        then.into_iter().for_each(|then| then.run(&Ok(())));
                        1
                    })
                })
                .collect();
            let counter = Arc::clone(&shared);
            let hook = Then::Now(
                0,
                Box::new(move |_: &Result<()>| {
                    counter.1.fetch_add(1, Ordering::Relaxed);
                }),
            );
            if let Some((then, ended)) = shared.0.then(hook) {
                then.run(&ended.plain());
            }
            if shared.0.is_done() {
                assert_eq!(shared.2.load(Ordering::Relaxed), 7);
            }
            let ends: usize = enders.into_iter().map(|ender| ender.join().unwrap()).sum();
            assert_eq!((ends, shared.1.load(Ordering::Relaxed)), (1, 1));
        });
    }
}
