//! Cross-memory attach (CMA): reads and writes the memory of another process, if the kernel permits
//! it.

use crate::base::buffer::{Dst, Src};
use std::io;

/// Copies `into.len()` bytes from `address` in the memory of process `pid`, which may be this
/// process. Returns the number of copied bytes. It is smaller than `into.len()` if only the first
/// bytes are mapped in that process.
///
/// The caller must know the meaning of the bytes and whether they are still valid: the other
/// process may write, unmap or reuse them at any moment.
///
/// # Errors
/// The error of the system if the process is gone, may not be read, or has no memory at `address`.
pub fn read(pid: u32, address: u64, into: Dst<'_>) -> io::Result<usize> {
    read_pieces(pid, [(address, into)])
}

/// Copies several pieces, one after the other, in one system call. A piece is an address in the
/// memory of the process and the view that receives the bytes. Returns the total number of copied
/// bytes.
///
/// # Errors
/// As for [`read`], for the first piece.
pub fn read_pieces<const N: usize>(pid: u32, pieces: [(u64, Dst<'_>); N]) -> io::Result<usize> {
    let parts = pieces.map(|(address, into)| (address, into.as_mut_ptr(), into.len()));
    let CmaVectors { pid, local, remote } = CmaVectors::new(pid, parts)?;
    let count = N as libc::c_ulong;
    // SAFETY: the kernel writes to each local vector at most as many bytes as its view has, and the
    // view permits that. It only reads the remote vectors, with its own checks.
    let got =
        unsafe { libc::process_vm_readv(pid, local.as_ptr(), count, remote.as_ptr(), count, 0) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// Copies each piece to its address in the memory of a process, one after the other, in one system
/// call. The process may be this process. Returns the total number of copied bytes; it is smaller
/// than requested if only the first bytes are mapped and writable in that process.
///
/// The caller must know that the other process expects the write, and does not use the memory at
/// the same time.
///
/// # Errors
/// The error of the system if the process is gone, if its memory may not be written, or if it has
/// no memory at the first address.
pub fn write_pieces<const N: usize>(pid: u32, pieces: [(u64, Src<'_>); N]) -> io::Result<usize> {
    let parts = pieces.map(|(address, from)| (address, from.as_ptr().cast_mut(), from.len()));
    let CmaVectors { pid, local, remote } = CmaVectors::new(pid, parts)?;
    let count = N as libc::c_ulong;
    // SAFETY: the kernel only reads the local vectors, each at most as many bytes as its view has.
    // It writes the remote vectors with its own checks, and the caller is responsible for their
    // meaning in that process.
    let put =
        unsafe { libc::process_vm_writev(pid, local.as_ptr(), count, remote.as_ptr(), count, 0) };
    usize::try_from(put).map_err(|_| io::Error::last_os_error())
}

/// Returns whether an error of this module is a refusal: the process has not the right, or a filter
/// forbids the system call. Other errors are about the address or the end of the process.
pub fn is_refusal(cause: &io::Error) -> bool {
    matches!(cause.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::ENOSYS))
}

/// The arguments of `process_vm_readv` and `process_vm_writev`.
struct CmaVectors<const N: usize> {
    pid: libc::pid_t,
    local: [libc::iovec; N],
    remote: [libc::iovec; N],
}

impl<const N: usize> CmaVectors<N> {
    /// Creates the vectors for pieces, each with its remote address, its local address, and its
    /// length.
    fn new(pid: u32, parts: [(u64, *mut u8, usize); N]) -> io::Result<Self> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let pid = libc::pid_t::try_from(pid).map_err(|_| invalid())?;
        if parts.iter().any(|&(address, ..)| usize::try_from(address).is_err()) {
            return Err(invalid());
        }
        // The check above covers every address.
        let address_here = |address| usize::try_from(address).unwrap_or(0);
        let local =
            parts.map(|(_, start, iov_len)| libc::iovec { iov_base: start.cast(), iov_len });
        // The remote address is only a number in this process; the kernel resolves it in the other
        // process.
        let remote = parts.map(|(address, _, iov_len)| libc::iovec {
            iov_base: std::ptr::without_provenance_mut(address_here(address)),
            iov_len,
        });
        Ok(Self { pid, local, remote })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmapped_memory_is_an_error() {
        let mut bytes = [7; 8];
        assert!(read(std::process::id(), 16, Dst::from(&mut bytes[..])).is_err());
        assert!(read(u32::MAX, 16, Dst::from(&mut bytes[..])).is_err());
        assert_eq!(bytes, [7; 8]);
    }

    #[test]
    fn pieces_are_read_in_order_up_to_unmapped_memory() {
        let source = [1_u8, 2, 3, 4, 5, 6];
        let (mut first, mut second) = ([0; 4], [0; 2]);
        let start = u64::try_from(source.as_ptr().addr()).unwrap();
        let pid = std::process::id();
        let mut both = |second_address| {
            let (first, second) = (Dst::from(&mut first[..]), Dst::from(&mut second[..]));
            read_pieces(pid, [(start, first), (second_address, second)])
        };
        // A sandbox may forbid the system call.
        let Ok(got) = both(start + 4) else { return };
        assert_eq!(got, 6);
        assert_eq!(both(16).unwrap(), 4);
        assert_eq!((first, second), ([1, 2, 3, 4], [5, 6]));
    }

    #[test]
    fn this_process_may_read_itself() {
        let source: Vec<u8> = (0..=255).collect();
        let mut bytes = vec![0; source.len()];
        let address = u64::try_from(source.as_ptr().addr()).unwrap();
        // A sandbox may forbid the system call.
        match read(std::process::id(), address, Dst::from(bytes.as_mut_slice())) {
            Ok(got) => assert_eq!((got, bytes), (source.len(), source)),
            Err(cause) => {
                assert!(matches!(cause.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)), "{cause}")
            }
        }
    }

    #[test]
    fn own_memory_is_written_up_to_unmapped_memory() {
        let (mut target, pid) = ([0_u8; 6], std::process::id());
        let start = u64::try_from(target.as_mut_ptr().expose_provenance()).unwrap();
        let put = |second_address| {
            write_pieces(
                pid,
                [(start, Src::from(&[1; 4][..])), (second_address, Src::from(&[2; 2][..]))],
            )
        };
        // A sandbox may forbid the system call.
        let Ok(whole) = put(start + 4) else { return };
        assert_eq!(whole, 6);
        assert_eq!(put(16).unwrap(), 4);
        assert!(write_pieces(pid, [(16, Src::from(&[1; 4][..]))]).is_err());
        assert!(write_pieces(u32::MAX, [(start, Src::from(&[1; 4][..]))]).is_err());
        assert_eq!(std::hint::black_box(target), [1, 1, 1, 1, 2, 2]);
    }
}
