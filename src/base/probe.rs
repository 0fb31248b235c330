//! What an operation tells while it runs: which algorithm it took, for whom it waited, who came
//! late.
//!
//! The one who issues an operation hands a [`Probe`] along with it; algorithms tell it what they
//! see. Nothing is told of a wait that was short, unless every wait is wanted
//! ([`Probe::wants_all`]), so that operations in which everybody is there pay nothing.
//!
//! Must not know: who listens, and what for.

use super::ids::Rank;
use super::label::LabelledName;
use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Hears what happens inside of operations. Ranks are those of the group. All methods are called on
/// the thread that runs the operation, must not block, and must not call back.
pub trait Probe: Debug {
    /// Whether every wait is to be told with its times.
    fn wants_all(&self) -> bool;

    /// An operation begins, by this algorithm: before anything in it may last, but maybe only once
    /// the others have what they wait for of this rank.
    fn begins(&self, algorithm: &'static str);

    /// The operation was small, and has waited for a moment at most: it took less than some ten
    /// microseconds. Not told by every algorithm.
    fn was_short(&self) {}

    /// The operation has waited for a rank; told where every wait is wanted.
    fn waited(&self, rank: Rank, began: Instant, ended: Instant);

    /// A rank entered the operation `by` later than this one, which had been waiting for so long;
    /// for the last `alone` of that no other rank was seen to be missing.
    fn late(&self, operation: LabelledName, rank: Rank, by: Duration, alone: Duration);

    /// Who of those that were told to be late in the operation is the latest so far.
    fn latest(&self) -> Option<(Rank, Duration)>;
}

/// For operations that nobody listens to.
#[derive(Debug)]
pub struct Nobody;

impl Probe for Nobody {
    fn wants_all(&self) -> bool {
        false
    }

    fn begins(&self, _: &'static str) {}

    fn waited(&self, _: Rank, _: Instant, _: Instant) {}

    fn late(&self, _: LabelledName, _: Rank, _: Duration, _: Duration) {}

    fn latest(&self) -> Option<(Rank, Duration)> {
        None
    }
}
