//! Children that are started, watched, signalled and cleared away together.

use super::ending::Ending;
use super::guardian::{Guardian, MAX_GROUPS};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::sys::pidfd::PidFd;
use crate::sys::poll::{Events, Interest, Poller};
use crate::sys::signal::{self, Mask, Signals};
use crate::sys::{child, host};
use crate::wait;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{ChildStderr, ChildStdout, Command};
use std::time::{Duration, Instant};

/// The token of the descriptor on which signals to this process arrive.
const SIGNALS: u64 = u64::MAX;

/// How long dropped children that were killed may take to end.
const DROP_LIMIT: Duration = Duration::from_secs(2);

/// One child. It leads a process group of its own.
#[derive(Debug)]
pub struct Member {
    pid: i32,
    /// Readable once it has ended; closed when that has been noted.
    pidfd: Option<PidFd>,
    ended: Option<(Ending, Instant)>,
    told: Option<i32>,
    reaped: bool,
}

impl Member {
    /// Its process number, which is also its group's.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// How it ended, if it has.
    pub fn ending(&self) -> Option<Ending> {
        self.ended.map(|(how, _)| how)
    }

    /// When it was seen to have ended, if it has.
    pub fn ended_at(&self) -> Option<Instant> {
        self.ended.map(|(_, when)| when)
    }

    /// The last signal that the crew sent it while it ran.
    pub fn told(&self) -> Option<i32> {
        self.told
    }
}

/// What the parent holds of a child whose output goes to pipes.
#[derive(Debug)]
pub struct Pipes {
    /// The reading end of its standard output, if that is a pipe.
    pub stdout: Option<ChildStdout>,
    /// The reading end of its standard error, if that is a pipe.
    pub stderr: Option<ChildStderr>,
}

/// What a wait has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The member with this index has ended.
    Ended(usize),
    /// This process was sent this signal.
    Signal(i32),
    /// The deadline has passed.
    Deadline,
}

/// The children. Dropping it kills those that are left, and all of their groups.
#[derive(Debug)]
pub struct Crew {
    members: Vec<Member>,
    /// Hands out what became ready in that order, one at a time.
    poller: Poller,
    signals: Signals,
    guardian: Guardian,
    /// What children inherit beside their standard streams.
    heirlooms: Vec<OwnedFd>,
    started: Instant,
}

impl Crew {
    /// An empty crew. `wanted` are the signals to this process that become [`Event::Signal`]; they
    /// are blocked in the calling thread as long as the crew exists. SIGCHLD must not be ignored.
    ///
    /// # Errors
    /// `System`.
    pub fn new(wanted: &[i32]) -> Result<Self> {
        let poller = Poller::new()?;
        let signals = Signals::intercept(wanted)?;
        watch(&poller, signals.as_fd(), SIGNALS)?;
        let guardian = Guardian::start()?;
        let (members, heirlooms) = (Vec::new(), Vec::new());
        Ok(Self { members, poller, signals, guardian, heirlooms, started: Instant::now() })
    }

    /// Lets the children that are started from now on inherit a descriptor, under its number here.
    /// Other programs that this process executes do not.
    pub fn pass_on(&mut self, fd: OwnedFd) {
        self.heirlooms.push(fd);
    }

    /// Starts a child, with the signal mask that this process had before the crew. To be called
    /// from a thread that lives as long as the children shall, since the kernel kills them when it
    /// ends.
    ///
    /// # Errors
    /// The reason as the system gives it: `NotFound` and `PermissionDenied` concern the program.
    /// The guardian may have been told of a child that did not get that far, so the crew should end
    /// soon.
    pub fn spawn(&mut self, command: &mut Command) -> io::Result<Pipes> {
        if self.members.len() == MAX_GROUPS {
            return Err(io::Error::other(format!("more than {MAX_GROUPS} children")));
        }
        let (parent, mask) = (host::pid(), self.signals.mask_before());
        let line = self.guardian.line();
        let heirlooms: Vec<RawFd> = self.heirlooms.iter().map(AsRawFd::as_raw_fd).collect();
        command.process_group(0);
        // SAFETY: `prepare` is async-signal-safe and uses only the values captured here.
        unsafe { command.pre_exec(move || prepare(parent, line, &heirlooms, mask)) };
        let mut spawned = command.spawn()?;
        let pid = i32::try_from(spawned.id()).unwrap_or(0);
        let index = self.members.len() as u64;
        let watched = PidFd::open(pid).and_then(|pidfd| {
            watch(&self.poller, pidfd.as_fd(), index)?;
            Ok(pidfd)
        });
        match watched {
            Ok(pidfd) => {
                let member =
                    Member { pid, pidfd: Some(pidfd), ended: None, told: None, reaped: false };
                self.members.push(member);
                Ok(Pipes { stdout: spawned.stdout, stderr: spawned.stderr })
            }
            Err(error) => {
                spawned.kill()?;
                // A process that is killed ends at once.
                #[allow(clippy::disallowed_methods, reason = "what is waited for has been killed")]
                spawned.wait()?;
                Err(io::Error::other(error))
            }
        }
    }

    /// The children, in the order in which they were started.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// When the crew was made.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Waits for the next event. Ends are reported in the order in which they happened, however
    /// late this is called.
    ///
    /// # Errors
    /// `System`.
    pub fn next(&mut self, deadline: &Deadline) -> Result<Event> {
        let mut events = Events::with_room(1);
        loop {
            let waited = wait::io::events(&self.poller, &mut events, Some(deadline.left()));
            waited.map_err(|cause| Error::system("waiting for child processes", &cause))?;
            match events.iter().next().map(|event| event.token) {
                None if deadline.has_passed() => return Ok(Event::Deadline),
                None => {}
                Some(SIGNALS) => {
                    if let Some(signal) = self.signals.take() {
                        return Ok(Event::Signal(signal));
                    }
                }
                Some(token) => {
                    let index = usize::try_from(token).unwrap_or(usize::MAX);
                    if self.note_end(index)? {
                        return Ok(Event::Ended(index));
                    }
                }
            }
        }
    }

    /// True once every member has ended.
    pub fn all_ended(&self) -> bool {
        self.members.iter().all(|member| member.ended.is_some())
    }

    /// True once every member has ended and nothing is left in any of their groups.
    pub fn is_clear(&self) -> bool {
        if !self.all_ended() {
            return false;
        }
        let living = child::living_groups();
        self.members.iter().all(|m| m.reaped || living.binary_search(&m.pid).is_err())
    }

    /// Sends a signal to the groups of all members, also of those that have ended themselves.
    pub fn signal_all(&mut self, signal: i32) {
        for member in self.members.iter_mut().filter(|member| !member.reaped) {
            if member.ended.is_none() {
                member.told = Some(signal);
            }
            // A group without a process is what the signal is meant to achieve.
            drop(child::signal_group(member.pid, signal));
        }
    }

    /// Kills what is left of every group, waits until it is gone, and reaps. Members that cannot be
    /// killed within `limit` (stuck in the kernel) are left behind: they keep no
    /// [`Member::ending`].
    ///
    /// # Errors
    /// `System`.
    pub fn clear(&mut self, limit: Duration) -> Result<()> {
        let deadline = Deadline::after(limit);
        self.signal_all(signal::KILL);
        while !self.is_clear() && !deadline.has_passed() {
            let tick = deadline.capped(Duration::from_millis(5));
            self.next(&tick)?;
        }
        for member in self.members.iter_mut().filter(|m| m.ended.is_some() && !m.reaped) {
            self.guardian.forget(member.pid);
            child::reap(member.pid)?;
            member.reaped = true;
        }
        Ok(())
    }

    /// Makes room for other children, after [`Crew::clear`], and returns those that were. `None`,
    /// and nothing changes, where some of them could not be killed. Signals that have come
    /// meanwhile are still to be told.
    pub fn renew(&mut self) -> Option<Vec<Member>> {
        if !self.members.iter().all(|member| member.reaped) {
            return None;
        }
        self.started = Instant::now();
        Some(std::mem::take(&mut self.members))
    }

    /// Ends the crew, after [`Crew::clear`], and returns its members for a last look. Signals that
    /// have come meanwhile are forgotten; later ones act on this process as before the crew.
    pub fn disband(mut self) -> Vec<Member> {
        while self.signals.take().is_some() {}
        std::mem::take(&mut self.members)
    }

    fn note_end(&mut self, index: usize) -> Result<bool> {
        let Some(member) = self.members.get_mut(index) else {
            return Err(Error::internal(format!("there is no member {index} to end")));
        };
        if member.ended.is_some() {
            // A process that was being started just then still held the descriptor.
            return Ok(false);
        }
        let Some(exit) = child::peek(member.pid)? else { return Ok(false) };
        member.pidfd = None;
        member.ended = Some((Ending::from(exit), Instant::now()));
        Ok(true)
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        // Whoever wants to know of errors has called `clear` before.
        drop(self.clear(DROP_LIMIT));
    }
}

fn watch(poller: &Poller, fd: BorrowedFd<'_>, token: u64) -> Result<()> {
    let added = poller.add(fd, token, Interest::READ);
    added.map_err(|cause| Error::system("watching a child process", &cause))
}

/// Runs in the child between fork and exec; it leads its group already.
fn prepare(parent: u32, line: RawFd, heirlooms: &[RawFd], mask: Mask) -> io::Result<()> {
    child::die_with_parent(parent)?;
    heirlooms.iter().try_for_each(|&fd| child::keep_across_exec(fd))?;
    child::write_message(line, i32::try_from(host::pid()).unwrap_or(0))?;
    mask.apply()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    fn limit() -> Deadline {
        Deadline::after_ms(20_000)
    }

    /// Waits, without reaping, until a process is a zombie.
    fn until_dead(pid: i32) {
        let deadline = limit();
        while child::peek(pid).unwrap().is_none() {
            assert!(!deadline.has_passed(), "process {pid} does not end");
            std::thread::yield_now();
        }
    }

    #[test]
    fn ends_are_reported_in_the_order_in_which_they_happened() {
        let mut crew = Crew::new(&[]).unwrap();
        for _ in 0..4 {
            crew.spawn(&mut shell("exec sleep 60")).unwrap();
        }
        for index in [2, 0, 3, 1] {
            let pid = crew.members()[index].pid();
            child::signal_group(pid, libc::SIGKILL).unwrap();
            until_dead(pid);
        }
        for index in [2, 0, 3, 1] {
            assert_eq!(crew.next(&limit()).unwrap(), Event::Ended(index));
            assert_eq!(crew.members()[index].ending().unwrap().signal(), Some(libc::SIGKILL));
        }
    }

    #[test]
    fn what_a_child_leaves_behind_is_killed_with_its_group() {
        let mut crew = Crew::new(&[]).unwrap();
        crew.spawn(&mut shell("sleep 60 & exit 5")).unwrap();
        assert_eq!(crew.next(&limit()).unwrap(), Event::Ended(0));
        assert_eq!(crew.members()[0].ending().unwrap().shell_status(), 5);
        assert!(!crew.is_clear());
        crew.clear(Duration::from_secs(20)).unwrap();
        let group = crew.members()[0].pid();
        assert!(child::living_groups().binary_search(&group).is_err());
    }

    #[test]
    fn children_inherit_what_is_passed_on_and_others_do_not() {
        let fd = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
        let script = format!("test -e /proc/self/fd/{}", fd.as_raw_fd());
        let mut crew = Crew::new(&[]).unwrap();
        crew.spawn(&mut shell(&script)).unwrap();
        assert_eq!(crew.next(&limit()).unwrap(), Event::Ended(0));
        crew.pass_on(fd);
        crew.spawn(&mut shell(&script)).unwrap();
        assert_eq!(crew.next(&limit()).unwrap(), Event::Ended(1));
        assert!(!shell(&script).status().unwrap().success());
        let statuses: Vec<u8> =
            crew.members().iter().map(|member| member.ending().unwrap().shell_status()).collect();
        assert_eq!(statuses, [1, 0]);
    }

    #[test]
    fn others_take_the_place_of_those_that_have_ended() {
        let mut crew = Crew::new(&[]).unwrap();
        crew.spawn(&mut shell("exit 3")).unwrap();
        assert!(crew.renew().is_none());
        crew.clear(Duration::from_secs(20)).unwrap();
        assert_eq!(crew.renew().unwrap().len(), 1);
        assert!(crew.is_clear());
        for script in ["exit 4", "exec sleep 60"] {
            crew.spawn(&mut shell(script)).unwrap();
        }
        assert_eq!(crew.next(&limit()).unwrap(), Event::Ended(0));
        assert_eq!(crew.members()[0].ending().unwrap().shell_status(), 4);
        crew.clear(Duration::from_secs(20)).unwrap();
        assert_eq!(crew.renew().unwrap().len(), 2);
    }

    #[test]
    fn a_missing_program_is_the_spawners_error() {
        let mut crew = Crew::new(&[]).unwrap();
        let error = crew.spawn(&mut Command::new("/no/such/program")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(crew.all_ended());
    }

    #[test]
    fn a_guardian_kills_what_is_still_registered() {
        let guardian = Guardian::start().unwrap();
        let mut sleeper = shell("sleep 60 & wait").process_group(0).spawn().unwrap();
        let pid = i32::try_from(sleeper.id()).unwrap();
        child::write_message(guardian.line(), pid).unwrap();
        drop(guardian);
        until_dead(pid);
        sleeper.wait().unwrap();
    }
}
