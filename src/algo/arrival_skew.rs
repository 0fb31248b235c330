//! Arrival skew: records which ranks enter an operation after this rank has started to wait for
//! them.
//!
//! A short wait records nothing. The caller decides when a wait has become long. From then on, each
//! poll of the wait checks which ranks have not entered the operation, and reports a late rank to
//! the progress observer when the rank arrives.
//!
//! A rank that has entered the operation and waits for a third rank is not blamed. Within a node,
//! shared memory shows which ranks have entered. Between nodes, the first message of a rank names
//! the rank that the sender has waited for longest
//! ([`BlamedRank`](crate::transport::collective_header::BlamedRank)), and the receiver blames the
//! named rank.
//!
//! This module does not depend on how ranks wait, or on what the observer does with a report.

use super::Operation;
use crate::base::ids::Rank;
use crate::base::label::LabelledName;
use crate::base::progress_observer::ProgressObserver;
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

/// The arrivals that this rank has observed in one operation.
#[derive(Debug)]
pub struct ArrivalSkew<'a> {
    observer: &'a dyn ProgressObserver,
    operation: LabelledName,
    /// The time at which a wait of this rank first became long.
    long_wait_since: Cell<Option<Instant>>,
    /// The ranks that were missing at the last poll.
    missing: RefCell<Vec<Rank>>,
    /// The time from the start of the long wait to the last observed arrival.
    last_skew: Cell<Duration>,
}

impl<'a> ArrivalSkew<'a> {
    /// Returns the observation state for a new operation.
    pub fn of(operation: &Operation<'a>) -> Self {
        Self {
            observer: operation.observer,
            operation: LabelledName {
                name: operation.descriptor.kind.name(),
                label: operation.descriptor.label,
            },
            long_wait_since: Cell::new(None),
            missing: RefCell::new(Vec::new()),
            last_skew: Cell::new(Duration::ZERO),
        }
    }

    /// Starts a wait. Returns the current time if the observer traces waits, else `None`.
    pub fn start_wait(&self) -> Option<Instant> {
        self.observer.is_tracing_waits().then(Instant::now)
    }

    /// Ends a successful wait for a rank of the group. `started` is the result of
    /// [`Self::start_wait`].
    pub fn end_wait(&self, started: Option<Instant>, rank: Rank) {
        if let Some(began) = started {
            self.observer.record_wait(rank, began, Instant::now());
        }
    }

    /// Returns whether any wait of the operation has become long.
    pub fn has_long_wait(&self) -> bool {
        self.long_wait_since.get().is_some()
    }

    /// Observes the arrivals at one poll of a long wait. Adds those ranks of `others` that have not
    /// arrived to the missing ranks, and reports each missing rank that has arrived since the last
    /// poll.
    ///
    /// `blame` receives a late rank and the time by which that rank was late. It returns the rank
    /// to blame, as a rank of the group, and the time to blame it for.
    pub fn observe_arrivals(
        &self,
        others: impl Iterator<Item = Rank>,
        has_arrived: impl Fn(Rank) -> bool,
        blame: impl Fn(Rank, Duration) -> (Rank, Duration),
    ) {
        let mut missing = self.missing.borrow_mut();
        let since = self.long_wait_since.get().unwrap_or_else(Instant::now);
        self.long_wait_since.set(Some(since));
        let known_missing = missing.len();
        for rank in others {
            if !has_arrived(rank) && !missing[..known_missing].contains(&rank) {
                missing.push(rank);
            }
        }
        if !missing.iter().any(|&rank| has_arrived(rank)) {
            return;
        }
        let skew = since.elapsed();
        let exclusive_wait = if missing.len() == 1 {
            skew.saturating_sub(self.last_skew.get())
        } else {
            Duration::ZERO
        };
        missing.retain(|&rank| {
            let arrived = has_arrived(rank);
            if arrived {
                let (rank, by) = blame(rank, skew);
                self.observer.record_late_rank(self.operation, rank, by, exclusive_wait.min(by));
            }
            !arrived
        });
        self.last_skew.set(skew);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::base::buffer::{Dst, Src};
    use crate::base::deadline::Deadline;
    use crate::base::label::Label;
    use crate::transport::{CountSpec, Descriptor, OpKind};
    use std::sync::Mutex;

    #[derive(Debug, Default)]
    struct RecordedSkew(Mutex<Vec<(Rank, Duration, Duration)>>);

    impl ProgressObserver for RecordedSkew {
        fn is_tracing_waits(&self) -> bool {
            false
        }

        fn record_start(&self, _: &'static str) {}

        fn record_wait(&self, _: Rank, _: Instant, _: Instant) {}

        fn record_late_rank(
            &self,
            operation: LabelledName,
            rank: Rank,
            by: Duration,
            alone: Duration,
        ) {
            assert_eq!(operation.to_string(), "barrier \"phase 2\"");
            self.0.lock().unwrap().push((rank, by, alone));
        }

        fn latest_rank(&self) -> Option<(Rank, Duration)> {
            None
        }
    }

    #[test]
    fn only_the_last_rank_has_an_exclusive_wait() {
        let (recorded, deadline) = (RecordedSkew::default(), Deadline::never().into());
        let (kind, count_spec) = (OpKind::Barrier, CountSpec::Count(0));
        let descriptor = Descriptor {
            kind,
            dtype: None,
            op: None,
            root: None,
            count_spec,
            sequence: 1,
            algorithm: 0,
            part: 0,
            label: Label::new("phase 2").unwrap(),
        };
        let operation = Operation::of(descriptor, Src::empty(), Dst::empty(), &deadline);
        let skew = ArrivalSkew::of(&Operation { observer: &recorded, ..operation });
        assert!(!skew.has_long_wait());
        let last_arrived = Cell::new(1);
        let blame = |rank, by| (rank + 10, by);
        let observe = || {
            skew.observe_arrivals(
                if skew.has_long_wait() { 0..0 } else { 1..4 },
                |rank| rank <= last_arrived.get(),
                blame,
            )
        };
        // Rank 1 has arrived when the wait becomes long. Ranks 2 and 3 arrive one after the other.
        for (arrived, reported) in [(1, 0), (1, 0), (2, 1), (2, 1), (3, 2), (3, 2)] {
            last_arrived.set(arrived);
            observe();
            assert_eq!(recorded.0.lock().unwrap().len(), reported, "{arrived}");
        }
        assert!(skew.has_long_wait());
        let recorded = recorded.0.lock().unwrap();
        let [(first, first_by, first_alone), (last, last_by, last_alone)] = recorded[..] else {
            panic!("{recorded:?}")
        };
        assert_eq!((first, last), (12, 13));
        assert_eq!(first_alone, Duration::ZERO);
        assert_eq!(last_alone, last_by - first_by);
    }
}
