//! A small process that kills process groups when the process that started them is gone.
//!
//! The kernel kills direct children when their parent dies, if they asked for it; it does not kill
//! theirs (a shell's, say). So a child registers the number of its group in a pipe before it runs
//! its program, and the guardian reads that pipe. Its end means that the last holder of the other
//! side is gone, however it went; then every group still registered is killed.
//!
//! The guardian is a fork that never executes anything. It allocates nothing, holds no descriptor
//! but the pipe, blocks every signal and has a session of its own.

use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::sys::pidfd::PidFd;
use crate::sys::poll::Interest;
use crate::sys::{child, signal};
use crate::wait::io;
use std::io::PipeWriter;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

/// The most groups that a guardian keeps in mind.
pub const MAX_GROUPS: usize = 4096;

/// How long a guardian may take to end once its pipe is closed, before it is killed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// The guardian of this process. Dropping it kills every group still registered.
#[derive(Debug)]
pub struct Guardian {
    pid: i32,
    pipe: Option<PipeWriter>,
}

impl Guardian {
    /// Starts a guardian.
    ///
    /// # Errors
    /// `System` where no process or pipe can be had.
    pub fn start() -> Result<Self> {
        let (reader, writer) =
            std::io::pipe().map_err(|cause| Error::system("a pipe for the guardian", &cause))?;
        // SAFETY: `run_guardian` and what it calls are async-signal-safe.
        let pid = unsafe { child::fork_into(run_guardian, reader.as_raw_fd()) }?;
        Ok(Self { pid, pipe: Some(writer) })
    }

    /// Where a child registers its group, with [`child::write_message`].
    pub(super) fn pipe_fd(&self) -> RawFd {
        self.pipe.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Forgets a group, which has ended; to be called before its leader is reaped.
    pub(super) fn forget(&self, group: i32) {
        // A guardian that is gone has nothing to forget.
        drop(child::write_message(self.pipe_fd(), -group));
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        self.pipe = None;
        let deadline = Deadline::after(EXIT_TIMEOUT);
        let ended = PidFd::open(self.pid).is_ok_and(|pidfd| {
            io::ready_within(pidfd.as_fd(), Interest::READ, &deadline).unwrap_or(false)
        });
        if !ended {
            // It leads a session, and so the group of its own number.
            drop(child::signal_group(self.pid, signal::KILL));
        }
        drop(child::reap(self.pid));
    }
}

/// The guardian's whole life.
extern "C" fn run_guardian(pipe: RawFd) -> i32 {
    child::detach(pipe);
    child::set_name(c"dist-guardian");
    let mut groups = [0i32; MAX_GROUPS];
    while let Some(message) = child::read_message(0) {
        let (wanted, replacement) = if message > 0 { (0, message) } else { (-message, 0) };
        if let Some(slot) = groups.iter_mut().find(|slot| **slot == wanted) {
            *slot = replacement;
        }
    }
    for &group in groups.iter().filter(|&&group| group > 1) {
        drop(child::signal_group(group, signal::KILL));
    }
    0
}
