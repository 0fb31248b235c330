//! [`ServiceTask`]: a task that any thread can start on the service thread at low cost. It needs no
//! descriptor.

use super::service::{self, TaskHandler, TaskRegistration};
use crate::base::error::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
    /// Whether the task was woken and has not started since.
    is_pending: AtomicBool,
    task: ServiceCallback,
}

impl std::fmt::Debug for ServiceTaskInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("pending", &self.is_pending).finish_non_exhaustive()
    }
}

impl ServiceTask {
    /// Registers a task, which must not block.
    ///
    /// # Errors
    /// `System`.
    pub fn new(task: impl Fn() + Send + Sync + 'static) -> Result<Self> {
        let is_pending = AtomicBool::new(false);
        let inner = Arc::new(ServiceTaskInner { is_pending, task: Box::new(task) });
        let registration = service::task(inner.clone())?;
        Ok(Self { inner, registration })
    }

    /// Makes the service thread run the task. That run sees everything that the caller stored
    /// before this call.
    pub fn wake(&self) {
        if !self.inner.is_pending.swap(true, Ordering::AcqRel) {
            self.registration.start();
        }
    }
}

impl TaskHandler for ServiceTaskInner {
    fn on_start(&self) {
        self.is_pending.swap(false, Ordering::AcqRel);
        (self.task)();
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
