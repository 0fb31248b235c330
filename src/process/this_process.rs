//! Properties of this process and its host. The functions forward to `sys`, for the layers that
//! must not import `sys`.

use crate::base::error::{Error, Result};
use crate::base::ids::Nonce;
use crate::sys::{clock, fork, host, limits, process_status, small_file, thread};
use std::path::Path;
use std::sync::OnceLock;

pub use crate::sys::clock::ClockSnapshot;

/// Returns the process ID.
pub fn pid() -> u32 {
    host::pid()
}

/// Returns a text that identifies this process for [`has_process_ended`].
pub fn process_key() -> String {
    let pid = host::pid();
    let started = process_status::start_time(pid).unwrap_or_default();
    format!("{pid}/{started}/{}", host::pid_namespace())
}

/// Returns true if the process with this key has certainly ended. Only a process of the same PID
/// namespace can know this.
pub fn has_process_ended(key: &str) -> bool {
    let mut parts = key.splitn(3, '/');
    let mut number = || parts.next()?.parse::<u64>().ok();
    let (Some(pid), Some(started)) = (number(), number()) else { return false };
    let (Some(namespace), Ok(pid)) = (parts.next(), u32::try_from(pid)) else { return false };
    static OWN_NAMESPACE: OnceLock<String> = OnceLock::new();
    let own_namespace = OWN_NAMESPACE.get_or_init(host::pid_namespace);
    let is_known = !namespace.is_empty() && namespace == own_namespace;
    is_known && process_status::is_gone(pid, Some(started).filter(|&started| started != 0))
}

/// Returns the name of the host.
pub fn host_name() -> String {
    host::name()
}

/// Returns the current time on the kernel's clocks.
pub fn clock_snapshot() -> ClockSnapshot {
    clock::snapshot()
}

/// Returns an identifier that is equal for two processes if they share the monotonic clock.
pub fn clock_domain() -> String {
    clock::domain()
}

/// Returns the kernel's monotonic time in nanoseconds.
#[inline]
pub fn monotonic_ns() -> u64 {
    clock::monotonic_ns()
}

/// Returns the available memory in bytes, if the system reports it.
pub fn memory_available() -> Option<u64> {
    host::memory_available()
}

/// Returns the user ID of the process.
pub fn uid() -> u32 {
    host::uid()
}

/// Returns a name that is equal for two processes if they have the same user and the same parent
/// process. While the parent lives, no other processes have this name.
pub fn sibling_group_name() -> String {
    format!("user-{}-parent-{}", host::uid(), host::parent_pid())
}

/// Returns sixteen new random bytes.
///
/// # Errors
/// `System`.
pub fn random_nonce() -> Result<Nonce> {
    host::random_nonce()
}

/// Records that the library is in use, so that a forked child can be detected.
///
/// # Errors
/// `OutOfMemory`, `System`.
pub fn mark_used() -> Result<()> {
    fork::mark_used()
}

/// Returns true if the library is or was in use in this process.
pub fn is_used() -> bool {
    fork::is_used()
}

/// Returns the number of threads of this process.
///
/// # Errors
/// `System` if the system does not report it.
pub fn thread_count() -> Result<usize> {
    thread::thread_count()
}

/// Returns how many more descriptors this process may open.
///
/// # Errors
/// `System` if the system does not report it.
pub fn free_descriptors() -> Result<usize> {
    limits::free_descriptors()
}

/// Returns true in a process that was forked, without exec, from a process that used the library.
pub fn is_forked_child() -> bool {
    fork::is_forked_child()
}

/// Creates a file with this content, for example a report for the parent process. If a file of this
/// name exists, returns false and does not change the file.
///
/// # Errors
/// `System`, `OutOfMemory` if the disk is full. No file is created after an error.
pub fn create_file(path: &Path, content: &[u8]) -> Result<bool> {
    let created = small_file::create_atomically(path, content);
    created.map_err(|cause| Error::system(format_args!("writing {}", path.display()), cause))
}

/// Removes a file that [`create_file`] created, if its content is unchanged. Returns false if the
/// file does not exist or has other content.
///
/// # Errors
/// `System`.
pub fn remove_file_if_same(path: &Path, content: &[u8]) -> Result<bool> {
    let removed = small_file::remove_if_same(path, content);
    removed.map_err(|cause| Error::system(format_args!("removing {}", path.display()), cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_ended_process_of_this_namespace_has_ended() {
        let own = process_key();
        assert!(!has_process_ended(&own));
        let namespace = host::pid_namespace();
        assert!(has_process_ended(&format!("{}/1/{namespace}", host::pid())));
        for unknown in ["", "1", "1/2", "x/1/y", "1/1/", &format!("{}/1/other", host::pid())] {
            assert!(!has_process_ended(unknown), "{unknown}");
        }
    }
}
