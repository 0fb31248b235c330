//! Two-level groups on several hosts: results on equal and unequal hosts, the death of a rank,
//! late ranks, aborts, and groups of the survivors.

use super::collectives::{all_collectives_program, issued_ahead_program};
use super::deaths::kill_rank;
use super::{MAX_FINALIZE_MS, MAX_REPORT_MS, assert_all_succeeded, block_placement, names};
use crate::harness::{TestHost, TestJob};
use crate::hosts::{Hosts, ONE_NETWORK};
use dist::ffi::types::{DIST_ERR_ABORTED, DIST_ERR_PEER_FAILED, DIST_ERR_TIMEOUT};

/// The command that makes the world group a two-level group.
const INIT: &str = "init backend=inside=native,between=native";

/// The element counts: around the length from which the ranks of a host divide a vector.
const COUNTS: &[usize] = &[0, 1, 17, 3000, 200_003];

fn check_collectives(hosts: &Hosts, rank_hosts: &[TestHost]) {
    let program = all_collectives_program(INIT, rank_hosts.len(), COUNTS);
    for program in [issued_ahead_program(&program), program] {
        let job = TestJob::on_hosts(rank_hosts, &hosts.ipv4(0, 0), |_| program.clone());
        assert_all_succeeded(&job.finish(), rank_hosts.len(), &program);
    }
}

#[test]
fn two_level_collectives_on_equal_and_unequal_hosts() {
    for counts in [&[1, 1][..], &[2, 2], &[3, 1], &[1, 2, 1]] {
        let Some(hosts) = Hosts::try_new_or_skip(counts.len(), ONE_NETWORK) else { return };
        check_collectives(&hosts, &block_placement(&hosts, counts));
    }
}

#[test]
fn two_level_collectives_with_round_robin_placement() {
    let Some(hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    for placement in [&[0, 1, 0, 1][..], &[0, 1, 0, 1, 1]] {
        let rank_hosts: Vec<_> = placement.iter().map(|&host| hosts.host(host)).collect();
        check_collectives(&hosts, &rank_hosts);
    }
}

/// The error of each survivor names the dead rank by its number in the world group.
#[test]
fn death_is_reported_with_the_rank_of_the_world() {
    let Some(hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    for counts in [[2, 2], [3, 1]] {
        let rank_hosts = block_placement(&hosts, &counts);
        for (operation, victims) in [
            ("all_reduce f32 SUM 1", &[1, 3][..]),
            ("all_reduce f32 SUM 262144", &[0, 2, 3]),
            ("broadcast f32 5000 0", &[2]),
            ("barrier", &[3]),
        ] {
            for &victim in victims {
                let latencies = kill_rank(&hosts, &rank_hosts, INIT, operation, victim);
                let longest = latencies.into_iter().flatten().max().unwrap();
                assert!(longest < MAX_REPORT_MS * 1000, "{operation}, rank {victim}: {longest} us");
            }
        }
    }
}

/// The survivors continue in a two-level group on fewer ranks, or on one host.
#[test]
fn survivors_make_a_two_level_group() {
    let Some(hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    for (counts, victims) in [([2, 2], &[3][..]), ([3, 1], &[0]), ([3, 1], &[3]), ([3, 2], &[1, 3])]
    {
        let rank_hosts = block_placement(&hosts, &counts);
        let rest = "all_reduce f32 SUM 100000 on=rest\nreduce_scatter f32 SUM 100 on=rest\n\
                    barrier on=rest\ndescribe on=rest\nrelease rest\nfinalize\nleaks\n";
        let program = format!("{INIT}\nloop all_reduce f32 SUM 1000\nshrink rest\n{rest}");
        let mut job = TestJob::on_hosts(&rank_hosts, &hosts.ipv4(0, 0), |_| program.clone());
        let names = names(rank_hosts.len());
        job.await_reports(&names, "ready");
        victims.iter().for_each(|&victim| job.stop(&names[victim]));
        for &victim in victims {
            job.kill(&names[victim]);
        }
        let ended = job.finish();
        let survivors: Vec<usize> =
            (0..names.len()).filter(|rank| !victims.contains(rank)).collect();
        for &rank in &survivors {
            let report = |command: &str| ended.report(&names[rank], command);
            report("all_reduce f32 SUM 1000").assert_failed(DIST_ERR_PEER_FAILED, &["rank "]);
            assert_eq!(report("shrink rest").assert_succeeded().message, format!("{survivors:?}"));
            for line in rest.lines() {
                report(line).assert_succeeded();
            }
            let description = &report("describe on=rest").message;
            assert!(description.contains("inside=native,between=native"), "{description}");
            assert_eq!(ended.exit_status(&names[rank]), 0, "{}", ended.stderr_text(&names[rank]));
        }
    }
}

#[test]
fn late_rank_is_named_on_all_hosts() {
    let Some(hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    for counts in [[2, 2], [3, 1]] {
        let rank_hosts = block_placement(&hosts, &counts);
        for late in 0..4 {
            let call = "all_reduce f32 SUM 200003 timeout_ms=700";
            let program = |rank| match rank == late {
                true => format!("{INIT}\nbarrier\ngate end\n{call}\nfinalize\n"),
                false => format!("{INIT}\nbarrier\n{call}\nculprit\ngate end\nfinalize\nleaks\n"),
            };
            let mut job = TestJob::on_hosts(&rank_hosts, &hosts.ipv4(0, 0), program);
            let names = names(4);
            job.await_reports(&names, "at end");
            job.open_gate("end");
            let ended = job.finish();
            let named = format!("rank {late} (pid ");
            for (rank, name) in names.iter().enumerate() {
                let report = ended.report(name, call);
                report.assert_failed(DIST_ERR_TIMEOUT, &[&named]).assert_within_ms(4000);
                if rank != late {
                    let culprit = ended.report(name, "culprit").assert_succeeded().message.clone();
                    assert!(culprit.contains(&format!("rank {late}")), "{culprit}");
                }
                assert_eq!(ended.exit_status(name), 0);
            }
        }
    }
}

/// An abort ends the waits in both inner groups on all ranks.
#[test]
fn abort_ends_both_levels() {
    let Some(hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    for counts in [[2, 2], [3, 1]] {
        let rank_hosts = block_placement(&hosts, &counts);
        for aborting in [0, 1, 3] {
            let program = |rank| match rank == aborting {
                true => format!("{INIT}\nbarrier\ngate abort\nabort enough\nfinalize\nleaks\n"),
                false => {
                    format!(
                        "{INIT}\nbarrier\nall_reduce f32 SUM 200003\nbarrier\nfinalize\nleaks\n"
                    )
                }
            };
            let mut job = TestJob::on_hosts(&rank_hosts, &hosts.ipv4(0, 0), program);
            let names = names(4);
            job.await_report(&names[aborting], "at abort");
            job.open_gate("abort");
            let ended = job.finish();
            for (rank, name) in names.iter().enumerate().filter(|&(rank, _)| rank != aborting) {
                let named = format!("rank {aborting} aborted");
                let report = ended.report(name, "all_reduce f32 SUM 200003");
                report.assert_failed(DIST_ERR_ABORTED, &[&named, "enough"]);
                let report = ended.report(name, "finalize");
                report.assert_succeeded().assert_within_ms(MAX_FINALIZE_MS);
                ended.report(name, "leaks").assert_succeeded();
                assert_eq!(ended.exit_status(name), 0, "rank {rank}");
            }
        }
    }
}
