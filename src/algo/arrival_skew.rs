//! Who came late: what one operation sees of ranks that entered it after this one had begun to wait
//! for them.
//!
//! Nothing is looked at before a wait has become long, which the caller decides; from then on
//! whoever has not come is looked for at every look of the wait. A rank that is waited for since it
//! waits itself *has* come, and is not blamed: within a node that can be seen, and over messages
//! the first of a rank says for whom it has waited (see
//! [`Excuse`](crate::transport::frame::Excuse)).
//!
//! Must not know: how ranks are waited for, and what is done with what is told.

use super::Operation;
use crate::base::ids::Rank;
use crate::base::label::LabelledName;
use crate::base::progress_observer::ProgressObserver;
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

/// What has been seen in one operation.
#[derive(Debug)]
pub struct ArrivalSkew<'a> {
    observer: &'a dyn ProgressObserver,
    operation: LabelledName,
    /// When this rank had waited for long for the first time.
    long_wait_since: Cell<Option<Instant>>,
    /// Who had not come at the last look.
    missing: RefCell<Vec<Rank>>,
    /// How late the last one was that has come.
    last_skew: Cell<Duration>,
}

impl<'a> ArrivalSkew<'a> {
    /// Of an operation that begins.
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

    /// A wait begins.
    pub fn start_wait(&self) -> Option<Instant> {
        self.observer.is_tracing_waits().then(Instant::now)
    }

    /// A wait for a rank of the group has ended with what it waited for.
    pub fn end_wait(&self, started: Option<Instant>, rank: Rank) {
        if let Some(began) = started {
            self.observer.record_wait(rank, began, Instant::now());
        }
    }

    /// Whether any wait of the operation has become long.
    pub fn has_long_wait(&self) -> bool {
        self.long_wait_since.get().is_some()
    }

    /// A look in a wait that has become long: notes who of `others` has not come, and at later
    /// looks who of those has. `blame` says whose fault it is that a rank came so late, by the
    /// number in the group, and how late that one was.
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
        let (kind, extent) = (OpKind::Barrier, CountSpec::Count(0));
        let descriptor = Descriptor {
            kind,
            dtype: None,
            op: None,
            root: None,
            count_spec: extent,
            sequence: 1,
            algorithm: 0,
            part: 0,
            label: Label::new("phase 2").unwrap(),
        };
        let operation = Operation::of(descriptor, Src::empty(), Dst::empty(), &deadline);
        let lateness = ArrivalSkew::of(&Operation { observer: &recorded, ..operation });
        assert!(!lateness.has_long_wait());
        let last_arrived = Cell::new(1);
        let blame = |rank, by| (rank + 10, by);
        let observe = || {
            lateness.observe_arrivals(
                if lateness.has_long_wait() { 0..0 } else { 1..4 },
                |rank| rank <= last_arrived.get(),
                blame,
            )
        };
        // Rank 1 was there when the wait became long, and 2 and 3 come one after the other.
        for (now_there, told) in [(1, 0), (1, 0), (2, 1), (2, 1), (3, 2), (3, 2)] {
            last_arrived.set(now_there);
            observe();
            assert_eq!(recorded.0.lock().unwrap().len(), told, "{now_there}");
        }
        assert!(lateness.has_long_wait());
        let recorded = recorded.0.lock().unwrap();
        let [(first, first_by, first_alone), (last, last_by, last_alone)] = recorded[..] else {
            panic!("{recorded:?}")
        };
        assert_eq!((first, last), (12, 13));
        assert_eq!(first_alone, Duration::ZERO);
        assert_eq!(last_alone, last_by - first_by);
    }
}
