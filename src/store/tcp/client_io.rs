//! The waits of a store client for its socket. A deadline bounds each of them.

use super::request_failure::{RequestFailure, RequestResult};
use crate::base::Deadline;
use crate::sys::poll::Interest;
use crate::sys::stream::{self, SocketStream, is_transient};
use crate::wait::io as io_wait;
use crate::wait::spin_history::AdaptiveSpin;
use std::io;
use std::os::fd::AsFd as _;

/// Waits until a stream is ready for reading or writing. If the wait fails, the returned
/// [`RequestFailure::Lost`] contains `was_sent`.
pub(super) fn await_ready(
    stream: &SocketStream,
    interest: Interest,
    deadline: &Deadline,
    was_sent: bool,
) -> RequestResult<()> {
    match io_wait::ready_within(stream.as_fd(), interest, deadline) {
        Ok(true) => Ok(()),
        Ok(false) => Err(RequestFailure::Timeout),
        Err(cause) => Err(RequestFailure::Lost { cause, was_sent }),
    }
}

/// Receives at least one byte.
pub(super) fn receive_some(
    stream: &SocketStream,
    wait_policy: &mut AdaptiveSpin,
    bytes: &mut [u8],
    deadline: &Deadline,
) -> RequestResult<usize> {
    let mut outcome = wait_policy.try_spin(|| match stream.receive(bytes) {
        Err(cause) if is_transient(&cause) => None,
        outcome => Some(outcome),
    });
    loop {
        match outcome {
            Some(Ok(0)) => {
                let cause = io::Error::other("the server closed it");
                return Err(RequestFailure::Lost { cause, was_sent: true });
            }
            Some(Ok(count)) => return Ok(count),
            Some(Err(cause)) if !is_transient(&cause) => {
                return Err(RequestFailure::Lost { cause, was_sent: true });
            }
            Some(Err(_)) | None => {}
        }
        // If much time is left, use one blocking receive, which the socket's receive timeout ends.
        // This saves the system call for poll. If less time is left than this timeout, poll until
        // exactly the deadline.
        outcome = if deadline.remaining() > stream::RECEIVE_TIMEOUT {
            Some(stream.receive_blocking(bytes))
        } else {
            await_ready(stream, Interest::READ, deadline, true)?;
            Some(stream.receive(bytes))
        };
    }
}
