//! Forks of this process that each run a function, are watched, and end together.
//!
//! What is promised: the kernel kills them when this process dies; none is left, not even as a
//! zombie, when [`ForkedChildren`] is dropped, unless the kernel cannot end it; no other child of
//! this process is waited for or signalled; the handlers of this process hear of their ends only
//! afterwards.
//!
//! They stay in this process's group, as children of a program do: what the terminal sends to one
//! of them, it sends to all. What they start themselves is theirs.
//!
//! It knows nothing of ranks, stores or which variables there are.

use super::child_result::{self, ChildResult, ChildResultTable};
use super::process_exit::ProcessExit;
use super::supervise::first_failure;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::sys::pidfd::PidFd;
use crate::sys::poll::{Interest, PollEvents, Poller};
use crate::sys::signal::{self, BlockedSignal, SignalMask};
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
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The exit status of a fork whose result is none, which the witness tells.
const NO_RESULT_STATUS: i32 = 255;

/// A variable of a fork's environment: its value, or that it has none.
pub type ForkVariable = (&'static str, Option<String>);

/// One fork.
#[derive(Debug)]
pub struct ForkedChild {
    pid: i32,
    /// Closed when its end has been noted. There is none before Linux 5.3 and where the caller
    /// needs the descriptors.
    pidfd: Option<PidFd>,
    exit: Option<ProcessExit>,
    /// Somebody else has waited for it: nobody can learn how it ended, and its number may be
    /// another process's now.
    is_lost: bool,
    was_killed: bool,
}

impl ForkedChild {
    /// Its process number.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// How it ended, if it has.
    pub fn exit(&self) -> Option<ProcessExit> {
        self.exit
    }

    /// Whether it had to be killed, since it did not end when it was told to.
    pub fn was_killed(&self) -> bool {
        self.was_killed
    }

    /// Whether there is something to be ended and waited for.
    fn is_running(&self) -> bool {
        self.exit.is_none() && !self.is_lost
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
                None => child::signal_child(self.pid, signal),
            });
        }
    }
}

/// How much time forks are given.
#[derive(Clone, Copy, Debug)]
pub struct ForkTimeouts {
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
pub enum ForkOutcome {
    /// Each has returned 0.
    Success,
    /// The one with this index failed first.
    Failure(usize),
    /// These still ran when the time was over.
    Deadline(Vec<usize>),
}

/// The forks. Dropping it kills those that are left.
#[derive(Debug)]
pub struct ForkedChildren {
    members: Vec<ForkedChild>,
    results: ChildResultTable,
    /// How many more may be watched through a descriptor.
    watchable: usize,
    /// A handler of the caller's that waits for any child would take ours.
    blocked: BlockedSignal,
}

impl ForkedChildren {
    /// Forks `thread_count` times. The fork with index `i` gets the variables of `i`, runs
    /// `body(i)`, writes out C's streams and ends with the result, without the exit handlers of
    /// this process. `body` must close what it has no use for; it is not called in this process. To
    /// be called from a thread that lives as long as the forks shall. Of the descriptors that this
    /// process may still have, `reserved` are left to the caller; where there are no others, forks
    /// are looked at now and then.
    ///
    /// # Errors
    /// `InvalidArgument` where this process has more than one thread, or ignores how its children
    /// end; `OutOfMemory` or `System` where they cannot be started.
    pub fn start(
        count: usize,
        reserved: usize,
        variables: &dyn Fn(usize) -> Vec<ForkVariable>,
        body: &mut dyn FnMut(usize) -> i32,
    ) -> Result<Self> {
        if !(1..=MAX_FORKS).contains(&count) {
            return Err(Error::invalid(format!(
                "{count} processes: 1 to {MAX_FORKS} can be forked"
            )));
        }
        if signal::discards_child_status() {
            let message = "SIGCHLD is ignored in this process, or has the flag SA_NOCLDWAIT, so that nobody could learn how its \
                           children end: call signal(SIGCHLD, SIG_DFL) first";
            return Err(Error::invalid(message));
        }
        let members = Vec::with_capacity(count);
        let results = ChildResultTable::new(count)?;
        let watchable = limits::free_descriptors()?.saturating_sub(reserved);
        let blocked = BlockedSignal::new(signal::CHILD);
        let mut forks = Self { members, results, watchable, blocked };
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
        variables: Vec<ForkVariable>,
        body: &mut dyn FnMut(usize) -> i32,
    ) -> Result<()> {
        check_single_threaded()?;
        let (parent, mask) = (host::pid(), self.blocked.mask_before());
        let Self { members, results: witness, .. } = self;
        let child_main = || {
            // The descriptors of those before it are not for it.
            members.clear();
            witness.claim_slot(index);
            let run = || prepare_fork(parent, mask, &variables).map(|()| body(index));
            // The stack below belongs to the parent's life; nothing may unwind into it.
            match catch_unwind(AssertUnwindSafe(run)) {
                Ok(Ok(result)) => exit_with_result(result),
                Ok(Err(error)) => exit_with_message(error.message()),
                Err(_) => exit_with_message("a defect in libdist, please report it"),
            }
        };
        // SAFETY: the only thread of this process has just been counted, and is this one.
        let pid = unsafe { child::fork_with(child_main) }?;
        let pidfd = (self.watchable > 0).then(|| PidFd::open(pid).ok()).flatten();
        self.watchable = self.watchable.saturating_sub(1);
        self.members.push(ForkedChild {
            pid,
            pidfd,
            exit: None,
            is_lost: false,
            was_killed: false,
        });
        Ok(())
    }

    /// The forks, by index.
    pub fn members(&self) -> &[ForkedChild] {
        &self.members
    }

    /// What a fork that has ended left behind.
    pub fn child_result(&self, index: usize) -> ChildResult {
        self.results.read(index)
    }

    /// Waits until all have ended well, one has failed or the time is over, then ends what is left,
    /// first kindly. When it returns, all have ended but those that cannot be killed, which have no
    /// [`ForkedChild::exit`].
    ///
    /// # Errors
    /// `System`, also where somebody else has waited for one of them.
    pub fn wait_and_end(&mut self, limits: &ForkTimeouts) -> Result<ForkOutcome> {
        let poller = Poller::new()?;
        for (index, member) in self.members.iter().enumerate() {
            if let Some(pidfd) = &member.pidfd {
                let added = poller.add(pidfd.as_fd(), index as u64, Interest::READ);
                added.map_err(|cause| Error::system("watching a child process", &cause))?;
            }
        }
        let cause = self.wait_for_outcome(&poller, limits)?;
        self.signal_all(signal::TERMINATE);
        self.wait_for_all(&poller, limits.grace)?;
        self.signal_all(signal::KILL);
        self.wait_for_all(&poller, limits.kill)?;
        Ok(cause)
    }

    fn wait_for_outcome(&mut self, poller: &Poller, limits: &ForkTimeouts) -> Result<ForkOutcome> {
        let mut failed = Vec::new();
        let mut deadline = limits.total;
        while !self.all_ended() {
            match self.next_exit(poller, &deadline)? {
                None if failed.is_empty() => {
                    return Ok(ForkOutcome::Deadline(self.running_indices()));
                }
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
        Ok(first_failure(&failed).map_or(ForkOutcome::Success, ForkOutcome::Failure))
    }

    fn all_ended(&self) -> bool {
        self.members.iter().all(|member| member.exit.is_some())
    }

    fn running_indices(&self) -> Vec<usize> {
        let running = self.members.iter().enumerate().filter(|(_, member)| member.exit.is_none());
        running.map(|(index, _)| index).collect()
    }

    fn signal_all(&mut self, signal: i32) {
        for member in self.members.iter_mut().filter(|member| member.is_running()) {
            member.was_killed = signal == signal::KILL;
            member.signal(signal);
        }
    }

    fn wait_for_all(&mut self, poller: &Poller, limit: Duration) -> Result<()> {
        let deadline = Deadline::after(limit);
        while !self.all_ended() && self.next_exit(poller, &deadline)?.is_some() {}
        Ok(())
    }

    /// The next one that ends, reaped, or none where the deadline comes first.
    fn next_exit(
        &mut self,
        poller: &Poller,
        deadline: &Deadline,
    ) -> Result<Option<(usize, ProcessExit)>> {
        let mut events = PollEvents::with_capacity(1);
        loop {
            let mut unwatched = false;
            for index in 0..self.members.len() {
                let member = &self.members[index];
                if member.exit.is_none() && member.pidfd.is_none() {
                    unwatched = true;
                    if let Some(ending) = self.reap(index)? {
                        return Ok(Some((index, ending)));
                    }
                }
            }
            let step = if unwatched { deadline.capped(POLL_INTERVAL) } else { *deadline };
            let waited = wait::io::wait_for_events(poller, &mut events, Some(step.remaining()));
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
    fn reap(&mut self, index: usize) -> Result<Option<ProcessExit>> {
        let member = &mut self.members[index];
        if member.exit.is_some() {
            // A process that was being forked just then still held the descriptor.
            return Ok(None);
        }
        let reaped = child::reap(member.pid);
        // Before anything else: a number that is not its own any more must not be signalled.
        member.is_lost = reaped.is_err();
        let why = "has a handler of this program waited for any child (waitpid(-1, ...))?";
        if let Some(exit) = reaped.context(|| why)? {
            (member.pidfd, member.exit) = (None, Some(ProcessExit::from(exit)));
        }
        Ok(member.exit)
    }
}

impl Drop for ForkedChildren {
    fn drop(&mut self) {
        self.signal_all(signal::KILL);
        let deadline = Deadline::after(DROP_LIMIT);
        for member in self.members.iter().filter(|member| member.is_running()) {
            // Whoever wants to know of errors has called `wait_and_end` before.
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
fn check_single_threaded() -> Result<()> {
    match thread::thread_count()? {
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
fn prepare_fork(parent: u32, mask: SignalMask, variables: &[ForkVariable]) -> Result<()> {
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
fn exit_with_result(result: i32) -> i32 {
    child_result::record_result(result);
    child::flush_streams();
    if (0..=255).contains(&result) { result } else { NO_RESULT_STATUS }
}

fn exit_with_message(message: &str) -> i32 {
    child_result::record_message(message);
    NO_RESULT_STATUS
}
