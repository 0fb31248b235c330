//! Runs a crew until all members have ended, too many have failed, or a signal asks for the end.
//! Then ends the remaining members, first with SIGTERM.

use super::crew::{Crew, Event};
use super::ending::Ending;
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::sys::signal;
use std::time::Duration;

/// How often the groups of ended members are looked at for processes that are still there.
const TICK: Duration = Duration::from_millis(20);

/// How much time the members of a crew are given.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
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
pub enum Needed {
    /// All of them: the first failure ends the crew.
    All,
    /// At least so many members that have not failed, and at least one. The crew goes on without
    /// failed members.
    AtLeast(usize),
}

impl Needed {
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
pub enum Cause {
    /// Every member ended with status 0, but for those without which the crew could go on.
    Success,
    /// The member with this index failed first.
    Failure(usize),
    /// This process was sent this signal.
    Signal(i32),
}

/// What is told while it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// This signal was received and passed on to all members.
    PassedOn(i32),
    /// What remained was killed without waiting any longer, because a signal came when the end had
    /// begun.
    Hurried(i32),
    /// The member with this index failed, and the crew goes on without it. `left` members have not
    /// failed.
    Lost {
        /// The member.
        index: usize,
        /// The number of the others.
        left: usize,
    },
}

/// Runs the crew to its end. When it returns, every group is gone, but for members that cannot be
/// killed, which have no ending.
///
/// # Errors
/// `System`; the crew's drop still kills everything.
pub fn supervise(
    crew: &mut Crew,
    needed: Needed,
    patience: &Patience,
    tell: &mut dyn FnMut(Notice),
) -> Result<Cause> {
    let (cause, is_urgent) = run(crew, needed, patience, tell)?;
    if is_urgent {
        crew.clear(patience.kill)?;
        return Ok(cause);
    }
    let grace = match cause {
        Cause::Signal(signal) => {
            crew.signal_all(signal);
            tell(Notice::PassedOn(signal));
            patience.signal
        }
        Cause::Success | Cause::Failure(_) => {
            if !crew.is_clear() {
                crew.signal_all(signal::TERMINATE);
            }
            patience.failure
        }
    };
    wind_down(crew, &Deadline::after(grace), tell)?;
    crew.clear(patience.kill)?;
    Ok(cause)
}

/// Runs until all have ended, too many have failed (and others had the time to), or a signal came.
/// Also returns whether a signal came after the failure that ends the crew; then no member gets any
/// more time.
fn run(
    crew: &mut Crew,
    needed: Needed,
    patience: &Patience,
    tell: &mut dyn FnMut(Notice),
) -> Result<(Cause, bool)> {
    let (mut failed, mut is_urgent) = (Vec::new(), false);
    let mut deadline = Deadline::never();
    while !crew.all_ended() {
        match crew.next(&deadline)? {
            // Once too many have failed, that stays the cause.
            Event::Signal(signal) if needed.is_met(crew.members().len(), failed.len()) => {
                return Ok((Cause::Signal(signal), false));
            }
            Event::Signal(signal) => {
                tell(Notice::Hurried(signal));
                is_urgent = true;
                break;
            }
            Event::Deadline => break,
            Event::Ended(index) => {
                let members = crew.members().len();
                let Some(ending) = crew.members()[index].ending().filter(|how| !how.is_success())
                else {
                    continue;
                };
                let was_met = needed.is_met(members, failed.len());
                failed.push((index, ending));
                if needed.is_met(members, failed.len()) {
                    tell(Notice::Lost { index, left: members - failed.len() });
                } else if was_met {
                    deadline = Deadline::after(patience.settle);
                }
            }
        }
    }
    let has_enough = needed.is_met(crew.members().len(), failed.len());
    let cause = first_failure(&failed).filter(|_| !has_enough);
    Ok((cause.map_or(Cause::Success, Cause::Failure), is_urgent))
}

/// Which of the failures, in the order in which they were seen, was the first. A process that is
/// killed closes its connections a little before the kernel reports its end, so on a busy host its
/// peers may notice, fail and be reported before it. Nobody is killed by SIGKILL for another one's
/// failure; so such a death comes first.
pub(super) fn first_failure(failed: &[(usize, Ending)]) -> Option<usize> {
    let killed = failed.iter().find(|(_, ending)| ending.signal() == Some(signal::KILL));
    killed.or(failed.first()).map(|&(index, _)| index)
}

/// Waits until nothing is left, the deadline has passed or a further signal came.
fn wind_down(crew: &mut Crew, deadline: &Deadline, tell: &mut dyn FnMut(Notice)) -> Result<()> {
    while !crew.is_clear() && !deadline.has_passed() {
        // What remains once all members have ended reports its end to nobody.
        let step = if crew.all_ended() { deadline.capped(TICK) } else { *deadline };
        if let Event::Signal(signal) = crew.next(&step)? {
            tell(Notice::Hurried(signal));
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

    const PATIENCE: Patience = Patience {
        settle: Duration::from_millis(100),
        failure: Duration::from_secs(10),
        signal: Duration::from_secs(10),
        kill: Duration::from_secs(10),
    };

    fn crew_of(scripts: &[&str]) -> Crew {
        let mut crew = Crew::new(&[]).unwrap();
        for script in scripts {
            crew.spawn(Command::new("/bin/sh").args(["-c", script])).unwrap();
        }
        crew
    }

    #[test]
    fn all_succeed() {
        let mut crew = crew_of(&["exit 0", "exit 0"]);
        assert_eq!(
            supervise(&mut crew, Needed::All, &PATIENCE, &mut |_| {}).unwrap(),
            Cause::Success
        );
    }

    #[test]
    fn the_first_failure_ends_the_rest() {
        let mut crew = crew_of(&["exec sleep 60", "exit 7", "exec sleep 60"]);
        assert_eq!(
            supervise(&mut crew, Needed::All, &PATIENCE, &mut |_| {}).unwrap(),
            Cause::Failure(1)
        );
        let members = crew.members();
        assert_eq!(members[1].ending().unwrap().shell_status(), 7);
        assert_eq!(members[1].told(), None);
        assert_eq!(members[0].told(), Some(libc::SIGTERM));
        assert_eq!(members[2].ending().unwrap().signal(), Some(libc::SIGTERM));
    }

    #[test]
    fn a_crew_goes_on_while_enough_are_left() {
        let scripts = ["exit 3", "sleep 0.3", "kill -9 $$", "exit 0"];
        let mut crew = crew_of(&scripts);
        let mut lost = Vec::new();
        let cause =
            supervise(&mut crew, Needed::AtLeast(2), &PATIENCE, &mut |notice| lost.push(notice));
        assert_eq!(cause.unwrap(), Cause::Success);
        lost.sort_by_key(|notice| format!("{notice:?}"));
        let left = |notice: &Notice| match notice {
            Notice::Lost { index, left } => (*index, *left),
            other => panic!("{other:?}"),
        };
        let mut lefts: Vec<usize> = lost.iter().map(|notice| left(notice).1).collect();
        lefts.sort_unstable();
        assert_eq!((left(&lost[0]).0, left(&lost[1]).0, lefts), (0, 2, vec![2, 3]));
        assert!(crew.members().iter().all(|member| member.told().is_none()));
    }

    #[test]
    fn a_crew_ends_when_too_few_are_left() {
        let mut crew = crew_of(&["exit 3", "exec sleep 60", "sleep 0.2; exit 4"]);
        let cause = supervise(&mut crew, Needed::AtLeast(2), &PATIENCE, &mut |_| {}).unwrap();
        assert_eq!(cause, Cause::Failure(0));
        assert_eq!(crew.members()[1].told(), Some(libc::SIGTERM));
        let mut crew = crew_of(&["exit 3", "exit 4"]);
        let cause = supervise(&mut crew, Needed::AtLeast(0), &PATIENCE, &mut |_| {}).unwrap();
        assert!(matches!(cause, Cause::Failure(_)), "{cause:?}");
    }

    #[test]
    fn a_killed_one_is_to_blame_even_if_seen_late() {
        let mut crew = crew_of(&["exec sleep 60", "exit 3"]);
        until_dead(crew.members()[1].pid());
        let first = crew.members()[0].pid();
        child::signal_group(first, libc::SIGKILL).unwrap();
        until_dead(first);
        assert_eq!(
            supervise(&mut crew, Needed::All, &PATIENCE, &mut |_| {}).unwrap(),
            Cause::Failure(0)
        );
    }

    #[test]
    fn what_is_deaf_to_kindness_is_killed() {
        let mut crew = crew_of(&["trap '' TERM; echo; while :; do sleep 60; done"]);
        let pid = crew.members()[0].pid();
        // The trap is set once the shell has a child, in the same group.
        let deadline = Deadline::after_ms(20_000);
        while !child_of(pid) {
            assert!(!deadline.has_passed());
            std::thread::yield_now();
        }
        let patience = Patience { failure: Duration::from_millis(50), ..PATIENCE };
        crew.spawn(Command::new("/bin/sh").args(["-c", "exit 1"])).unwrap();
        assert_eq!(
            supervise(&mut crew, Needed::All, &patience, &mut |_| {}).unwrap(),
            Cause::Failure(1)
        );
        assert_eq!(crew.members()[0].ending().unwrap().signal(), Some(libc::SIGKILL));
    }

    fn child_of(pid: i32) -> bool {
        std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
            .is_ok_and(|children| !children.trim().is_empty())
    }

    fn until_dead(pid: i32) {
        let deadline = Deadline::after_ms(20_000);
        while child::peek(pid).unwrap().is_none() {
            assert!(!deadline.has_passed(), "process {pid} does not end");
            std::thread::yield_now();
        }
    }
}
