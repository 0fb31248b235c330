//! The limits of this process for the number of open files and for the size of a file.

use crate::base::error::{Error, Result};
use std::io;

/// Returns how many descriptors this process may have at the same time (the soft limit).
///
/// # Errors
/// `System`.
pub fn max_open_files() -> Result<u64> {
    Ok(read(libc::RLIMIT_NOFILE)?.rlim_cur)
}

/// Returns how many more descriptors this process may open. Other threads may open descriptors at
/// any time, so the number is only a hint.
///
/// # Errors
/// `System`, also if /proc is not available.
pub fn free_descriptors() -> Result<usize> {
    let entries = std::fs::read_dir("/proc/self/fd");
    let counted: io::Result<usize> =
        entries.and_then(|entries| entries.map(|entry| entry.map(|_| 1)).sum());
    let open = counted
        .map_err(|cause| Error::system("counting descriptors in /proc/self/fd", cause))?
        // The count includes the descriptor that reads the folder.
        .saturating_sub(1);
    Ok(usize::try_from(max_open_files()?).unwrap_or(usize::MAX).saturating_sub(open))
}

/// Returns the maximum size of a file that this process may create, in bytes.
///
/// # Errors
/// `System`.
pub fn max_file_bytes() -> Result<u64> {
    Ok(read(libc::RLIMIT_FSIZE)?.rlim_cur)
}

/// Raises the soft limit of open files to the hard limit, which needs no privileges, and returns
/// the new limit. The limit applies to the whole process, so only a program may call this function,
/// not the library.
///
/// # Errors
/// `System`.
pub fn raise_max_open_files() -> Result<u64> {
    raise_max_open_files_to(u64::MAX)
}

/// Raises the soft limit of open files to `wanted`, or to the hard limit if that is lower, and
/// returns the new limit. Does not lower the limit. Only a program may call this function, as for
/// [`raise_max_open_files`]; its child processes inherit the limit.
///
/// # Errors
/// `System`.
pub fn raise_max_open_files_to(wanted: u64) -> Result<u64> {
    let mut limit = read(libc::RLIMIT_NOFILE)?;
    let wanted = wanted.min(limit.rlim_max);
    if limit.rlim_cur < wanted {
        limit.rlim_cur = wanted;
        // SAFETY: the call reads one structure, which is on this stack.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
            return Err(Error::system("setrlimit(RLIMIT_NOFILE)", io::Error::last_os_error()));
        }
    }
    max_open_files()
}

fn read(resource: libc::__rlimit_resource_t) -> Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes one structure, which is on this stack.
    if unsafe { libc::getrlimit(resource, &raw mut limit) } == 0 {
        return Ok(limit);
    }
    Err(Error::system(format_args!("getrlimit({resource})"), io::Error::last_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_file_limit_matches_proc_and_is_not_lowered() {
        let text = std::fs::read_to_string("/proc/self/limits").unwrap();
        let line = text.lines().find(|line| line.starts_with("Max open files")).unwrap();
        let shown = line.split_whitespace().nth(3).unwrap();
        let before = max_open_files().unwrap();
        assert!(shown == "unlimited" || shown == before.to_string(), "{shown}, {before}");
        assert_eq!(raise_max_open_files_to(1).unwrap(), before);
        assert!(raise_max_open_files().unwrap() >= before);
    }

    #[test]
    fn free_descriptor_count_is_below_the_limit() {
        let limit = usize::try_from(max_open_files().unwrap()).unwrap_or(usize::MAX);
        let free = free_descriptors().unwrap();
        assert!(free > 0 && free < limit, "{free} of {limit}");
    }
}
