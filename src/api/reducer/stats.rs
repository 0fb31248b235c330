//! The statistics of a reducer: of the last step that ended, and sums over all steps.

use super::step::ReducerStep;
use std::time::{Duration, Instant};

/// Statistics of the last step that ended; see `dist_reducer_stats_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the header explains the fields")]
pub struct ReducerStats {
    pub steps: u64,
    pub n_buckets: u64,
    pub bytes_reduced: u64,
    pub bytes_saved: u64,
    pub bytes_copied: u64,
    pub first_ready_to_last_ready_ns: u64,
    pub communication_ns: u64,
    pub exposed_ns: u64,
    pub step_ns: u64,
    pub rebuilds: u64,
    pub retries: u64,
}

/// The statistics of the last step, and sums over all steps.
#[derive(Clone, Debug, Default)]
pub(super) struct ReducerTotals {
    pub(super) last: ReducerStats,
    /// The sums of the bytes and durations of all steps.
    pub(super) sums: ReducerStats,
    pub(super) rebuilds: u64,
    pub(super) retries: u64,
}

pub(super) fn saturating_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the time between two events, or 0 if one did not happen.
pub(super) fn between_ns(from: Option<Instant>, to: Option<Instant>) -> u64 {
    let duration = from.zip(to).map(|(from, to)| to.saturating_duration_since(from));
    saturating_ns(duration.unwrap_or_default())
}

impl ReducerTotals {
    /// Adds an ended step.
    pub(super) fn add(&mut self, step: &ReducerStep, n_buckets: usize) {
        let notes = step.log.lock();
        let times = &step.times;
        let last = ReducerStats {
            n_buckets: n_buckets as u64,
            bytes_reduced: notes.bytes_reduced,
            bytes_saved: notes.bytes_reduced.saturating_sub(notes.bytes_sent),
            bytes_copied: notes.bytes_copied,
            first_ready_to_last_ready_ns: between_ns(times.first_ready, times.last_ready),
            communication_ns: saturating_ns(notes.communication),
            step_ns: between_ns(times.begun, times.ended),
            ..ReducerStats::default()
        };
        self.last = last;
        self.sums.bytes_reduced += last.bytes_reduced;
        self.sums.bytes_saved += last.bytes_saved;
        self.sums.bytes_copied += last.bytes_copied;
        self.sums.communication_ns += last.communication_ns;
        self.sums.step_ns += last.step_ns;
    }

    /// Records how long the caller waited for the end of the last step.
    pub(super) fn exposed(&mut self, time: Duration) {
        self.last.exposed_ns = saturating_ns(time);
        self.sums.exposed_ns += self.last.exposed_ns;
    }
}
