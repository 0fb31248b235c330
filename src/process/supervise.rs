//! Runs a child process group until all members (the children) have ended, too many members have
//! failed, or a signal to this process requests the end. Then ends the remaining members: first
//! with SIGTERM or the received signal, later with SIGKILL.

use super::child_group::{ChildEvent, ChildProcessGroup};
use super::process_exit::ProcessExit;
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::sys::signal;
use std::time::Duration;

/// How often the process groups of ended members are checked for remaining processes.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The interval of the notices about members that have not ended after the signal to end.
const NOTICE_INTERVAL: Duration = Duration::from_secs(2);

/// Time limits for the members of a group.
#[derive(Clone, Copy, Debug)]
pub struct SupervisionTimeouts {
    /// The time from the failure that ends the group until the other members receive SIGTERM. In
    /// this time, the other members can fail on their own and report the reason. This process can
    /// also detect the death of a member that the other members detected before this process.
    pub settle: Duration,
    /// The time from SIGTERM until SIGKILL. The members receive SIGTERM if too many of them failed,
    /// or if all members ended and left processes behind.
    pub failure: Duration,
    /// The time from a forwarded signal until SIGKILL.
    pub signal: Duration,
    /// The maximum time from SIGKILL until the kernel has ended the processes.
    pub kill: Duration,
}

/// How many members the group requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredMembers {
    /// The group requires all members: the first failure ends it.
    All,
    /// The group continues without the failed members while at least this number of members, and at
    /// least one, have not failed.
    AtLeast(usize),
}

impl RequiredMembers {
    /// Returns true if the group continues after this number of failures.
    fn is_met(self, members: usize, failures: usize) -> bool {
        match self {
            Self::All => failures == 0,
            Self::AtLeast(least) => members - failures >= least.max(1),
        }
    }
}

/// Why the run of a group ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SupervisionOutcome {
    /// Every member ended with status 0, except failed members without which the group could
    /// continue.
    Success,
    /// The member with this index failed first.
    Failure(usize),
    /// This process received this signal.
    Signal(i32),
}

/// A notice that is reported while the group runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SupervisionNotice {
    /// This signal was received and forwarded to all members.
    SignalForwarded(i32),
    /// This signal arrived after the group had begun to end, so the remaining processes were killed
    /// before their time limit.
    KilledEarly(i32),
    /// A member failed, and the group continues without it.
    MemberFailed {
        /// The index of the member.
        index: usize,
        /// The number of members without a failure.
        remaining: usize,
    },
    /// The members must end, and some have not ended yet. Reported every [`NOTICE_INTERVAL`].
    StillRunning {
        /// The number of members that have not ended. It is 0 if only processes that members have
        /// left behind still run.
        members: usize,
        /// The time until SIGKILL.
        left: Duration,
    },
}

/// Runs the group to its end. On return, every process group is gone, except the groups of members
/// that cannot be killed. Such members have no exit status.
///
/// # Errors
/// `System`; dropping the group still kills everything.
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

/// Runs until all members have ended, until too many have failed and the settle time is over, or
/// until a signal arrives. The boolean is true if a signal arrived after the failure that ends the
/// group. Then the caller kills the remaining members without a grace time.
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
            // The signal is the cause of the end only if it arrived before too many members failed.
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
                let Some(exit) = group.members()[index].exit().filter(|how| !how.is_success())
                else {
                    continue;
                };
                let was_met = required.is_met(members, failed.len());
                failed.push((index, exit));
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

/// Returns the index of the member that failed first. `failed` lists the failures in the order in
/// which this process detected them.
///
/// A killed process closes its connections a little before the kernel reports its end. On a busy
/// host, its peers may thus detect the death, fail, and be reported before the killed process. No
/// member receives SIGKILL because of another member's failure, so a death by SIGKILL counts as the
/// first failure.
pub(super) fn first_failure(failed: &[(usize, ProcessExit)]) -> Option<usize> {
    let killed = failed.iter().find(|(_, exit)| exit.signal() == Some(signal::KILL));
    killed.or(failed.first()).map(|&(index, _)| index)
}

/// Waits until no process is left, the deadline has passed, or a further signal arrives.
fn wait_for_group_exit(
    group: &mut ChildProcessGroup,
    deadline: &Deadline,
    report: &mut dyn FnMut(SupervisionNotice),
) -> Result<()> {
    let mut next_notice = Deadline::after(NOTICE_INTERVAL);
    while !group.is_clear() && !deadline.has_passed() {
        if next_notice.has_passed() {
            let members = group.members().iter().filter(|it| it.exit().is_none()).count();
            let left = deadline.remaining();
            report(SupervisionNotice::StillRunning { members, left });
            next_notice = Deadline::after(NOTICE_INTERVAL);
        }
        // After all members have ended, no event reports the end of the processes that they left
        // behind, so this loop polls.
        let step = if group.all_ended() { POLL_INTERVAL } else { NOTICE_INTERVAL };
        let step = deadline.capped(step);
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
        let mut children = ChildProcessGroup::new(&[]).unwrap();
        for script in scripts {
            children.spawn(Command::new("/bin/sh").args(["-c", script])).unwrap();
        }
        children
    }

    #[test]
    fn all_succeed() {
        let mut children = group_of(&["exit 0", "exit 0"]);
        assert_eq!(
            supervise(&mut children, RequiredMembers::All, &TIMEOUTS, &mut |_| {}).unwrap(),
            SupervisionOutcome::Success
        );
    }

    #[test]
    fn first_failure_ends_the_group() {
        let mut children = group_of(&["exec sleep 60", "exit 7", "exec sleep 60"]);
        assert_eq!(
            supervise(&mut children, RequiredMembers::All, &TIMEOUTS, &mut |_| {}).unwrap(),
            SupervisionOutcome::Failure(1)
        );
        let members = children.members();
        assert_eq!(members[1].exit().unwrap().shell_status(), 7);
        assert_eq!(members[1].last_signal(), None);
        assert_eq!(members[0].last_signal(), Some(libc::SIGTERM));
        assert_eq!(members[2].exit().unwrap().signal(), Some(libc::SIGTERM));
    }

    #[test]
    fn group_continues_while_enough_members_remain() {
        let scripts = ["exit 3", "sleep 0.3", "kill -9 $$", "exit 0"];
        let mut children = group_of(&scripts);
        let mut lost = Vec::new();
        let cause =
            supervise(&mut children, RequiredMembers::AtLeast(2), &TIMEOUTS, &mut |notice| {
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
        assert!(children.members().iter().all(|member| member.last_signal().is_none()));
    }

    #[test]
    fn group_ends_when_too_few_members_remain() {
        let mut children = group_of(&["exit 3", "exec sleep 60", "sleep 0.2; exit 4"]);
        let cause =
            supervise(&mut children, RequiredMembers::AtLeast(2), &TIMEOUTS, &mut |_| {}).unwrap();
        assert_eq!(cause, SupervisionOutcome::Failure(0));
        assert_eq!(children.members()[1].last_signal(), Some(libc::SIGTERM));
        let mut children = group_of(&["exit 3", "exit 4"]);
        let cause =
            supervise(&mut children, RequiredMembers::AtLeast(0), &TIMEOUTS, &mut |_| {}).unwrap();
        assert!(matches!(cause, SupervisionOutcome::Failure(_)), "{cause:?}");
    }

    #[test]
    fn killed_member_is_the_culprit_even_if_seen_late() {
        let mut children = group_of(&["exec sleep 60", "exit 3"]);
        wait_until_zombie(children.members()[1].pid());
        let first = children.members()[0].pid();
        child::signal_group(first, libc::SIGKILL).unwrap();
        wait_until_zombie(first);
        assert_eq!(
            supervise(&mut children, RequiredMembers::All, &TIMEOUTS, &mut |_| {}).unwrap(),
            SupervisionOutcome::Failure(0)
        );
    }

    #[test]
    fn member_that_ignores_sigterm_is_killed() {
        let mut children = group_of(&["trap '' TERM; echo; while :; do sleep 60; done"]);
        let pid = children.members()[0].pid();
        // The trap is set once the shell has a child in the same process group.
        let deadline = Deadline::after_ms(20_000);
        while !has_child(pid) {
            assert!(!deadline.has_passed());
            std::thread::yield_now();
        }
        let timeouts = SupervisionTimeouts { failure: Duration::from_millis(50), ..TIMEOUTS };
        children.spawn(Command::new("/bin/sh").args(["-c", "exit 1"])).unwrap();
        assert_eq!(
            supervise(&mut children, RequiredMembers::All, &timeouts, &mut |_| {}).unwrap(),
            SupervisionOutcome::Failure(1)
        );
        assert_eq!(children.members()[0].exit().unwrap().signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn slow_end_is_reported_every_two_seconds() {
        let mut children =
            group_of(&["trap '' TERM; while :; do sleep 0.1; done", "sleep 0.3; exit 1"]);
        let timeouts = SupervisionTimeouts { failure: Duration::from_millis(2500), ..TIMEOUTS };
        let mut notices = Vec::new();
        supervise(&mut children, RequiredMembers::All, &timeouts, &mut |it| notices.push(it))
            .unwrap();
        let [SupervisionNotice::StillRunning { members: 1, left }] = notices[..] else {
            panic!("{notices:?}")
        };
        assert!(left <= Duration::from_millis(500), "{left:?}");
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
