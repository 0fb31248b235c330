//! What the survivors of a scenario may have heard. Everything else is a finding.

use crate::crew::{Crew, Member, Said};
use crate::scenario::{Injection, Scenario, Step};
use dist::ffi::types::{
    DIST_ERR_ABORTED, DIST_ERR_CONNECTION, DIST_ERR_INTERNAL, DIST_ERR_PEER_FAILED,
    DIST_ERR_TIMEOUT, DIST_OK,
};

/// By how much a call may be late on a busy machine.
const SLACK_MS: i64 = 2000;
/// The same for ranks whose store is stopped, or beyond a partition: they query it once more for
/// the missing ranks or keys. A rendezvous that fails may always take this long
/// (docs/failure-tests.md); the store shares the busy machine.
const STORE_IS_CUT_OFF_MS: i64 = SLACK_MS + 3000;
/// How a process ends that the system, or Rust, denies a little memory.
const ABORTED: i32 = 128 + libc::SIGABRT;

/// What a call says whose deadline passed before its turn came.
const BEHIND_OTHERS: &str = "behind earlier operations";

/// All that is wrong with how it went.
pub(crate) fn judge(scenario: &Scenario, crew: &Crew) -> Vec<String> {
    let survivors = crew.members.iter().filter_map(|member| Some((member.rank?, member)));
    let survivors = survivors.filter(|(rank, _)| !scenario.dies(*rank));
    survivors.flat_map(|(rank, member)| Judge { scenario, crew, rank }.member(member)).collect()
}

struct Judge<'a> {
    scenario: &'a Scenario,
    crew: &'a Crew,
    rank: usize,
}

impl Judge<'_> {
    fn is_victim(&self) -> bool {
        self.rank == self.scenario.victim
    }

    fn member(&self, member: &Member) -> Vec<String> {
        let mut found: Vec<String> =
            member.said.iter().filter_map(|said| self.said(member, said)).collect();
        let is_done = member.said.iter().any(|said| matches!(said, Said::Done));
        let may_abort = self.is_victim()
            && matches!(self.scenario.injection, Injection::MemoryLimit { .. })
            && member.code() == Some(ABORTED);
        if !may_abort && (!is_done || member.code().is_some_and(|code| code != 0)) {
            found.push(format!("it ended with {:?}, done: {is_done}", member.code()));
        }
        found.iter().map(|what| format!("rank {}: {what}", self.rank)).collect()
    }

    fn said(&self, member: &Member, said: &Said) -> Option<String> {
        match said {
            Said::Wrong(what) => Some(what.clone()),
            Said::End { step, status, over_ms, text, .. } => {
                // A rank that was stopped has not been late.
                let was_stopped = self.is_victim() && self.scenario.injection == Injection::Stop;
                let slack_ms = match (self.scenario.injection, self.step(*step)) {
                    (_, Some(Step::Init)) => STORE_IS_CUT_OFF_MS,
                    (Injection::Partition | Injection::Stop, step) if self.needs_store(step) => {
                        STORE_IS_CUT_OFF_MS
                    }
                    _ => SLACK_MS,
                };
                if *over_ms > slack_ms && !was_stopped {
                    return Some(format!("step {step} was {over_ms} ms late: {status} {text}"));
                }
                self.ended(member, *step, *status, text).map(|why| {
                    format!("step {step} ({}): {why}: {status} {text}", self.name(*step))
                })
            }
            _ => None,
        }
    }

    fn name(&self, step: usize) -> String {
        self.scenario.steps.get(step).map_or("after".to_owned(), |step| format!("{step:?}"))
    }

    /// Why a step may not have ended like that.
    fn ended(&self, member: &Member, step: usize, status: i32, text: &str) -> Option<&'static str> {
        if status == DIST_OK {
            return None;
        }
        if status == DIST_ERR_INTERNAL {
            return Some("there was a panic");
        }
        if self.scenario.is_harmless() {
            return Some("it had to succeed");
        }
        // What comes later has the same cause, and a store may be gone.
        if !is_first_failure(member, step) || self.is_known(step, status, text) {
            return None;
        }
        match self.scenario.injection {
            Injection::Kill { .. } | Injection::Stop | Injection::Delay { .. } => {
                self.single(step, status, text)
            }
            Injection::MemoryLimit { .. } if !self.is_victim() => self.single(step, status, text),
            // It waits for what a rank was to set that has given up.
            Injection::Close { .. }
                if matches!(self.step(step), Some(Step::Store { .. }))
                    && status == DIST_ERR_TIMEOUT =>
            {
                None
            }
            Injection::Close { .. } => {
                self.one_of(&[DIST_ERR_PEER_FAILED, DIST_ERR_CONNECTION, DIST_ERR_ABORTED], status)
            }
            // What needs the store has lost it, or waits for somebody beyond.
            Injection::Partition if self.needs_store(self.step(step)) => {
                self.one_of(&[DIST_ERR_PEER_FAILED, DIST_ERR_CONNECTION, DIST_ERR_TIMEOUT], status)
            }
            // A rank that has lost the store in an earlier step, or those beyond in another group,
            // aborts, which may reach others before the heartbeat's limit.
            Injection::Partition
                if text.contains("dist_store_") || self.names_culprit(self.step(step), text) =>
            {
                self.one_of(&[DIST_ERR_PEER_FAILED, DIST_ERR_ABORTED], status)
            }
            Injection::Partition => self.one_of(&[DIST_ERR_PEER_FAILED], status),
            Injection::StoreDeath => {
                let only_store = matches!(self.step(step), Some(Step::Store { .. } | Step::Init));
                match only_store {
                    true => None,
                    // A rank whose store is gone aborts, leaves, and is missed.
                    false if [DIST_ERR_PEER_FAILED, DIST_ERR_ABORTED].contains(&status) => None,
                    false => Some("it does not need the store"),
                }
            }
            _ => None,
        }
    }

    /// Returns true for a known weakness that docs/failure-tests.md lists: the error names the
    /// culprit, but with another status or only at the deadline.
    fn is_known(&self, step: usize, status: i32, text: &str) -> bool {
        let step = self.step(step);
        let is_named = self.names_culprit(step, text);
        match (self.scenario.injection, step) {
            // One that is stopped while a group is made of its group.
            (Injection::Stop, Some(Step::Groups { .. })) => is_named && status == DIST_ERR_TIMEOUT,
            // One that is lost where the leader of its host, or that of those who wait for it, has
            // left already.
            (Injection::Kill { .. } | Injection::Stop | Injection::Partition, _)
                if self.has_leader_left() =>
            {
                (status == DIST_ERR_TIMEOUT && (is_named || text.contains(BEHIND_OTHERS)))
                    || ([DIST_ERR_CONNECTION, DIST_ERR_PEER_FAILED].contains(&status)
                        && self.names_one_that_left(text))
            }
            // The end of a message that nobody takes or sends says no more than whose message that
            // is.
            (Injection::Delay { .. }, Some(Step::Ring { .. } | Step::Pairs { .. })) => {
                [DIST_ERR_TIMEOUT, DIST_ERR_ABORTED].contains(&status)
                    && text.contains("message of")
            }
            // One that could not come without the store, which the same leaders would have to tell.
            (Injection::StoreDeath, _) if self.has_leader_left() => status == DIST_ERR_TIMEOUT,
            // Others wait for one whose connection to the store was lost.
            (Injection::Close { .. }, Some(Step::Init)) => status == DIST_ERR_TIMEOUT,
            _ => false,
        }
    }

    /// Whether the lowest rank of a host has left in order.
    fn has_leader_left(&self) -> bool {
        let hosts = &self.scenario.hosts;
        let leaders = (0..2).filter_map(|host| hosts.iter().position(|&of| of == host));
        let last = self.scenario.steps.len() - 1;
        let mut ended = leaders.flat_map(|leader| &self.crew.member(Some(leader)).said);
        ended.any(|said| matches!(said, Said::Begin(step) if *step == last))
    }

    /// Whether a text is about the first connection with a rank that has failed and left meanwhile,
    /// or about that leaving. The failure itself is told by leaders, which are gone.
    fn names_one_that_left(&self, text: &str) -> bool {
        let has_failed_and_left = |member: &&Member| {
            let failed =
                |said: &Said| matches!(said, Said::End { status, .. } if *status != DIST_OK);
            member.said.iter().any(failed) && member.said.iter().any(|it| matches!(it, Said::Left))
        };
        let names = |member: &Member| {
            let name = format!("rank {} (pid {}, ", member.rank.unwrap_or(usize::MAX), member.pid);
            let is_left = |rest: &str| {
                rest.split_once(')').is_some_and(|(_, then)| then.starts_with(" has left"))
            };
            text.contains(&format!("cannot reach {name}")) || text.split(&name).skip(1).any(is_left)
        };
        self.crew.members.iter().filter(has_failed_and_left).any(names)
    }

    fn step(&self, step: usize) -> Option<&Step> {
        self.scenario.steps.get(step)
    }

    fn one_of(&self, allowed: &[i32], status: i32) -> Option<&'static str> {
        (!allowed.contains(&status)).then_some("that is no error for it")
    }

    /// A single fault of the victim's.
    fn single(&self, number: usize, status: i32, text: &str) -> Option<&'static str> {
        let step = self.step(number);
        if self.is_victim() || (self.needs_store(step) && self.scenario.loses_store()) {
            return None;
        }
        let is_late = matches!(self.scenario.injection, Injection::Delay { .. });
        let times_out = is_late || self.needs_store(step);
        // In coming together, who listens for the victim may be gone with it, and rank 0 gives up
        // as late as the others, so that they may know no more than that rank 0 has not spoken.
        let is_meeting = matches!(step, Some(Step::Init));
        let is_allowed = [DIST_ERR_PEER_FAILED, DIST_ERR_ABORTED].contains(&status)
            || (times_out && status == DIST_ERR_TIMEOUT)
            || (is_meeting && status == DIST_ERR_CONNECTION);
        if !is_allowed {
            return Some("that is no error for it");
        }
        if is_meeting && status != DIST_ERR_CONNECTION {
            return None;
        }
        // A closed socket proves a death, so that those who are left are all that count; but one
        // that failed earlier has left in order before the others shrink.
        let is_death = matches!(self.scenario.injection, Injection::Kill { .. });
        if is_death && text.contains("no majority") && !self.others_left_before(number) {
            return Some("the rest had to go on");
        }
        // The deadline of a call that had to wait for its turn is told by that call, which knows
        // its own rank only.
        if status == DIST_ERR_TIMEOUT && text.contains(BEHIND_OTHERS) {
            return None;
        }
        if matches!(step, Some(Step::Store { .. })) {
            return None;
        }
        (!self.names_culprit(step, text)).then_some("the culprit is not named")
    }

    /// Whether a rank that lives has failed in an earlier step, after which it leaves.
    fn others_left_before(&self, step: usize) -> bool {
        let lives = |member: &&Member| member.rank.is_some_and(|it| !self.scenario.dies(it));
        let mut alive = self.crew.members.iter().filter(lives);
        alive.any(|member| (0..step).any(|earlier| is_first_failure(member, earlier)))
    }

    fn needs_store(&self, step: Option<&Step>) -> bool {
        matches!(step, Some(Step::Init | Step::Store { .. }))
    }

    /// Whether a text names one of those at fault.
    fn names_culprit(&self, step: Option<&Step>, text: &str) -> bool {
        let names = |rank: usize| {
            let pid = format!("(pid {},", self.crew.member(Some(rank)).pid);
            let number = format!("rank {rank}");
            let mut places = text.match_indices(&number);
            let is_whole =
                |at: usize| !text[at + number.len()..].starts_with(|c: char| c.is_ascii_digit());
            text.contains(&pid) || places.any(|(at, _)| is_whole(at)) || lists(text, rank)
        };
        // Of a partition, each side may name anybody beyond.
        let hosts = &self.scenario.hosts;
        let is_beyond = |rank: usize| {
            self.scenario.injection == Injection::Partition && hosts[rank] != hosts[self.rank]
        };
        let is_at_fault = |rank: &usize| {
            *rank == self.scenario.victim || self.scenario.dies(*rank) || is_beyond(*rank)
        };
        let named = (0..self.scenario.size).filter(is_at_fault).any(names);
        // A rank whose message was given up has left in order, and that is what its neighbour hears
        // of.
        let is_message =
            matches!(step, Some(Step::Ring { .. } | Step::Pairs { .. } | Step::Groups { .. }));
        named || (is_message && text.contains("has left"))
    }
}

/// Whether a rank is in a list of ranks that a text has.
fn lists(text: &str, rank: usize) -> bool {
    let numbers = text.split("ranks ").skip(1).flat_map(|rest| {
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == ',' || c == ' '));
        rest[..end.unwrap_or(rest.len())].split(',').map(|word| word.trim().parse::<usize>())
    });
    numbers.flatten().any(|number| number == rank)
}

fn is_first_failure(member: &Member, step: usize) -> bool {
    let first = member.said.iter().find_map(|said| match said {
        Said::End { step, status, .. } if *status != DIST_OK => Some(*step),
        _ => None,
    });
    first == Some(step)
}
