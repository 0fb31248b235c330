//! Measures the failure detection latency: the time from the kill, stop or partition of a rank
//! until the call of each survivor returns. Also counts how many errors name the culprit.

use crate::hosts::{Hosts, ONE_NETWORK};
use crate::scenario::{Injection, Scenario};
use crate::scenario_processes::{RankReport, ScenarioEnvironment, ScenarioProcesses};
use crate::{
    LeakCheck, ScenarioFolder, numeric_setting, scenario_runner, serial_guard, setting, toolchain,
};
use dist::ffi::types::{DIST_ERR_PEER_FAILED, DIST_OK};
use std::fs;
use std::time::Duration;

/// The measured faults. The flag is set if the ranks run on emulated hosts with their own network
/// namespaces, where the machine supports them.
const KINDS: [(&str, bool); 4] =
    [("local-kill", false), ("remote-kill", true), ("stop", false), ("partition", true)];

/// The default heartbeat limit: it can be short, since only four ranks and few other processes run.
const HEARTBEAT_LIMIT_MS: u64 = 500;

/// The number of measurements per fault in the ordinary tests, where no check depends on the
/// figures.
const DEFAULT_INJECTIONS: u64 = 2;

/// The figures of one fault kind.
#[derive(Default)]
struct LatencyFigures {
    latencies_us: Vec<u64>,
    named_count: usize,
    report_count: usize,
}

#[test]
fn latencies() {
    let _alone = serial_guard();
    let leak_check = LeakCheck::start();
    let times = numeric_setting("CHAOS_TIMES", DEFAULT_INJECTIONS);
    let limit_ms = numeric_setting("CHAOS_LIMIT_MS", HEARTBEAT_LIMIT_MS);
    let hosts = Hosts::try_new(2, ONE_NETWORK).map_err(|why| toolchain::skip(&why)).ok();
    println!("| what happens | injections | survivors told | p50 | p99 | longest | named right |");
    println!("|---|---|---|---|---|---|---|");
    let mut wrong = Vec::new();
    for (kind, on_hosts) in KINDS {
        let lacks_hosts = kind == "partition" && hosts.is_none();
        if lacks_hosts || setting("CHAOS_ONLY").is_some_and(|only| only != kind) {
            continue;
        }
        let mut figures = LatencyFigures::default();
        for number in 0..times {
            let hosts = hosts.as_ref().filter(|_| on_hosts);
            wrong.extend(measure(
                &mut figures,
                &format!("latency {kind} {number} {limit_ms}"),
                hosts,
            ));
        }
        figures.print(kind, times, limit_ms);
    }
    drop(hosts);
    leak_check.assert_no_leaks();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Injects the fault once and returns the findings.
fn measure(figures: &mut LatencyFigures, origin: &str, hosts: Option<&Hosts>) -> Vec<String> {
    let scenario = Scenario::parse(origin);
    let folder = ScenarioFolder::new();
    let hosts_of_ranks: Vec<_> =
        hosts.map_or(Vec::new(), |hosts| (0..2).map(|host| hosts.host(host)).collect());
    let environment = ScenarioEnvironment {
        folder: folder.path(),
        hosts: &hosts_of_ranks,
        driver_store_port: None,
    };
    fs::create_dir_all(folder.path().join("tmp")).unwrap();
    let mut processes = ScenarioProcesses::start(&scenario, &environment);
    let done = scenario_runner::inject_when_due(&scenario, &mut processes, hosts);
    let ended = scenario_runner::await_exits(&scenario, &mut processes);
    if scenario.injection == Injection::Partition {
        hosts.iter().for_each(|hosts| hosts.reconnect(1));
    }
    let mut wrong: Vec<String> = ended.err().into_iter().collect();
    let Some(done) = done else { return vec![format!("{origin}: it was over before")] };
    for rank in (0..scenario.size).filter(|&rank| is_rank_counted(&scenario, rank)) {
        let calls = processes.process(Some(rank)).reports.iter().find_map(|report| match report {
            RankReport::End { step: 1, status, at_us, text, .. } => Some((*status, *at_us, text)),
            _ => None,
        });
        let Some((status, at_us, text)) = calls.filter(|(status, ..)| *status != DIST_OK) else {
            wrong.push(format!("{origin}: rank {rank} has heard nothing"));
            continue;
        };
        figures.report_count += 1;
        figures.latencies_us.push(at_us.saturating_sub(done.at_us));
        let is_named = status == DIST_ERR_PEER_FAILED
            && culprits(&scenario, rank).any(|culprit| {
                let pid = processes.process(Some(culprit)).pid;
                text.contains(&format!("rank {culprit} (pid {pid},"))
            });
        figures.named_count += usize::from(is_named);
        if !is_named {
            wrong.push(format!("{origin}: rank {rank} was told {status}: {text}"));
        }
    }
    wrong
}

/// Returns true if the report of this rank counts.
fn is_rank_counted(scenario: &Scenario, rank: usize) -> bool {
    scenario.injection == Injection::Partition || rank != scenario.victim
}

/// Returns the ranks that this rank may name as the culprit. After a partition these are all ranks
/// on the other side.
fn culprits(scenario: &Scenario, rank: usize) -> impl Iterator<Item = usize> {
    let beyond = scenario.injection == Injection::Partition;
    let hosts = scenario.hosts.clone();
    let victim = scenario.victim;
    (0..scenario.size).filter(move |&other| match beyond {
        true => hosts[other] != hosts[rank],
        false => other == victim,
    })
}

impl LatencyFigures {
    fn print(&mut self, kind: &str, times: u64, limit_ms: u64) {
        self.latencies_us.sort_unstable();
        let at = |part: usize| {
            let last = self.latencies_us.len().saturating_sub(1);
            let us = self.latencies_us.get((last * part).div_ceil(100)).copied().unwrap_or(0);
            format!("{:.1} ms", Duration::from_micros(us).as_secs_f64() * 1000.0)
        };
        let limit = match kind {
            "stop" | "partition" => format!(" (limit {limit_ms} ms)"),
            _ => String::new(),
        };
        let (told, named) = (self.report_count, self.named_count);
        let (p50, p99, longest) = (at(50), at(99), at(100));
        println!(
            "| {kind}{limit} | {times} | {told} | {p50} | {p99} | {longest} | {named} of {told} |"
        );
    }
}
