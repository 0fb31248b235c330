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
use crate::base::probe::Probe;
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

/// What has been seen in one operation.
#[derive(Debug)]
pub struct Lateness<'a> {
    probe: &'a dyn Probe,
    operation: LabelledName,
    /// When this rank had waited for long for the first time.
    since: Cell<Option<Instant>>,
    /// Who had not come at the last look.
    missing: RefCell<Vec<Rank>>,
    /// How late the last one was that has come.
    last: Cell<Duration>,
}

impl<'a> Lateness<'a> {
    /// Of an operation that begins.
    pub fn of(operation: &Operation<'a>) -> Self {
        Self {
            probe: operation.probe,
            operation: LabelledName {
                name: operation.descriptor.kind.name(),
                label: operation.descriptor.label,
            },
            since: Cell::new(None),
            missing: RefCell::new(Vec::new()),
            last: Cell::new(Duration::ZERO),
        }
    }

    /// A wait begins.
    pub fn wait_begins(&self) -> Option<Instant> {
        self.probe.wants_all().then(Instant::now)
    }

    /// A wait for a rank of the group has ended with what it waited for.
    pub fn wait_ends(&self, began: Option<Instant>, rank: Rank) {
        if let Some(began) = began {
            self.probe.waited(rank, began, Instant::now());
        }
    }

    /// Whether any wait of the operation has become long.
    pub fn is_long(&self) -> bool {
        self.since.get().is_some()
    }

    /// A look in a wait that has become long: notes who of `others` has not come, and at later
    /// looks who of those has. `blame` says whose fault it is that a rank came so late, by the
    /// number in the group, and how late that one was.
    pub fn look(
        &self,
        others: impl Iterator<Item = Rank>,
        has_come: impl Fn(Rank) -> bool,
        blame: impl Fn(Rank, Duration) -> (Rank, Duration),
    ) {
        let mut missing = self.missing.borrow_mut();
        let since = self.since.get().unwrap_or_else(Instant::now);
        self.since.set(Some(since));
        let known = missing.len();
        for rank in others {
            if !has_come(rank) && !missing[..known].contains(&rank) {
                missing.push(rank);
            }
        }
        if !missing.iter().any(|&rank| has_come(rank)) {
            return;
        }
        let by = since.elapsed();
        let alone =
            if missing.len() == 1 { by.saturating_sub(self.last.get()) } else { Duration::ZERO };
        missing.retain(|&rank| {
            let came = has_come(rank);
            if came {
                let (rank, by) = blame(rank, by);
                self.probe.late(self.operation, rank, by, alone.min(by));
            }
            !came
        });
        self.last.set(by);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::base::buffer::{Dst, Src};
    use crate::base::deadline::Deadline;
    use crate::base::label::Label;
    use crate::transport::{Descriptor, Extent, OpKind};
    use std::sync::Mutex;

    #[derive(Debug, Default)]
    struct Heard(Mutex<Vec<(Rank, Duration, Duration)>>);

    impl Probe for Heard {
        fn wants_all(&self) -> bool {
            false
        }

        fn begins(&self, _: &'static str) {}

        fn waited(&self, _: Rank, _: Instant, _: Instant) {}

        fn late(&self, operation: LabelledName, rank: Rank, by: Duration, alone: Duration) {
            assert_eq!(operation.to_string(), "barrier \"phase 2\"");
            self.0.lock().unwrap().push((rank, by, alone));
        }

        fn latest(&self) -> Option<(Rank, Duration)> {
            None
        }
    }

    #[test]
    fn only_the_last_one_was_missing_alone() {
        let (heard, deadline) = (Heard::default(), Deadline::never().into());
        let (kind, extent) = (OpKind::Barrier, Extent::Count(0));
        let descriptor = Descriptor {
            kind,
            dtype: None,
            op: None,
            root: None,
            extent,
            sequence: 1,
            algorithm: 0,
            part: 0,
            label: Label::new("phase 2").unwrap(),
        };
        let operation = Operation::of(descriptor, Src::empty(), Dst::empty(), &deadline);
        let lateness = Lateness::of(&Operation { probe: &heard, ..operation });
        assert!(!lateness.is_long());
        let come = Cell::new(1);
        let blame = |rank, by| (rank + 10, by);
        let look = || {
            lateness.look(
                if lateness.is_long() { 0..0 } else { 1..4 },
                |rank| rank <= come.get(),
                blame,
            )
        };
        // Rank 1 was there when the wait became long, and 2 and 3 come one after the other.
        for (now_there, told) in [(1, 0), (1, 0), (2, 1), (2, 1), (3, 2), (3, 2)] {
            come.set(now_there);
            look();
            assert_eq!(heard.0.lock().unwrap().len(), told, "{now_there}");
        }
        assert!(lateness.is_long());
        let heard = heard.0.lock().unwrap();
        let [(first, first_by, first_alone), (last, last_by, last_alone)] = heard[..] else {
            panic!("{heard:?}")
        };
        assert_eq!((first, last), (12, 13));
        assert_eq!(first_alone, Duration::ZERO);
        assert_eq!(last_alone, last_by - first_by);
    }
}
