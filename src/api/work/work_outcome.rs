//! The outcome of a work (an asynchronous operation), and the actions that run when the work ends.

use crate::api::work::callbacks::{CallbackFn, CallbackKey, PostedCallback, RegisteredCallback};
use crate::base::error::Result;
use crate::base::sync::{AtomicU32, Mutex, MutexGuard, Ordering, unpoisoned};
use crate::transport::Delivery;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// An action that runs when a work ends.
pub(in crate::api) enum CompletionAction {
    /// A function that the thread that ends the work calls immediately. It must not block. The
    /// number identifies the hook for its removal.
    Hook(u64, CallbackFn),
    /// A function of the caller that the callback thread calls.
    Callback(RegisteredCallback),
}

/// The result of a work and the time of its end.
#[derive(Clone, Debug)]
pub(super) struct WorkEnd {
    pub(super) result: Result<Option<Delivery>>,
    pub(super) time: Instant,
}

/// The state of a work.
enum OutcomeState {
    /// The work has not ended. The field has the actions to run at its end.
    Pending(Vec<CompletionAction>),
    /// The work has ended. The list has the posted callbacks, which can be withdrawn until they are
    /// called.
    Done(Arc<WorkEnd>, Vec<PostedCallback>),
}

/// The outcome of a work. It changes from pending to done once, even if several threads try to end
/// the work.
pub(super) struct WorkOutcome {
    /// 1 if `state` is `Done`. A copy, so that `is_done` takes no lock.
    is_done: AtomicU32,
    state: Mutex<OutcomeState>,
}

impl WorkOutcome {
    pub(super) fn new() -> Self {
        Self { is_done: AtomicU32::new(0), state: Mutex::new(OutcomeState::Pending(Vec::new())) }
    }

    /// Ends the work and returns the actions, which the caller then runs. If the work has already
    /// ended, its outcome stays and this returns `None`.
    pub(super) fn complete(&self, ended: WorkEnd) -> Option<Vec<CompletionAction>> {
        let mut state = self.lock();
        let OutcomeState::Pending(actions) = &mut *state else { return None };
        let actions = std::mem::take(actions);
        let posted = actions.iter().filter_map(CompletionAction::posted).collect();
        *state = OutcomeState::Done(Arc::new(ended), posted);
        self.is_done.store(1, Ordering::Release);
        Some(actions)
    }

    pub(super) fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Acquire) != 0
    }

    pub(super) fn ended(&self) -> Option<Arc<WorkEnd>> {
        match &*self.lock() {
            OutcomeState::Pending(_) => None,
            OutcomeState::Done(ended, _) => Some(Arc::clone(ended)),
        }
    }

    /// Registers an action for the end of the work. If the work has already ended, returns the
    /// action and the outcome; then the caller runs the action.
    pub(super) fn add_action(
        &self,
        action: CompletionAction,
    ) -> Option<(CompletionAction, Arc<WorkEnd>)> {
        match &mut *self.lock() {
            OutcomeState::Pending(list) => {
                list.push(action);
                None
            }
            OutcomeState::Done(ended, posted) => {
                posted.retain(PostedCallback::is_waiting);
                posted.extend(action.posted());
                Some((action, Arc::clone(ended)))
            }
        }
    }

    #[cfg(test)]
    #[cfg(not(loom))]
    pub(super) fn hook_count(&self) -> usize {
        match &*self.lock() {
            OutcomeState::Pending(list) => list.len(),
            OutcomeState::Done(..) => 0,
        }
    }

    /// Removes the hook with this number, unless the work has ended.
    pub(super) fn remove_hook(&self, id: u64) {
        let mut state = self.lock();
        let OutcomeState::Pending(list) = &mut *state else { return };
        let index = list
            .iter()
            .position(|action| matches!(action, CompletionAction::Hook(own, _) if *own == id));
        let removed = index.map(|at| list.remove(at));
        drop(state);
        drop(removed);
    }

    /// Withdraws the first callback with this key that has not been called. Returns false if there
    /// is no such callback.
    pub(super) fn withdraw_callback(&self, key: CallbackKey) -> bool {
        let mut state = self.lock();
        let withdrawn = match &mut *state {
            OutcomeState::Pending(list) => {
                let has_key = |action: &CompletionAction| matches!(action, CompletionAction::Callback(callback) if callback.is_registered_as(key));
                list.iter().position(has_key).and_then(|at| list.remove(at).withdraw())
            }
            OutcomeState::Done(_, posted) => posted.iter().find_map(|posted| posted.withdraw(key)),
        };
        drop(state);
        // `withdrawn` holds the caller's function, which is dropped here without the lock.
        withdrawn.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, OutcomeState> {
        unpoisoned(self.state.lock())
    }
}

impl fmt::Debug for WorkOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outcome").field("ended", &self.ended()).finish_non_exhaustive()
    }
}

impl WorkEnd {
    /// Returns the outcome without the details of a message (peer, tag, length).
    pub(super) fn without_delivery(&self) -> Result<()> {
        self.result.as_ref().map(drop).map_err(Clone::clone)
    }
}

impl CompletionAction {
    /// Returns a number that no other hook has.
    pub(super) fn next_id() -> u64 {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    /// Runs the action.
    pub(super) fn run(self, outcome: &Result<()>) {
        match self {
            Self::Hook(_, hook) => hook(outcome),
            Self::Callback(callback) => callback.post(outcome.clone()),
        }
    }

    fn posted(&self) -> Option<PostedCallback> {
        match self {
            Self::Hook(..) => None,
            Self::Callback(callback) => Some(callback.posted()),
        }
    }

    fn withdraw(self) -> Option<CallbackFn> {
        match self {
            Self::Hook(..) => None,
            Self::Callback(callback) => callback.withdraw(),
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::base::sync::AtomicUsize;
    use loom::sync::Arc;
    use loom::thread;

    /// Two threads try to end the work, and a third registers a hook. Only one of the two ends the
    /// work, and the hook runs once.
    #[test]
    fn loom_a_work_ends_once() {
        loom::model(|| {
            let shared = Arc::new((WorkOutcome::new(), AtomicUsize::new(0), AtomicUsize::new(0)));
            let enders: Vec<_> = (0..2)
                .map(|_| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || {
                        // Represents the data that the operation writes.
                        shared.2.store(7, Ordering::Relaxed);
                        let ended = WorkEnd { result: Ok(None), time: Instant::now() };
                        let Some(actions) = shared.0.complete(ended) else { return 0 };
                        actions.into_iter().for_each(|action| action.run(&Ok(())));
                        1
                    })
                })
                .collect();
            let counter = Arc::clone(&shared);
            let hook = CompletionAction::Hook(
                0,
                Box::new(move |_: &Result<()>| {
                    counter.1.fetch_add(1, Ordering::Relaxed);
                }),
            );
            if let Some((action, ended)) = shared.0.add_action(hook) {
                action.run(&ended.without_delivery());
            }
            if shared.0.is_done() {
                assert_eq!(shared.2.load(Ordering::Relaxed), 7);
            }
            let ends: usize = enders.into_iter().map(|ender| ender.join().unwrap()).sum();
            assert_eq!((ends, shared.1.load(Ordering::Relaxed)), (1, 1));
        });
    }
}
