//! Checks the reports of a scenario's survivors. Each report that the scenario does not allow is a
//! finding.

use crate::scenario::{Injection, Scenario, ScenarioStep};
use crate::scenario_processes::{RankReport, ScenarioProcess, ScenarioProcesses};
use dist::ffi::types::{
    DIST_ERR_ABORTED, DIST_ERR_CONNECTION, DIST_ERR_INTERNAL, DIST_ERR_PEER_FAILED,
    DIST_ERR_TIMEOUT, DIST_OK,
};

/// The largest excess over a deadline on a busy machine.
const LATE_TOLERANCE_MS: i64 = 2000;
/// The largest excess for calls whose store may be stopped or partitioned: the rank queries the
/// store once more for the missing ranks or keys. A failed rendezvous may always take this long
/// (docs/failure-tests.md), since the store shares the busy machine.
const LATE_TOLERANCE_WITHOUT_STORE_MS: i64 = LATE_TOLERANCE_MS + 3000;
/// The exit code of a process that aborts because a small allocation failed.
const ABORTED: i32 = 128 + libc::SIGABRT;

/// A part of the error text of a call whose deadline passed before its turn.
const QUEUE_TIMEOUT_TEXT: &str = "waiting for earlier operations";

/// Returns all findings about a scenario.
pub(crate) fn findings(scenario: &Scenario, processes: &ScenarioProcesses) -> Vec<String> {
    let survivors = processes.processes.iter().filter_map(|member| Some((member.rank?, member)));
    let survivors = survivors.filter(|(rank, _)| !scenario.is_killed(*rank));
    survivors
        .flat_map(|(rank, member)| {
            ScenarioChecker { scenario, processes, rank }.check_process(member)
        })
        .collect()
}

struct ScenarioChecker<'a> {
    scenario: &'a Scenario,
    processes: &'a ScenarioProcesses,
    rank: usize,
}

impl ScenarioChecker<'_> {
    fn is_victim(&self) -> bool {
        self.rank == self.scenario.victim
    }

    fn check_process(&self, member: &ScenarioProcess) -> Vec<String> {
        let mut findings: Vec<String> =
            member.reports.iter().filter_map(|report| self.check_report(member, report)).collect();
        let is_done = member.reports.iter().any(|report| matches!(report, RankReport::Done));
        let may_abort = self.is_victim()
            && matches!(self.scenario.injection, Injection::MemoryLimit { .. })
            && member.exit_code() == Some(ABORTED);
        if !may_abort && (!is_done || member.exit_code().is_some_and(|code| code != 0)) {
            findings.push(format!("it ended with {:?}, done: {is_done}", member.exit_code()));
        }
        findings.iter().map(|what| format!("rank {}: {what}", self.rank)).collect()
    }

    fn check_report(&self, member: &ScenarioProcess, report: &RankReport) -> Option<String> {
        match report {
            RankReport::WrongResult(what) => Some(what.clone()),
            RankReport::End { step, status, over_ms, text, .. } => {
                // The pause of a stopped rank does not count as an excess.
                let was_stopped = self.is_victim() && self.scenario.injection == Injection::Stop;
                let slack_ms = match (self.scenario.injection, self.step(*step)) {
                    (_, Some(ScenarioStep::Init)) => LATE_TOLERANCE_WITHOUT_STORE_MS,
                    (Injection::Partition | Injection::Stop, step) if self.needs_store(step) => {
                        LATE_TOLERANCE_WITHOUT_STORE_MS
                    }
                    _ => LATE_TOLERANCE_MS,
                };
                if *over_ms > slack_ms && !was_stopped {
                    return Some(format!("step {step} was {over_ms} ms late: {status} {text}"));
                }
                self.check_step_end(member, *step, *status, text).map(|why| {
                    format!("step {step} ({}): {why}: {status} {text}", self.step_name(*step))
                })
            }
            _ => None,
        }
    }

    fn step_name(&self, step: usize) -> String {
        self.scenario.steps.get(step).map_or("after".to_owned(), |step| format!("{step:?}"))
    }

    /// Returns the reason why a step may not end with this status and text.
    fn check_step_end(
        &self,
        member: &ScenarioProcess,
        step: usize,
        status: i32,
        text: &str,
    ) -> Option<&'static str> {
        if status == DIST_OK {
            return None;
        }
        if status == DIST_ERR_INTERNAL {
            return Some("there was a panic");
        }
        if self.scenario.is_harmless() {
            return Some("it had to succeed");
        }
        // Later failures have the same cause, and the store may be gone.
        if !is_first_failure(member, step) || self.is_known_limitation(step, status, text) {
            return None;
        }
        match self.scenario.injection {
            Injection::Kill { .. } | Injection::Stop | Injection::Delay { .. } => {
                self.check_single_fault(step, status, text)
            }
            Injection::MemoryLimit { .. } if !self.is_victim() => {
                self.check_single_fault(step, status, text)
            }
            // The rank waits for a key of a rank that has given up.
            Injection::Close { .. }
                if matches!(self.step(step), Some(ScenarioStep::Store { .. }))
                    && status == DIST_ERR_TIMEOUT =>
            {
                None
            }
            Injection::Close { .. } => {
                self.one_of(&[DIST_ERR_PEER_FAILED, DIST_ERR_CONNECTION, DIST_ERR_ABORTED], status)
            }
            // The step lost the store, or waits for a rank on the other side of the partition.
            Injection::Partition if self.needs_store(self.step(step)) => {
                self.one_of(&[DIST_ERR_PEER_FAILED, DIST_ERR_CONNECTION, DIST_ERR_TIMEOUT], status)
            }
            // A rank aborts if it lost the store or its peers of another group in an earlier step.
            // The abort may reach its peers before the heartbeat limit passes.
            Injection::Partition
                if text.contains("dist_store_") || self.names_culprit(self.step(step), text) =>
            {
                self.one_of(&[DIST_ERR_PEER_FAILED, DIST_ERR_ABORTED], status)
            }
            Injection::Partition => self.one_of(&[DIST_ERR_PEER_FAILED], status),
            Injection::StoreDeath => {
                let only_store = matches!(
                    self.step(step),
                    Some(ScenarioStep::Store { .. } | ScenarioStep::Init)
                );
                match only_store {
                    true => None,
                    // A rank that lost the store aborts and leaves; its peers report it as absent.
                    false if [DIST_ERR_PEER_FAILED, DIST_ERR_ABORTED].contains(&status) => None,
                    false => Some("it does not need the store"),
                }
            }
            _ => None,
        }
    }

    /// Returns true for a known weakness that docs/failure-tests.md lists: the error names the
    /// culprit, but with another status or only at the deadline.
    fn is_known_limitation(&self, step: usize, status: i32, text: &str) -> bool {
        let step = self.step(step);
        let is_named = self.names_culprit(step, text);
        match (self.scenario.injection, step) {
            // The victim is stopped while the ranks create a subgroup.
            (Injection::Stop, Some(ScenarioStep::Groups { .. })) => {
                is_named && status == DIST_ERR_TIMEOUT
            }
            // The victim is lost after the leader of its host, or of a waiting rank's host, has
            // left.
            (Injection::Kill { .. } | Injection::Stop | Injection::Partition, _)
                if self.has_leader_left() =>
            {
                (status == DIST_ERR_TIMEOUT && (is_named || text.contains(QUEUE_TIMEOUT_TEXT)))
                    || ([DIST_ERR_CONNECTION, DIST_ERR_PEER_FAILED].contains(&status)
                        && self.names_one_that_left(text))
            }
            // If a message is neither sent nor received, the error only names the peer of the
            // message.
            (
                Injection::Delay { .. },
                Some(ScenarioStep::Ring { .. } | ScenarioStep::Pairs { .. }),
            ) => {
                [DIST_ERR_TIMEOUT, DIST_ERR_ABORTED].contains(&status)
                    && text.contains("message of")
            }
            // A rank cannot join without the store, and the leaders that would report it have left.
            (Injection::StoreDeath, _) if self.has_leader_left() => status == DIST_ERR_TIMEOUT,
            // The other ranks wait for a rank that lost its connection to the store.
            (Injection::Close { .. }, Some(ScenarioStep::Init)) => status == DIST_ERR_TIMEOUT,
            _ => false,
        }
    }

    /// Returns true if the lowest rank of a host has finalized.
    fn has_leader_left(&self) -> bool {
        let hosts = &self.scenario.hosts;
        let leaders = (0..2).filter_map(|host| hosts.iter().position(|&of| of == host));
        let last = self.scenario.steps.len() - 1;
        let mut ended = leaders.flat_map(|leader| &self.processes.process(Some(leader)).reports);
        ended.any(|report| matches!(report, RankReport::Begin(step) if *step == last))
    }

    /// Returns true if the text is about a rank that failed and has left since: about the first
    /// connection to it, or about its departure. The leaders that would report the failure itself
    /// have left.
    fn names_one_that_left(&self, text: &str) -> bool {
        let has_failed_and_left = |member: &&ScenarioProcess| {
            let failed = |report: &RankReport| matches!(report, RankReport::End { status, .. } if *status != DIST_OK);
            member.reports.iter().any(failed)
                && member.reports.iter().any(|it| matches!(it, RankReport::Finalized))
        };
        let names = |member: &ScenarioProcess| {
            let name = format!("rank {} (pid {}, ", member.rank.unwrap_or(usize::MAX), member.pid);
            let is_left = |rest: &str| {
                rest.split_once(')').is_some_and(|(_, then)| then.starts_with(" has left"))
            };
            text.contains(&format!("cannot reach {name}")) || text.split(&name).skip(1).any(is_left)
        };
        self.processes.processes.iter().filter(has_failed_and_left).any(names)
    }

    fn step(&self, step: usize) -> Option<&ScenarioStep> {
        self.scenario.steps.get(step)
    }

    fn one_of(&self, allowed: &[i32], status: i32) -> Option<&'static str> {
        (!allowed.contains(&status)).then_some("that is no error for it")
    }

    /// Checks the report about a single fault of the victim.
    fn check_single_fault(&self, number: usize, status: i32, text: &str) -> Option<&'static str> {
        let step = self.step(number);
        if self.is_victim() || (self.needs_store(step) && self.scenario.loses_store()) {
            return None;
        }
        let is_late = matches!(self.scenario.injection, Injection::Delay { .. });
        let times_out = is_late || self.needs_store(step);
        // During the rendezvous, the rank that listens for the victim may be lost with it, and rank
        // 0 gives up at the same time as its peers. Then the peers only know that rank 0 has not
        // answered.
        let is_meeting = matches!(step, Some(ScenarioStep::Init));
        let is_allowed = [DIST_ERR_PEER_FAILED, DIST_ERR_ABORTED].contains(&status)
            || (times_out && status == DIST_ERR_TIMEOUT)
            || (is_meeting && status == DIST_ERR_CONNECTION);
        if !is_allowed {
            return Some("that is no error for it");
        }
        if is_meeting && status != DIST_ERR_CONNECTION {
            return None;
        }
        // A closed socket proves a death, so that only the survivors count for the majority. The
        // exception is a rank that failed earlier: it has finalized before the survivors shrink.
        let is_death = matches!(self.scenario.injection, Injection::Kill { .. });
        if is_death && text.contains("no majority") && !self.others_left_before(number) {
            return Some("the rest had to go on");
        }
        // If a call reaches its deadline before its turn, that call reports the error, and it knows
        // only its own rank.
        if status == DIST_ERR_TIMEOUT && text.contains(QUEUE_TIMEOUT_TEXT) {
            return None;
        }
        if matches!(step, Some(ScenarioStep::Store { .. })) {
            return None;
        }
        (!self.names_culprit(step, text)).then_some("the culprit is not named")
    }

    /// Returns true if a rank that is not killed failed in an earlier step; it leaves after the
    /// failure.
    fn others_left_before(&self, step: usize) -> bool {
        let lives =
            |member: &&ScenarioProcess| member.rank.is_some_and(|it| !self.scenario.is_killed(it));
        let mut alive = self.processes.processes.iter().filter(lives);
        alive.any(|member| (0..step).any(|earlier| is_first_failure(member, earlier)))
    }

    fn needs_store(&self, step: Option<&ScenarioStep>) -> bool {
        matches!(step, Some(ScenarioStep::Init | ScenarioStep::Store { .. }))
    }

    /// Returns true if the text names a rank at fault.
    fn names_culprit(&self, step: Option<&ScenarioStep>, text: &str) -> bool {
        let names = |rank: usize| {
            let pid = format!("(pid {},", self.processes.process(Some(rank)).pid);
            let number = format!("rank {rank}");
            let mut matches = text.match_indices(&number);
            let is_whole =
                |at: usize| !text[at + number.len()..].starts_with(|c: char| c.is_ascii_digit());
            text.contains(&pid)
                || matches.any(|(at, _)| is_whole(at))
                || text_lists_rank(text, rank)
        };
        // After a partition, each side may name any rank on the other side.
        let hosts = &self.scenario.hosts;
        let is_beyond = |rank: usize| {
            self.scenario.injection == Injection::Partition && hosts[rank] != hosts[self.rank]
        };
        let is_at_fault = |rank: &usize| {
            *rank == self.scenario.victim || self.scenario.is_killed(*rank) || is_beyond(*rank)
        };
        let named = (0..self.scenario.size).filter(is_at_fault).any(names);
        // A rank whose message failed finalizes, and its neighbour's error reports this departure.
        let is_message = matches!(
            step,
            Some(
                ScenarioStep::Ring { .. }
                    | ScenarioStep::Pairs { .. }
                    | ScenarioStep::Groups { .. }
            )
        );
        named || (is_message && text.contains("has left"))
    }
}

/// Returns true if a list of ranks in the text contains the rank.
fn text_lists_rank(text: &str, rank: usize) -> bool {
    let numbers = text.split("ranks ").skip(1).flat_map(|rest| {
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == ',' || c == ' '));
        rest[..end.unwrap_or(rest.len())].split(',').map(|word| word.trim().parse::<usize>())
    });
    numbers.flatten().any(|number| number == rank)
}

fn is_first_failure(member: &ScenarioProcess, step: usize) -> bool {
    let first = member.reports.iter().find_map(|report| match report {
        RankReport::End { step, status, .. } if *status != DIST_OK => Some(*step),
        _ => None,
    });
    first == Some(step)
}
