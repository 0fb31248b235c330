//! What becomes of a run: how far it is, what was wrong, whether to go on.

use crate::matrix::{Scene, Size, Transport, Variant};
use dist::transport::OpKind;
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// After this many failures nobody goes on.
const ENOUGH: usize = 10;

/// What costs about the same: so many ranks, so much.
pub(crate) type Class = (usize, Size);

/// What has been done.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Cases by kind and transport.
    pub(crate) cases: BTreeMap<(u8, Transport), u64>,
    /// Cases, and the time they took, by class.
    pub(crate) classes: HashMap<Class, (u64, Duration)>,
    /// What is running.
    pub(crate) scene: Option<Scene>,
}

impl Tally {
    /// All cases.
    pub(crate) fn total(&self) -> u64 {
        self.cases.values().sum()
    }
}

/// Watches a run.
#[derive(Debug)]
pub(crate) struct Monitor {
    tally: Mutex<Tally>,
    /// By case, whichever rank found it first.
    failures: Mutex<BTreeMap<String, String>>,
    stopped: AtomicBool,
    until: Option<Instant>,
}

impl Monitor {
    /// One that stops the run after `limit`, if any.
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        Self {
            tally: Mutex::default(),
            failures: Mutex::default(),
            stopped: AtomicBool::new(false),
            until: limit.map(|limit| Instant::now() + limit),
        }
    }

    /// Whether to begin nothing more.
    pub(crate) fn is_over(&self) -> bool {
        if self.until.is_some_and(|until| Instant::now() >= until) {
            self.stopped.store(true, Ordering::Relaxed);
        }
        self.stopped.load(Ordering::Relaxed)
    }

    /// A result was wrong; the others are worth knowing, up to a number.
    pub(crate) fn wrong(&self, case: String, problem: String) {
        let mut failures = self.failures.lock().unwrap();
        if failures.len() < ENOUGH {
            failures.entry(case).or_insert(problem);
        }
        if failures.len() >= ENOUGH {
            self.stopped.store(true, Ordering::Relaxed);
        }
    }

    /// A call failed: the group is of no use any more. What fails because others have stopped says
    /// nothing.
    pub(crate) fn broken(&self, case: String, problem: String) {
        if !self.stopped.swap(true, Ordering::Relaxed) {
            self.failures.lock().unwrap().insert(case, problem);
        }
    }

    pub(crate) fn begins(&self, scene: &Scene) {
        self.tally.lock().unwrap().scene = Some(*scene);
    }

    pub(crate) fn done(&self, scene: &Scene, variants: &[Variant], took: Duration) {
        let mut tally = self.tally.lock().unwrap();
        for variant in variants {
            let key = (scene.kind as u8, variant.layout.transport);
            *tally.cases.entry(key).or_default() += 1;
        }
        let (cases, time) = tally.classes.entry((scene.ranks, scene.size)).or_default();
        *cases += variants.len() as u64;
        *time += took;
    }

    /// Looks at what has been done.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Tally) -> T) -> T {
        look(&self.tally.lock().unwrap())
    }

    /// What was wrong, a case and its problem each.
    pub(crate) fn failures(&self) -> Vec<String> {
        let failures = self.failures.lock().unwrap();
        failures.iter().map(|(case, problem)| format!("{case}: {problem}")).collect()
    }

    /// A table of the cases done.
    pub(crate) fn summary(&self) -> String {
        let mut text = format!("{:18}", "cases");
        Transport::ALL.iter().for_each(|t| text += &format!("{:>10}", t.name()));
        for kind in OpKind::ALL {
            text += &format!("\n{:18}", kind.name());
            for transport in Transport::ALL {
                let key = (kind as u8, transport);
                let cases = self.look(|tally| tally.cases.get(&key).copied().unwrap_or(0));
                text += &format!("{cases:>10}");
            }
        }
        text
    }
}
