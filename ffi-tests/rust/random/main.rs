//! Tests random programs against an oracle: collectives and messages, blocking and asynchronous, in
//! batches, on several groups from several threads, over every transport and mixture of hosts. The
//! ranks wait for their works in random order.
//!
//! The ranks are threads. A seed determines a program (`program.rs`) and, for each rank, the order
//! of its waits (`execute.rs`). Therefore `RANDOM_SEEDS=SEED` repeats a failure.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod block_moves;
mod byte_strings;
mod c_api;
mod execute;
#[path = "../generator.rs"]
mod generator;
mod operation_memory;
mod program;
mod values;

use c_api::{GroupHandle, StoreHandle};
use execute::RankRunner;
use program::RandomProgram;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The duration of the test if the user gives no number of seeds.
const TIME_BUDGET: Duration = Duration::from_secs(60);
/// The maximum duration of a program on a busy machine.
const HANG_LIMIT: Duration = Duration::from_secs(180);

/// Returns the seeds from `RANDOM_SEEDS`: `A..B`, or one seed.
#[allow(clippy::disallowed_methods, reason = "the one way to tell a test what to do")]
fn seed_range() -> Option<std::ops::Range<u64>> {
    let text = std::env::var("RANDOM_SEEDS").ok()?;
    let (first, end) = text.split_once("..").unwrap_or((&text, ""));
    let first = first.parse().unwrap();
    Some(first..if end.is_empty() { first + 1 } else { end.parse().unwrap() })
}

#[test]
#[allow(clippy::print_stdout, reason = "progress of a long run")]
fn random_programs() {
    let before = ResourceCounts::take();
    let seeds = seed_range();
    let began = Instant::now();
    let mut ran = 0;
    for seed in seeds.clone().unwrap_or(1..u64::MAX) {
        if seeds.is_none() && began.elapsed() >= TIME_BUDGET {
            break;
        }
        run_watched(seed);
        ran += 1;
        if seeds.is_some() && ran % 50 == 0 {
            println!("{ran} programs, {} s", began.elapsed().as_secs());
        }
    }
    println!("{ran} programs in {} s", began.elapsed().as_secs());
    assert!(ran > 0);
    before.compare();
}

/// Runs a program, and exits the process if the program does not end in time.
fn run_watched(seed: u64) {
    let (done, watch) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if watch.recv_timeout(HANG_LIMIT) == Err(RecvTimeoutError::Timeout) {
                report(seed, "does not end");
                std::process::abort();
            }
        });
        let outcome = catch_unwind(|| run(&RandomProgram::generate(seed)));
        drop(done);
        if let Err(panic) = outcome {
            report(seed, "fails");
            resume_unwind(panic);
        }
    });
}

#[allow(clippy::print_stdout, reason = "what a failed test has to tell")]
fn report(seed: u64, what: &str) {
    let RandomProgram { size, transport, hosts, groups, .. } = RandomProgram::generate(seed);
    println!(
        "seed {seed} {what}: {size} ranks, transport {transport}, hosts {hosts:?}, {} groups; repeat with \
         RANDOM_SEEDS={seed}",
        groups.len()
    );
}

fn run(program: &RandomProgram) {
    let store = StoreHandle::new();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for rank in 0..program.size {
            for (number, steps) in program.groups.iter().enumerate() {
                threads.push(scope.spawn(move || {
                    let (transport, host) = (program.transport, program.hosts[rank]);
                    let options = format!("transport={transport};host_id=h{host};slot_bytes=8192");
                    let name = format!("random{number}");
                    let group = GroupHandle::join(store, &name, rank, program.size, &options);
                    let number = number as u64;
                    RankRunner::new(program, group, (rank, program.size), number, scope).run(steps);
                }));
            }
        }
        let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        if let Some(panic) = outcomes.into_iter().find_map(Result::err) {
            resume_unwind(panic);
        }
    });
    store.release();
}

/// The numbers of descriptors and threads of the process, for the leak check.
#[derive(Debug, PartialEq, Eq)]
struct ResourceCounts {
    descriptors: usize,
    threads: usize,
}

impl ResourceCounts {
    fn take() -> Self {
        let count = |folder: &str| std::fs::read_dir(folder).unwrap().count();
        Self { descriptors: count("/proc/self/fd"), threads: count("/proc/self/task") }
    }

    /// Asserts that both numbers are as before. The library's idle threads end with a delay, so the
    /// check waits up to 10 s.
    fn compare(&self) {
        let began = Instant::now();
        while Self::take() != *self {
            let now = Self::take();
            assert!(began.elapsed() < Duration::from_secs(10), "{self:?} before, {now:?} after");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
