//! The life of a crew from its start to its end: run until all have succeeded, one has failed or we
//! are told to stop; then end what is left, first kindly.

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

/// Why a crew's life ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Every member ended with status 0.
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
    /// What remained was killed without waiting any longer, because a signal came when the end had begun.
    Hurried(i32),
}

/// Runs the crew to its end. When it returns, every group is gone, but for members that cannot be
/// killed, which have no ending.
///
/// # Errors
/// `System`; the crew's drop still kills everything.
pub fn supervise(
    crew: &mut Crew,
    patience: &Patience,
    tell: &mut dyn FnMut(Notice),
) -> Result<Cause> {
    let (cause, is_urgent) = run(crew, patience, tell)?;
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

/// Until all have succeeded, one has failed (and others had the time to), or a signal came. Also says whether a signal
/// came after a failure, which leaves no time for anybody.
fn run(
    crew: &mut Crew,
    patience: &Patience,
    tell: &mut dyn FnMut(Notice),
) -> Result<(Cause, bool)> {
    let (mut failed, mut is_urgent) = (Vec::new(), false);
    let mut deadline = Deadline::never();
    while !crew.all_ended() {
        match crew.next(&deadline)? {
            // Once something has failed, that stays the cause.
            Event::Signal(signal) if failed.is_empty() => {
                return Ok((Cause::Signal(signal), false));
            }
            Event::Signal(signal) => {
                tell(Notice::Hurried(signal));
                is_urgent = true;
                break;
            }
            Event::Deadline => break,
            Event::Ended(index) => {
                if let Some(ending) = crew.members()[index].ending().filter(|how| !how.is_success())
                {
                    if failed.is_empty() {
                        deadline = Deadline::after(patience.settle);
                    }
                    failed.push((index, ending));
                }
            }
        }
    }
    Ok((first_failure(&failed).map_or(Cause::Success, Cause::Failure), is_urgent))
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
        assert_eq!(supervise(&mut crew, &PATIENCE, &mut |_| {}).unwrap(), Cause::Success);
    }

    #[test]
    fn the_first_failure_ends_the_rest() {
        let mut crew = crew_of(&["exec sleep 60", "exit 7", "exec sleep 60"]);
        assert_eq!(supervise(&mut crew, &PATIENCE, &mut |_| {}).unwrap(), Cause::Failure(1));
        let members = crew.members();
        assert_eq!(members[1].ending().unwrap().shell_status(), 7);
        assert_eq!(members[1].told(), None);
        assert_eq!(members[0].told(), Some(libc::SIGTERM));
        assert_eq!(members[2].ending().unwrap().signal(), Some(libc::SIGTERM));
    }

    #[test]
    fn a_killed_one_is_to_blame_even_if_seen_late() {
        let mut crew = crew_of(&["exec sleep 60", "exit 3"]);
        until_dead(crew.members()[1].pid());
        let first = crew.members()[0].pid();
        child::signal_group(first, libc::SIGKILL).unwrap();
        until_dead(first);
        assert_eq!(supervise(&mut crew, &PATIENCE, &mut |_| {}).unwrap(), Cause::Failure(0));
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
        assert_eq!(supervise(&mut crew, &patience, &mut |_| {}).unwrap(), Cause::Failure(1));
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
