//! The death of a rank is reported on all hosts, during collectives and during messages with it.

use super::{MAX_FINALIZE_MS, MAX_IMMEDIATE_MS, MAX_REPORT_MS, block_placement, names};
use crate::harness::{TestHost, TestJob};
use crate::hosts::{Hosts, ONE_NETWORK};
use dist::ffi::types::DIST_ERR_PEER_FAILED;

/// Kills one rank during a loop, after the command `init`. Returns the times in microseconds until
/// the ranks of other hosts, and the ranks of its own host, got the error.
pub(super) fn kill_rank(
    hosts: &Hosts,
    rank_hosts: &[TestHost],
    init: &str,
    operation: &str,
    victim: usize,
) -> [Vec<u64>; 2] {
    let program = format!("{init}\nloop {operation}\nbarrier\ngate end\nfinalize\nleaks\n");
    let mut job = TestJob::on_hosts(rank_hosts, &hosts.ipv4(0, 0), |_| program.clone());
    let names: Vec<String> = (0..rank_hosts.len()).map(|rank| rank.to_string()).collect();
    job.await_reports(&names, "ready");
    let pid = job.pid(&names[victim]);
    let killed_at = job.kill(&names[victim]);
    let survivors = || (0..names.len()).filter(|&rank| rank != victim);
    for rank in survivors() {
        job.await_report(&names[rank], "at end");
    }
    job.open_gate("end");
    let ended = job.finish();
    assert_eq!(ended.exit_status(&names[victim]), 128 + 9);

    let died = format!("rank {victim} (pid {pid}, host {})", rank_hosts[victim].identity());
    let verb = operation.split(' ').next().unwrap();
    let mut latencies = [Vec::new(), Vec::new()];
    for rank in survivors() {
        let name = &names[rank];
        let first = ended.report(name, operation);
        first.assert_failed(DIST_ERR_PEER_FAILED, &[&died, &format!("{verb} #")]);
        let is_near = rank_hosts[rank].identity() == rank_hosts[victim].identity();
        latencies[usize::from(is_near)].push(first.at_us.saturating_sub(killed_at));
        let after_loop = ended.report_after(name, "barrier", &format!("loop {operation}"));
        after_loop.assert_failed(DIST_ERR_PEER_FAILED, &[&died]).assert_within_ms(MAX_IMMEDIATE_MS);
        ended.report(name, "finalize").assert_succeeded().assert_within_ms(MAX_FINALIZE_MS);
        ended.report(name, "leaks").assert_succeeded();
        assert_eq!(ended.exit_status(name), 0);
    }
    latencies
}

/// Kills each rank of two hosts in turn.
fn kill_each_rank(operation: &str) {
    let Some(hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    let rank_hosts = block_placement(&hosts, &[2, 2]);
    let mut latencies = [Vec::new(), Vec::new()];
    for victim in 0..rank_hosts.len() {
        let report_times = kill_rank(&hosts, &rank_hosts, "init", operation, victim);
        latencies.iter_mut().zip(report_times).for_each(|(all, some)| all.extend(some));
    }
    for (mut latencies, placement) in latencies.into_iter().zip(["other hosts", "its own host"]) {
        latencies.sort_unstable();
        let (middle, last) = (latencies[latencies.len() / 2], latencies[latencies.len() - 1]);
        println!(
            "{operation}: a death was told on {placement} after {middle} us (median), {last} us (longest)"
        );
        assert!(last < MAX_REPORT_MS * 1000, "{latencies:?}");
    }
}

#[test]
fn death_is_reported_across_hosts_in_small_all_reduces() {
    kill_each_rank("all_reduce f32 SUM 1");
}

#[test]
fn death_is_reported_across_hosts_in_large_all_reduces() {
    kill_each_rank("all_reduce f32 SUM 262144");
}

#[test]
fn death_is_reported_across_hosts_in_barriers() {
    kill_each_rank("barrier");
}

#[test]
fn death_is_reported_across_hosts_in_broadcasts() {
    kill_each_rank("broadcast f32 5000 0");
}

/// Returns the call of each rank at the time of the death. On the other host one rank waits for a
/// message from the victim and one sends it a large message. On the victim's host one rank waits
/// for a message from any source.
fn message_program(victim: usize, rank: usize) -> String {
    let on_its_host = rank / 2 == victim / 2;
    match rank % 2 {
        _ if rank == victim => "gate never".to_owned(),
        _ if on_its_host => "recv 8 any 7 async=yes".to_owned(),
        0 => format!("recv 8 {victim} 7 async=yes"),
        _ => format!("send 4194304 {victim} 8 async=yes"),
    }
}

#[test]
fn death_is_reported_to_message_partners() {
    let Some(hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    let rank_hosts = block_placement(&hosts, &[2, 2]);
    let names = names(rank_hosts.len());
    for victim in [0, 2, 3] {
        let program = |rank| {
            let busy = message_program(victim, rank);
            format!(
                "init\nbarrier\n{busy}\nsettle\nbarrier timeout_ms=20000\ngate end\nfinalize\nleaks\n"
            )
        };
        let mut job = TestJob::on_hosts(&rank_hosts, &hosts.ipv4(0, 0), program);
        for (rank, name) in names.iter().enumerate() {
            let busy = message_program(victim, rank);
            job.await_report(name, if rank == victim { "at never" } else { &busy })
                .assert_succeeded();
        }
        let pid = job.pid(&names[victim]);
        let killed_at = job.kill(&names[victim]);
        let survivors = || names.iter().filter(|name| **name != names[victim]);
        survivors().for_each(|name| drop(job.await_report(name, "at end")));
        job.open_gate("end");
        let ended = job.finish();
        let died = format!("rank {victim} (pid {pid}, host {})", rank_hosts[victim].identity());
        for name in survivors() {
            let report = ended.report(name, "settle");
            report.assert_failed(DIST_ERR_PEER_FAILED, &[&died]);
            let latency = report.at_us.saturating_sub(killed_at);
            assert!(latency < MAX_REPORT_MS * 1000, "{report:?}");
            ended
                .report(name, "barrier timeout_ms=20000")
                .assert_failed(DIST_ERR_PEER_FAILED, &[&died]);
            ended.report(name, "finalize").assert_succeeded().assert_within_ms(MAX_FINALIZE_MS);
            ended.report(name, "leaks").assert_succeeded();
            assert_eq!(ended.exit_status(name), 0);
        }
    }
}
