//! Reading the memory of another process, where the kernel permits that.

use crate::base::buffer::Dst;
use std::io;

/// Copies `into.len()` bytes from `address` in the memory of a process; of this one too. How many bytes that was:
/// fewer where the rest is not mapped there.
///
/// What the bytes mean, and whether they are still what they were, is for the caller to know: the other process
/// may write, unmap or reuse them at any moment.
///
/// # Errors
/// Where the process is gone, may not be read, or has nothing at that address.
pub fn read(pid: u32, address: u64, into: Dst<'_>) -> io::Result<usize> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let pid = libc::pid_t::try_from(pid).map_err(|_| invalid())?;
    let address = usize::try_from(address).map_err(|_| invalid())?;
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // The address is only a number here: the kernel looks it up in the other process.
    let remote =
        libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: into.len() };
    // SAFETY: the kernel writes at most `into.len()` bytes through the local vector, which the view allows; the
    // remote one it only reads, with checks of its own.
    let got = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_an_error() {
        let mut bytes = [7; 8];
        assert!(read(std::process::id(), 16, Dst::from(&mut bytes[..])).is_err());
        assert!(read(u32::MAX, 16, Dst::from(&mut bytes[..])).is_err());
        assert_eq!(bytes, [7; 8]);
    }

    #[test]
    fn this_process_may_read_itself() {
        let source: Vec<u8> = (0..=255).collect();
        let mut bytes = vec![0; source.len()];
        let address = u64::try_from(source.as_ptr().addr()).unwrap();
        // A sandbox may forbid the call altogether.
        match read(std::process::id(), address, Dst::from(bytes.as_mut_slice())) {
            Ok(got) => assert_eq!((got, bytes), (source.len(), source)),
            Err(cause) => {
                assert!(matches!(cause.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)), "{cause}")
            }
        }
    }
}
