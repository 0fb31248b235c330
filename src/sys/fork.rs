//! Detects whether this process was forked from a process that used the library.
//!
//! One page is marked MADV_WIPEONFORK and contains a 1. The kernel clears such a page in a forked
//! child, which therefore reads 0. The check thus costs one load per call instead of a `getpid`
//! system call.

use crate::base::error::{Error, Result};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// The address of the page. It is an integer, because threads cannot share a cell with a pointer.
static GUARD_PAGE: OnceLock<usize> = OnceLock::new();

/// Records that this process uses the library. Each call after the first costs one load.
///
/// # Errors
/// `OutOfMemory` or `System` if the page cannot be created.
pub fn mark_used() -> Result<()> {
    if GUARD_PAGE.get().is_some() {
        return Ok(());
    }
    let address = map_guard_page()?;
    guard_flag(address).store(1, Ordering::Relaxed);
    if GUARD_PAGE.set(address).is_err() {
        unmap(address);
    }
    Ok(())
}

/// Returns true if this process, or a process that it was forked from, has called [`mark_used`].
pub fn is_used() -> bool {
    GUARD_PAGE.get().is_some()
}

/// Returns true in a process that was forked, without exec, from a process that had called
/// [`mark_used`].
pub fn is_forked_child() -> bool {
    GUARD_PAGE.get().is_some_and(|&address| guard_flag(address).load(Ordering::Relaxed) == 0)
}

fn page_size() -> usize {
    // SAFETY: the call returns a constant of the system.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

fn map_guard_page() -> Result<usize> {
    let len = page_size();
    // SAFETY: a new anonymous private mapping; the call touches no existing memory.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return Err(Error::system("mapping the fork guard page", std::io::Error::last_os_error()));
    }
    // SAFETY: the range is the new mapping.
    if unsafe { libc::madvise(page, len, libc::MADV_WIPEONFORK) } != 0 {
        let cause = std::io::Error::last_os_error();
        unmap(page.addr());
        return Err(Error::system("MADV_WIPEONFORK (Linux 4.14 or newer is needed)", cause));
    }
    Ok(page.expose_provenance())
}

fn unmap(address: usize) {
    // SAFETY: called only with a page that `map_guard_page` created and that no other code has
    // seen.
    unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(address), page_size()) };
}

fn guard_flag(address: usize) -> &'static AtomicU8 {
    // SAFETY: the page stays mapped for the life of the process, and is used only through this
    // atomic.
    unsafe { AtomicU8::from_ptr(std::ptr::with_exposed_provenance_mut(address)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marking_process_is_not_a_forked_child() {
        mark_used().unwrap();
        assert!(!is_forked_child());
    }
}
