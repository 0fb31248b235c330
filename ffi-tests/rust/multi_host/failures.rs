//! Ranks of several hosts whose calls do not match, that give up, or that can no longer reach each
//! other.

use super::{MAX_FINALIZE_MS, MAX_REPORT_MS, block_placement, names, start_ranks};
use crate::harness::TestJob;
use crate::hosts::{Hosts, ONE_NETWORK};
use crate::worker::now_us;
use dist::ffi::types::{
    DIST_ERR_ABORTED, DIST_ERR_MISMATCH, DIST_ERR_PEER_FAILED, DIST_ERR_TIMEOUT,
};

/// The usual call, the differing call, and their descriptions in error messages.
type MismatchCase = [&'static str; 4];

const MISMATCH_CASES: &[MismatchCase] = &[
    [
        "all_reduce f32 SUM 10",
        "all_reduce f32 SUM 12",
        "#2 (f32, SUM, count 10)",
        "#2 (f32, SUM, count 12)",
    ],
    [
        "all_reduce f32 SUM 300000",
        "all_reduce f32 SUM 300001",
        "#2 (f32, SUM, count 300000)",
        "#2 (f32, SUM, count 300001)",
    ],
    [
        "all_reduce f32 SUM 10",
        "all_reduce f32 MAX 10",
        "#2 (f32, SUM, count 10)",
        "#2 (f32, MAX, count 10)",
    ],
    ["all_reduce f32 SUM 10", "barrier", "all_reduce #2 (f32, SUM, count 10)", "barrier #2"],
    [
        "all_gather f32 5000",
        "reduce_scatter f32 SUM 5000",
        "all_gather #2 (f32, count 5000)",
        "reduce_scatter #2 (f32, SUM, count 5000)",
    ],
];

#[test]
fn mismatch_is_reported_on_all_hosts() {
    let Some(hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    let rank_hosts = block_placement(&hosts, &[2, 2]);
    for [usual_call, different_call, described @ ..] in MISMATCH_CASES {
        // The differing ranks: a rank that is no leader, a leader, and a whole host.
        for odd_ranks in [&[3][..], &[2], &[2, 3]] {
            let call =
                |rank: usize| if odd_ranks.contains(&rank) { *different_call } else { *usual_call };
            let program = |rank: usize| {
                format!("init\nbarrier\n{}\nall_reduce f32 SUM 2\nfinalize\nleaks\n", call(rank))
            };
            let ended = TestJob::on_hosts(&rank_hosts, &hosts.ipv4(0, 0), program).finish();
            for (rank, name) in names(rank_hosts.len()).iter().enumerate() {
                // The first three reports are the worker's start and two successful calls.
                let outcome = &ended.reports(name)[3];
                assert_eq!(outcome.command, call(rank));
                outcome.assert_failed(DIST_ERR_MISMATCH, described).assert_within_ms(MAX_REPORT_MS);
                let next = ended.report(name, "all_reduce f32 SUM 2");
                next.assert_failed(DIST_ERR_MISMATCH, described);
                ended.report(name, "finalize").assert_succeeded().assert_within_ms(MAX_FINALIZE_MS);
                ended.report(name, "leaks").assert_succeeded();
            }
        }
    }
}

#[test]
fn an_abort_on_one_host_ends_the_calls_on_the_other() {
    let Some(hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    let rank_hosts = block_placement(&hosts, &[2, 2]);
    let names = names(rank_hosts.len());
    for aborter in [0, 3] {
        let call = |rank| match rank {
            1 => "recv 16 2 5",
            2 => "all_reduce f32 SUM 100000 async=yes\nsettle",
            _ => "all_reduce f32 SUM 100000",
        };
        let abort = |rank| if rank == aborter { "abort_at now the loss is NaN\n" } else { "" };
        let program =
            |rank| format!("init\nbarrier\n{}{}\nfinalize\nleaks\n", abort(rank), call(rank));
        let mut job = TestJob::on_hosts(&rank_hosts, &hosts.ipv4(0, 0), program);
        job.await_reports(&names, "barrier");
        job.open_gate("now");
        let aborted_at = job.await_report(&names[aborter], "aborted").assert_succeeded().at_us;
        let ended = job.finish();
        let reason = format!("rank {aborter} aborted group world: the loss is NaN");
        for (rank, name) in names.iter().enumerate() {
            let outcome = ended.report(name, call(rank).lines().last().unwrap());
            outcome.assert_failed(DIST_ERR_ABORTED, &[&reason]);
            assert!(outcome.at_us < aborted_at + MAX_REPORT_MS * 1000, "{outcome:?}");
            ended.report(name, "finalize").assert_succeeded().assert_within_ms(MAX_FINALIZE_MS);
            ended.report(name, "leaks").assert_succeeded();
        }
    }
}

#[test]
fn unreachable_hosts_time_out_at_init() {
    /// The deadline of each call, and the largest excess on a busy machine.
    const ALLOWED_MS: u64 = 3000;
    const BEYOND_MS: u64 = 1500;
    let Some(hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    let rank_hosts = block_placement(&hosts, &[2, 2]);
    let names = names(rank_hosts.len());
    let call = format!("all_reduce f32 SUM 1000 timeout_ms={ALLOWED_MS}");
    let program = format!("init\nloop {call}\nfinalize\nleaks\n");
    let mut job = TestJob::on_hosts(&rank_hosts, &hosts.ipv4(0, 0), |_| program.clone());
    job.await_reports(&names, "ready");
    let pids: Vec<u32> = names.iter().map(|name| job.pid(name)).collect();
    hosts.ip(1, "link set eth0 down");
    let ended = job.finish();
    for (rank, name) in names.iter().enumerate() {
        let outcome = ended.report(name, &call);
        outcome.assert_within_ms(ALLOWED_MS + BEYOND_MS);
        let is_known = [DIST_ERR_TIMEOUT, DIST_ERR_PEER_FAILED].contains(&outcome.status);
        assert!(is_known, "{outcome:?}");
        let others = (0..rank_hosts.len()).filter(|other| other / 2 != rank / 2);
        let mut others = others.map(|other| format!("rank {other} (pid {}", pids[other]));
        assert!(others.any(|other| outcome.message.contains(&other)), "{outcome:?}");
        ended.report(name, "finalize").assert_succeeded().assert_within_ms(MAX_FINALIZE_MS);
        ended.report(name, "leaks").assert_succeeded();
    }
}

#[test]
fn network_partition_is_reported_on_both_sides() {
    /// The heartbeat limit and its largest excess.
    const LIMIT_MS: u64 = 1000;
    const BEYOND_MS: u64 = 500;
    let Some(hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    let rank_hosts = block_placement(&hosts, &[2, 2]);
    let names = names(rank_hosts.len());
    let call = "all_reduce f32 SUM 1000";
    let program = format!("init\nloop {call}\nfinalize\nleaks\n");
    let mut job = TestJob::new();
    let limit = |rank| match rank {
        0 => vec![("DIST_HEARTBEAT_LIMIT_MS", LIMIT_MS.to_string())],
        _ => Vec::new(),
    };
    start_ranks(&mut job, &rank_hosts, &hosts.ipv4(0, 0), limit, |_| program.clone());
    job.await_reports(&names, "ready");
    let pids: Vec<u32> = names.iter().map(|name| job.pid(name)).collect();
    hosts.ip(1, "link set eth0 down");
    let parted_at = now_us();
    let ended = job.finish();
    for (rank, name) in names.iter().enumerate() {
        let outcome = ended.report(name, call);
        outcome.assert_failed(DIST_ERR_PEER_FAILED, &[]);
        let others = (0..rank_hosts.len()).filter(|other| other / 2 != rank / 2);
        let mut others = others.map(|other| format!("rank {other} (pid {}", pids[other]));
        assert!(others.any(|other| outcome.message.contains(&other)), "{outcome:?}");
        let latency = outcome.at_us.saturating_sub(parted_at);
        println!("rank {rank} was told that the network has parted after {latency} us");
        assert!(latency <= (LIMIT_MS + BEYOND_MS) * 1000, "{outcome:?}");
        ended.report(name, "finalize").assert_succeeded().assert_within_ms(MAX_FINALIZE_MS);
        ended.report(name, "leaks").assert_succeeded();
    }
}
