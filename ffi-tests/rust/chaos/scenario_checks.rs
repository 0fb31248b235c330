//! Checks the reports of a scenario's survivors. Each report that the scenario does not allow is a
//! finding.

use crate::culprit_count::{BLAMING_KINDS, CulpritCount};
use crate::scenario::{GroupCreation, Injection, Scenario, ScenarioStep};
use crate::scenario_processes::{RankReport, ScenarioProcess, ScenarioProcesses};
use crate::self_injection::HASTY_EXIT;
use dist::ffi::types::{
    DIST_CULPRIT_LATE, DIST_CULPRIT_LEFT, DIST_ERR_ABORTED, DIST_ERR_CONNECTION, DIST_ERR_INTERNAL,
    DIST_ERR_MISMATCH, DIST_ERR_PEER_FAILED, DIST_ERR_TIMEOUT, DIST_OK,
};

/// The largest excess over a deadline on a busy machine.
const LATE_TOLERANCE_MS: i64 = 2000;
/// The largest excess for calls whose store may be stopped or partitioned. The rank queries the
/// store once more for the missing ranks or keys (3 s), and the last query waits longer for its
/// answer (2 s). A failed rendezvous may always take this long (docs/failure-tests.md), since the
/// store shares the busy machine.
const LATE_TOLERANCE_WITHOUT_STORE_MS: i64 = LATE_TOLERANCE_MS + 5000;
/// The longest time between the death of a rank and an error that it causes, on a busy machine. It
/// is shorter than the heartbeat limit and the deadlines of these scenarios.
const MAX_DETECTION_MS: u64 = 6000;
/// The exit code of a process that aborts because a small allocation failed.
const ABORTED: i32 = 128 + libc::SIGABRT;

/// A part of the error text of a call whose deadline passed before its turn.
const QUEUE_TIMEOUT_TEXT: &str = "waiting for earlier operations";

/// Returns all findings about a scenario, and how often the right culprit was named.
/// `injected_at_us` is the time at which the driver injected the fault.
pub(crate) fn findings(
    scenario: &Scenario,
    processes: &ScenarioProcesses,
    injected_at_us: Option<u64>,
) -> (Vec<String>, CulpritCount) {
    let mut culprits = CulpritCount::default();
    let mut findings: Vec<String> = check_rests(processes).into_iter().collect();
    for member in &processes.processes {
        let Some(rank) = member.rank else { continue };
        let checker = ScenarioChecker { scenario, processes, rank, injected_at_us };
        match scenario.is_killed(rank) {
            true => findings.extend(checker.check_victim(member)),
            false => findings.extend(checker.check_process(member)),
        }
        culprits.add(checker.count_culprits(member));
    }
    (findings, culprits)
}

/// Checks that a shrink has made one group only.
fn check_rests(processes: &ScenarioProcesses) -> Option<String> {
    let reports = processes.processes.iter().flat_map(|member| &member.reports);
    let sizes: Vec<usize> = reports
        .filter_map(|report| match report {
            RankReport::Rest(size) => Some(*size),
            _ => None,
        })
        .collect();
    let first = *sizes.first()?;
    let is_one = sizes.len() <= first && sizes.iter().all(|&size| size == first);
    (!is_one).then(|| format!("more than one rest goes on: ranks in groups of {sizes:?} ranks"))
}

struct ScenarioChecker<'a> {
    scenario: &'a Scenario,
    processes: &'a ScenarioProcesses,
    rank: usize,
    injected_at_us: Option<u64>,
}

impl ScenarioChecker<'_> {
    fn is_victim(&self) -> bool {
        self.rank == self.scenario.victim
    }

    /// Checks that a rank that ends by `exit` does not crash or hang at its end.
    fn check_victim(&self, member: &ScenarioProcess) -> Option<String> {
        let exits = matches!(self.scenario.injection, Injection::Exit { .. });
        let code = member.exit_code();
        (exits && code.is_some_and(|code| code != 0))
            .then(|| format!("rank {}: its exit ended with {code:?}", self.rank))
    }

    /// Returns true if the rank has failed and must have ended right after that.
    fn is_hasty(&self, member: &ScenarioProcess) -> bool {
        let is_error =
            |it: &RankReport| matches!(it, RankReport::End { status, .. } if *status != DIST_OK);
        matches!(self.scenario.injection, Injection::KillThenExit { .. })
            && member.reports.iter().any(is_error)
    }

    fn check_process(&self, member: &ScenarioProcess) -> Vec<String> {
        let mut findings: Vec<String> =
            member.reports.iter().filter_map(|report| self.check_report(member, report)).collect();
        let is_done = member.reports.iter().any(|report| matches!(report, RankReport::Done));
        let may_abort = self.is_victim()
            && matches!(self.scenario.injection, Injection::MemoryLimit { .. })
            && member.exit_code() == Some(ABORTED);
        let is_right_end = match self.is_hasty(member) {
            true => member.exit_code() == Some(HASTY_EXIT),
            false => is_done && member.exit_code().is_none_or(|code| code == 0),
        };
        if !may_abort && !is_right_end {
            findings.push(format!("it ended with {:?}, done: {is_done}", member.exit_code()));
        }
        findings.iter().map(|what| format!("rank {}: {what}", self.rank)).collect()
    }

    fn check_report(&self, member: &ScenarioProcess, report: &RankReport) -> Option<String> {
        match report {
            RankReport::WrongResult(what) => Some(what.clone()),
            RankReport::Culprit { step, rank, kind } => self.check_culprit(*step, *rank, *kind),
            RankReport::End { step, status, over_ms, text, at_us } => {
                if let Some(late) = self.check_detection(member, *step, *status, *at_us) {
                    return Some(format!("step {step}: {late}: {status} {text}"));
                }
                // The pause of a stopped rank does not count as an excess.
                let was_stopped = self.is_victim() && self.scenario.injection == Injection::Stop;
                let slack_ms = match (self.scenario.injection, self.step(*step)) {
                    (_, Some(ScenarioStep::Init)) => LATE_TOLERANCE_WITHOUT_STORE_MS,
                    (Injection::Partition | Injection::Reject | Injection::Stop, step)
                        if self.needs_store(step) =>
                    {
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

    /// Checks the time between the death of a rank and an error that it causes.
    fn check_detection(
        &self,
        member: &ScenarioProcess,
        step: usize,
        status: i32,
        at_us: u64,
    ) -> Option<String> {
        let needs_more = self.needs_store(self.step(step))
            || matches!(self.step(step), Some(ScenarioStep::Shrink { .. }));
        if !self.scenario.injection.is_death()
            || status == DIST_OK
            || needs_more
            || !is_first_failure(member, step)
            || self.lacks_leader()
        {
            return None;
        }
        let took_ms = at_us.saturating_sub(self.injected_at_us?) / 1000;
        (took_ms > MAX_DETECTION_MS).then(|| format!("the error came {took_ms} ms after the death"))
    }

    /// Checks the rank that the library calls the culprit of the world's failure.
    fn check_culprit(&self, step: usize, rank: usize, kind: i32) -> Option<String> {
        // If a message or a call in another group fails, its rank gives up and leaves.
        let is_hasty = matches!(self.scenario.injection, Injection::KillThenExit { .. });
        let may_leave =
            (kind == DIST_CULPRIT_LEFT || is_hasty) && self.is_about_messages(self.step(step));
        // A call whose deadline passes before its turn knows only its own rank.
        let is_queued = |report: &RankReport| matches!(report, RankReport::End { text, .. } if text.contains(QUEUE_TIMEOUT_TEXT));
        let is_own_deadline = kind == DIST_CULPRIT_LATE
            && self.processes.processes.iter().any(|it| it.reports.iter().any(is_queued));
        let is_wrong = self.is_single_fault()
            && !self.is_victim()
            && !self.needs_store(self.step(step))
            && BLAMING_KINDS.contains(&kind)
            && !may_leave
            && !is_own_deadline
            && !self.lacks_leader()
            && !self.is_at_fault(rank);
        is_wrong.then(|| format!("step {step}: rank {rank} is called the culprit (kind {kind})"))
    }

    /// Counts the first error of the rank, and whether it names a rank at fault.
    fn count_culprits(&self, member: &ScenarioProcess) -> CulpritCount {
        let first = member.reports.iter().find_map(|report| match report {
            RankReport::End { step, status, text, .. } if *status != DIST_OK => Some((*step, text)),
            _ => None,
        });
        let Some((number, text)) = first else { return CulpritCount::default() };
        let step = self.step(number);
        if !self.is_single_fault() || self.is_victim() || self.needs_store(step) {
            return CulpritCount::default();
        }
        let is_finalize = matches!(step, Some(ScenarioStep::Finalize));
        if self.scenario.is_killed(self.rank) || is_finalize {
            return CulpritCount::default();
        }
        if self.is_abort_without_store(text) {
            return CulpritCount::default();
        }
        CulpritCount { reports: 1, right: u64::from(self.names_culprit(step, text)) }
    }

    /// Returns true if a rank aborted the group because the fault took the store away. The rank was
    /// still in a step that needs the store.
    fn is_abort_without_store(&self, text: &str) -> bool {
        self.scenario.loses_store() && text.contains(" aborted group ") && text.contains("store at")
    }

    fn is_single_fault(&self) -> bool {
        let injection = self.scenario.injection;
        injection.is_death()
            || matches!(
                injection,
                Injection::Stop
                    | Injection::Delay { late: true, .. }
                    | Injection::Exit { .. }
                    | Injection::Leave
            )
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
            _ if self.is_single_fault() => self.check_single_fault(step, status, text),
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
            Injection::Partition | Injection::Reject if self.needs_store(self.step(step)) => {
                self.one_of(&[DIST_ERR_PEER_FAILED, DIST_ERR_CONNECTION, DIST_ERR_TIMEOUT], status)
            }
            // A rank aborts if it lost the store or its peers of another group in an earlier step.
            // The abort may reach its peers before the heartbeat limit passes.
            Injection::Partition | Injection::Reject
                if text.contains("dist_store_") || self.names_culprit(self.step(step), text) =>
            {
                self.one_of(&[DIST_ERR_PEER_FAILED, DIST_ERR_ABORTED], status)
            }
            Injection::Partition | Injection::Reject => {
                self.one_of(&[DIST_ERR_PEER_FAILED], status)
            }
            Injection::StoreDeath => {
                match self.needs_store(self.step(step)) {
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
            _ if self.lacks_leader() => {
                (status == DIST_ERR_TIMEOUT && (is_named || text.contains(QUEUE_TIMEOUT_TEXT)))
                    || ([DIST_ERR_CONNECTION, DIST_ERR_PEER_FAILED].contains(&status)
                        && self.names_one_that_left(text))
            }
            // The victim ends in order before it joins the group, or before it has a connection
            // with the waiting rank of another host.
            (
                Injection::Exit { .. } | Injection::Leave,
                Some(ScenarioStep::Groups { way: GroupCreation::Create, .. }),
            ) => is_named && status == DIST_ERR_TIMEOUT,
            (Injection::Exit { .. } | Injection::Leave, step)
                if self.is_about_messages(step) && self.scenario.hosts.contains(&1) =>
            {
                is_named && [DIST_ERR_TIMEOUT, DIST_ERR_ABORTED].contains(&status)
            }
            // The victim left before some of the calls.
            (Injection::Exit { .. } | Injection::Leave, Some(ScenarioStep::Finalize)) => {
                status == DIST_ERR_MISMATCH
            }
            // If a message is neither sent nor received, the error only names the peer of the
            // message. It may abort a collective in which other ranks still wait for the victim.
            (Injection::Delay { .. }, Some(step)) if text.contains("message of") => {
                (is_exchange(step) && status == DIST_ERR_TIMEOUT)
                    || (self.scenario.steps.iter().any(is_exchange) && status == DIST_ERR_ABORTED)
            }
            // A rank cannot join without the store, and the leaders that would report it have left.
            (Injection::StoreDeath, _) if self.has_leader_left() => status == DIST_ERR_TIMEOUT,
            // The other ranks wait for a rank that lost its connection to the store.
            (
                Injection::Close { .. },
                Some(ScenarioStep::Init | ScenarioStep::Groups { way: GroupCreation::Create, .. }),
            ) => status == DIST_ERR_TIMEOUT,
            _ => false,
        }
    }

    /// Returns true if the fault must be reported to another host, but the lowest rank of a host
    /// has left.
    fn lacks_leader(&self) -> bool {
        let injection = self.scenario.injection;
        let is_reported =
            injection.is_death() || injection.separates_hosts() || injection == Injection::Stop;
        is_reported && self.has_leader_left()
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
        let is_death = self.scenario.injection.is_death();
        if is_death && text.contains("no majority") && !self.others_left_before(number) {
            return Some("the rest had to go on");
        }
        // If a call reaches its deadline before its turn, that call reports the error, and it knows
        // only its own rank.
        if status == DIST_ERR_TIMEOUT && text.contains(QUEUE_TIMEOUT_TEXT) {
            return None;
        }
        if matches!(step, Some(ScenarioStep::Store { .. })) || self.is_abort_without_store(text) {
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
        match step {
            Some(ScenarioStep::Init | ScenarioStep::Store { .. }) => true,
            Some(ScenarioStep::Groups { way: GroupCreation::Create, .. }) => {
                self.scenario.loses_store() || self.scenario.injection.separates_hosts()
            }
            _ => false,
        }
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
            self.scenario.injection.separates_hosts() && hosts[rank] != hosts[self.rank]
        };
        let is_at_fault = |rank: &usize| self.is_at_fault(*rank) || is_beyond(*rank);
        let named = (0..self.scenario.size).filter(is_at_fault).any(names);
        // A rank whose message failed finalizes, and its neighbour's error reports this departure.
        // If it ends right after that, it is the rank that the neighbour misses.
        let is_hasty = matches!(self.scenario.injection, Injection::KillThenExit { .. });
        let is_consequence = text.contains("has left") || (is_hasty && text.contains(" died"));
        named || (self.is_about_messages(step) && is_consequence)
    }

    fn is_at_fault(&self, rank: usize) -> bool {
        rank == self.scenario.victim || self.scenario.is_killed(rank)
    }

    /// Returns true if ranks may fail at different times in this step, because they do not wait for
    /// all others.
    fn is_about_messages(&self, step: Option<&ScenarioStep>) -> bool {
        step.is_some_and(|step| is_exchange(step) || matches!(step, ScenarioStep::Groups { .. }))
    }
}

/// Returns true if the ranks only exchange messages with some of the others.
fn is_exchange(step: &ScenarioStep) -> bool {
    matches!(step, ScenarioStep::Ring { .. } | ScenarioStep::Pairs { .. })
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
