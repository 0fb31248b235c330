//! Runs one scenario: starts the processes, injects the fault at its time, waits until all ranks
//! have left, and checks their reports.

use crate::crew::{Crew, Ground, Said};
use crate::hosts::Hosts;
use crate::inject::{Done, inject, signal};
use crate::scenario::{Injection, Scenario};
use crate::verdict;
use std::path::Path;
use std::time::Duration;

/// The maximum duration of a scenario on a busy machine; each deadline in a scenario is much
/// shorter.
const HANG: Duration = Duration::from_secs(90);
/// The number of reports of each rank in the text of a finding: its first failure and the reports
/// after it.
const LAST_SAID: usize = 10;

/// The result of a scenario.
pub(crate) enum Ending {
    /// The scenario has no finding. `in_time` is set if the fault occurred before the watched rank
    /// left.
    Right { in_time: bool },
    /// The machine lacks a capability that the scenario needs.
    Skipped(&'static str),
    /// The scenario has findings; the text describes all of them.
    Wrong(String),
}

/// Runs one scenario. `folder` is for this scenario only; `hosts` makes emulated hosts if the
/// scenario needs them.
pub(crate) fn run(scenario: &Scenario, folder: &Path, hosts: Option<&Hosts>) -> Ending {
    let needs_hosts = scenario.injection == Injection::Partition;
    if needs_hosts && hosts.is_none() {
        return Ending::Skipped("partitions need name spaces");
    }
    let hosts = hosts.filter(|_| needs_hosts);
    let places: Vec<_> =
        hosts.map_or(Vec::new(), |hosts| (0..2).map(|host| hosts.host(host)).collect());
    let ground = Ground { folder, places: &places, served: None };
    let crew = match scenario.injection {
        Injection::FullDisk { pages } => Crew::start_on_disk(scenario, &ground, pages),
        _ => Some(Crew::start(scenario, &ground)),
    };
    let Some(mut crew) = crew else { return Ending::Skipped("small disks need name spaces") };
    let done = strike(scenario, &mut crew, hosts);
    let ended = await_end(scenario, &mut crew);
    if done.is_some() && needs_hosts {
        hosts.iter().for_each(|hosts| hosts.reconnect(1));
    }
    let mut findings = verdict::judge(scenario, &crew);
    if crew.errors().contains("mount: ") {
        return Ending::Skipped("small disks need name spaces");
    }
    findings.extend(ended.err());
    findings.extend(crew.left_behind());
    if findings.is_empty() {
        return Ending::Right { in_time: done.is_some() };
    }
    Ending::Wrong(tell(scenario, &crew, &findings))
}

/// Waits for the time of the fault and injects it. Returns `None` if the watched rank left before.
pub(crate) fn strike(scenario: &Scenario, crew: &mut Crew, hosts: Option<&Hosts>) -> Option<Done> {
    let (rank, step) = scenario.watched;
    let has_begun = |crew: &Crew| {
        let begun = |said: &Said| matches!(said, Said::Begin(number) if *number >= step);
        crew.member(Some(rank)).said.iter().any(begun)
    };
    let is_over = |crew: &Crew| crew.member(Some(rank)).has_left();
    crew.until(HANG, |crew| has_begun(crew) || is_over(crew));
    if !has_begun(crew) {
        return None;
    }
    let delay = Duration::from_micros(scenario.delay_us);
    let began = std::time::Instant::now();
    crew.until(delay, |_| began.elapsed() >= delay);
    crew.note_sockets();
    Some(inject(scenario, crew, hosts))
}

/// Waits until all processes have exited. The error names the processes that do not exit.
pub(crate) fn await_end(scenario: &Scenario, crew: &mut Crew) -> Result<(), String> {
    let stopped = (scenario.injection == Injection::Stop).then_some(scenario.victim);
    let have_left = |crew: &Crew, but: Option<usize>| {
        let mut others = crew.members.iter().filter(|member| but.is_none() || member.rank != but);
        others
            .all(|member| member.has_left() || member.rank.is_some_and(|rank| scenario.dies(rank)))
    };
    let first = crew.until(HANG, |crew| have_left(crew, stopped));
    if let Some(victim) = stopped {
        signal(crew.member(Some(victim)).pid, libc::SIGCONT);
    }
    let all = first && crew.until(HANG, |crew| have_left(crew, None));
    if all && crew.finish() {
        return Ok(());
    }
    let hangs = crew.members.iter().filter(|member| {
        member.status.is_none() && !member.said.iter().any(|said| matches!(said, Said::Done))
    });
    let who: Vec<String> = hangs.map(|member| format!("{:?}", member.rank)).collect();
    Err(format!("HANG: of the ranks {} do not end", who.join(", ")))
}

/// Returns the text of all findings of a scenario, with the last reports of each process.
fn tell(scenario: &Scenario, crew: &Crew, findings: &[String]) -> String {
    let mut text = format!("{}\n  {scenario:?}\n", repeat_with(&scenario.origin));
    for finding in findings {
        text += &format!("  - {finding}\n");
    }
    for member in &crew.members {
        let last: Vec<String> = member
            .said
            .iter()
            .rev()
            .take(LAST_SAID)
            .rev()
            .map(|said| format!("{said:?}"))
            .collect();
        let (rank, pid, code) = (member.rank, member.pid, member.code());
        text += &format!("  {rank:?} (pid {pid}, ended {code:?}): {}\n", last.join(" | "));
    }
    let errors = crew.errors();
    let lines: Vec<&str> = errors.lines().filter(|line| !line.trim().is_empty()).collect();
    for line in &lines[lines.len().saturating_sub(20)..] {
        text += &format!("  err: {line}\n");
    }
    text
}

/// Returns the scenario's origin with the command that repeats it.
fn repeat_with(origin: &str) -> String {
    let words: Vec<&str> = origin.split(' ').collect();
    let only = words.get(2).map_or(String::new(), |name| format!(" --only {name}"));
    format!("{origin}; repeat with: cargo xtask chaos --seed {}{only}", words[1])
}
