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
    pub(super) bytes_reduced: u64,
    pub(super) bytes_saved: u64,
    pub(super) bytes_copied: u64,
    pub(super) communication: Duration,
    pub(super) exposed: Duration,
    pub(super) time: Duration,
    pub(super) rebuilds: u64,
    pub(super) retries: u64,
}

pub(super) fn saturating_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the time between two events, or 0 if one did not happen.
pub(super) fn between(from: Option<Instant>, to: Option<Instant>) -> Duration {
    from.zip(to).map_or(Duration::ZERO, |(from, to)| to.saturating_duration_since(from))
}

impl ReducerTotals {
    /// Adds an ended step.
    pub(super) fn add(&mut self, step: &ReducerStep, n_buckets: usize) {
        let notes = step.log.lock();
        let times = &step.times;
        let whole = between(times.begun, times.ended);
        let bytes_saved = notes.bytes_reduced.saturating_sub(notes.bytes_sent);
        self.last = ReducerStats {
            n_buckets: n_buckets as u64,
            bytes_reduced: notes.bytes_reduced,
            bytes_saved,
            bytes_copied: notes.bytes_copied,
            first_ready_to_last_ready_ns: saturating_ns(between(
                times.first_ready,
                times.last_ready,
            )),
            communication_ns: saturating_ns(notes.communication),
            step_ns: saturating_ns(whole),
            ..ReducerStats::default()
        };
        self.bytes_reduced += notes.bytes_reduced;
        self.bytes_saved += bytes_saved;
        self.bytes_copied += notes.bytes_copied;
        self.communication += notes.communication;
        self.time += whole;
    }

    /// Returns how long the caller waited for the end of the last step.
    pub(super) fn exposed(&mut self, time: Duration) {
        self.last.exposed_ns = saturating_ns(time);
        self.exposed += time;
    }
}
