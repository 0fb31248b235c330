//! Runs one scenario: starts the processes, injects the fault at its time, waits until all ranks
//! have left, and checks their reports.

use crate::culprit_count::CulpritCount;
use crate::hosts::Hosts;
use crate::injection::{InjectionRecord, inject, signal};
use crate::numeric_setting;
use crate::scenario::{Injection, Scenario};
use crate::scenario_checks;
use crate::scenario_processes::{RankReport, ScenarioEnvironment, ScenarioProcesses};
use std::path::Path;
use std::time::Duration;

/// The maximum duration of a scenario on a busy machine; each deadline in a scenario is much
/// shorter.
const HANG_LIMIT: Duration = Duration::from_secs(90);
/// The number of reports of each rank in the text of a finding: its first failure and the reports
/// after it.
const SHOWN_REPORTS: usize = 10;

/// The result of a scenario.
pub(crate) enum ScenarioResult {
    /// The scenario has no finding. `in_time` is set if the fault occurred before the watched rank
    /// left.
    Passed { in_time: bool, culprits: CulpritCount },
    /// The machine lacks a capability that the scenario needs.
    Skipped(&'static str),
    /// The scenario has findings; the text describes all of them.
    Failed(String, CulpritCount),
}

/// Runs one scenario. `folder` is for this scenario only; `hosts` makes emulated hosts if the
/// scenario needs them.
pub(crate) fn run(scenario: &Scenario, folder: &Path, hosts: Option<&Hosts>) -> ScenarioResult {
    let needs_hosts = scenario.injection.separates_hosts();
    if needs_hosts && hosts.is_none() {
        return ScenarioResult::Skipped("partitions need name spaces");
    }
    let hosts = hosts.filter(|_| needs_hosts);
    let hosts_of_ranks: Vec<_> =
        hosts.map_or(Vec::new(), |hosts| (0..2).map(|host| hosts.host(host)).collect());
    let environment =
        ScenarioEnvironment { folder, hosts: &hosts_of_ranks, driver_store_port: None };
    let processes = match scenario.injection {
        Injection::FullDisk { pages } => {
            ScenarioProcesses::start_on_disk(scenario, &environment, pages)
        }
        _ => Some(ScenarioProcesses::start(scenario, &environment)),
    };
    let Some(mut processes) = processes else {
        return ScenarioResult::Skipped("small disks need name spaces");
    };
    let done = inject_when_due(scenario, &mut processes, hosts);
    let ended = await_exits(scenario, &mut processes);
    if done.is_some() && needs_hosts {
        hosts.iter().for_each(|hosts| hosts.reconnect(1));
    }
    let injected_at_us = done.as_ref().map(|done| done.at_us);
    let (mut findings, culprits) = scenario_checks::findings(scenario, &processes, injected_at_us);
    if processes.errors().contains("mount: ") {
        return ScenarioResult::Skipped("small disks need name spaces");
    }
    findings.extend(ended.err());
    findings.extend(processes.leftovers());
    if findings.is_empty() {
        return ScenarioResult::Passed { in_time: done.is_some(), culprits };
    }
    ScenarioResult::Failed(describe_failure(scenario, &processes, &findings), culprits)
}

/// Waits for the time of the fault and injects it. Returns `None` if the watched rank left before.
pub(crate) fn inject_when_due(
    scenario: &Scenario,
    processes: &mut ScenarioProcesses,
    hosts: Option<&Hosts>,
) -> Option<InjectionRecord> {
    let (rank, step) = scenario.trigger;
    let has_begun = |processes: &ScenarioProcesses| {
        let begun =
            |report: &RankReport| matches!(report, RankReport::Begin(number) if *number >= step);
        processes.process(Some(rank)).reports.iter().any(begun)
    };
    let is_over = |processes: &ScenarioProcesses| processes.process(Some(rank)).has_left();
    processes.receive_until(HANG_LIMIT, |processes| has_begun(processes) || is_over(processes));
    if !has_begun(processes) {
        return None;
    }
    let delay = Duration::from_micros(scenario.delay_us);
    let began = std::time::Instant::now();
    processes.receive_until(delay, |_| began.elapsed() >= delay);
    processes.record_sockets();
    Some(inject(scenario, processes, hosts))
}

/// Waits until all processes have exited. The error names the processes that do not exit.
pub(crate) fn await_exits(
    scenario: &Scenario,
    processes: &mut ScenarioProcesses,
) -> Result<(), String> {
    let stopped = (scenario.injection == Injection::Stop).then_some(scenario.victim);
    let have_left = |processes: &ScenarioProcesses, but: Option<usize>| {
        let mut others =
            processes.processes.iter().filter(|member| but.is_none() || member.rank != but);
        others.all(|member| {
            member.has_left() || member.rank.is_some_and(|rank| scenario.is_killed(rank))
        })
    };
    let first = processes.receive_until(HANG_LIMIT, |processes| have_left(processes, stopped));
    if let Some(victim) = stopped {
        signal(processes.process(Some(victim)).pid, libc::SIGCONT);
    }
    let all = first && processes.receive_until(HANG_LIMIT, |processes| have_left(processes, None));
    if all && processes.finish() {
        return Ok(());
    }
    let hangs = processes.processes.iter().filter(|member| {
        member.status.is_none()
            && !member.reports.iter().any(|report| matches!(report, RankReport::Done))
    });
    let hanging_ranks: Vec<String> = hangs.map(|member| format!("{:?}", member.rank)).collect();
    Err(format!("HANG: of the ranks {} do not end", hanging_ranks.join(", ")))
}

/// Returns the text of all findings of a scenario, with the last reports of each process.
pub(crate) fn describe_failure(
    scenario: &Scenario,
    processes: &ScenarioProcesses,
    findings: &[String],
) -> String {
    let mut text = format!("{}\n  {scenario:?}\n", repeat_command(&scenario.origin));
    for finding in findings {
        text += &format!("  - {finding}\n");
    }
    for member in &processes.processes {
        let last: Vec<String> = member
            .reports
            .iter()
            .rev()
            .take(SHOWN_REPORTS)
            .rev()
            .map(|report| format!("{report:?}"))
            .collect();
        let (rank, pid, code) = (member.rank, member.pid, member.exit_code());
        text += &format!("  {rank:?} (pid {pid}, ended {code:?}): {}\n", last.join(" | "));
    }
    let errors = processes.errors();
    let lines: Vec<&str> = errors.lines().filter(|line| !line.trim().is_empty()).collect();
    let shown = usize::try_from(numeric_setting("CHAOS_ERROR_LINES", 20)).unwrap();
    for line in &lines[lines.len().saturating_sub(shown)..] {
        text += &format!("  err: {line}\n");
    }
    text
}

/// Returns the scenario's origin with the command that repeats it.
fn repeat_command(origin: &str) -> String {
    let words: Vec<&str> = origin.split(' ').collect();
    let links = if words[0] == "links" { " --links" } else { "" };
    let only = words.get(2).map_or(String::new(), |name| format!(" --only {name}"));
    format!("{origin}; repeat with: cargo xtask chaos{links} --seed {}{only}", words[1])
}
