//! Having something done soon on the service thread, from any thread and at little cost.

use super::service::{self, Next, Watch, Watched};
use crate::base::error::Result;
use crate::sys::event::Event;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is done on the service thread.
type Task = Box<dyn Fn() + Send + Sync>;

/// A task that runs on the service thread after each nudge; several nudges before it has begun are
/// one.
#[derive(Debug)]
pub struct Nudge {
    inner: Arc<Inner>,
    /// Dropped first: the task runs no more.
    _watch: Watch,
}

struct Inner {
    event: Event,
    /// Nudged, and not begun yet.
    pending: AtomicBool,
    task: Task,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("pending", &self.pending).finish_non_exhaustive()
    }
}

impl Nudge {
    /// Registers a task, which must not block.
    ///
    /// # Errors
    /// `System`.
    pub fn new(task: impl Fn() + Send + Sync + 'static) -> Result<Self> {
        let pending = AtomicBool::new(false);
        let inner = Arc::new(Inner { event: Event::new()?, pending, task: Box::new(task) });
        let watch = service::watch(inner.clone())?;
        Ok(Self { inner, _watch: watch })
    }

    /// Has the task run once more, after everything that the caller has stored.
    pub fn nudge(&self) {
        if !self.inner.pending.swap(true, Ordering::AcqRel) {
            self.inner.event.raise();
        }
    }
}

impl Watched for Inner {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn on_readable(&self) -> Next {
        self.event.clear();
        self.pending.swap(false, Ordering::AcqRel);
        (self.task)();
        Next::Keep
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::deadline::Deadline;
    use crate::wait::bell::Bell;
    use crate::wait::service::{Alarmed, alarm};
    use crate::wait::{Pace, until};
    use std::sync::atomic::AtomicU64;
    use std::time::{Duration, Instant};

    #[derive(Debug, Default)]
    struct Counter {
        count: AtomicU64,
        bell: Bell,
    }

    impl Counter {
        fn add(&self) {
            self.count.fetch_add(1, Ordering::Release);
            self.bell.ring();
        }

        fn wait_for(&self, least: u64) {
            let ready = || (self.count.load(Ordering::Acquire) >= least).then_some(());
            until(&self.bell, Pace::PATIENT, &Deadline::after_ms(10_000), || None, ready).unwrap();
        }
    }

    impl Alarmed for Counter {
        fn on_alarm(&self) {
            self.add();
        }
    }

    #[test]
    fn every_nudge_is_followed_by_a_run() {
        let counter = Arc::new(Counter::default());
        let task = Arc::clone(&counter);
        let nudge = Nudge::new(move || task.add()).unwrap();
        for turn in 1..=100 {
            nudge.nudge();
            counter.wait_for(turn);
        }
    }

    #[test]
    fn an_alarm_rings_once_when_its_time_has_come() {
        let counter = Arc::new(Counter::default());
        let alarm = alarm(counter.clone()).unwrap();
        let due = Instant::now() + Duration::from_millis(5);
        alarm.set(Some(Instant::now() + Duration::from_secs(60)));
        alarm.set(Some(due));
        counter.wait_for(1);
        assert!(Instant::now() >= due);
        alarm.set(Some(Instant::now()));
        counter.wait_for(2);
    }
}
