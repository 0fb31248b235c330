//! [`PeerMapping`]: the [`SparseMapping`](super::sparse_mapping::SparseMapping) of another process,
//! mapped into this process. This process opens the memory's file as `/proc/PID/fd/N`, where N is
//! the descriptor number in the other process.
//!
//! The other process sends the identity of its memory ([`MemfdIdentity`]: a descriptor number and
//! an inode number), which is not trusted. The opened file must be the exact file that the identity
//! names, a memfd created for this purpose, and its size must be sealed. The kernel permits the
//! open only if this process may access the other process.
//!
//! A range of the mapping becomes accessible only when the caller requests a view of the range. The
//! reason: a read of a range without memory would allocate memory in the other process.

use super::descriptor::above_standard_streams;
use super::sparse_mapping::{self, COMMIT_UNIT, MemfdIdentity};
use crate::base::buffer::Dst;
use crate::base::error::{Error, ErrorKind, Result};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::sync::atomic::{AtomicBool, Ordering};

/// A mapping of another process's memory range.
#[derive(Debug)]
pub struct PeerMapping {
    base: usize,
    len: usize,
    /// For each [`COMMIT_UNIT`] of the mapping: true if the unit is accessible.
    accessible_units: Box<[AtomicBool]>,
}

impl PeerMapping {
    /// Maps the memory of process `pid` that has this identity. The process ID must be from this
    /// process's own [`super::host::pid_namespace`].
    ///
    /// # Errors
    /// `Connection` if the file does not match the identity, `System` if it may not be opened,
    /// `OutOfMemory` if this process has not enough address space.
    pub fn open(pid: u32, identity: MemfdIdentity) -> Result<Self> {
        let file = open_descriptor(pid, identity)?;
        let found = file.metadata().map_err(|cause| Error::system("fstat of an arena", cause))?;
        // SAFETY: F_GET_SEALS touches no memory.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        let is_sealed = seals >= 0 && seals & libc::F_SEAL_SHRINK != 0;
        let len = usize::try_from(found.len()).unwrap_or(0);
        if found.ino() != identity.inode
            || !is_sealed
            || len == 0
            || !len.is_multiple_of(COMMIT_UNIT)
        {
            return Err(foreign_error(pid, identity));
        }
        let base = sparse_mapping::reserve_addresses(len)?;
        let window = Self {
            base,
            len,
            accessible_units: (0..len / COMMIT_UNIT).map(|_| false.into()).collect(),
        };
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the call replaces addresses that were just reserved and that no other code uses.
        let mapped = unsafe {
            libc::mmap(window.pointer_at(0), len, libc::PROT_NONE, flags, file.as_raw_fd(), 0)
        };
        if mapped == libc::MAP_FAILED {
            let cause = std::io::Error::last_os_error();
            return Err(Error::system(format_args!("mapping an arena of {len} bytes"), cause));
        }
        // A core dump of this process does not include the memory of the other process. Older
        // kernels may not support the advice.
        // SAFETY: the range is mapped and owned by this object; the advice does not change its
        // content.
        unsafe { libc::madvise(window.pointer_at(0), len, libc::MADV_DONTDUMP) };
        Ok(window)
    }

    /// Returns a view of a range of the mapping. The other process may change or release the range
    /// at any time; a released range reads as zero. The kernel maps the pages of the range during
    /// this call if it can, so that the first access causes no page faults.
    ///
    /// # Errors
    /// `Connection` if the range is beyond the end of the mapping; `System`.
    pub fn view(&self, offset: u64, len: usize) -> Result<Dst<'_>> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.checked_add(len).filter(|&end| end <= self.len).ok_or_else(|| {
            let message =
                format!("{len} bytes at offset {offset} exceed an arena of {} bytes", self.len);
            Error::new(ErrorKind::Connection, message)
        })?;
        if len > 0 {
            (start / COMMIT_UNIT..end.div_ceil(COMMIT_UNIT))
                .try_for_each(|unit| self.ensure_accessible(unit))?;
        }
        // SAFETY: the file is mapped as long as `self` lives, and its length is fixed. The whole
        // range is readable and writable. No reference to its bytes is ever created.
        Ok(unsafe { Dst::new(self.pointer_at(start).cast(), len) })
    }

    #[inline]
    fn ensure_accessible(&self, unit: usize) -> Result<()> {
        if self.accessible_units[unit].load(Ordering::Acquire) {
            Ok(())
        } else {
            self.make_accessible(unit)
        }
    }

    /// Makes a unit accessible. Several threads may do this at the same time.
    #[cold]
    fn make_accessible(&self, unit: usize) -> Result<()> {
        let (start, access) =
            (self.pointer_at(unit * COMMIT_UNIT), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: the unit is mapped and owned by this object; no code depends on its being
        // inaccessible.
        if unsafe { libc::mprotect(start, COMMIT_UNIT, access) } != 0 {
            let cause = std::io::Error::last_os_error();
            return Err(Error::system("making a part of an arena accessible (mprotect)", cause));
        }
        // SAFETY: as above; the advice does not change the content.
        unsafe { libc::madvise(start, COMMIT_UNIT, libc::MADV_POPULATE_WRITE) };
        self.accessible_units[unit].store(true, Ordering::Release);
        Ok(())
    }

    fn pointer_at(&self, offset: usize) -> *mut libc::c_void {
        std::ptr::with_exposed_provenance_mut::<libc::c_void>(self.base).wrapping_byte_add(offset)
    }
}

impl Drop for PeerMapping {
    fn drop(&mut self) {
        // SAFETY: this object owns the mapping, and no code can use it any more.
        unsafe { libc::munmap(self.pointer_at(0), self.len) };
    }
}

/// Opens a descriptor of another process if its file has the name that [`sparse_mapping`] gives to
/// its files. Opening any other file could have side effects.
fn open_descriptor(pid: u32, identity: MemfdIdentity) -> Result<File> {
    let path = format!("/proc/{pid}/fd/{}", identity.descriptor);
    let open_error = |cause: std::io::Error| Error::system(format_args!("opening {path}"), cause);
    let name = fs::read_link(&path).map_err(&open_error)?;
    if !name
        .to_string_lossy()
        .starts_with(&format!("/memfd:{}", sparse_mapping::MEMFD_NAME.to_string_lossy()))
    {
        return Err(foreign_error(pid, identity));
    }
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    let opened = File::options().read(true).write(true).custom_flags(flags).open(&path);
    above_standard_streams(opened).map_err(&open_error)
}

fn foreign_error(pid: u32, identity: MemfdIdentity) -> Error {
    let message = format!("process {pid} has no arena with {identity:?}");
    Error::new(ErrorKind::Connection, message)
}

#[cfg(test)]
mod tests {
    use super::super::sparse_mapping::SparseMapping;
    use super::*;
    use crate::base::buffer::Src;

    fn here(identity: MemfdIdentity) -> Result<PeerMapping> {
        PeerMapping::open(std::process::id(), identity)
    }

    #[test]
    fn peer_mapping_shows_the_same_bytes() {
        let sparse = SparseMapping::create().unwrap();
        sparse.commit(COMMIT_UNIT, COMMIT_UNIT).unwrap();
        let window = here(sparse.identity().unwrap()).unwrap();
        let at = (COMMIT_UNIT + 100) as u64;
        window.view(at, 4).unwrap().copy_from(Src::from(&[1_u8, 2, 3, 4][..]));
        let last = sparse.as_mut_ptr().wrapping_add(COMMIT_UNIT + 103);
        // SAFETY: the range has memory, and only this thread uses it.
        assert_eq!(unsafe { last.read() }, 4);
        let base = window.view(0, 0).unwrap().as_mut_ptr().addr();
        assert_eq!(base % COMMIT_UNIT, 0);
        let open =
            || window.accessible_units.iter().filter(|unit| unit.load(Ordering::Relaxed)).count();
        assert_eq!(open(), 1);
        window.view(2 * COMMIT_UNIT as u64 - 1, 2).unwrap();
        assert_eq!(open(), 2);
        for (offset, len) in [(sparse.len() as u64 - 1, 2), (u64::MAX, 1), (1, usize::MAX)] {
            assert_eq!(window.view(offset, len).unwrap_err().kind(), ErrorKind::Connection);
        }
    }

    #[test]
    fn foreign_or_swapped_descriptor_is_refused() {
        let (one, other) = (SparseMapping::create().unwrap(), SparseMapping::create().unwrap());
        let (one, other) = (one.identity().unwrap(), other.identity().unwrap());
        let swapped = MemfdIdentity { inode: other.inode, ..one };
        assert_eq!(here(swapped).unwrap_err().kind(), ErrorKind::Connection);
        let file = File::open("/proc/self/exe").unwrap();
        let descriptor = u32::try_from(file.as_raw_fd()).unwrap();
        let inode = file.metadata().unwrap().ino();
        let error = here(MemfdIdentity { descriptor, inode }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Connection);
        let nothing = MemfdIdentity { descriptor: u32::MAX, ..one };
        assert_eq!(here(nothing).unwrap_err().kind(), ErrorKind::System);
    }
}
