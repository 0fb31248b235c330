//! The departure of a rank reaches all ranks of other hosts. When the leader of a host has left,
//! the next rank of the host reports in its place.

use super::{MAX_FINALIZE_MS, MAX_REPORT_MS, block_placement, names};
use crate::harness::{FinishedJob, TestJob};
use crate::hosts::{Hosts, ONE_NETWORK};
use dist::ffi::types::DIST_ERR_PEER_FAILED;

/// The time within which a departure is reported: the grace period of half a second, and more on
/// a busy machine.
const MAX_DEPARTURE_MS: u64 = 2500;

fn assert_left(ended: &FinishedJob, name: &str, call: &str) {
    ended.report(name, call).assert_failed(DIST_ERR_PEER_FAILED, &["has left the group"]);
}

/// Checks that each of these ranks has left in order.
fn assert_finalized(ended: &FinishedJob, names: &[&String]) {
    for name in names {
        ended.report(name, "finalize").assert_succeeded().assert_within_ms(MAX_FINALIZE_MS);
        ended.report(name, "leaks").assert_succeeded();
        assert_eq!(ended.exit_status(name), 0);
    }
}

/// Ranks without a connection to the rank that leaves wait for a message from it.
#[test]
fn departure_reaches_ranks_of_other_hosts() {
    let Some(hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    let rank_hosts = block_placement(&hosts, &[2, 2]);
    let names = names(rank_hosts.len());
    for leaver in [3, 2, 1] {
        let waiters = names.iter().enumerate().filter(|(rank, _)| *rank != leaver);
        let receive = format!("recv 8 {leaver} 7 timeout_ms=20000");
        let program = |rank| match rank == leaver {
            true => "init\nbarrier\nfinalize\nleaks\n".to_owned(),
            false => format!("init\nbarrier\n{receive}\nfinalize\nleaks\n"),
        };
        let ended = TestJob::on_hosts(&rank_hosts, &hosts.ipv4(0, 0), program).finish();
        for (_, name) in waiters {
            assert_left(&ended, name, &receive);
            ended.report(name, &receive).assert_within_ms(MAX_DEPARTURE_MS);
        }
        assert_finalized(&ended, &names.iter().collect::<Vec<_>>());
    }
}

/// The leader of the second host leaves, and then a rank of this host dies: its successor, or
/// another rank.
#[test]
fn death_is_reported_after_the_leader_has_left() {
    let Some(hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    let rank_hosts = block_placement(&hosts, &[2, 3]);
    let names = names(rank_hosts.len());
    for victim in [3, 4] {
        let (first, second) = ("recv 8 2 7", format!("recv 8 {victim} 8 timeout_ms=20000"));
        let program = |rank| match rank {
            2 => "init\nbarrier\nfinalize\nleaks\n".to_owned(),
            _ if rank == victim => format!("init\nbarrier\n{first}\ngate never\n"),
            _ => format!("init\nbarrier\n{first}\n{second}\nfinalize\nleaks\n"),
        };
        let mut job = TestJob::on_hosts(&rank_hosts, &hosts.ipv4(0, 0), program);
        for name in names.iter().filter(|name| *name != "2") {
            job.await_report(name, first);
        }
        let killed_at = job.kill(&names[victim]);
        let ended = job.finish();
        for (rank, name) in names.iter().enumerate().filter(|(rank, _)| ![2, victim].contains(rank))
        {
            assert_left(&ended, name, first);
            let report = ended.report(name, &second);
            report.assert_failed(DIST_ERR_PEER_FAILED, &[&format!("rank {victim} "), "died"]);
            let after_ms = report.at_us.saturating_sub(killed_at) / 1000;
            assert!(after_ms < MAX_REPORT_MS, "rank {rank} knew after {after_ms} ms");
        }
        let living = names.iter().enumerate().filter(|(rank, _)| *rank != victim);
        assert_finalized(&ended, &living.map(|(_, name)| name).collect::<Vec<_>>());
    }
}

/// The leaders of both hosts leave at the same time. Their successors know each other.
#[test]
fn leaders_that_leave_together_have_successors() {
    let Some(hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    let rank_hosts = block_placement(&hosts, &[3, 3]);
    let names = names(rank_hosts.len());
    let program = |rank| match rank {
        0 | 3 => "init\nbarrier\nfinalize\nleaks\n",
        5 => "init\nbarrier\nrecv 8 0 7\nrecv 8 3 7\nfinalize\nleaks\n",
        _ => {
            "init\nbarrier\nrecv 8 0 7\nrecv 8 3 7\nrecv 8 5 8 timeout_ms=20000\nfinalize\nleaks\n"
        }
    };
    let ended =
        TestJob::on_hosts(&rank_hosts, &hosts.ipv4(0, 0), |rank| program(rank).to_owned()).finish();
    for name in [1, 2, 4, 5].map(|rank: usize| &names[rank]) {
        assert_left(&ended, name, "recv 8 0 7");
        assert_left(&ended, name, "recv 8 3 7");
    }
    for name in [1, 2, 4].map(|rank: usize| &names[rank]) {
        assert_left(&ended, name, "recv 8 5 8 timeout_ms=20000");
    }
    assert_finalized(&ended, &names.iter().collect::<Vec<_>>());
}
