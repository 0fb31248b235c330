//! [`LinkedFailures`]: the link between the failure of a group and the failures of groups that its
//! back end uses inside (the *inner groups*). If one of them fails, all of them fail.
//!
//! The ranks of an inner group have other numbers than the same ranks in the group. An error that
//! passes from an inner group to the group gets the number of its culprit in the group. Its text
//! already has the numbers of the group, because inner groups are created with
//! [`GroupContext::shown_ranks`](super::GroupContext::shown_ranks).
//!
//! An inner group that fails because the group has failed gets an error of the kind `Aborted`, a
//! *relayed* failure. It may reach a rank of the inner group before the failure of the group does.
//! A relayed failure is never passed on to the group, whose own failure has the cause and its
//! culprit.
//!
//! A listener must not block, so a failure that a listener detects is passed on by a task on the
//! service thread.

use super::interface::{Backend, GroupFailureState};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::transport::DoorbellListener;
use crate::wait::pause;
use crate::wait::service_task::ServiceTask;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// An inner group.
#[derive(Debug)]
pub(super) struct LinkedGroup {
    failure_state: Arc<dyn GroupFailureState>,
    /// The number in the group of each rank of the inner group.
    ranks: Vec<Rank>,
}

impl LinkedGroup {
    /// Returns the link to the group of a back end, whose ranks have these numbers in the group.
    ///
    /// # Errors
    /// `Unsupported` if the back end has no failure state.
    pub(super) fn new(backend: &dyn Backend, ranks: Vec<Rank>) -> Result<Self> {
        match backend.failure_state() {
            Some(failure_state) => Ok(Self { failure_state, ranks }),
            None => Err(uncombinable_error(backend.name())),
        }
    }
}

/// Returns the error for a back end that has no failure state.
pub(super) fn uncombinable_error(name: &str) -> Error {
    let message = format!("the back end {name} cannot be combined with another back end");
    Error::new(ErrorKind::Unsupported, message)
}

/// Returns an error of an inner group as an error of the group.
pub(super) fn renumber_outwards(error: Error, ranks: &[Rank]) -> Error {
    error.renumber_culprit(|rank| ranks.get(rank).copied())
}

/// Returns the relayed failure for an inner group. No other failure of an inner group has this
/// kind, because only the library has a handle of an inner group.
fn relayed(failure: &Error) -> Error {
    Error::new(ErrorKind::Aborted, failure.message())
}

fn is_relayed(error: &Error) -> bool {
    error.kind() == ErrorKind::Aborted
}

/// The time for which a rank that has a relayed failure waits for the failure of the group.
const RELAY_WAIT: Duration = Duration::from_secs(2);

/// The interval between two checks for the failure of the group.
const RELAY_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The link between a group and its inner groups.
#[derive(Debug)]
pub(super) struct LinkedFailures {
    group: Arc<dyn GroupFailureState>,
    inner: Vec<LinkedGroup>,
    /// The task on the service thread that passes a failure on.
    task: OnceLock<ServiceTask>,
    /// True once a listener has woken the task.
    has_woken_task: AtomicBool,
}

impl LinkedFailures {
    /// Links the groups. The link lasts as long as the returned object.
    ///
    /// # Errors
    /// `System`.
    pub(super) fn link(
        group: Arc<dyn GroupFailureState>,
        inner: Vec<LinkedGroup>,
    ) -> Result<Arc<Self>> {
        let (task, has_woken_task) = (OnceLock::new(), AtomicBool::new(false));
        let linked = Arc::new(Self { group, inner, task, has_woken_task });
        let weak = Arc::downgrade(&linked);
        let pass_on = move || weak.upgrade().iter().for_each(|linked| linked.pass_on());
        // The cell is empty, because this object is new.
        drop(linked.task.set(ServiceTask::new(pass_on)?));
        let listener = Arc::clone(&linked) as Arc<dyn DoorbellListener>;
        let listener: Weak<dyn DoorbellListener> = Arc::downgrade(&listener);
        linked.states().for_each(|state| state.add_listener(Weak::clone(&listener)));
        // A group may have failed before the listener was added.
        linked.pass_on();
        Ok(linked)
    }

    fn states(&self) -> impl Iterator<Item = &dyn GroupFailureState> {
        let inner = self.inner.iter().map(|inner| inner.failure_state.as_ref());
        std::iter::once(self.group.as_ref()).chain(inner)
    }

    /// Fails all groups with an error of an operation, which may be a relayed failure. The culprit
    /// has its number in the group. Returns the first failure of the group.
    fn fail_after_step(&self, error: Error) -> Error {
        if is_relayed(&error) {
            let limit = Deadline::after(RELAY_WAIT);
            while self.group.failure().is_none() && !limit.has_passed() {
                pause(RELAY_POLL_INTERVAL, &limit);
            }
        }
        let first = self.group.fail_with(error);
        self.pass_on();
        first
    }

    /// If one of the groups has failed, fails the others.
    pub(super) fn pass_on(&self) {
        if self.group.failure().is_none() {
            let failed = self.inner.iter().find_map(|inner| {
                let failure = inner.failure_state.failure().filter(|error| !is_relayed(error))?;
                Some(renumber_outwards(failure, &inner.ranks))
            });
            let Some(failed) = failed else { return };
            self.group.fail(&failed);
        }
        let Some(failure) = self.group.failure() else { return };
        for inner in &self.inner {
            if inner.failure_state.failure().is_none() {
                inner.failure_state.fail(&relayed(&failure));
            }
        }
    }
}

/// The failure state of the group for the code that runs operations of an inner group.
impl GroupFailureState for LinkedFailures {
    fn failure(&self) -> Option<Error> {
        self.group.failure()
    }

    fn fail(&self, reason: &Error) {
        self.group.fail(reason);
        self.pass_on();
    }

    fn fail_with(&self, error: Error) -> Error {
        self.fail_after_step(error)
    }

    fn add_listener(&self, listener: Weak<dyn DoorbellListener>) {
        self.group.add_listener(listener);
    }
}

impl DoorbellListener for LinkedFailures {
    fn on_doorbell(&self) {
        let can_pass_on = || {
            let inner = self.inner.iter().filter_map(|inner| inner.failure_state.failure());
            self.group.failure().is_some() || inner.into_iter().any(|error| !is_relayed(&error))
        };
        if !self.has_woken_task.load(Ordering::Acquire)
            && can_pass_on()
            && !self.has_woken_task.swap(true, Ordering::AcqRel)
        {
            self.task.get().into_iter().for_each(ServiceTask::wake);
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::base::error::RankFault;
    use crate::base::sync::lock;
    use crate::transport::DoorbellListeners;
    use std::sync::Mutex;

    #[derive(Debug, Default)]
    struct RecordedFailure {
        failure: Mutex<Option<Error>>,
        listeners: DoorbellListeners,
    }

    impl GroupFailureState for RecordedFailure {
        fn failure(&self) -> Option<Error> {
            lock(&self.failure).clone()
        }

        fn fail(&self, reason: &Error) {
            lock(&self.failure).get_or_insert_with(|| reason.clone());
            self.listeners.notify_all();
        }

        fn add_listener(&self, listener: Weak<dyn DoorbellListener>) {
            self.listeners.add(listener);
        }
    }

    /// Returns a group of six ranks and inner groups of its ranks {1, 4} and {4, 5}.
    fn linked() -> (Vec<Arc<RecordedFailure>>, Arc<LinkedFailures>) {
        let states: Vec<Arc<RecordedFailure>> = (0..3).map(|_| Arc::default()).collect();
        let state = |at: usize| Arc::clone(&states[at]) as Arc<dyn GroupFailureState>;
        let inner = |at, ranks| LinkedGroup { failure_state: state(at), ranks };
        let inner = vec![inner(1, vec![1, 4]), inner(2, vec![4, 5])];
        let linked = LinkedFailures::link(state(0), inner).unwrap();
        (states, linked)
    }

    fn died(rank: Rank) -> Error {
        let error = Error::new(ErrorKind::PeerFailed, "it died").with_culprit(rank);
        error.with_fault(RankFault::Died)
    }

    /// Waits until all groups have failed, and returns the culprit that each names.
    fn culprits(states: &[Arc<RecordedFailure>]) -> Vec<Option<Rank>> {
        let limit = Deadline::after_ms(20_000);
        while states.iter().any(|state| state.failure().is_none()) && !limit.has_passed() {
            pause(Duration::from_millis(1), &limit);
        }
        states.iter().map(|state| state.failure().expect("a failure").culprit()).collect()
    }

    #[test]
    fn failure_of_inner_group_fails_all_with_own_numbers() {
        let (states, _linked) = linked();
        states[1].fail(&died(1));
        assert_eq!(culprits(&states), [Some(4), Some(1), None]);
    }

    #[test]
    fn relayed_failure_waits_for_the_failure_of_the_group() {
        let (states, linked) = linked();
        let relayed = relayed(&died(3));
        states[2].fail(&relayed);
        linked.pass_on();
        assert!(states[0].failure().is_none() && states[1].failure().is_none());
        let group = Arc::clone(&states[0]);
        let fail_later = std::thread::spawn(move || {
            pause(Duration::from_millis(50), &Deadline::after_ms(1000));
            group.fail(&died(3));
        });
        assert_eq!(linked.fail_after_step(relayed), died(3));
        fail_later.join().unwrap();
        assert_eq!(culprits(&states)[0], Some(3));
    }

    #[test]
    fn failure_of_group_fails_inner_groups() {
        let (states, linked) = linked();
        states[0].fail(&died(5));
        assert_eq!(culprits(&states), [Some(5), None, None]);
        let first = linked.fail_with(Error::invalid("later"));
        assert_eq!((first.culprit(), linked.failure()), (Some(5), Some(first)));
    }
}
