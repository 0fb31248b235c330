//! This process, for the layers that make no system calls of their own.

use crate::base::error::{Error, Result};
use crate::base::ids::Nonce;
use crate::sys::{clock, fork, host, limits, small_file, thread};
use std::path::Path;

pub use crate::sys::clock::ClockSnapshot;

/// Its id.
pub fn pid() -> u32 {
    host::pid()
}

/// The name of the host it runs on.
pub fn host_name() -> String {
    host::name()
}

/// Now, on the clocks of the kernel.
pub fn clock_snapshot() -> ClockSnapshot {
    clock::snapshot()
}

/// What two processes must have in common to share the monotonic clock.
pub fn clock_domain() -> String {
    clock::domain()
}

/// Now, on the kernel's monotonic clock, in nanoseconds.
#[inline]
pub fn monotonic_ns() -> u64 {
    clock::monotonic_ns()
}

/// The memory in bytes that can still be had, where the system tells.
pub fn memory_available() -> Option<u64> {
    host::memory_available()
}

/// The user that it runs as.
pub fn uid() -> u32 {
    host::uid()
}

/// A name that is the same for all processes that the same parent and user started directly, and
/// that no other set of processes has while the parent lives.
pub fn sibling_group_name() -> String {
    format!("user-{}-parent-{}", host::uid(), host::parent_pid())
}

/// Sixteen fresh random bytes.
///
/// # Errors
/// `System`.
pub fn random_nonce() -> Result<Nonce> {
    host::random_nonce()
}

/// Notes that the library is in use, so that a forked child can be told apart.
///
/// # Errors
/// `OutOfMemory`, `System`.
pub fn mark_used() -> Result<()> {
    fork::mark_used()
}

/// True once the library has been in use here, whether or not it still is.
pub fn is_used() -> bool {
    fork::is_used()
}

/// How many threads this process has.
///
/// # Errors
/// `System` where the system does not tell.
pub fn thread_count() -> Result<usize> {
    thread::thread_count()
}

/// How many more descriptors this process may have.
///
/// # Errors
/// `System` where the system does not tell.
pub fn free_descriptors() -> Result<usize> {
    limits::free_descriptors()
}

/// True in a process that was forked, without exec, from one that used the library.
pub fn is_forked_child() -> bool {
    fork::is_forked_child()
}

/// Leaves a file for whoever started this process. False: there is one of that name, which stays as
/// it is.
///
/// # Errors
/// `System`, `OutOfMemory` where the disk is full; then there is nothing new.
pub fn create_file(path: &Path, content: &[u8]) -> Result<bool> {
    let left = small_file::create_atomically(path, content);
    left.map_err(|cause| Error::system(format_args!("writing {}", path.display()), &cause))
}

/// Removes such a file, unless somebody has changed it. False: it was not there any more, or is
/// another.
///
/// # Errors
/// `System`.
pub fn remove_file_if_same(path: &Path, content: &[u8]) -> Result<bool> {
    let removed = small_file::remove_if_same(path, content);
    removed.map_err(|cause| Error::system(format_args!("removing {}", path.display()), &cause))
}
