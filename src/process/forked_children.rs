//! [`ForkedChildren`]: forks of this process that each run a function, are watched, and end
//! together.
//!
//! The guarantees:
//!
//! * The kernel kills the children when this process dies.
//! * When [`ForkedChildren`] is dropped, no child is left, not even as a zombie, unless the kernel
//!   cannot end it.
//! * This module does not wait for or signal any other child of this process.
//! * SIGCHLD is blocked while [`ForkedChildren`] exists, so SIGCHLD handlers of this process run
//!   only after it is dropped.
//!
//! The children stay in this process's process group, as children of a program normally do. A
//! signal from the terminal therefore reaches all of them. This module does not manage the
//! processes that the children start.
//!
//! This module does not depend on ranks, stores, or the names of environment variables.

use super::child_result::{self, ChildResult, ChildResultTable};
use super::exit_hook;
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

/// The exit status of a child whose return value is not in 0 to 255, or whose function did not
/// return. The child result table contains the full return value, or no value.
const NO_RESULT_STATUS: i32 = 255;

/// An environment variable of a child: its value, or `None` to remove it.
pub type ForkVariable = (&'static str, Option<String>);

/// One forked child.
#[derive(Debug)]
pub struct ForkedChild {
    pid: i32,
    /// Becomes readable when the child ends. `None` after the end has been recorded, before Linux
    /// 5.3, and if all free descriptors are reserved for the caller.
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

    /// Sends a signal to the child only. Ignores an error of the signal, which means that the child
    /// has just ended.
    fn signal(&mut self, signal: i32) {
        // `peek` fails if other code has reaped the child. Until a child is reaped, its process ID
        // cannot belong to another process, so the signal below reaches only this child.
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
    /// The deadline by which all children must end.
    pub total: Deadline,
    /// The time from the first failure until the remaining children receive SIGTERM. In this time,
    /// the remaining children can fail on their own and report the reason. This process can also
    /// detect the death of a child that the other children detected before this process.
    pub settle: Duration,
    /// The time from SIGTERM until SIGKILL.
    pub grace: Duration,
    /// The maximum time from SIGKILL until the kernel has ended the child.
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

/// A set of forked children. Dropping the set kills the children that still run.
#[derive(Debug)]
pub struct ForkedChildren {
    members: Vec<ForkedChild>,
    results: ChildResultTable,
    /// How many more children may be watched through a pidfd, which takes one descriptor each.
    watchable: usize,
    /// Blocks SIGCHLD while the set exists. Otherwise a SIGCHLD handler of the caller that waits
    /// for any child (`waitpid(-1, ...)`) would reap these children.
    blocked: BlockedSignal,
}

impl ForkedChildren {
    /// Forks `count` children. Child `i` gets the environment variables `variables(i)`, runs
    /// `body(i)`, runs the function of [`exit_hook`], flushes the C streams, and exits with the
    /// result of `body`. The exit handlers of this process do not run in the child.
    ///
    /// `body` runs only in the children, and must close the descriptors that it does not need. The
    /// calling thread must live at least as long as the children, because the kernel kills a child
    /// when the thread that forked it ends.
    ///
    /// Each child is watched through one descriptor. This function leaves `reserved` of the free
    /// descriptors of this process to the caller. Children for which no descriptor remains are
    /// polled.
    ///
    /// # Errors
    /// `InvalidArgument` if this process has more than one thread, or if it ignores SIGCHLD, so
    /// that the exit status of children would be lost; `OutOfMemory` or `System` if the children
    /// cannot be started.
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
            // The stack frames below this closure are copies of the parent's frames. A panic must
            // not unwind into them.
            match catch_unwind(AssertUnwindSafe(run)) {
                Ok(Ok(result)) => exit_with_result(result),
                Ok(Err(error)) => exit_with_message(error.message()),
                Err(_) => exit_with_message("a defect in libdist, please report it"),
            }
        };
        // SAFETY: this process has one thread, as checked above: the calling thread.
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

    /// Waits until all children have ended, until the settle time after the first failure is over,
    /// or until the total time is over. Then ends the remaining children: first with SIGTERM, and
    /// after the grace time with SIGKILL. On return, all children have ended, except children that
    /// cannot be killed, which have no [`ForkedChild::exit`].
    ///
    /// # Errors
    /// `System`, also if other code has reaped one of the children.
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

    /// Reaps the next child that ends, and returns its index and exit status. Returns `None` if the
    /// deadline passes before a child ends.
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
            // The end is already recorded and the pidfd is closed. The poller reports the pidfd
            // again if a later child was forked before the close and still holds a copy.
            return Ok(None);
        }
        let reaped = child::reap(member.pid);
        // Set the flag before the return with an error: a process ID that no longer belongs to the
        // child must not be signalled.
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

/// Fails if this process has other threads. A forked child would not have these threads, but the
/// locks that they hold would stay locked in it.
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

/// Prepares the calling process, a new child, before it runs the caller's `body`.
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
    exit_hook::run();
    child::flush_streams();
    if (0..=255).contains(&result) { result } else { NO_RESULT_STATUS }
}

fn exit_with_message(message: &str) -> i32 {
    child_result::record_message(message);
    NO_RESULT_STATUS
}
