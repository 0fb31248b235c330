//! Runs the whole matrix: `cargo xtask conformance`.
//!
//! The environment selects a part of it: `CONFORMANCE_PART=I/N`, `CONFORMANCE_TRANSPORT`,
//! `CONFORMANCE_KIND`, `CONFORMANCE_ONLY` (the text of one case), `CONFORMANCE_MINUTES`.
#![allow(clippy::print_stdout, reason = "progress and outcome of a long run")]

use crate::matrix::{CallScene, CallVariant, RANKS, SIZES, VectorSize, scenes, variants};
use crate::matrix_runner::MatrixRun;
use crate::run_monitor::{CostClass, RunMonitor};
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The interval of the progress lines.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
/// Every 97th scene runs before the rest, to estimate the total time.
const SAMPLE_STRIDE: usize = 97;
/// The minimum number of sample scenes per size.
const MIN_SCENES_PER_SIZE: usize = 8;

/// The selected part of the matrix.
struct RunSelection {
    part: (usize, usize),
    transport: Option<String>,
    kind: Option<String>,
    only: Option<String>,
    limit: Option<Duration>,
}

#[allow(clippy::disallowed_methods, reason = "the one way to tell a test what to do")]
fn variable(name: &str) -> Option<String> {
    std::env::var(format!("CONFORMANCE_{name}")).ok()
}

impl RunSelection {
    fn read() -> Self {
        let number = |text: &str| text.parse::<usize>().unwrap();
        let part = variable("PART").map_or((1, 1), |text| {
            let (part, of) = text.split_once('/').unwrap();
            (number(part), number(of))
        });
        assert!((1..=part.1).contains(&part.0), "part {} of {}", part.0, part.1);
        let minutes = variable("MINUTES").map(|text| number(&text) as u64);
        Self {
            part,
            transport: variable("TRANSPORT"),
            kind: variable("KIND"),
            only: variable("ONLY"),
            limit: minutes.map(|minutes| Duration::from_secs(60 * minutes)),
        }
    }

    fn scenes(&self, ranks: usize) -> Vec<CallScene> {
        let all = scenes(ranks).into_iter().enumerate();
        let selected = all.filter(|(number, _)| number % self.part.1 == self.part.0 - 1);
        let kind =
            |scene: &CallScene| self.kind.as_deref().is_none_or(|kind| kind == scene.kind.name());
        // The text of a case begins with the text of its scene.
        let only =
            |s: &CallScene| self.only.as_ref().is_none_or(|only| only.starts_with(&s.to_string()));
        let mut scenes: Vec<CallScene> =
            selected.map(|(_, s)| s).filter(|s| kind(s) && only(s)).collect();
        scenes.retain(|scene| !self.variants(scene).is_empty());
        scenes
    }

    fn variants(&self, scene: &CallScene) -> Vec<CallVariant> {
        let mut all = variants(scene);
        if let Some(transport) = &self.transport {
            all.retain(|variant| variant.layout.transport.name() == transport);
        }
        if let Some(only) = &self.only {
            all.retain(|variant| format!("{scene}{variant}") == *only);
        }
        all
    }
}

#[test]
#[ignore = "takes up to an hour: cargo xtask conformance"]
fn whole_matrix() {
    let selection = RunSelection::read();
    let mut remaining_by_class: HashMap<CostClass, u64> = HashMap::new();
    let by_ranks = RANKS.map(|ranks| (ranks, selection.scenes(ranks)));
    for scene in by_ranks.iter().flat_map(|(_, scenes)| scenes) {
        let cases = selection.variants(scene).len() as u64;
        *remaining_by_class.entry((scene.ranks, scene.size)).or_default() += cases;
    }
    let total: u64 = remaining_by_class.values().sum();
    println!("{total} cases, each of them twice");
    assert!(total > 0, "no case is like that");

    let sample = RunMonitor::new(selection.limit);
    let began = Instant::now();
    for (ranks, scenes) in &by_ranks {
        run(*ranks, sample_of(scenes), &selection, &sample);
    }
    let estimate = sample.with_tally(|tally| {
        let time = |(class, cases): (&CostClass, &u64)| {
            let (done, took) = tally.classes.get(class).copied().unwrap_or_default();
            took.as_secs_f64() / (done.max(1) as f64) * *cases as f64
        };
        remaining_by_class.iter().map(time).sum::<f64>()
    });
    let (sampled, took) = (sample.with_tally(|tally| tally.total()), began.elapsed().as_secs_f64());
    println!(
        "a sample of {sampled} took {took:.0} s; all will take about {:.1} min",
        estimate / 60.0
    );
    assert_complete(&sample, sampled);

    let remaining_time = selection.limit.map(|limit| limit.saturating_sub(began.elapsed()));
    let monitor = RunMonitor::new(remaining_time);
    let (ended, tick) = channel::<()>();
    std::thread::scope(|scope| {
        let monitor = &monitor;
        scope.spawn(move || print_progress(&tick, monitor, total));
        for (ranks, scenes) in by_ranks {
            run(ranks, scenes, &selection, monitor);
        }
        drop(ended);
    });
    println!("{}", monitor.summary());
    println!("{:.1} minutes", began.elapsed().as_secs_f64() / 60.0);
    assert_complete(&monitor, total);
}

/// Returns a sample of each size, since the expensive sizes have only few scenes.
fn sample_of(scenes: &[CallScene]) -> Vec<CallScene> {
    let of = |size: &VectorSize| {
        let all: Vec<CallScene> =
            scenes.iter().filter(|scene| scene.size == *size).copied().collect();
        let step = SAMPLE_STRIDE.min(all.len() / MIN_SCENES_PER_SIZE).max(1);
        all.into_iter().step_by(step).collect::<Vec<_>>()
    };
    SIZES.iter().flat_map(of).collect()
}

fn run(ranks: usize, scenes: Vec<CallScene>, selection: &RunSelection, monitor: &RunMonitor) {
    if !scenes.is_empty() && !monitor.is_over() {
        let variants = |_: usize, scene: &CallScene| selection.variants(scene);
        MatrixRun { ranks, scenes: &scenes, variants: &variants, monitor, backend: None }.run_all();
    }
}

/// Prints the progress until the sender is dropped.
fn print_progress(stop_signal: &Receiver<()>, monitor: &RunMonitor, total: u64) {
    let began = Instant::now();
    while stop_signal.recv_timeout(PROGRESS_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let (done, scene) = monitor.with_tally(|tally| (tally.total(), tally.scene));
        let seconds = began.elapsed().as_secs();
        let scene = scene.map(|scene| scene.to_string()).unwrap_or_default();
        println!("{done} of {total}, {seconds} s, {} a second: {scene}", done / seconds.max(1));
    }
}

/// Panics if a case failed or not all cases have run.
fn assert_complete(monitor: &RunMonitor, expected_total: u64) {
    let (failures, done) = (monitor.failures(), monitor.with_tally(|tally| tally.total()));
    let again =
        "; repeat one with cargo xtask conformance --only \"<what stands before the colon>\"";
    assert!(failures.is_empty(), "{}\n{} failures{again}", failures.join("\n"), failures.len());
    assert!(done == expected_total, "only {done} of {expected_total} cases in the time allowed");
}
