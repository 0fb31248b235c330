//! What an operation tells while it runs: which algorithm it took, for whom it waited, who came
//! late.
//!
//! The one who issues an operation hands a [`ProgressObserver`] along with it; algorithms tell it
//! what they see. Nothing is told of a wait that was short, unless every wait is wanted
//! ([`ProgressObserver::is_tracing_waits`]), so that operations in which everybody is there pay
//! nothing.
//!
//! Must not know: who listens, and what for.

use super::ids::Rank;
use super::label::LabelledName;
use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Hears what happens inside of operations. Ranks are those of the group. All methods are called on
/// the thread that runs the operation, must not block, and must not call back.
pub trait ProgressObserver: Debug {
    /// Whether every wait is to be told with its times.
    fn is_tracing_waits(&self) -> bool;

    /// An operation begins, by this algorithm: before anything in it may last, but maybe only once
    /// the others have what they wait for of this rank.
    fn record_start(&self, algorithm: &'static str);

    /// The operation was small, and has waited for a moment at most: it took less than some ten
    /// microseconds. Not told by every algorithm.
    fn record_short_wait(&self) {}

    /// The operation has waited for a rank; told where every wait is wanted.
    fn record_wait(&self, rank: Rank, wait_start: Instant, wait_end: Instant);

    /// A rank entered the operation `skew` later than this one, which had been waiting for so long;
    /// for the last `exclusive_wait` of that no other rank was seen to be missing.
    fn record_late_rank(
        &self,
        operation: LabelledName,
        rank: Rank,
        skew: Duration,
        exclusive_wait: Duration,
    );

    /// Who of those that were told to be late in the operation is the latest so far.
    fn latest_rank(&self) -> Option<(Rank, Duration)>;
}

/// For operations that nobody listens to.
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
