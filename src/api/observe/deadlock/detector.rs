//! The detector: the thread that examines blocked calls. It exists while there is a blocked call.

use super::blocked_calls;
use super::examination::{Deadlock, Examination, StepOutcome};
use crate::api::observe::recorder;
use crate::api::work::callbacks;
use crate::base::debug;
use crate::base::error::{Error, ErrorKind};
use crate::base::log::LogLevel;
use crate::process::thread;
use std::sync::Arc;
use std::time::Duration;

/// The number of steps after a change for which the detector makes steps in short intervals.
const ACTIVE_STEPS: u32 = 20;

/// The interval of steps in [`StepOutcome::Active`], for the default threshold of blocked calls.
const ACTIVE_INTERVAL: Duration = Duration::from_millis(60);

/// The interval of the other steps, for the default threshold.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// The interval of steps after an error of the store.
const ERROR_INTERVAL: Duration = Duration::from_secs(5);

/// Examines the oldest blocked call until no call is blocked.
pub(super) fn run() {
    let mut current: Option<Examination> = None;
    let mut active_steps = 0;
    while let Some((oldest, is_alone)) = blocked_calls::oldest_or_retire() {
        let mut examination = match current.take() {
            Some(examination) if examination.registered.wait == oldest.wait => examination,
            other => {
                active_steps = 0;
                other.into_iter().for_each(Examination::finish);
                Examination::new(oldest.clone())
            }
        };
        let is_single = is_alone && thread::has_one_caller() && !callbacks::has_registered();
        let outcome = examination.step(is_single);
        let is_confirmed =
            matches!(&outcome, Ok(StepOutcome::Confirmed | StepOutcome::Deadlock(_)));
        blocked_calls::set_confirmed(is_confirmed.then_some(oldest.wait));
        let interval = match outcome {
            Ok(StepOutcome::Deadlock(Deadlock { text, groups })) => {
                let error = Error::new(ErrorKind::Deadlock, text);
                for group in groups {
                    fail_group(group, &error);
                }
                blocked_calls::set_confirmed(None);
                IDLE_INTERVAL
            }
            Ok(StepOutcome::Confirmed) => ACTIVE_INTERVAL,
            Ok(StepOutcome::Active) => {
                active_steps += 1;
                if active_steps < ACTIVE_STEPS { ACTIVE_INTERVAL } else { IDLE_INTERVAL }
            }
            Ok(StepOutcome::Idle) => {
                active_steps = 0;
                IDLE_INTERVAL
            }
            Err(error) => {
                crate::log!(LogLevel::Debug, "the search for deadlocks is interrupted: {error}");
                ERROR_INTERVAL
            }
        };
        blocked_calls::wait_for_end(oldest.wait, scaled(interval));
        current = Some(examination);
    }
    current.into_iter().for_each(Examination::finish);
}

/// Scales an interval to the configured threshold of blocked calls, but does not make it longer.
fn scaled(interval: Duration) -> Duration {
    let threshold = debug::blocked_call_threshold().unwrap_or(IDLE_INTERVAL);
    interval.min(threshold * 4)
}

/// Fails a group because of a deadlock.
fn fail_group(id: u64, error: &Error) {
    let mut backend = None;
    recorder::visit_open_groups(|group| {
        if group.id == id {
            backend = Some(Arc::clone(group.backend));
        }
    });
    // This thread may drop the last reference to the back end: no operation needs this thread.
    if let Some(backend) = backend {
        backend.abort(error);
    }
}
