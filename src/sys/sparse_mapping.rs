//! A large range of addresses over a file in memory, of which parts are given memory and lose it
//! again.
//!
//! Nothing is named; its size is fixed for ever, so that whoever maps its descriptor can trust it.
//! Pages are reserved before they are used, so that a full memory limit is an error here and not a
//! SIGBUS later; what has no memory cannot be touched.

use super::shm::{check_length, create_memfd, reserve, seal};
use super::{host, limits};
use crate::base::error::{Error, ErrorKind, Result};
use std::ffi::CStr;
use std::fmt::Display;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt as _;
use std::ptr::null_mut;

/// What addresses and parts are multiples of: a huge page.
pub const COMMIT_UNIT: usize = 2 << 20;

/// What its file is called, for people, and for those who are told of it.
pub(super) const MEMFD_NAME: &CStr = c"libdist-arena";

/// What another process needs to find a range: the number that its descriptor has in its process,
/// and the number of its file, by which it is known to be the one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemfdIdentity {
    /// Of the process that made it.
    pub descriptor: u32,
    /// Not 0.
    pub inode: u64,
}

/// The range.
#[derive(Debug)]
pub struct SparseMapping {
    file: File,
    base: usize,
    len: usize,
}

impl SparseMapping {
    /// A range as long as this host's memory, of which nothing is there yet; shorter where this
    /// process may not have that many addresses or a file of that length. Begins at a multiple of
    /// [`COMMIT_UNIT`].
    ///
    /// # Errors
    /// `OutOfMemory`, also where not even a [`COMMIT_UNIT`] is possible, or `System`.
    pub fn create() -> Result<Self> {
        let total = usize::try_from(host::memory_total().unwrap_or(1 << 40)).unwrap_or(usize::MAX);
        let limit = usize::try_from(limits::max_file_bytes()?).unwrap_or(usize::MAX);
        let mut len = (total.min(limit) / COMMIT_UNIT * COMMIT_UNIT).max(COMMIT_UNIT);
        loop {
            let file = create_file(len)?;
            match reserve_addresses(len) {
                Ok(base) => return Ok(Self { file, base, len }),
                Err(error) if error.kind() == ErrorKind::OutOfMemory && len >= 2 * COMMIT_UNIT => {
                    len = len / 2 / COMMIT_UNIT * COMMIT_UNIT;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The address of the first byte.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.base)
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for a range of no bytes, which [`SparseMapping::create`] never makes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What others find it by ([`PeerMapping`](super::window::Window)).
    ///
    /// # Errors
    /// `System`.
    pub fn identity(&self) -> Result<MemfdIdentity> {
        let found = self.file.metadata().map_err(|e| Error::system("fstat of an arena", &e))?;
        let descriptor = u32::try_from(self.file.as_raw_fd()).unwrap_or(u32::MAX);
        Ok(MemfdIdentity { descriptor, inode: found.ino() })
    }

    /// Gives a part memory, zero bytes, near the calling thread and in huge pages where the kernel
    /// can. `offset` and `len` are multiples of [`COMMIT_UNIT`].
    ///
    /// # Errors
    /// `OutOfMemory` with the sizes, and then the part has none; or `System`.
    pub fn commit(&self, offset: usize, len: usize) -> Result<()> {
        self.check_part(offset, len);
        let remedy = "free some or raise the memory limit";
        if let Err(error) =
            reserve(&self.file, offset, len, remedy).and_then(|()| self.map_part(offset, len))
        {
            self.release(offset, len);
            return Err(error);
        }
        // Both only make the first use cheaper, and older kernels know neither.
        for advice in [libc::MADV_COLLAPSE, libc::MADV_POPULATE_WRITE] {
            // SAFETY: the part is mapped, and ours; neither advice changes what it holds.
            unsafe { libc::madvise(self.pointer_at(offset), len, advice) };
        }
        Ok(())
    }

    /// Gives the memory of a part back. Its addresses stay reserved, and cannot be used.
    pub fn release(&self, offset: usize, len: usize) {
        self.check_part(offset, len);
        let flags = NO_ACCESS | libc::MAP_FIXED;
        // SAFETY: replaces a part of the range, which is ours and which nobody uses any more. Where
        // it fails, the part stays.
        unsafe { libc::mmap(self.pointer_at(offset), len, libc::PROT_NONE, flags, -1, 0) };
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let part = libc::off_t::try_from(offset).ok().zip(libc::off_t::try_from(len).ok());
        if let Some((offset, len)) = part {
            // SAFETY: touches no memory but what is given up. Where it fails, the memory stays with
            // us.
            unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset, len) };
        }
    }

    /// Puts a part of the file at its place.
    fn map_part(&self, offset: usize, len: usize) -> Result<()> {
        let from = libc::off_t::try_from(offset).unwrap_or(libc::off_t::MAX);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (flags, fd) = (libc::MAP_SHARED | libc::MAP_FIXED, self.file.as_raw_fd());
        // SAFETY: replaces a part of the range, which is ours and which nobody uses yet.
        let mapped = unsafe { libc::mmap(self.pointer_at(offset), len, access, flags, fd, from) };
        if mapped == libc::MAP_FAILED {
            return Err(last_os_error(&format_args!("mapping {len} bytes of an arena")));
        }
        Ok(())
    }

    fn pointer_at(&self, offset: usize) -> *mut libc::c_void {
        self.as_mut_ptr().wrapping_add(offset).cast()
    }

    fn check_part(&self, offset: usize, len: usize) {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(fits && (offset | len).is_multiple_of(COMMIT_UNIT), "no part: {offset}, {len}");
    }
}

impl Drop for SparseMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody can use it any more.
        unsafe { libc::munmap(self.as_mut_ptr().cast(), self.len) };
    }
}

/// A mapping that cannot be used and takes no memory.
const NO_ACCESS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// A sealed file of that length.
fn create_file(len: usize) -> Result<File> {
    check_length(len)?;
    let file = create_memfd(MEMFD_NAME)?;
    let size = libc::off_t::try_from(len)
        .map_err(|_| Error::invalid(format!("an arena of {len} bytes is too large")))?;
    // SAFETY: touches no memory.
    if unsafe { libc::ftruncate(file.as_raw_fd(), size) } != 0 {
        return Err(last_os_error(&format_args!("making an arena of {len} bytes")));
    }
    seal(&file, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)?;
    Ok(file)
}

/// The first of that many addresses, a multiple of [`COMMIT_UNIT`], that nothing else will get.
pub(super) fn reserve_addresses(len: usize) -> Result<usize> {
    let space = len + COMMIT_UNIT;
    // SAFETY: a fresh mapping without access; no existing memory is touched.
    let found = unsafe { libc::mmap(null_mut(), space, libc::PROT_NONE, NO_ACCESS, -1, 0) };
    if found == libc::MAP_FAILED {
        return Err(last_os_error(&format_args!("reserving {len} addresses for an arena")));
    }
    let base = found.expose_provenance().next_multiple_of(COMMIT_UNIT);
    let before = base - found.addr();
    for (start, len) in [(0, before), (before + len, COMMIT_UNIT - before)] {
        if len > 0 {
            // SAFETY: an end of the mapping just made, of which nobody else knows.
            unsafe { libc::munmap(found.wrapping_byte_add(start), len) };
        }
    }
    Ok(base)
}

fn last_os_error(what: &dyn Display) -> Error {
    Error::system(what, &io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_has_memory_until_released() {
        let sparse = SparseMapping::create().unwrap();
        assert!(
            sparse.len() >= 4 * COMMIT_UNIT
                && sparse.as_mut_ptr().addr().is_multiple_of(COMMIT_UNIT)
        );
        sparse.commit(COMMIT_UNIT, COMMIT_UNIT).unwrap();
        let last = sparse.as_mut_ptr().wrapping_add(2 * COMMIT_UNIT - 1);
        // SAFETY: the part has just been given memory, and only this thread knows of it.
        unsafe { last.write(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { last.read() }, 7);
        sparse.release(COMMIT_UNIT, COMMIT_UNIT);
        sparse.commit(COMMIT_UNIT, COMMIT_UNIT).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { last.read() }, 0);
    }

    #[test]
    fn oversized_commit_error_names_the_size() {
        let sparse = SparseMapping::create().unwrap();
        let error = sparse.commit(0, sparse.len()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert!(error.message().contains(&sparse.len().to_string()), "{error}");
    }
}
