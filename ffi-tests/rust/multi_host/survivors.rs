//! Which part of a job goes on after a rank has died, or after the hosts cannot reach each other.

use super::{MAX_FINALIZE_MS, MAX_REPORT_MS, block_placement, names, start_ranks};
use crate::harness::TestJob;
use crate::hosts::{Hosts, ONE_NETWORK};
use crate::worker::now_us;
use dist::ffi::types::{DIST_ERR_PEER_FAILED, DIST_OK};

const CALL: &str = "all_reduce f32 SUM 1000";
const AFTER: &str = "all_reduce f32 SUM 10 on=rest\nbarrier on=rest\nrelease rest\n";

/// The heartbeat limit of the tests in which it must pass, and its largest excess.
const LIMIT_MS: u64 = 1000;
const BEYOND_MS: u64 = 1500;

/// The longest shrink on a busy machine if a witness proves the death. It is shorter than the
/// default heartbeat limit.
const MAX_PROVEN_MS: u64 = 2000;

/// Starts a job of one rank per letter of `counts`; rank 0 is on host 0. `before` is executed after
/// `init` by each rank.
fn start(
    hosts: &Hosts,
    counts: &[usize],
    variables: &[(&'static str, String)],
    shrink: &str,
    before: impl Fn(usize) -> &'static str,
) -> (TestJob, Vec<String>) {
    let rank_hosts = block_placement(hosts, counts);
    let mut job = TestJob::new();
    let program = |rank: usize| {
        format!("init\n{}loop {CALL}\n{shrink}\n{AFTER}finalize\nleaks\n", before(rank))
    };
    start_ranks(&mut job, &rank_hosts, &hosts.ipv4(0, 0), |_| variables.to_vec(), program);
    let names = names(rank_hosts.len());
    job.await_reports(&names, "ready");
    (job, names)
}

fn limit() -> Vec<(&'static str, String)> {
    vec![("DIST_HEARTBEAT_LIMIT_MS", LIMIT_MS.to_string())]
}

/// Kills a rank that is alone on its host. The others must notice it and go on without it, long
/// before the default heartbeat limit.
fn check_death(hosts: &Hosts, counts: &[usize], victim: usize, forks: bool) -> (u64, u64) {
    let before = |rank| if forks && rank == victim { "fork_sleeper\n" } else { "" };
    let (mut job, names) = start(hosts, counts, &[], "shrink rest", before);
    let killed_at = job.kill(&names[victim]);
    let survivors: Vec<usize> = (0..names.len()).filter(|&rank| rank != victim).collect();
    let mut longest = (0, 0);
    for &rank in &survivors {
        let failed = job.await_report(&names[rank], CALL);
        failed.assert_failed(DIST_ERR_PEER_FAILED, &[&format!("rank {victim} ")]);
        let latency = failed.at_us.saturating_sub(killed_at);
        assert!(latency < MAX_REPORT_MS * 1000, "forks: {forks}: {failed:?}");
        let shrink = job.await_report(&names[rank], "shrink rest");
        assert_eq!(shrink.assert_succeeded().message, format!("{survivors:?}"));
        shrink.assert_within_ms(MAX_PROVEN_MS);
        longest = (longest.0.max(latency), longest.1.max(shrink.took_us));
    }
    assert_eq!(job.kill_orphans(), usize::from(forks));
    let ended = job.finish();
    for &rank in &survivors {
        let name = &names[rank];
        assert_eq!(ended.report(name, "barrier on=rest").status, DIST_OK);
        ended.report(name, "finalize").assert_within_ms(MAX_FINALIZE_MS);
        ended.report(name, "leaks").assert_succeeded();
        assert_eq!(ended.exit_status(name), 0);
    }
    longest
}

#[test]
fn death_of_a_rank_alone_on_its_host_lets_the_others_go_on() {
    let cases: [(&[usize], usize); 6] =
        [(&[1, 1], 0), (&[1, 1], 1), (&[1, 1, 1], 0), (&[1, 1, 1], 2), (&[2, 1], 2), (&[1, 2], 0)];
    for (counts, victim) in cases {
        let Some(hosts) = Hosts::try_new_or_skip(counts.len(), ONE_NETWORK) else { return };
        for forks in [false, true] {
            let (noticed_us, shrink_us) = check_death(&hosts, counts, victim, forks);
            println!(
                "hosts {counts:?}, rank {victim} killed, living child: {forks}: noticed after \
                 {noticed_us} us, shrink took {shrink_us} us"
            );
        }
    }
}

/// Asserts that the ranks in `rest` go on, and that the others get an error that states the rule.
/// Returns the longest shrink in microseconds.
fn assert_one_part(mut job: TestJob, names: &[String], shrink: &str, rest: &[usize]) -> u64 {
    let reports: Vec<_> = names.iter().map(|name| job.await_report(name, shrink)).collect();
    for (rank, report) in reports.iter().enumerate() {
        if rest.contains(&rank) {
            assert_eq!(report.assert_succeeded().message, format!("{rest:?}"), "rank {rank}");
        } else {
            let rule = ["no majority of the ranks that are not proven dead", "the lowest rank"];
            report.assert_failed(DIST_ERR_PEER_FAILED, &rule);
        }
    }
    let ended = job.finish();
    for (rank, name) in names.iter().enumerate() {
        if rest.contains(&rank) {
            assert_eq!(ended.report(name, "barrier on=rest").status, DIST_OK);
        }
    }
    reports.iter().map(|report| report.took_us).max().unwrap_or(0)
}

/// The ranks per host, and the ranks that go on after the hosts have lost each other.
const PARTS: [(&[usize], &[usize]); 4] =
    [(&[1, 1], &[0]), (&[2, 1], &[0, 1]), (&[1, 2], &[1, 2]), (&[2, 2], &[0, 1])];

#[test]
fn rejected_connections_let_one_part_go_on() {
    for (counts, rest) in PARTS {
        let Some(hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
        let shrink = "shrink rest timeout_ms=5000";
        let (job, names) = start(&hosts, counts, &limit(), shrink, |_| "");
        hosts.reject(1);
        let at = now_us();
        let longest = assert_one_part(job, &names, shrink, rest);
        let total = now_us().saturating_sub(at);
        println!("hosts {counts:?}, rejected: {rest:?} go on after {longest} us ({total} us)");
    }
}

#[test]
fn lost_packets_let_one_part_go_on() {
    for (counts, rest) in PARTS {
        let Some(hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
        let shrink = "shrink rest timeout_ms=2000";
        let (job, names) = start(&hosts, counts, &limit(), shrink, |_| "");
        hosts.disconnect(1);
        let longest = assert_one_part(job, &names, shrink, rest);
        println!("hosts {counts:?}, packets lost: {rest:?} go on after {longest} us");
    }
}

#[test]
fn without_a_witness_the_lowest_rank_goes_on_late() {
    let Some(hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    let mut variables = limit();
    variables.push(("DIST_DEATH_WITNESS", "0".to_owned()));
    for victim in [0, 1] {
        let (mut job, names) = start(&hosts, &[1, 1], &variables, "shrink rest", |_| "");
        job.kill(&names[victim]);
        let survivor = 1 - victim;
        let report = job.await_report(&names[survivor], "shrink rest");
        report.assert_within_ms(LIMIT_MS + BEYOND_MS);
        assert!(report.took_us >= LIMIT_MS * 1000 / 2, "{report:?}");
        match survivor {
            0 => drop(report.assert_succeeded()),
            _ => drop(report.assert_failed(DIST_ERR_PEER_FAILED, &["no majority"])),
        }
        job.finish();
    }
}
