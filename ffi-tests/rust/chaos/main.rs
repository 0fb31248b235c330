//! Chaos tests: ranks are killed, stopped, partitioned, limited in memory, and sent garbage data at
//! random times during their calls. Each rank is a process. A seed determines the whole scenario
//! (`scenario.rs`), except how far each rank has come when the fault occurs.
//!
//! In each scenario the tests check that no call exceeds its deadline and no survivor crashes. They
//! also check that no successful call has a wrong result, that the library leaves memory alone
//! after a call has returned, that errors name the culprit, and that no resources remain. `cargo
//! xtask chaos` runs any number of scenarios, measures the failure detection latency
//! (`latency.rs`), kills ranks in repeated rounds (`rounds.rs`), and breaks connections between
//! hosts (`link_faults.rs`). The ordinary test runs
//! scenarios for one minute.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![allow(clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "a test says what it has measured")]

mod body;
mod call_buffer;
mod checked_collective;
mod culprit_count;
mod fault;
#[path = "../generator.rs"]
mod generator;
#[path = "../harness/mod.rs"]
mod harness;
#[path = "../hosts/mod.rs"]
mod hosts;
mod injection;
#[path = "../interface.rs"]
mod interface;
mod latency;
mod library;
mod link_faults;
mod rounds;
mod scenario;
mod scenario_checks;
mod scenario_processes;
mod scenario_runner;
mod self_injection;
#[path = "../ctests/toolchain.rs"]
mod toolchain;
#[path = "../worker/mod.rs"]
mod worker;

use culprit_count::CulpritCount;
use harness::leftovers;
use hosts::{Hosts, ONE_NETWORK};
use scenario::{INJECTIONS, Scenario};
use scenario_runner::ScenarioResult;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use worker::resource_snapshot::ResourceSnapshot;

/// The duration of the test if the user gives no number of seeds.
const DEFAULT_TIME_BUDGET: Duration = Duration::from_secs(60);
/// The number of findings at which the run stops.
const MAX_FINDINGS: usize = 10;
/// The interval of progress lines in a long run.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
/// The run reports a seed that takes longer than this.
const SLOW_SEED: Duration = Duration::from_secs(12);
/// Environment variable that all processes of this run have.
pub(crate) const RUN_VARIABLE: &str = "CHAOS_RUN";

#[allow(clippy::disallowed_methods, reason = "the one way to tell a test what to do")]
pub(crate) fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Returns a number from an environment variable, or the default.
pub(crate) fn numeric_setting(name: &str, default: u64) -> u64 {
    setting(name).map_or(default, |text| text.parse().unwrap())
}

/// Runs the tests one at a time, since each compares the resources of its process before and after.
pub(crate) fn serial_guard() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder that scenarios use one at a time.
pub(crate) struct ScenarioFolder(PathBuf);

impl ScenarioFolder {
    pub(crate) fn new() -> Self {
        let name = format!("chaos-{}-{}", std::process::id(), harness::next_serial());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(path.join("tmp")).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScenarioFolder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// A snapshot for the leak check: resources, processes and files must be the same before and after
/// a test.
pub(crate) struct LeakCheck {
    resources: ResourceSnapshot,
    files: leftovers::SharedFiles,
}

impl LeakCheck {
    pub(crate) fn start() -> Self {
        Self { resources: ResourceSnapshot::take(), files: leftovers::SharedFiles::take() }
    }

    /// Asserts that the test has left no process, file or resource.
    pub(crate) fn assert_no_leaks(&self) {
        let processes = leftovers::processes_with_environment(&format!(
            "{RUN_VARIABLE}={}",
            std::process::id()
        ));
        let processes = leftovers::end_witnesses(&processes);
        let mut leftovers = self.files.leftovers(Path::new("/nonexistent"), &processes);
        leftovers.extend(self.resources.leaked_since(Duration::from_secs(10)));
        assert!(leftovers.is_empty(), "left behind: {}", leftovers.join("; "));
    }
}

/// How often a seed with a finding runs again in the test suite.
const FINDING_REPEATS: u32 = 3;

/// The totals of a run.
#[derive(Default)]
struct RunTally {
    ran: u64,
    in_time: BTreeMap<String, u64>,
    skipped: BTreeMap<&'static str, u64>,
    findings: Vec<String>,
    culprits: CulpritCount,
    shown: Option<Instant>,
}

/// The seeds, time budget and options of a run.
struct SeedPlan {
    next: AtomicU64,
    end: u64,
    budget: Option<Duration>,
    only: Option<String>,
    jobs: usize,
    /// Whether the test suite runs a sample. Then a seed with a finding runs again.
    is_sample: bool,
}

impl SeedPlan {
    fn read() -> Self {
        let seeds = setting("CHAOS_SEEDS");
        let range = seeds.as_deref().map(|text| {
            let (first, end) = text.split_once("..").unwrap_or((text, ""));
            let first: u64 = first.parse().unwrap();
            (first, end.parse().unwrap_or(first + 1))
        });
        let minutes = setting("CHAOS_MINUTES").map(|text| text.parse::<u64>().unwrap());
        let budget = minutes.map(|minutes| Duration::from_secs(60 * minutes));
        let only = setting("CHAOS_ONLY");
        if let Some(name) = &only {
            let names: Vec<&str> = INJECTIONS.iter().map(|(name, _)| *name).collect();
            assert!(names.contains(&name.as_str()), "there are: {}", names.join(", "));
        }
        let cores = std::thread::available_parallelism().map_or(2, |cores| cores.get() as u64);
        Self {
            next: AtomicU64::new(range.map_or(1, |(first, _)| first)),
            end: range.map_or(u64::MAX, |(_, end)| end),
            budget: budget.or(range.is_none().then_some(DEFAULT_TIME_BUDGET)),
            only,
            jobs: usize::try_from(numeric_setting("CHAOS_JOBS", 4 * cores)).unwrap(),
            is_sample: seeds.is_none(),
        }
    }

    /// Reads the plan for faults of connections, which has `default_seeds` seeds if the user gives
    /// no number.
    fn read_links(default_seeds: u64) -> Self {
        let plan = Self::read();
        let end = plan.end.min(plan.next.load(Ordering::Relaxed) + default_seeds);
        let end = if setting("CHAOS_SEEDS").is_some() { plan.end } else { end };
        Self { end, ..plan }
    }
}

#[test]
fn chaos() {
    let _alone = serial_guard();
    let leak_check = LeakCheck::start();
    let (plan, began) = (SeedPlan::read(), Instant::now());
    let tally = Mutex::new(RunTally::default());
    std::thread::scope(|scope| {
        for _ in 0..plan.jobs {
            scope.spawn(|| run_seeds(&plan, began, &tally));
        }
    });
    let tally = tally.into_inner().unwrap();
    print_summary(&tally, began);
    leak_check.assert_no_leaks();
    assert!(tally.findings.is_empty(), "{} findings", tally.findings.len());
    assert!(tally.ran > 0);
}

/// Runs one seed after another until the plan ends.
fn run_seeds(plan: &SeedPlan, began: Instant, tally: &Mutex<RunTally>) {
    let folder = ScenarioFolder::new();
    let mut hosts: Option<Option<Hosts>> = None;
    loop {
        let is_over = plan.budget.is_some_and(|budget| began.elapsed() >= budget);
        let seed = plan.next.fetch_add(1, Ordering::Relaxed);
        if is_over || seed >= plan.end || tally.lock().unwrap().findings.len() >= MAX_FINDINGS {
            return;
        }
        let scenario = Scenario::of_seed(seed, plan.only.as_deref());
        if scenario.injection.separates_hosts() {
            hosts.get_or_insert_with(|| Hosts::try_new(2, ONE_NETWORK).ok());
        }
        let scenario_path = folder.path().join(seed.to_string());
        let started = Instant::now();
        let hosts = hosts.as_ref().and_then(Option::as_ref);
        let run = || {
            drop(fs::remove_dir_all(&scenario_path));
            fs::create_dir_all(scenario_path.join("tmp")).unwrap();
            scenario_runner::run(&scenario, &scenario_path, hosts)
        };
        let mut ending = run();
        if plan.is_sample && matches!(ending, ScenarioResult::Failed(..)) {
            ending = repeat_finding(ending, run);
        }
        drop(fs::remove_dir_all(&scenario_path));
        if started.elapsed() >= SLOW_SEED {
            println!("seed {seed} took {:.1} s", started.elapsed().as_secs_f64());
        }
        record_result(&mut tally.lock().unwrap(), &scenario, ending, began);
    }
}

/// Runs a seed with a finding again. The sample in the test suite must find what a change breaks:
/// there, a finding counts if it occurs again in one of [`FINDING_REPEATS`] runs. `cargo xtask
/// chaos` counts every finding. Both print all of them.
fn repeat_finding(first: ScenarioResult, run_again: impl Fn() -> ScenarioResult) -> ScenarioResult {
    for _ in 0..FINDING_REPEATS {
        let again = run_again();
        if matches!(again, ScenarioResult::Failed(..)) {
            return again;
        }
    }
    let ScenarioResult::Failed(text, culprits) = first else { return first };
    println!("SEEN ONCE, and not in {FINDING_REPEATS} further runs: {text}");
    ScenarioResult::Passed { in_time: false, culprits }
}

fn record_result(
    tally: &mut RunTally,
    scenario: &Scenario,
    ending: ScenarioResult,
    began: Instant,
) {
    match ending {
        ScenarioResult::Skipped(why) => *tally.skipped.entry(why).or_default() += 1,
        ScenarioResult::Passed { in_time, culprits } => {
            tally.ran += 1;
            tally.culprits.add(culprits);
            let what = format!("{:?}", scenario.injection);
            let name = what.split([' ', '{']).next().unwrap_or_default().to_owned();
            *tally.in_time.entry(name).or_default() += u64::from(in_time);
        }
        ScenarioResult::Failed(text, culprits) => {
            tally.ran += 1;
            tally.culprits.add(culprits);
            println!("FINDING: {text}");
            tally.findings.push(text);
        }
    }
    if tally.shown.unwrap_or(began).elapsed() >= PROGRESS_INTERVAL {
        tally.shown = Some(Instant::now());
        print_summary(tally, began);
    }
}

fn print_summary(tally: &RunTally, began: Instant) {
    let RunTally { ran, in_time, skipped, findings, culprits, .. } = tally;
    let (took, findings) = (began.elapsed().as_secs_f64(), findings.len());
    println!("{ran} seeds in {took:.1} s, {findings} findings; injected: {in_time:?}");
    println!("the culprit is right in {} of {} reports", culprits.right, culprits.reports);
    for (why, times) in skipped {
        println!("skipped: {times} seeds, since {why}");
    }
}
