//! The cost of an idle group: shared memory, heap, and the CPU time of waiting ranks. Every rank is
//! a process.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::expect_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "a test says what it has measured")]

mod harness;
mod worker;

use harness::TestJob;
use std::fmt::Write as _;

const RANKS: usize = 8;

/// The limit for the used bytes of a segment of 8 ranks after all its parts have been used.
const MAX_MEMORY_IN_USE: u64 = 8 << 20;
/// The limit for an idle group in bytes: its segment and the heap of all its ranks.
const MAX_MEMORY_IDLE: u64 = 64 << 10;

/// Returns the number `key` from a worker's `turn`th report of `what`.
fn reported_number(reports: &[harness::CommandReport], what: &str, turn: usize, key: &str) -> u64 {
    let report = reports.iter().filter(|report| report.command == what).nth(turn).expect(what);
    let value: serde_json::Value =
        serde_json::from_str(&report.assert_succeeded().message).unwrap();
    value[key].as_u64().expect(key)
}

/// Runs the same program on all ranks of a job and returns their reports.
fn run(ranks: usize, program: impl Fn(usize) -> String) -> Vec<Vec<harness::CommandReport>> {
    let ended = TestJob::without_launcher(ranks, program).finish();
    let reports = |rank: usize| {
        let reports = ended.reports(&rank.to_string());
        reports.iter().for_each(|report| assert_eq!(report.status, 0, "{report:?}"));
        assert_eq!(ended.exit_status(&rank.to_string()), 0);
        reports
    };
    (0..ranks).map(reports).collect()
}

#[test]
fn group_of_eight_allocates_shared_memory_on_first_use() {
    let all = run(RANKS, |rank| {
        let mut program = "init\nmemory\nbarrier\nbarrier\nmemory\nbarrier\n".to_owned();
        // The program uses every slot of every rank and every ring, with messages shorter and
        // longer than a ring.
        program +=
            "all_reduce f32 SUM 1000000\nreduce_scatter f32 SUM 200000\nall_gather f32 200000\n";
        for distance in 1..RANKS {
            let (to, from) = ((rank + distance) % RANKS, (rank + RANKS - distance) % RANKS);
            for (tag, bytes) in [10_000; 5].into_iter().chain([200_000]).enumerate() {
                writeln!(program, "send {bytes} {to} {tag} async=yes").unwrap();
                writeln!(program, "recv {bytes} {from} {tag} async=yes").unwrap();
            }
            program += "settle\n";
        }
        program + "barrier\nmemory\nbarrier\nfinalize\n"
    });
    let shared = |turn| reported_number(&all[0], "memory", turn, "shared");
    let (unused, met, used) = (shared(0), shared(1), shared(2));
    println!(
        "8 ranks: {unused} bytes before the first use, {met} after a barrier, {used} once all is used"
    );
    assert!(unused <= MAX_MEMORY_IDLE, "{unused} bytes of shared memory before the first use");
    assert!(met <= 2 * MAX_MEMORY_IDLE, "{met} bytes of shared memory after a barrier");
    assert!(used <= MAX_MEMORY_IN_USE, "{used} bytes of shared memory once all is used");
    assert!(used >= 1 << 20, "{used}: this is not all that there is to use");
}

/// The number of groups that are created before the measurement.
const UNMEASURED_GROUPS: usize = 60;

/// Bytes that a process allocates once, or too seldom to distribute evenly over the groups.
const ONE_TIME_BYTES: u64 = 1 << 20;

/// Creates `count` idle groups of 8 ranks with the back end of the command `init`, and checks that
/// each costs at most as much as `native_groups` native groups.
fn check_idle_groups(init: &str, count: usize, native_groups: u64) {
    let list = "0,1,2,3,4,5,6,7";
    let all = run(RANKS, |_| {
        // The first groups cause the one-time allocations: they fill the rings of the world group,
        // over which the ranks agree on a group. The barriers fill the flight recorder of each
        // process.
        format!(
            "{init}\ntimes 2000 0 barrier\nmany {UNMEASURED_GROUPS} {list}\nbarrier\nmemory\nbarrier\nmany {count} {list}\nbarrier\nmemory\nbarrier\nfinalize\n"
        )
    });
    let grown = |rank: usize, key| {
        let [before, after] = [0, 1].map(|turn| reported_number(&all[rank], "memory", turn, key));
        after.saturating_sub(before) / u64::try_from(count).unwrap()
    };
    let shared = grown(0, "shared");
    let heaps: Vec<u64> = (0..RANKS).map(|rank| grown(rank, "heap")).collect();
    let heap: u64 = heaps.iter().sum();
    println!(
        "an idle group of 8, of {count}: {shared} bytes of shared memory, {heap} of heap ({heaps:?})"
    );
    let most = native_groups * MAX_MEMORY_IDLE
        + if count < 1000 { ONE_TIME_BYTES / u64::try_from(count).unwrap() } else { 0 };
    assert!(shared + heap <= most, "{shared} bytes of shared memory and {heaps:?} of heap");
}

#[test]
fn idle_groups_use_little_memory() {
    check_idle_groups("init", 300, 1);
}

/// On one host, a two-level group consists of two native groups: one of all ranks, and one inside
/// the host.
#[test]
fn idle_two_level_groups_cost_two_native_groups() {
    check_idle_groups("init backend=inside=native,between=native", 100, 2);
}

#[test]
#[ignore = "needs some 20,000 descriptors, and a minute: the number that is promised"]
fn thousand_idle_groups_use_little_memory() {
    check_idle_groups("init", 1000, 1);
}

/// Measures the CPU time of rank 0 while rank 1 enters each operation `late_ms` late. The limit has
/// a part that is proportional to the time.
fn check_cpu_time_while_waiting(late_ms: u64) {
    /// The CPU time limit per 10 s of waiting.
    const LIMIT_US: u64 = 20_000;
    /// The CPU time limit for the polls before the first sleep, and for those after the check that
    /// the call may be in a deadlock.
    const POLLS_US: u64 = 2_000;
    let operations = [
        ("all_reduce f32 SUM 10", "all_reduce f32 SUM 10"),
        ("recv 100 1 3", "send 100 0 3"),
        ("barrier", "barrier"),
    ];
    let all = run(2, |rank| {
        let mut program = "init\nbarrier\n".to_owned();
        for (early, late) in operations {
            let own = if rank == 0 { early } else { late };
            let nap = if rank == 0 { String::new() } else { format!("nap {late_ms}\n") };
            write!(program, "barrier\ntime\n{nap}{own}\ntime\n").unwrap();
        }
        program + "finalize\n"
    });
    for (number, (operation, _)) in operations.into_iter().enumerate() {
        let spent = |rank: usize| {
            let [before, after] =
                [0, 1].map(|end| reported_number(&all[rank], "time", 2 * number + end, "us"));
            after - before
        };
        let (waiter, sleeper) = (spent(0), spent(1));
        println!(
            "{operation}: waiting for {late_ms} ms costs {waiter} us, being waited for {sleeper} us"
        );
        let limit = LIMIT_US * late_ms / 10_000 + POLLS_US;
        assert!(waiter < limit, "{operation}: {waiter} of {limit} us while waiting {late_ms} ms");
        assert!(sleeper < limit, "{operation}: {sleeper} of {limit} us while being waited for");
    }
}

#[test]
fn waiting_uses_little_cpu() {
    check_cpu_time_while_waiting(3000);
}

#[test]
#[ignore = "half a minute: the time that is promised"]
fn waiting_ten_seconds_uses_little_cpu() {
    check_cpu_time_while_waiting(10_000);
}
