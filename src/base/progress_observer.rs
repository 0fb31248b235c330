//! The progress observer of an operation: it receives the chosen algorithm, the waits, and the late
//! ranks.
//!
//! The issuer of an operation passes a [`ProgressObserver`] with it, and the algorithms report to
//! it. They do not report short waits, unless the observer traces all waits
//! ([`ProgressObserver::is_tracing_waits`]). Operations without a late rank thus have no cost.
//!
//! This module does not depend on the observers and their purposes.

use super::ids::Rank;
use super::label::LabelledName;
use std::fmt::Debug;
use std::time::{Duration, Instant};

/// An observer of the events within operations. Ranks are those of the group. All methods are
/// called on the thread that runs the operation. They must not block, and must not call back.
pub trait ProgressObserver: Debug {
    /// Returns whether the observer receives every wait with its times.
    fn is_tracing_waits(&self) -> bool;

    /// Records the start of an operation with this algorithm. The call comes before the operation's
    /// first long wait, but may come after this rank has published its first step.
    fn record_start(&self, algorithm: &'static str);

    /// Records that the operation was small and had no long wait: it took less than some ten
    /// microseconds. Not every algorithm makes this call.
    fn record_short_wait(&self) {}

    /// Records a wait for a rank, if the observer traces all waits.
    fn record_wait(&self, rank: Rank, wait_start: Instant, wait_end: Instant);

    /// Records that `rank` entered the operation later than this rank, which had waited for `skew`.
    /// During the last `exclusive_wait` of that time, no other rank was missing.
    fn record_late_rank(
        &self,
        operation: LabelledName,
        rank: Rank,
        skew: Duration,
        exclusive_wait: Duration,
    );

    /// Returns the rank with the largest recorded skew in the operation so far.
    fn latest_rank(&self) -> Option<(Rank, Duration)>;
}

/// The observer of operations without an observer.
#[derive(Debug)]
pub struct NoObserver;

impl ProgressObserver for NoObserver {
    fn is_tracing_waits(&self) -> bool {
        false
    }

    fn record_start(&self, _: &'static str) {}

    fn record_wait(&self, _: Rank, _: Instant, _: Instant) {}

    fn record_late_rank(&self, _: LabelledName, _: Rank, _: Duration, _: Duration) {}

    fn latest_rank(&self) -> Option<(Rank, Duration)> {
        None
    }
}
