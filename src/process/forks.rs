//! Forks of this process that each run a function, are watched, and end together.
//!
//! What is promised: the kernel kills them when this process dies; none is left, not even as a
//! zombie, when [`Forks`] is dropped, unless the kernel cannot end it; no other child of this
//! process is waited for or signalled; the handlers of this process hear of their ends only
//! afterwards.
//!
//! They stay in this process's group, as children of a program do: what the terminal sends to one
//! of them, it sends to all. What they start themselves is theirs.
//!
//! It knows nothing of ranks, stores or which variables there are.

use super::ending::Ending;
use super::supervise::first_failure;
use super::witness::{self, Testimony, Witness};
use crate::base::deadline::Deadline;
use crate::base::error::{Context as _, Error, ErrorKind, Result};
use crate::sys::pidfd::PidFd;
use crate::sys::poll::{Events, Interest, Poller};
use crate::sys::signal::{self, Blocked, Mask};
use crate::sys::{child, host, limits, thread};
use crate::wait;
use std::os::fd::AsFd as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// The most forks that are started together.
pub const MAX_FORKS: usize = 4096;

/// How long dropped forks that were killed may take to end.
const DROP_LIMIT: Duration = Duration::from_secs(2);

/// How often those are looked at that the kernel has no descriptor for.
const TICK: Duration = Duration::from_millis(5);

/// The exit status of a fork whose result is none, which the witness tells.
const ODD_RESULT: i32 = 255;

/// A variable of a fork's environment: its value, or that it has none.
pub type Variable = (&'static str, Option<String>);

/// One fork.
#[derive(Debug)]
pub struct Fork {
    pid: i32,
    /// Closed when its end has been noted. There is none before Linux 5.3 and where the caller
    /// needs the descriptors.
    pidfd: Option<PidFd>,
    ending: Option<Ending>,
    /// Somebody else has waited for it: nobody can learn how it ended, and its number may be
    /// another process's now.
    is_lost: bool,
    was_killed: bool,
}

impl Fork {
    /// Its process number.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// How it ended, if it has.
    pub fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// Whether it had to be killed, since it did not end when it was told to.
    pub fn was_killed(&self) -> bool {
        self.was_killed
    }

    /// Whether there is something to be ended and waited for.
    fn is_left(&self) -> bool {
        self.ending.is_none() && !self.is_lost
    }

    /// Sends a signal to it and to nobody else. One that has just ended is what the signal is meant
    /// to achieve.
    fn signal(&mut self, signal: i32) {
        // While it has not been reaped, the number is its own, and the descriptor was opened for
        // it.
        self.is_lost = child::peek(self.pid).is_err();
        if !self.is_lost {
            drop(match &self.pidfd {
                Some(pidfd) => pidfd.signal(signal),
                None => child::signal_one(self.pid, signal),
            });
        }
    }
}

/// How much time forks are given.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For all of them to end.
    pub total: Deadline,
    /// From the first failure until the others are told to end: time to fail on their own and say
    /// why, and for a death that others noticed sooner than we did to be seen.
    pub settle: Duration,
    /// From being told to end until being killed.
    pub grace: Duration,
    /// For the kernel to end what was killed.
    pub kill: Duration,
}

/// Why the forks are at their end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Each has returned 0.
    Success,
    /// The one with this index failed first.
    Failure(usize),
    /// These still ran when the time was over.
    Deadline(Vec<usize>),
}

/// The forks. Dropping it kills those that are left.
#[derive(Debug)]
pub struct Forks {
    members: Vec<Fork>,
    witness: Witness,
    /// How many more may be watched through a descriptor.
    watchable: usize,
    /// A handler of the caller's that waits for any child would take ours.
    blocked: Blocked,
}

impl Forks {
    /// Forks `count` times. The fork with index `i` gets the variables of `i`, runs `body(i)`,
    /// writes out C's streams and ends with the result, without the exit handlers of this process.
    /// `body` must close what it has no use for; it is not called in this process. To be called
    /// from a thread that lives as long as the forks shall. Of the descriptors that this process
    /// may still have, `reserved` are left to the caller; where there are no others, forks are
    /// looked at now and then.
    ///
    /// # Errors
    /// `InvalidArgument` where this process has more than one thread, or ignores how its children
    /// end; `OutOfMemory` or `System` where they cannot be started.
    pub fn start(
        count: usize,
        reserved: usize,
        variables: &dyn Fn(usize) -> Vec<Variable>,
        body: &mut dyn FnMut(usize) -> i32,
    ) -> Result<Self> {
        if !(1..=MAX_FORKS).contains(&count) {
            return Err(Error::invalid(format!(
                "{count} processes: 1 to {MAX_FORKS} can be forked"
            )));
        }
        if signal::forgets_children() {
            let message = "SIGCHLD is ignored in this process, or has the flag SA_NOCLDWAIT, so that nobody could learn how its \
                           children end: call signal(SIGCHLD, SIG_DFL) first";
            return Err(Error::invalid(message));
        }
        let members = Vec::with_capacity(count);
        let witness = Witness::new(count)?;
        let watchable = limits::free_descriptors()?.saturating_sub(reserved);
        let blocked = Blocked::new(signal::CHILD);
        let mut forks = Self { members, witness, watchable, blocked };
        child::flush_streams();
        for index in 0..count {
            let started = forks.fork(index, variables(index), body);
            started.context(|| format!("starting process {} of {count}", index + 1))?;
        }
        Ok(forks)
    }

    fn fork(
        &mut self,
        index: usize,
        variables: Vec<Variable>,
        body: &mut dyn FnMut(usize) -> i32,
    ) -> Result<()> {
        alone()?;
        let (parent, mask) = (host::pid(), self.blocked.mask_before());
        let Self { members, witness, .. } = self;
        let life = || {
            // The descriptors of those before it are not for it.
            members.clear();
            witness.take(index);
            let run = || prepare(parent, mask, &variables).map(|()| body(index));
            // The stack below belongs to the parent's life; nothing may unwind into it.
            match catch_unwind(AssertUnwindSafe(run)) {
                Ok(Ok(result)) => end_with(result),
                Ok(Err(error)) => end_without(error.message()),
                Err(_) => end_without("a defect in libdist, please report it"),
            }
        };
        // SAFETY: the only thread of this process has just been counted, and is this one.
        let pid = unsafe { child::fork_with(life) }?;
        let pidfd = (self.watchable > 0).then(|| PidFd::open(pid).ok()).flatten();
        self.watchable = self.watchable.saturating_sub(1);
        self.members.push(Fork { pid, pidfd, ending: None, is_lost: false, was_killed: false });
        Ok(())
    }

    /// The forks, by index.
    pub fn members(&self) -> &[Fork] {
        &self.members
    }

    /// What a fork that has ended left behind.
    pub fn testimony(&self, index: usize) -> Testimony {
        self.witness.read(index)
    }

    /// Waits until all have ended well, one has failed or the time is over, then ends what is left,
    /// first kindly. When it returns, all have ended but those that cannot be killed, which have no
    /// [`Fork::ending`].
    ///
    /// # Errors
    /// `System`, also where somebody else has waited for one of them.
    pub fn join(&mut self, limits: &Limits) -> Result<Cause> {
        let poller = Poller::new()?;
        for (index, member) in self.members.iter().enumerate() {
            if let Some(pidfd) = &member.pidfd {
                let added = poller.add(pidfd.as_fd(), index as u64, Interest::READ);
                added.map_err(|cause| Error::system("watching a child process", &cause))?;
            }
        }
        let cause = self.run(&poller, limits)?;
        self.signal_all(signal::TERMINATE);
        self.wait_for_all(&poller, limits.grace)?;
        self.signal_all(signal::KILL);
        self.wait_for_all(&poller, limits.kill)?;
        Ok(cause)
    }

    fn run(&mut self, poller: &Poller, limits: &Limits) -> Result<Cause> {
        let mut failed = Vec::new();
        let mut deadline = limits.total;
        while !self.all_ended() {
            match self.next(poller, &deadline)? {
                None if failed.is_empty() => return Ok(Cause::Deadline(self.running())),
                None => break,
                Some((index, ending)) if !ending.is_success() => {
                    if failed.is_empty() {
                        deadline = Deadline::after(limits.settle);
                    }
                    failed.push((index, ending));
                }
                Some(_) => {}
            }
        }
        Ok(first_failure(&failed).map_or(Cause::Success, Cause::Failure))
    }

    fn all_ended(&self) -> bool {
        self.members.iter().all(|member| member.ending.is_some())
    }

    fn running(&self) -> Vec<usize> {
        let running = self.members.iter().enumerate().filter(|(_, member)| member.ending.is_none());
        running.map(|(index, _)| index).collect()
    }

    fn signal_all(&mut self, signal: i32) {
        for member in self.members.iter_mut().filter(|member| member.is_left()) {
            member.was_killed = signal == signal::KILL;
            member.signal(signal);
        }
    }

    fn wait_for_all(&mut self, poller: &Poller, limit: Duration) -> Result<()> {
        let deadline = Deadline::after(limit);
        while !self.all_ended() && self.next(poller, &deadline)?.is_some() {}
        Ok(())
    }

    /// The next one that ends, reaped, or none where the deadline comes first.
    fn next(&mut self, poller: &Poller, deadline: &Deadline) -> Result<Option<(usize, Ending)>> {
        let mut events = Events::with_room(1);
        loop {
            let mut unwatched = false;
            for index in 0..self.members.len() {
                let member = &self.members[index];
                if member.ending.is_none() && member.pidfd.is_none() {
                    unwatched = true;
                    if let Some(ending) = self.reap(index)? {
                        return Ok(Some((index, ending)));
                    }
                }
            }
            let step = if unwatched { deadline.capped(TICK) } else { *deadline };
            let waited = wait::io::events(poller, &mut events, Some(step.left()));
            waited.map_err(|cause| Error::system("waiting for child processes", &cause))?;
            match events.iter().next().and_then(|event| usize::try_from(event.token).ok()) {
                None if deadline.has_passed() => return Ok(None),
                None => {}
                Some(index) => {
                    if let Some(ending) = self.reap(index)? {
                        return Ok(Some((index, ending)));
                    }
                }
            }
        }
    }

    /// How a member ended, if it has and nobody knew.
    fn reap(&mut self, index: usize) -> Result<Option<Ending>> {
        let member = &mut self.members[index];
        if member.ending.is_some() {
            // A process that was being forked just then still held the descriptor.
            return Ok(None);
        }
        let reaped = child::reap(member.pid);
        // Before anything else: a number that is not its own any more must not be signalled.
        member.is_lost = reaped.is_err();
        let why = "has a handler of this program waited for any child (waitpid(-1, ...))?";
        if let Some(exit) = reaped.context(|| why)? {
            (member.pidfd, member.ending) = (None, Some(Ending::from(exit)));
        }
        Ok(member.ending)
    }
}

impl Drop for Forks {
    fn drop(&mut self) {
        self.signal_all(signal::KILL);
        let deadline = Deadline::after(DROP_LIMIT);
        for member in self.members.iter().filter(|member| member.is_left()) {
            // Whoever wants to know of errors has called `join` before.
            if let Some(pidfd) = &member.pidfd {
                drop(wait::io::ready_within(pidfd.as_fd(), Interest::READ, &deadline));
            }
            while matches!(child::reap(member.pid), Ok(None)) && !deadline.has_passed() {
                std::thread::yield_now();
            }
        }
    }
}

/// Refuses where there are other threads, which a fork would lack, whatever locks they hold.
fn alone() -> Result<()> {
    match thread::count()? {
        1 => Ok(()),
        count => {
            let message = format!(
                "this process has {count} threads, and a fork would have only one of them, while locks that the others hold would \
                 stay locked in it: fork before any other thread is started"
            );
            Err(Error::new(ErrorKind::InvalidArgument, message))
        }
    }
}

/// What a fork does before anything of its caller's runs.
fn prepare(parent: u32, mask: Mask, variables: &[Variable]) -> Result<()> {
    let failed = |cause: std::io::Error| Error::system("preparing a forked process", &cause);
    child::die_with_parent(parent).map_err(failed)?;
    for (name, value) in variables {
        // SAFETY: a fork has one thread.
        unsafe { child::set_variable(name, value.as_deref()) }?;
    }
    mask.apply().map_err(failed)
}

/// The exit status with which a fork tells its result, which the witness has before the streams are
/// waited for.
fn end_with(result: i32) -> i32 {
    witness::tell_result(result);
    child::flush_streams();
    if (0..=255).contains(&result) { result } else { ODD_RESULT }
}

fn end_without(message: &str) -> i32 {
    witness::tell(message);
    ODD_RESULT
}
