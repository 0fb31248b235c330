//! [`ProgressObserver`]: receives events of a running operation: the chosen algorithm, the waits,
//! and the late ranks.
//!
//! The code that issues an operation passes an observer, to which the algorithms report. The
//! algorithms do not report short waits, unless the observer traces all waits
//! ([`ProgressObserver::is_tracing_waits`]). The observer thus costs nothing in operations without
//! a late rank.
//!
//! This module does not depend on the implementations of the trait.

use super::ids::Rank;
use super::label::LabelledName;
use std::time::{Duration, Instant};

/// An observer of the events within operations. Ranks are those of the group. All methods are
/// called on the thread that runs the operation. The methods must not block, and must not call the
/// operation.
pub trait ProgressObserver {
    /// Returns whether the observer receives every wait with its times.
    fn is_tracing_waits(&self) -> bool;

    /// Records the start of an operation with this algorithm. The algorithm calls this before the
    /// operation's first long wait, possibly after this rank has published data to its peers.
    fn record_start(&self, algorithm: &'static str);

    /// Records that the operation was small and had no long wait: the operation took less than
    /// about 10 microseconds. Only some algorithms call this.
    fn record_short_wait(&self) {}

    /// Records a wait for a rank, if the observer traces all waits.
    fn record_wait(&self, rank: Rank, wait_start: Instant, wait_end: Instant);

    /// Records that this rank waited for `rank` for the time `skew`, because `rank` entered the
    /// operation later. In the last `exclusive_wait` of this time, `rank` was the only missing
    /// rank.
    fn record_late_rank(
        &self,
        operation: LabelledName,
        rank: Rank,
        skew: Duration,
        exclusive_wait: Duration,
    );

    /// Records that this rank has waited for long in the operation with this sequence number. The
    /// operation cannot end before each of these ranks takes part in it. An algorithm calls this
    /// again and again during the wait, and with an empty list when the wait has ended.
    fn record_awaited(&self, _sequence: u64, _ranks: &[Rank]) {}

    /// Returns the rank with the largest recorded skew in the operation so far.
    fn latest_rank(&self) -> Option<(Rank, Duration)>;
}

crate::base::trait_object_debug::impl_debug_of_objects!(ProgressObserver);

/// An observer that ignores all events.
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
