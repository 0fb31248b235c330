//! Runs a crew until all members have ended, too many have failed, or a signal asks for the end.
//! Then ends the remaining members, first with SIGTERM.

use super::child_group::{ChildEvent, ChildProcessGroup};
use super::process_exit::ProcessExit;
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::sys::signal;
use std::time::Duration;

/// How often the groups of ended members are looked at for processes that are still there.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How much time the members of a crew are given.
#[derive(Clone, Copy, Debug)]
pub struct SupervisionTimeouts {
    /// From the first failure until the others are told to stop: time to fail on their own and say
    /// why, and for a death that others noticed sooner than we did to be seen.
    pub settle: Duration,
    /// From being told to stop because another one failed, or because all have ended and left
    /// something behind, until being killed.
    pub failure: Duration,
    /// From being passed a signal until being killed.
    pub signal: Duration,
    /// For the kernel to end what was killed.
    pub kill: Duration,
}

/// How many members a crew needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredMembers {
    /// All of them: the first failure ends the crew.
    All,
    /// At least so many members that have not failed, and at least one. The crew goes on without
    /// failed members.
    AtLeast(usize),
}

impl RequiredMembers {
    /// Whether the crew goes on after so many failures.
    fn is_met(self, members: usize, failures: usize) -> bool {
        match self {
            Self::All => failures == 0,
            Self::AtLeast(least) => members - failures >= least.max(1),
        }
    }
}

/// Why a crew's life ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SupervisionOutcome {
    /// Every member ended with status 0, but for those without which the crew could go on.
    Success,
    /// The member with this index failed first.
    Failure(usize),
    /// This process was sent this signal.
    Signal(i32),
}

/// What is told while it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SupervisionNotice {
    /// This signal was received and passed on to all members.
    SignalForwarded(i32),
    /// What remained was killed without waiting any longer, because a signal came when the end had
    /// begun.
    KilledEarly(i32),
    /// The member with this index failed, and the crew goes on without it. `remaining` members have
    /// not failed.
    MemberFailed {
        /// The member.
        index: usize,
        /// The number of the others.
        remaining: usize,
    },
}

/// Runs the crew to its end. When it returns, every group is gone, but for members that cannot be
/// killed, which have no ending.
///
/// # Errors
/// `System`; the crew's drop still kills everything.
pub fn supervise(
    group: &mut ChildProcessGroup,
    required: RequiredMembers,
    timeouts: &SupervisionTimeouts,
    report: &mut dyn FnMut(SupervisionNotice),
) -> Result<SupervisionOutcome> {
    let (cause, is_urgent) = run(group, required, timeouts, report)?;
    if is_urgent {
        group.kill_and_reap(timeouts.kill)?;
        return Ok(cause);
    }
    let grace = match cause {
        SupervisionOutcome::Signal(signal) => {
            group.signal_all(signal);
            report(SupervisionNotice::SignalForwarded(signal));
            timeouts.signal
        }
        SupervisionOutcome::Success | SupervisionOutcome::Failure(_) => {
            if !group.is_clear() {
                group.signal_all(signal::TERMINATE);
            }
            timeouts.failure
        }
    };
    wait_for_group_exit(group, &Deadline::after(grace), report)?;
    group.kill_and_reap(timeouts.kill)?;
    Ok(cause)
}

/// Runs until all have ended, too many have failed (and others had the time to), or a signal came.
/// Also returns whether a signal came after the failure that ends the crew; then no member gets any
/// more time.
fn run(
    group: &mut ChildProcessGroup,
    required: RequiredMembers,
    timeouts: &SupervisionTimeouts,
    report: &mut dyn FnMut(SupervisionNotice),
) -> Result<(SupervisionOutcome, bool)> {
    let (mut failed, mut is_urgent) = (Vec::new(), false);
    let mut deadline = Deadline::never();
    while !group.all_ended() {
        match group.next_event(&deadline)? {
            // Once too many have failed, that stays the cause.
            ChildEvent::Signal(signal) if required.is_met(group.members().len(), failed.len()) => {
                return Ok((SupervisionOutcome::Signal(signal), false));
            }
            ChildEvent::Signal(signal) => {
                report(SupervisionNotice::KilledEarly(signal));
                is_urgent = true;
                break;
            }
            ChildEvent::Deadline => break,
            ChildEvent::Ended(index) => {
                let members = group.members().len();
                let Some(ending) = group.members()[index].exit().filter(|how| !how.is_success())
                else {
                    continue;
                };
                let was_met = required.is_met(members, failed.len());
                failed.push((index, ending));
                if required.is_met(members, failed.len()) {
                    report(SupervisionNotice::MemberFailed {
                        index,
                        remaining: members - failed.len(),
                    });
                } else if was_met {
                    deadline = Deadline::after(timeouts.settle);
                }
            }
        }
    }
    let has_enough = required.is_met(group.members().len(), failed.len());
    let cause = first_failure(&failed).filter(|_| !has_enough);
    Ok((cause.map_or(SupervisionOutcome::Success, SupervisionOutcome::Failure), is_urgent))
}

/// Which of the failures, in the order in which they were seen, was the first. A process that is
/// killed closes its connections a little before the kernel reports its end, so on a busy host its
/// peers may notice, fail and be reported before it. Nobody is killed by SIGKILL for another one's
/// failure; so such a death comes first.
pub(super) fn first_failure(failed: &[(usize, ProcessExit)]) -> Option<usize> {
    let killed = failed.iter().find(|(_, ending)| ending.signal() == Some(signal::KILL));
    killed.or(failed.first()).map(|&(index, _)| index)
}

/// Waits until nothing is left, the deadline has passed or a further signal came.
fn wait_for_group_exit(
    group: &mut ChildProcessGroup,
    deadline: &Deadline,
    report: &mut dyn FnMut(SupervisionNotice),
) -> Result<()> {
    while !group.is_clear() && !deadline.has_passed() {
        // What remains once all members have ended reports its end to nobody.
        let step = if group.all_ended() { deadline.capped(POLL_INTERVAL) } else { *deadline };
        if let ChildEvent::Signal(signal) = group.next_event(&step)? {
            report(SupervisionNotice::KilledEarly(signal));
            return Ok(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::child;
    use std::process::Command;

    const TIMEOUTS: SupervisionTimeouts = SupervisionTimeouts {
        settle: Duration::from_millis(100),
        failure: Duration::from_secs(10),
        signal: Duration::from_secs(10),
        kill: Duration::from_secs(10),
    };

    fn group_of(scripts: &[&str]) -> ChildProcessGroup {
        let mut crew = ChildProcessGroup::new(&[]).unwrap();
        for script in scripts {
            crew.spawn(Command::new("/bin/sh").args(["-c", script])).unwrap();
        }
        crew
    }

    #[test]
    fn all_succeed() {
        let mut crew = group_of(&["exit 0", "exit 0"]);
        assert_eq!(
            supervise(&mut crew, RequiredMembers::All, &TIMEOUTS, &mut |_| {}).unwrap(),
            SupervisionOutcome::Success
        );
    }

    #[test]
    fn first_failure_ends_the_group() {
        let mut crew = group_of(&["exec sleep 60", "exit 7", "exec sleep 60"]);
        assert_eq!(
            supervise(&mut crew, RequiredMembers::All, &TIMEOUTS, &mut |_| {}).unwrap(),
            SupervisionOutcome::Failure(1)
        );
        let members = crew.members();
        assert_eq!(members[1].exit().unwrap().shell_status(), 7);
        assert_eq!(members[1].last_signal(), None);
        assert_eq!(members[0].last_signal(), Some(libc::SIGTERM));
        assert_eq!(members[2].exit().unwrap().signal(), Some(libc::SIGTERM));
    }

    #[test]
    fn group_continues_while_enough_members_remain() {
        let scripts = ["exit 3", "sleep 0.3", "kill -9 $$", "exit 0"];
        let mut crew = group_of(&scripts);
        let mut lost = Vec::new();
        let cause = supervise(&mut crew, RequiredMembers::AtLeast(2), &TIMEOUTS, &mut |notice| {
            lost.push(notice)
        });
        assert_eq!(cause.unwrap(), SupervisionOutcome::Success);
        lost.sort_by_key(|notice| format!("{notice:?}"));
        let left = |notice: &SupervisionNotice| match notice {
            SupervisionNotice::MemberFailed { index, remaining: left } => (*index, *left),
            other => panic!("{other:?}"),
        };
        let mut lefts: Vec<usize> = lost.iter().map(|notice| left(notice).1).collect();
        lefts.sort_unstable();
        assert_eq!((left(&lost[0]).0, left(&lost[1]).0, lefts), (0, 2, vec![2, 3]));
        assert!(crew.members().iter().all(|member| member.last_signal().is_none()));
    }

    #[test]
    fn group_ends_when_too_few_members_remain() {
        let mut crew = group_of(&["exit 3", "exec sleep 60", "sleep 0.2; exit 4"]);
        let cause =
            supervise(&mut crew, RequiredMembers::AtLeast(2), &TIMEOUTS, &mut |_| {}).unwrap();
        assert_eq!(cause, SupervisionOutcome::Failure(0));
        assert_eq!(crew.members()[1].last_signal(), Some(libc::SIGTERM));
        let mut crew = group_of(&["exit 3", "exit 4"]);
        let cause =
            supervise(&mut crew, RequiredMembers::AtLeast(0), &TIMEOUTS, &mut |_| {}).unwrap();
        assert!(matches!(cause, SupervisionOutcome::Failure(_)), "{cause:?}");
    }

    #[test]
    fn killed_member_is_the_culprit_even_if_seen_late() {
        let mut crew = group_of(&["exec sleep 60", "exit 3"]);
        wait_until_zombie(crew.members()[1].pid());
        let first = crew.members()[0].pid();
        child::signal_group(first, libc::SIGKILL).unwrap();
        wait_until_zombie(first);
        assert_eq!(
            supervise(&mut crew, RequiredMembers::All, &TIMEOUTS, &mut |_| {}).unwrap(),
            SupervisionOutcome::Failure(0)
        );
    }

    #[test]
    fn member_that_ignores_sigterm_is_killed() {
        let mut crew = group_of(&["trap '' TERM; echo; while :; do sleep 60; done"]);
        let pid = crew.members()[0].pid();
        // The trap is set once the shell has a child, in the same group.
        let deadline = Deadline::after_ms(20_000);
        while !has_child(pid) {
            assert!(!deadline.has_passed());
            std::thread::yield_now();
        }
        let patience = SupervisionTimeouts { failure: Duration::from_millis(50), ..TIMEOUTS };
        crew.spawn(Command::new("/bin/sh").args(["-c", "exit 1"])).unwrap();
        assert_eq!(
            supervise(&mut crew, RequiredMembers::All, &patience, &mut |_| {}).unwrap(),
            SupervisionOutcome::Failure(1)
        );
        assert_eq!(crew.members()[0].exit().unwrap().signal(), Some(libc::SIGKILL));
    }

    fn has_child(pid: i32) -> bool {
        std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
            .is_ok_and(|children| !children.trim().is_empty())
    }

    fn wait_until_zombie(pid: i32) {
        let deadline = Deadline::after_ms(20_000);
        while child::peek(pid).unwrap().is_none() {
            assert!(!deadline.has_passed(), "process {pid} does not end");
            std::thread::yield_now();
        }
    }
}
