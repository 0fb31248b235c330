//! [`ServiceTask`]: a task that any thread can start on the service thread at low cost. It needs no
//! descriptor.

use super::service::{self, TaskHandler, TaskRegistration};
use crate::base::error::Result;
use crate::base::sync::{AtomicBool, Ordering};
use std::sync::Arc;

/// The function that runs on the service thread.
type ServiceCallback = Box<dyn Fn() + Send + Sync>;

/// A task that runs on the service thread after each [`ServiceTask::wake`]. Several calls before
/// the task starts cause one run.
#[derive(Debug)]
pub struct ServiceTask {
    inner: Arc<ServiceTaskInner>,
    /// Dropping the registration ends the runs of the task.
    registration: TaskRegistration,
}

struct ServiceTaskInner {
    pending: PendingFlag,
    task: ServiceCallback,
}

/// Whether a task was woken and has not started since.
#[derive(Debug, Default)]
struct PendingFlag(AtomicBool);

impl PendingFlag {
    /// Sets the flag. Returns true if the caller must start the task; otherwise a start that is
    /// still to come sees everything that the caller stored before.
    fn set(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// Clears the flag when the task starts.
    fn clear(&self) {
        self.0.swap(false, Ordering::AcqRel);
    }
}

impl std::fmt::Debug for ServiceTaskInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("pending", &self.pending).finish_non_exhaustive()
    }
}

impl ServiceTask {
    /// Registers a task, which must not block.
    ///
    /// # Errors
    /// `System`.
    pub fn new(task: impl Fn() + Send + Sync + 'static) -> Result<Self> {
        let pending = PendingFlag::default();
        let inner = Arc::new(ServiceTaskInner { pending, task: Box::new(task) });
        let registration = service::task(inner.clone())?;
        Ok(Self { inner, registration })
    }

    /// Makes the service thread run the task. That run sees everything that the caller stored
    /// before this call.
    pub fn wake(&self) {
        if self.inner.pending.set() {
            self.registration.start();
        }
    }
}

impl TaskHandler for ServiceTaskInner {
    fn on_start(&self) {
        self.pending.clear();
        (self.task)();
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::base::sync::{AtomicU64, Mutex, unpoisoned};
    use loom::thread;

    /// The flag, the number of starts that the service thread has not run yet, and the data of the
    /// caller.
    #[derive(Default)]
    struct TaskModel {
        pending: PendingFlag,
        starts: Mutex<u32>,
        data: AtomicU64,
    }

    impl TaskModel {
        fn wake(&self, data: u64) {
            self.data.store(data, Ordering::Relaxed);
            if self.pending.set() {
                *unpoisoned(self.starts.lock()) += 1;
            }
        }

        /// Runs the task if it was started. Returns the data that the run sees.
        fn run(&self) -> Option<u64> {
            let mut starts = unpoisoned(self.starts.lock());
            *starts = starts.checked_sub(1)?;
            drop(starts);
            self.pending.clear();
            Some(self.data.load(Ordering::Relaxed))
        }
    }

    /// Each wake is followed by a run that sees the data of the wake, also if an earlier wake had
    /// set the flag.
    #[test]
    fn loom_run_after_a_wake_sees_its_data() {
        loom::model(|| {
            let task = loom::sync::Arc::new(TaskModel::default());
            let of_caller = loom::sync::Arc::clone(&task);
            let waking = thread::spawn(move || (1..=2).for_each(|data| of_caller.wake(data)));
            let mut last = task.run();
            waking.join().unwrap();
            while let Some(data) = task.run() {
                last = Some(data);
            }
            assert_eq!(last, Some(2));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::deadline::Deadline;
    use crate::wait::doorbell::Doorbell;
    use crate::wait::service::{AlarmHandler, alarm};
    use crate::wait::{WaitPolicy, wait_until};
    use std::sync::atomic::AtomicU64;
    use std::time::{Duration, Instant};

    #[derive(Debug, Default)]
    struct CallCounter {
        count: AtomicU64,
        doorbell: Doorbell,
    }

    impl CallCounter {
        fn add(&self) {
            self.count.fetch_add(1, Ordering::Release);
            self.doorbell.notify();
        }

        fn wait_for(&self, least: u64) {
            let ready = || (self.count.load(Ordering::Acquire) >= least).then_some(());
            wait_until(
                &self.doorbell,
                WaitPolicy::SLEEP_SOON,
                &Deadline::after_ms(10_000),
                || None,
                ready,
            )
            .unwrap();
        }
    }

    impl AlarmHandler for CallCounter {
        fn on_alarm(&self) {
            self.add();
        }
    }

    #[test]
    fn every_wake_runs_the_task() {
        let counter = Arc::new(CallCounter::default());
        let task = Arc::clone(&counter);
        let service_task = ServiceTask::new(move || task.add()).unwrap();
        for round in 1..=100 {
            service_task.wake();
            counter.wait_for(round);
        }
    }

    #[test]
    fn alarm_fires_once_when_due() {
        let counter = Arc::new(CallCounter::default());
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
