//! Faults of the connections between two hosts, whose processes all live. A relay (see
//! `ffi-tests/net/tcp_faults.h`) resets connections (at both ends or one), forgets them, or stalls
//! them, while the ranks run collectives and messages.
//!
//! Each result must be right, or the call must return `DIST_ERR_CONNECTION`. No call may exceed its
//! time, no rank is a culprit, and nothing is left behind. Most calls must succeed: the library
//! replaces the connections.

use crate::generator::Random;
use crate::hosts::{Hosts, LinkSettings, ONE_NETWORK, Relay};
use crate::scenario::Scenario;
use crate::scenario_processes::{
    NAMESPACE_STORE_PORT, RankReport, ScenarioEnvironment, ScenarioProcess, ScenarioProcesses,
};
use crate::scenario_runner;
use crate::{ScenarioFolder, SeedPlan, numeric_setting, serial_guard};
use dist::ffi::types::{DIST_ERR_ABORTED, DIST_ERR_CONNECTION, DIST_OK};
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The number of seeds in the ordinary tests.
const DEFAULT_SEEDS: u64 = 16;
/// The maximum time by which a call may exceed its limit.
const MAX_OVER_MS: i64 = 3000;

/// Seeds that found faults, which are repaired. They are the first ones of the sample in the test
/// suite.
const FORMER_FINDINGS: [u64; 7] = [5006, 10_044, 10_585, 10_681, 10_818, 11_164, 11_168];

/// The result of the seeds of a run.
#[derive(Default)]
struct LinkTally {
    ran: u64,
    /// Seeds in which all calls succeeded, and all others.
    mended: u64,
    given_up: u64,
    faults: u64,
    findings: Vec<String>,
}

#[test]
fn link_faults() {
    let _alone = serial_guard();
    let plan = SeedPlan::read_links(DEFAULT_SEEDS);
    let (tally, began) = (Mutex::new(LinkTally::default()), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..plan.jobs {
            scope.spawn(|| run_seeds(&plan, &tally));
        }
    });
    let LinkTally { ran, mended, given_up, faults, findings } = tally.into_inner().unwrap();
    let seconds = began.elapsed().as_secs();
    println!(
        "{ran} seeds in {seconds} s, {faults} faults; in {mended} seeds all calls succeeded, in \
         {given_up} a rank was told that a connection could not be replaced"
    );
    assert!(findings.is_empty(), "{} findings", findings.len());
    assert!(10 * given_up <= ran, "the library replaces too few connections");
}

/// Runs one seed after another on hosts of its own.
fn run_seeds(plan: &SeedPlan, tally: &Mutex<LinkTally>) {
    let folder = ScenarioFolder::new();
    let Some(mut hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    let delay_ms = numeric_setting("CHAOS_DELAY_MS", 1);
    let settings =
        LinkSettings { spared_port: NAMESPACE_STORE_PORT, ..LinkSettings::new(delay_ms, 0) };
    let Some(mut relay) = hosts.add_link([0, 1], &settings) else { return };
    loop {
        let next = plan.next.fetch_add(1, Ordering::Relaxed);
        let former = FORMER_FINDINGS.iter().zip(1..).find(|(_, number)| *number == next);
        let seed = former.filter(|_| plan.is_sample).map_or(next, |(&seed, _)| seed);
        if next >= plan.end || tally.lock().unwrap().findings.len() >= crate::MAX_FINDINGS {
            break;
        }
        let path = folder.path().join(seed.to_string());
        fs::create_dir_all(path.join("tmp")).unwrap();
        let mut outcome = run_seed(seed, &path, &hosts, &mut relay);
        // As in the other scenarios, the sample in the test suite does not fail for a rare race.
        if let Err(text) = &outcome
            && plan.is_sample
        {
            println!("SEEN: {text}");
            let mut again = (0..crate::FINDING_REPEATS)
                .map(|_| run_seed(seed, &path, &hosts, &mut relay))
                .skip_while(Result::is_ok);
            outcome = again.next().unwrap_or(Ok(true));
        }
        drop(fs::remove_dir_all(&path));
        let mut tally = tally.lock().unwrap();
        tally.ran += 1;
        match outcome {
            Ok(true) => tally.mended += 1,
            Ok(false) => tally.given_up += 1,
            Err(text) => {
                println!("FINDING: {text}");
                tally.findings.push(text);
            }
        }
        if tally.ran.is_multiple_of(100) {
            println!("{} seeds, {} findings", tally.ran, tally.findings.len());
        }
    }
    tally.lock().unwrap().faults += relay.stop().faults;
}

/// Runs a seed. Returns whether all calls succeeded; the error lists the findings.
fn run_seed(seed: u64, folder: &Path, hosts: &Hosts, relay: &mut Relay) -> Result<bool, String> {
    let scenario = Scenario::parse(&format!("links {seed}"));
    let hosts: Vec<_> = (0..2).map(|host| hosts.host(host)).collect();
    let environment = ScenarioEnvironment { folder, hosts: &hosts, driver_store_port: None };
    let mut processes = ScenarioProcesses::start(&scenario, &environment);
    drop(scenario_runner::inject_when_due(&scenario, &mut processes, None));
    let mut random = Random::new(!seed);
    for _ in 0..1 + random.below(5) {
        let place = random.below(1000);
        relay.add_fault(&match random.below(4) {
            0 => format!("reset {place}"),
            1 => format!("half {place} {}", random.below(2)),
            2 => format!("forget {place}"),
            _ => format!("stall {place} {}", 50 + random.below(1500)),
        });
        let pause = Duration::from_millis(random.next() % 400);
        let (began, ranks) = (Instant::now(), &scenario.size);
        let has_left = |processes: &ScenarioProcesses| {
            processes.processes.iter().filter(|it| it.has_left()).count() > *ranks
        };
        processes.receive_until(pause, |it| began.elapsed() >= pause || has_left(it));
    }
    let ended = scenario_runner::await_exits(&scenario, &mut processes);
    let mut findings: Vec<String> = ended.err().into_iter().collect();
    let mut failures = Vec::new();
    for member in processes.processes.iter().filter(|member| member.rank.is_some()) {
        check_rank(member, &mut findings, &mut failures);
    }
    if !failures.is_empty() && !failures.contains(&DIST_ERR_CONNECTION) {
        findings.push(format!("errors without a lost connection: {failures:?}"));
    }
    findings.extend(processes.leftovers());
    match findings.is_empty() {
        true => Ok(failures.is_empty()),
        false => Err(scenario_runner::describe_failure(&scenario, &processes, &findings)),
    }
}

/// Checks the reports of a rank, and adds the status of its first failed call to `failures`.
fn check_rank(member: &ScenarioProcess, findings: &mut Vec<String>, failures: &mut Vec<i32>) {
    let rank = member.rank.unwrap();
    if member.exit_code() != Some(0) {
        findings.push(format!("rank {rank} ended with {:?}", member.exit_code()));
    }
    let mut first_failure = None;
    for report in &member.reports {
        match report {
            RankReport::WrongResult(what) => findings.push(format!("rank {rank}: wrong: {what}")),
            RankReport::Culprit { rank: culprit, kind, .. } => {
                findings.push(format!("rank {rank} calls rank {culprit} the culprit ({kind})"));
            }
            RankReport::End { status, over_ms, text, .. } => {
                if *over_ms > MAX_OVER_MS {
                    findings.push(format!("rank {rank}: a call took {over_ms} ms too long"));
                }
                if *status != DIST_OK && first_failure.is_none() {
                    first_failure = Some(*status);
                    if !matches!(*status, DIST_ERR_CONNECTION | DIST_ERR_ABORTED) {
                        findings.push(format!("rank {rank}: status {status}: {text}"));
                    }
                }
            }
            _ => {}
        }
    }
    failures.extend(first_failure);
}
