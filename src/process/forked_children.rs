//! [`ForkedChildren`]: forks of this process that each run a function, are watched, and end
//! together.
//!
//! The guarantees:
//!
//! * The kernel kills the children when this process dies.
//! * When [`ForkedChildren`] is dropped, no child is left, not even as a zombie, unless the kernel
//!   cannot end it.
//! * This module does not wait for or signal any other child of this process.
//! * SIGCHLD handlers of this process learn of the ends only afterwards.
//!
//! The children stay in this process's process group, as children of a program normally do. A
//! signal from the terminal therefore reaches all of them. This module does not manage the
//! processes that the children start.
//!
//! This module does not depend on ranks, stores, or the names of environment variables.

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

/// The most children that are started together.
pub const MAX_FORKS: usize = 4096;

/// How long killed children may take to end when [`ForkedChildren`] is dropped.
const DROP_LIMIT: Duration = Duration::from_secs(2);

/// How often children without a pidfd are polled.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The exit status of a child whose return value does not fit or does not exist; see the child
/// result table.
const NO_RESULT_STATUS: i32 = 255;

/// An environment variable of a child: its value, or `None` to remove it.
pub type ForkVariable = (&'static str, Option<String>);

/// One forked child.
#[derive(Debug)]
pub struct ForkedChild {
    pid: i32,
    /// Closed after the end is recorded. `None` before Linux 5.3, and if the caller needs the
    /// descriptors.
    pidfd: Option<PidFd>,
    exit: Option<ProcessExit>,
    /// Other code has already waited for the child: its exit status is lost, and its process ID may
    /// belong to another process.
    is_lost: bool,
    was_killed: bool,
}

impl ForkedChild {
    /// Returns the process ID.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns the exit status if the child has ended.
    pub fn exit(&self) -> Option<ProcessExit> {
        self.exit
    }

    /// Returns true if the child was killed because it did not end after SIGTERM.
    pub fn was_killed(&self) -> bool {
        self.was_killed
    }

    /// Returns true if the child must still be ended and reaped.
    fn is_running(&self) -> bool {
        self.exit.is_none() && !self.is_lost
    }

    /// Sends a signal to the child only. If the child has just ended, the purpose of the signal is
    /// already achieved.
    fn signal(&mut self, signal: i32) {
        // Until it is reaped, the process ID belongs to the child, and the pidfd was opened for it.
        self.is_lost = child::peek(self.pid).is_err();
        if !self.is_lost {
            drop(match &self.pidfd {
                Some(pidfd) => pidfd.signal(signal),
                None => child::signal_child(self.pid, signal),
            });
        }
    }
}

/// Time limits for forked children.
#[derive(Clone, Copy, Debug)]
pub struct ForkTimeouts {
    /// The limit for all children to end.
    pub total: Deadline,
    /// From the first failure until the remaining children receive SIGTERM. In this time they can
    /// fail on their own and report the reason, and this process can detect a death that the
    /// children detected earlier.
    pub settle: Duration,
    /// From SIGTERM until SIGKILL.
    pub grace: Duration,
    /// From SIGKILL until the kernel has ended the child.
    pub kill: Duration,
}

/// Why the run of the children ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForkOutcome {
    /// Each child returned 0.
    Success,
    /// The child with this index failed first.
    Failure(usize),
    /// The children with these indices still ran when the total time was over.
    Deadline(Vec<usize>),
}

/// A set of forked children. Dropping it kills the remaining ones.
#[derive(Debug)]
pub struct ForkedChildren {
    members: Vec<ForkedChild>,
    results: ChildResultTable,
    /// How many more children may be watched through a descriptor.
    watchable: usize,
    /// Blocks SIGCHLD, because a SIGCHLD handler of the caller that waits for any child would reap
    /// these children.
    blocked: BlockedSignal,
}

impl ForkedChildren {
    /// Forks `count` children. Child `i` gets the environment variables `variables(i)`, runs
    /// `body(i)`, flushes the C streams, and exits with the result, without the exit handlers of
    /// this process.
    ///
    /// `body` runs only in the children, and must close the descriptors that it does not need. The
    /// calling thread must live at least as long as the children. Of the free descriptors of this
    /// process, `reserved` are left to the caller; if none remain, the children are polled.
    ///
    /// # Errors
    /// `InvalidArgument` if this process has more than one thread, or ignores the ends of its
    /// children; `OutOfMemory` or `System` if the children cannot be started.
    pub fn start(
        count: usize,
        reserved: usize,
        variables: &dyn Fn(usize) -> Vec<ForkVariable>,
        body: &mut dyn FnMut(usize) -> i32,
    ) -> Result<Self> {
        if !(1..=MAX_FORKS).contains(&count) {
            return Err(Error::invalid(format!(
                "cannot fork {count} processes: the count must be 1 to {MAX_FORKS}"
            )));
        }
        if signal::discards_child_status() {
            let message = "SIGCHLD is ignored in this process or has the flag SA_NOCLDWAIT, so the exit status of \
                           its children would be lost: call signal(SIGCHLD, SIG_DFL) first";
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
        let Self { members, results, .. } = self;
        let child_main = || {
            // The child does not need the descriptors of the earlier children.
            members.clear();
            results.claim_slot(index);
            let run = || prepare_fork(parent, mask, &variables).map(|()| body(index));
            // The stack frames below belong to the parent's run; a panic must not unwind into them.
            match catch_unwind(AssertUnwindSafe(run)) {
                Ok(Ok(result)) => exit_with_result(result),
                Ok(Err(error)) => exit_with_message(error.message()),
                Err(_) => exit_with_message("a defect in libdist, please report it"),
            }
        };
        // SAFETY: this process has one thread, as checked above, and it is this one.
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

    /// Returns the children, by index.
    pub fn members(&self) -> &[ForkedChild] {
        &self.members
    }

    /// Returns the result of a child that has ended.
    pub fn child_result(&self, index: usize) -> ChildResult {
        self.results.read(index)
    }

    /// Waits until all children have succeeded, one has failed, or the time is over. Then ends the
    /// remaining children, with SIGTERM first. On return, all children have ended, except children
    /// that cannot be killed, which have no [`ForkedChild::exit`].
    ///
    /// # Errors
    /// `System`, also if other code has waited for one of the children.
    pub fn wait_and_end(&mut self, limits: &ForkTimeouts) -> Result<ForkOutcome> {
        let poller = Poller::new()?;
        for (index, member) in self.members.iter().enumerate() {
            if let Some(pidfd) = &member.pidfd {
                let added = poller.add(pidfd.as_fd(), index as u64, Interest::READ);
                added.map_err(|cause| Error::system("watching a child process", cause))?;
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
                Some((index, exit)) if !exit.is_success() => {
                    if failed.is_empty() {
                        deadline = Deadline::after(limits.settle);
                    }
                    failed.push((index, exit));
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

    /// Returns the next child that ends, reaped, or `None` if the deadline passes first.
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
                    if let Some(exit) = self.reap(index)? {
                        return Ok(Some((index, exit)));
                    }
                }
            }
            let step = if unwatched { deadline.capped(POLL_INTERVAL) } else { *deadline };
            let waited = wait::io::wait_for_events(poller, &mut events, Some(step.remaining()));
            waited.map_err(|cause| Error::system("waiting for child processes", cause))?;
            match events.iter().next().and_then(|event| usize::try_from(event.token).ok()) {
                None if deadline.has_passed() => return Ok(None),
                None => {}
                Some(index) => {
                    if let Some(exit) = self.reap(index)? {
                        return Ok(Some((index, exit)));
                    }
                }
            }
        }
    }

    /// Reaps a child. Returns its exit status if it has ended and the end was not recorded before.
    fn reap(&mut self, index: usize) -> Result<Option<ProcessExit>> {
        let member = &mut self.members[index];
        if member.exit.is_some() {
            // A process that was being forked at that time still held the descriptor.
            return Ok(None);
        }
        let reaped = child::reap(member.pid);
        // Set this first: a process ID that no longer belongs to the child must not be signalled.
        member.is_lost = reaped.is_err();
        let reason = "the child's exit status was lost; did a handler of this program reap any child (waitpid(-1, ...))?";
        if let Some(exit) = reaped.context(|| reason)? {
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
            // A caller that needs the errors has called `wait_and_end` before.
            if let Some(pidfd) = &member.pidfd {
                drop(wait::io::ready_within(pidfd.as_fd(), Interest::READ, &deadline));
            }
            while matches!(child::reap(member.pid), Ok(None)) && !deadline.has_passed() {
                std::thread::yield_now();
            }
        }
    }
}

/// Fails if this process has other threads. A fork would lack these threads but keep the locks that
/// they hold.
fn check_single_threaded() -> Result<()> {
    match thread::thread_count()? {
        1 => Ok(()),
        count => {
            let message = format!(
                "this process has {count} threads: a forked child would have only one of them, and locks held by \
                 the other threads would stay locked; fork before you start other threads"
            );
            Err(Error::new(ErrorKind::InvalidArgument, message))
        }
    }
}

/// Prepares a child before the caller's code runs.
fn prepare_fork(parent: u32, mask: SignalMask, variables: &[ForkVariable]) -> Result<()> {
    let failed = |cause: std::io::Error| Error::system("preparing a forked process", cause);
    child::die_with_parent(parent).map_err(failed)?;
    for (name, value) in variables {
        // SAFETY: a forked child has one thread.
        unsafe { child::set_variable(name, value.as_deref()) }?;
    }
    mask.apply().map_err(failed)
}

/// Stores the return value in the result table before it flushes the streams, which may block.
/// Returns the exit status for this value.
fn exit_with_result(result: i32) -> i32 {
    child_result::record_result(result);
    child::flush_streams();
    if (0..=255).contains(&result) { result } else { NO_RESULT_STATUS }
}

fn exit_with_message(message: &str) -> i32 {
    child_result::record_message(message);
    NO_RESULT_STATUS
}
