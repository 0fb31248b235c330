//! The state of a run: progress, failures, and whether to continue.

use crate::matrix::{CallScene, CallVariant, Transport, VectorSize};
use dist::transport::OpKind;
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The number of failures at which the run stops.
const MAX_FAILURES: usize = 10;

/// A class of cases with about the same cost: the number of ranks and the size.
pub(crate) type CostClass = (usize, VectorSize);

/// The numbers of cases that have run.
#[derive(Debug, Default)]
pub(crate) struct RunTally {
    /// Cases by kind and transport.
    pub(crate) cases: BTreeMap<(u8, Transport), u64>,
    /// The number of cases, and their total time, by class.
    pub(crate) classes: HashMap<CostClass, (u64, Duration)>,
    /// The scene in progress.
    pub(crate) scene: Option<CallScene>,
}

impl RunTally {
    /// Returns the number of all cases.
    pub(crate) fn total(&self) -> u64 {
        self.cases.values().sum()
    }
}

/// Collects the progress and the failures of a run.
#[derive(Debug)]
pub(crate) struct RunMonitor {
    tally: Mutex<RunTally>,
    /// The failures by case, each from the first rank that found it.
    failures: Mutex<BTreeMap<String, String>>,
    stopped: AtomicBool,
    end: Option<Instant>,
}

impl RunMonitor {
    /// Returns a monitor that stops the run after `limit`, if given.
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        Self {
            tally: Mutex::default(),
            failures: Mutex::default(),
            stopped: AtomicBool::new(false),
            end: limit.map(|limit| Instant::now() + limit),
        }
    }

    /// Returns true if the ranks must start no further case.
    pub(crate) fn is_over(&self) -> bool {
        if self.end.is_some_and(|until| Instant::now() >= until) {
            self.stopped.store(true, Ordering::Relaxed);
        }
        self.stopped.load(Ordering::Relaxed)
    }

    /// Records a wrong result. The run continues until the number of failures reaches
    /// [`MAX_FAILURES`].
    pub(crate) fn record_wrong_result(&self, case: String, problem: String) {
        let mut failures = self.failures.lock().unwrap();
        if failures.len() < MAX_FAILURES {
            failures.entry(case).or_insert(problem);
        }
        if failures.len() >= MAX_FAILURES {
            self.stopped.store(true, Ordering::Relaxed);
        }
    }

    /// Records a failed call and stops the run, since the group is unusable. Later failures are
    /// ignored, since they follow from the stop.
    pub(crate) fn record_failed_call(&self, case: String, problem: String) {
        if !self.stopped.swap(true, Ordering::Relaxed) {
            self.failures.lock().unwrap().insert(case, problem);
        }
    }

    pub(crate) fn record_start(&self, scene: &CallScene) {
        self.tally.lock().unwrap().scene = Some(*scene);
    }

    pub(crate) fn record_done(&self, scene: &CallScene, variants: &[CallVariant], took: Duration) {
        let mut tally = self.tally.lock().unwrap();
        for variant in variants {
            let key = (scene.kind as u8, variant.layout.transport);
            *tally.cases.entry(key).or_default() += 1;
        }
        let (cases, time) = tally.classes.entry((scene.ranks, scene.size)).or_default();
        *cases += variants.len() as u64;
        *time += took;
    }

    /// Gives access to the tally.
    pub(crate) fn with_tally<T>(&self, look: impl FnOnce(&RunTally) -> T) -> T {
        look(&self.tally.lock().unwrap())
    }

    /// Returns the failures, each with its case and its problem.
    pub(crate) fn failures(&self) -> Vec<String> {
        let failures = self.failures.lock().unwrap();
        failures.iter().map(|(case, problem)| format!("{case}: {problem}")).collect()
    }

    /// Returns a table of the finished cases.
    pub(crate) fn summary(&self) -> String {
        let mut text = format!("{:18}", "cases");
        Transport::ALL.iter().for_each(|t| text += &format!("{:>10}", t.name()));
        for kind in OpKind::ALL {
            text += &format!("\n{:18}", kind.name());
            for transport in Transport::ALL {
                let key = (kind as u8, transport);
                let cases = self.with_tally(|tally| tally.cases.get(&key).copied().unwrap_or(0));
                text += &format!("{cases:>10}");
            }
        }
        text
    }
}
