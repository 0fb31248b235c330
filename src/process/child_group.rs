//! [`ChildProcessGroup`]: child processes that are started, watched, signalled and killed together.

use super::guardian::{Guardian, MAX_GROUPS};
use super::process_exit::ProcessExit;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::sys::pidfd::PidFd;
use crate::sys::poll::{Interest, PollEvents, Poller};
use crate::sys::signal::{self, SignalFd, SignalMask};
use crate::sys::{child, host};
use crate::wait;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{ChildStderr, ChildStdout, Command};
use std::time::{Duration, Instant};

/// The poller token of the descriptor that reports signals. The token of a child is its index.
const SIGNALS_TOKEN: u64 = u64::MAX;

/// How long killed children may take to end when the group is dropped.
const DROP_LIMIT: Duration = Duration::from_secs(2);

/// One child, which leads its own process group.
#[derive(Debug)]
pub struct ChildProcess {
    pid: i32,
    /// Becomes readable when the child ends. `None` after the end has been recorded.
    pidfd: Option<PidFd>,
    ended: Option<(ProcessExit, Instant)>,
    last_signal: Option<i32>,
    is_reaped: bool,
}

impl ChildProcess {
    /// Returns the process ID, which is also the process group ID.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns the exit status if the child has ended.
    pub fn exit(&self) -> Option<ProcessExit> {
        self.ended.map(|(how, _)| how)
    }

    /// Returns the time at which this process detected the child's end, if the child has ended.
    pub fn ended_at(&self) -> Option<Instant> {
        self.ended.map(|(_, when)| when)
    }

    /// Returns the last signal that the group sent to the child while it ran.
    pub fn last_signal(&self) -> Option<i32> {
        self.last_signal
    }
}

/// The parent's ends of a child's output pipes.
#[derive(Debug)]
pub struct ChildPipes {
    /// The read end of standard output, if it is a pipe.
    pub stdout: Option<ChildStdout>,
    /// The read end of standard error, if it is a pipe.
    pub stderr: Option<ChildStderr>,
}

/// The result of [`ChildProcessGroup::next_event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildEvent {
    /// The child with this index has ended.
    Ended(usize),
    /// This process received this signal.
    Signal(i32),
    /// The deadline has passed.
    Deadline,
}

/// A group of child processes. Dropping the group kills the remaining children and all processes in
/// their process groups.
#[derive(Debug)]
pub struct ChildProcessGroup {
    members: Vec<ChildProcess>,
    /// Watches the descriptors of the children and of `signals`. Each wait reports one descriptor,
    /// in the order in which they became ready.
    poller: Poller,
    signals: SignalFd,
    guardian: Guardian,
    /// The descriptors that children inherit in addition to their standard streams.
    inherited_fds: Vec<OwnedFd>,
    started: Instant,
}

impl ChildProcessGroup {
    /// Creates an empty group. If a signal of `wanted` arrives in this process,
    /// [`ChildProcessGroup::next_event`] returns [`ChildEvent::Signal`]. These signals are blocked
    /// in the calling thread while the group exists. This process must not ignore SIGCHLD, because
    /// the kernel would then discard the exit status of the children.
    ///
    /// # Errors
    /// `System`.
    pub fn new(wanted: &[i32]) -> Result<Self> {
        let poller = Poller::new()?;
        let signals = SignalFd::intercept(wanted)?;
        watch(&poller, signals.as_fd(), SIGNALS_TOKEN)?;
        let guardian = Guardian::start()?;
        let (members, inherited_fds) = (Vec::new(), Vec::new());
        Ok(Self { members, poller, signals, guardian, inherited_fds, started: Instant::now() })
    }

    /// Lets every child that is started after this call inherit `fd` under the same number. Other
    /// programs that this process executes do not inherit `fd`.
    pub fn inherit_fd(&mut self, fd: OwnedFd) {
        self.inherited_fds.push(fd);
    }

    /// Starts a child with the signal mask that this process had before the group was created. The
    /// calling thread must live at least as long as the child, because the kernel kills a child
    /// when the thread that started it ends.
    ///
    /// # Errors
    /// The error of the system. `NotFound` and `PermissionDenied` mean that the program does not
    /// exist or may not be executed. After an error, the guardian may have registered a child that
    /// never ran its program, so the caller should end the group.
    pub fn spawn(&mut self, command: &mut Command) -> io::Result<ChildPipes> {
        if self.members.len() == MAX_GROUPS {
            return Err(io::Error::other(format!("the limit is {MAX_GROUPS} children")));
        }
        let (parent, mask) = (host::pid(), self.signals.mask_before());
        let guardian_pipe = self.guardian.pipe_fd();
        let inherited_fds: Vec<RawFd> = self.inherited_fds.iter().map(AsRawFd::as_raw_fd).collect();
        command.process_group(0);
        // SAFETY: `prepare_child` is async-signal-safe and uses only the values captured here.
        unsafe {
            command.pre_exec(move || prepare_child(parent, guardian_pipe, &inherited_fds, mask))
        };
        let mut spawned = command.spawn()?;
        let pid = i32::try_from(spawned.id()).unwrap_or(0);
        let index = self.members.len() as u64;
        let watched = PidFd::open(pid).and_then(|pidfd| {
            watch(&self.poller, pidfd.as_fd(), index)?;
            Ok(pidfd)
        });
        match watched {
            Ok(pidfd) => {
                let member = ChildProcess {
                    pid,
                    pidfd: Some(pidfd),
                    ended: None,
                    last_signal: None,
                    is_reaped: false,
                };
                self.members.push(member);
                Ok(ChildPipes { stdout: spawned.stdout, stderr: spawned.stderr })
            }
            Err(error) => {
                spawned.kill()?;
                // A killed process ends at once.
                #[allow(
                    clippy::disallowed_methods,
                    reason = "the child has been killed, so the wait is short"
                )]
                spawned.wait()?;
                Err(io::Error::other(error))
            }
        }
    }

    /// Returns the children, in the order in which they were started.
    pub fn members(&self) -> &[ChildProcess] {
        &self.members
    }

    /// Returns the time at which the group was created, or last emptied by
    /// [`ChildProcessGroup::take_reaped`].
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Waits for the next event. The ends of children are reported in the order in which they
    /// happened, even if several children ended before this call.
    ///
    /// # Errors
    /// `System`.
    pub fn next_event(&mut self, deadline: &Deadline) -> Result<ChildEvent> {
        let mut events = PollEvents::with_capacity(1);
        loop {
            let waited =
                wait::io::wait_for_events(&self.poller, &mut events, Some(deadline.remaining()));
            waited.map_err(|cause| Error::system("waiting for child processes", cause))?;
            match events.iter().next().map(|event| event.token) {
                None if deadline.has_passed() => return Ok(ChildEvent::Deadline),
                None => {}
                Some(SIGNALS_TOKEN) => {
                    if let Some(signal) = self.signals.next_signal() {
                        return Ok(ChildEvent::Signal(signal));
                    }
                }
                Some(token) => {
                    let index = usize::try_from(token).unwrap_or(usize::MAX);
                    if self.record_end(index)? {
                        return Ok(ChildEvent::Ended(index));
                    }
                }
            }
        }
    }

    /// Returns true if every child has ended.
    pub fn all_ended(&self) -> bool {
        self.members.iter().all(|member| member.ended.is_some())
    }

    /// Returns true if every child has ended and no process is left in any of the process groups.
    pub fn is_clear(&self) -> bool {
        if !self.all_ended() {
            return false;
        }
        let living = child::live_process_groups();
        self.members.iter().all(|m| m.is_reaped || living.binary_search(&m.pid).is_err())
    }

    /// Sends a signal to the process groups of all children, including children that have already
    /// ended.
    pub fn signal_all(&mut self, signal: i32) {
        for member in self.members.iter_mut().filter(|member| !member.is_reaped) {
            if member.ended.is_none() {
                member.last_signal = Some(signal);
            }
            // An error means that the process group has no process left, so there is nothing to
            // signal.
            drop(child::signal_group(member.pid, signal));
        }
    }

    /// Kills all remaining processes of the children's process groups, waits until they have ended,
    /// and reaps the children. A child that is blocked in the kernel and does not end within
    /// `limit` is not reaped and has no [`ChildProcess::exit`].
    ///
    /// # Errors
    /// `System`.
    pub fn kill_and_reap(&mut self, limit: Duration) -> Result<()> {
        let deadline = Deadline::after(limit);
        self.signal_all(signal::KILL);
        while !self.is_clear() && !deadline.has_passed() {
            let tick = deadline.capped(Duration::from_millis(5));
            self.next_event(&tick)?;
        }
        for member in self.members.iter_mut().filter(|m| m.ended.is_some() && !m.is_reaped) {
            self.guardian.forget(member.pid);
            child::reap(member.pid)?;
            member.is_reaped = true;
        }
        Ok(())
    }

    /// Empties the group after [`ChildProcessGroup::kill_and_reap`], so that new children can be
    /// started, and returns the previous children. Returns `None` and changes nothing if one of the
    /// previous children could not be killed. Later calls of [`ChildProcessGroup::next_event`]
    /// still report the signals that arrived before this call.
    pub fn take_reaped(&mut self) -> Option<Vec<ChildProcess>> {
        if !self.members.iter().all(|member| member.is_reaped) {
            return None;
        }
        self.started = Instant::now();
        Some(std::mem::take(&mut self.members))
    }

    /// Ends the group after [`ChildProcessGroup::kill_and_reap`], and returns its children for
    /// inspection. Signals that no event has reported are discarded. Later signals have the same
    /// effect on this process as before the group was created.
    pub fn into_members(mut self) -> Vec<ChildProcess> {
        while self.signals.next_signal().is_some() {}
        std::mem::take(&mut self.members)
    }

    fn record_end(&mut self, index: usize) -> Result<bool> {
        let Some(member) = self.members.get_mut(index) else {
            return Err(Error::internal(format!("the process group has no child {index}")));
        };
        if member.ended.is_some() {
            // The end is already recorded and the pidfd is closed. The poller reports the pidfd
            // again if another child was between fork and exec at the time of the close: that child
            // still held a copy.
            return Ok(false);
        }
        let Some(exit) = child::peek(member.pid)? else { return Ok(false) };
        member.pidfd = None;
        member.ended = Some((ProcessExit::from(exit), Instant::now()));
        Ok(true)
    }
}

impl Drop for ChildProcessGroup {
    fn drop(&mut self) {
        // A caller that needs the errors has called `kill_and_reap` before.
        drop(self.kill_and_reap(DROP_LIMIT));
    }
}

fn watch(poller: &Poller, fd: BorrowedFd<'_>, token: u64) -> Result<()> {
    let added = poller.add(fd, token, Interest::READ);
    added.map_err(|cause| Error::system("watching a child process", cause))
}

/// Runs in the child between fork and exec. The child already leads its process group.
fn prepare_child(
    parent: u32,
    guardian_pipe: RawFd,
    inherited_fds: &[RawFd],
    mask: SignalMask,
) -> io::Result<()> {
    child::die_with_parent(parent)?;
    inherited_fds.iter().try_for_each(|&fd| child::keep_across_exec(fd))?;
    child::write_message(guardian_pipe, i32::try_from(host::pid()).unwrap_or(0))?;
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

    /// Waits until a process is a zombie, without reaping it.
    fn wait_until_zombie(pid: i32) {
        let deadline = limit();
        while child::peek(pid).unwrap().is_none() {
            assert!(!deadline.has_passed(), "process {pid} does not end");
            std::thread::yield_now();
        }
    }

    #[test]
    fn exits_are_reported_in_order() {
        let mut children = ChildProcessGroup::new(&[]).unwrap();
        for _ in 0..4 {
            children.spawn(&mut shell("exec sleep 60")).unwrap();
        }
        for index in [2, 0, 3, 1] {
            let pid = children.members()[index].pid();
            child::signal_group(pid, libc::SIGKILL).unwrap();
            wait_until_zombie(pid);
        }
        for index in [2, 0, 3, 1] {
            assert_eq!(children.next_event(&limit()).unwrap(), ChildEvent::Ended(index));
            assert_eq!(children.members()[index].exit().unwrap().signal(), Some(libc::SIGKILL));
        }
    }

    #[test]
    fn remaining_group_processes_are_killed() {
        let mut children = ChildProcessGroup::new(&[]).unwrap();
        children.spawn(&mut shell("sleep 60 & exit 5")).unwrap();
        assert_eq!(children.next_event(&limit()).unwrap(), ChildEvent::Ended(0));
        assert_eq!(children.members()[0].exit().unwrap().shell_status(), 5);
        assert!(!children.is_clear());
        children.kill_and_reap(Duration::from_secs(20)).unwrap();
        let group = children.members()[0].pid();
        assert!(child::live_process_groups().binary_search(&group).is_err());
    }

    #[test]
    fn only_group_children_inherit_the_descriptor() {
        let fd = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
        let script = format!("test -e /proc/self/fd/{}", fd.as_raw_fd());
        let mut children = ChildProcessGroup::new(&[]).unwrap();
        children.spawn(&mut shell(&script)).unwrap();
        assert_eq!(children.next_event(&limit()).unwrap(), ChildEvent::Ended(0));
        children.inherit_fd(fd);
        children.spawn(&mut shell(&script)).unwrap();
        assert_eq!(children.next_event(&limit()).unwrap(), ChildEvent::Ended(1));
        assert!(!shell(&script).status().unwrap().success());
        let statuses: Vec<u8> =
            children.members().iter().map(|member| member.exit().unwrap().shell_status()).collect();
        assert_eq!(statuses, [1, 0]);
    }

    #[test]
    fn reaped_children_can_be_replaced() {
        let mut children = ChildProcessGroup::new(&[]).unwrap();
        children.spawn(&mut shell("exit 3")).unwrap();
        assert!(children.take_reaped().is_none());
        children.kill_and_reap(Duration::from_secs(20)).unwrap();
        assert_eq!(children.take_reaped().unwrap().len(), 1);
        assert!(children.is_clear());
        for script in ["exit 4", "exec sleep 60"] {
            children.spawn(&mut shell(script)).unwrap();
        }
        assert_eq!(children.next_event(&limit()).unwrap(), ChildEvent::Ended(0));
        assert_eq!(children.members()[0].exit().unwrap().shell_status(), 4);
        children.kill_and_reap(Duration::from_secs(20)).unwrap();
        assert_eq!(children.take_reaped().unwrap().len(), 2);
    }

    #[test]
    fn missing_program_is_a_spawn_error() {
        let mut children = ChildProcessGroup::new(&[]).unwrap();
        let error = children.spawn(&mut Command::new("/no/such/program")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(children.all_ended());
    }

    #[test]
    fn a_guardian_kills_what_is_still_registered() {
        let guardian = Guardian::start().unwrap();
        let mut sleeper = shell("sleep 60 & wait").process_group(0).spawn().unwrap();
        let pid = i32::try_from(sleeper.id()).unwrap();
        child::write_message(guardian.pipe_fd(), pid).unwrap();
        drop(guardian);
        wait_until_zombie(pid);
        sleeper.wait().unwrap();
    }
}
