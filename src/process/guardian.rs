//! [`Guardian`]: a small process that kills process groups after the process that started them is
//! gone.
//!
//! A child can request that the kernel kills it when its parent dies. The kernel does not kill the
//! children of that child, for example the programs that a shell started. Therefore each child
//! writes its process group ID to a pipe before it runs its program, and the guardian reads the
//! pipe:
//!
//! | message | meaning |
//! |---|---|
//! | `g` (positive) | process group `g` is registered |
//! | `-g` (negative) | process group `g` has ended and is no longer registered |
//! | end of the pipe | the last process with the write end is gone, for any reason |
//!
//! At the end of the pipe, the guardian kills every group that is still registered, and ends.
//!
//! The guardian is a fork that never executes a program. It allocates no memory, holds no
//! descriptor except the pipe, blocks every signal, and has its own session.

use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::sys::descriptor::above_standard_streams;
use crate::sys::pidfd::PidFd;
use crate::sys::poll::Interest;
use crate::sys::{child, signal};
use crate::wait::io;
use std::io::PipeWriter;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

/// The most process groups that a guardian stores.
pub const MAX_GROUPS: usize = 4096;

/// After the pipe is closed, this process waits this long for the guardian to end, and then kills
/// it.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// The guardian of this process. Dropping it kills every process group that is still registered.
#[derive(Debug)]
pub struct Guardian {
    pid: i32,
    pipe: Option<PipeWriter>,
}

impl Guardian {
    /// Starts a guardian.
    ///
    /// # Errors
    /// `System` if no process or pipe can be created.
    pub fn start() -> Result<Self> {
        let pipe = std::io::pipe().and_then(|(reader, writer)| {
            Ok((above_standard_streams(Ok(reader))?, above_standard_streams(Ok(writer))?))
        });
        let (reader, writer) =
            pipe.map_err(|cause| Error::system("a pipe for the guardian", cause))?;
        // SAFETY: `run_guardian` and the functions that it calls are async-signal-safe.
        let pid = unsafe { child::fork_into(run_guardian, reader.as_raw_fd()) }?;
        Ok(Self { pid, pipe: Some(writer) })
    }

    /// Returns the descriptor to which a child writes its process group ID, with
    /// [`child::write_message`].
    pub(super) fn pipe_fd(&self) -> RawFd {
        self.pipe.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Removes a process group that has ended from the guardian's list. The caller must do this
    /// before it reaps the group leader, because the kernel may then use the ID for another group.
    pub(super) fn forget(&self, group: i32) {
        // If the guardian is gone, it has no groups to remove.
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
            // The guardian leads a session and thus the process group with its own ID.
            drop(child::signal_group(self.pid, signal::KILL));
        }
        drop(child::reap(self.pid));
    }
}

/// The main function of the guardian process.
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
