//! [`SparseMapping`]: a large mapping of an in-memory file. Only some ranges of the mapping have
//! memory. The caller commits memory to a range, uses the range, and releases the memory again.
//!
//! The file has no name, and its size is sealed, so that a process that maps its descriptor can
//! trust the size. [`SparseMapping::commit`] allocates pages before they are used, so that an
//! exhausted memory limit is an error of that call and not a later SIGBUS. A range without memory
//! is inaccessible.

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

/// The addresses and lengths of ranges are multiples of this number, the size of a huge page.
pub const COMMIT_UNIT: usize = 2 << 20;

/// The name of the in-memory file, for users and for the check in [`super::peer_mapping`].
pub(super) const MEMFD_NAME: &CStr = c"libdist-arena";

/// The identity of a mapping for other processes: the descriptor number in the creating process, by
/// which they open the file, and the inode number, by which they verify the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemfdIdentity {
    /// The descriptor number in the creating process.
    pub descriptor: u32,
    /// The inode number; never 0.
    pub inode: u64,
}

/// A large mapping with memory in some ranges only.
#[derive(Debug)]
pub struct SparseMapping {
    file: File,
    base: usize,
    len: usize,
}

impl SparseMapping {
    /// Creates a mapping that is as long as this host's memory, but has no memory yet. The mapping
    /// is shorter if the limits of this process do not permit so many addresses or so long a file.
    /// Its address is a multiple of [`COMMIT_UNIT`].
    ///
    /// # Errors
    /// `OutOfMemory`, also if not even one [`COMMIT_UNIT`] is possible; `System`.
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

    /// Returns the address of the first byte.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.base)
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true for an empty mapping, which [`SparseMapping::create`] never returns.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the identity with which other processes map the same memory
    /// ([`PeerMapping`](super::peer_mapping::PeerMapping)).
    ///
    /// # Errors
    /// `System`.
    pub fn identity(&self) -> Result<MemfdIdentity> {
        let found = self.file.metadata().map_err(|e| Error::system("fstat of an arena", e))?;
        let descriptor = u32::try_from(self.file.as_raw_fd()).unwrap_or(u32::MAX);
        Ok(MemfdIdentity { descriptor, inode: found.ino() })
    }

    /// Allocates zeroed memory for a range, close to the calling thread (NUMA) and in huge pages if
    /// the kernel can. `offset` and `len` are multiples of [`COMMIT_UNIT`].
    ///
    /// # Errors
    /// `OutOfMemory` with the sizes, or `System`. After an error, the range has no memory.
    pub fn commit(&self, offset: usize, len: usize) -> Result<()> {
        self.check_part(offset, len);
        let remedy = "free memory or raise the memory limit";
        if let Err(error) =
            reserve(&self.file, offset, len, remedy).and_then(|()| self.map_part(offset, len))
        {
            self.release(offset, len);
            return Err(error);
        }
        // Both kinds of advice only make the first access cheaper. Older kernels support neither.
        for advice in [libc::MADV_COLLAPSE, libc::MADV_POPULATE_WRITE] {
            // SAFETY: the range is mapped and owned by this object; neither advice changes its
            // content.
            unsafe { libc::madvise(self.pointer_at(offset), len, advice) };
        }
        Ok(())
    }

    /// Releases the memory of a range. Its addresses stay reserved and inaccessible.
    pub fn release(&self, offset: usize, len: usize) {
        self.check_part(offset, len);
        self.punch_hole(offset, len);
        let flags = NO_ACCESS | libc::MAP_FIXED;
        // SAFETY: the call replaces a range that this object owns and that no code uses any more.
        // If it fails, the range stays mapped.
        unsafe { libc::mmap(self.pointer_at(offset), len, libc::PROT_NONE, flags, -1, 0) };
    }

    /// Releases the pages of a range of the file.
    fn punch_hole(&self, offset: usize, len: usize) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let range = libc::off_t::try_from(offset).ok().zip(libc::off_t::try_from(len).ok());
        let Some((from, count)) = range else { return };
        // SAFETY: the call touches only the memory that is released.
        if unsafe { libc::fallocate(self.file.as_raw_fd(), mode, from, count) } != 0 {
            // A security profile may forbid fallocate. If the range is not mapped, it has no pages,
            // and the call fails without an effect.
            // SAFETY: as above; the range belongs to this object.
            unsafe { libc::madvise(self.pointer_at(offset), len, libc::MADV_REMOVE) };
        }
    }

    /// Maps a range of the file at its address.
    fn map_part(&self, offset: usize, len: usize) -> Result<()> {
        let from = libc::off_t::try_from(offset).unwrap_or(libc::off_t::MAX);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (flags, fd) = (libc::MAP_SHARED | libc::MAP_FIXED, self.file.as_raw_fd());
        // SAFETY: the call replaces a range that this object owns and that no code uses yet.
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
        assert!(
            fits && (offset | len).is_multiple_of(COMMIT_UNIT),
            "not a part of the arena: {offset}, {len}"
        );
    }
}

impl Drop for SparseMapping {
    fn drop(&mut self) {
        // SAFETY: this object owns the mapping, and no code can use it any more.
        unsafe { libc::munmap(self.as_mut_ptr().cast(), self.len) };
    }
}

/// The flags of an inaccessible mapping, which takes no memory.
const NO_ACCESS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Creates a sealed file of this length.
fn create_file(len: usize) -> Result<File> {
    check_length(len)?;
    let file = create_memfd(MEMFD_NAME)?;
    let size = libc::off_t::try_from(len)
        .map_err(|_| Error::invalid(format!("an arena of {len} bytes is too large")))?;
    // SAFETY: the call touches no memory.
    if unsafe { libc::ftruncate(file.as_raw_fd(), size) } != 0 {
        return Err(last_os_error(&format_args!("creating an arena of {len} bytes")));
    }
    seal(&file, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)?;
    Ok(file)
}

/// Reserves `len` addresses and returns the first of them, a multiple of [`COMMIT_UNIT`].
pub(super) fn reserve_addresses(len: usize) -> Result<usize> {
    let space = len + COMMIT_UNIT;
    // SAFETY: a new mapping without access; the call touches no existing memory.
    let found = unsafe { libc::mmap(null_mut(), space, libc::PROT_NONE, NO_ACCESS, -1, 0) };
    if found == libc::MAP_FAILED {
        return Err(last_os_error(&format_args!("reserving {len} addresses for an arena")));
    }
    let base = found.expose_provenance().next_multiple_of(COMMIT_UNIT);
    let before = base - found.addr();
    for (start, len) in [(0, before), (before + len, COMMIT_UNIT - before)] {
        if len > 0 {
            // SAFETY: one end of the new mapping, which no other code uses.
            unsafe { libc::munmap(found.wrapping_byte_add(start), len) };
        }
    }
    Ok(base)
}

fn last_os_error(what: &dyn Display) -> Error {
    Error::system(what, io::Error::last_os_error())
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
        // SAFETY: the range was just given memory, and only this thread uses it.
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
