//! The range of another process ([`Sparse`](super::sparse::Sparse)), mapped here by the number that
//! its descriptor has there.
//!
//! What that process says of its descriptor is not believed: whatever is opened must be the very
//! file that it names, in memory, made for this, and of a size that is fixed for ever. The kernel
//! lets those open it who may look into the process.
//!
//! Only parts that were asked for can be touched: to read where the other process has nothing would
//! give it memory there.

use super::sparse::{self, Identity, UNIT};
use crate::base::buffer::Dst;
use crate::base::error::{Error, ErrorKind, Result};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::sync::atomic::{AtomicBool, Ordering};

/// A range of another process.
#[derive(Debug)]
pub struct Window {
    base: usize,
    len: usize,
    /// For each [`UNIT`], whether it can be touched.
    open: Box<[AtomicBool]>,
}

impl Window {
    /// Maps the range with this identity of a process, whose id must be of this process's own
    /// [`super::host::pid_space`].
    ///
    /// # Errors
    /// `Connection` where that is something else, `System` where it may not be opened,
    /// `OutOfMemory` where this process may not have as many addresses.
    pub fn open(pid: u32, identity: Identity) -> Result<Self> {
        let file = open(pid, identity)?;
        let found = file.metadata().map_err(|cause| Error::system("fstat of an arena", &cause))?;
        // SAFETY: F_GET_SEALS touches no memory.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        let is_sealed = seals >= 0 && seals & libc::F_SEAL_SHRINK != 0;
        let len = usize::try_from(found.len()).unwrap_or(0);
        if found.ino() != identity.inode || !is_sealed || len == 0 || !len.is_multiple_of(UNIT) {
            return Err(foreign(pid, identity));
        }
        let base = sparse::addresses(len)?;
        let window = Self { base, len, open: (0..len / UNIT).map(|_| false.into()).collect() };
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: replaces addresses that were just reserved, of which nobody else knows.
        let mapped =
            unsafe { libc::mmap(window.at(0), len, libc::PROT_NONE, flags, file.as_raw_fd(), 0) };
        if mapped == libc::MAP_FAILED {
            let cause = std::io::Error::last_os_error();
            return Err(Error::system(format_args!("mapping an arena of {len} bytes"), &cause));
        }
        // What the other process has is no part of this one's core. Older kernels need not know it.
        // SAFETY: the range is mapped, and ours; the advice does not change what it holds.
        unsafe { libc::madvise(window.at(0), len, libc::MADV_DONTDUMP) };
        Ok(window)
    }

    /// A part of it, which the other process may change or give up at any time; what it has given
    /// up is zero. Its pages are mapped at once, where the kernel can: its first use costs no more
    /// faults.
    ///
    /// # Errors
    /// `Connection` where the range is shorter; `System`.
    pub fn part(&self, offset: u64, len: usize) -> Result<Dst<'_>> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.checked_add(len).filter(|&end| end <= self.len).ok_or_else(|| {
            let message = format!("{len} bytes at {offset} of an arena that has {}", self.len);
            Error::new(ErrorKind::Connection, message)
        })?;
        if len > 0 {
            (start / UNIT..end.div_ceil(UNIT)).try_for_each(|unit| self.open_unit(unit))?;
        }
        // SAFETY: the file is mapped for as long as `self` lives, and is as long as that for ever;
        // all of the part can be read and written. No reference to its bytes is ever made.
        Ok(unsafe { Dst::new(self.at(start).cast(), len) })
    }

    #[inline]
    fn open_unit(&self, unit: usize) -> Result<()> {
        if self.open[unit].load(Ordering::Acquire) { Ok(()) } else { self.open_anew(unit) }
    }

    /// Several threads may do that at once.
    #[cold]
    fn open_anew(&self, unit: usize) -> Result<()> {
        let (start, access) = (self.at(unit * UNIT), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: the unit is mapped, and ours; nobody counts on not being able to touch it.
        if unsafe { libc::mprotect(start, UNIT, access) } != 0 {
            let cause = std::io::Error::last_os_error();
            return Err(Error::system("opening a part of an arena", &cause));
        }
        // SAFETY: as above; the advice does not change what it holds.
        unsafe { libc::madvise(start, UNIT, libc::MADV_POPULATE_WRITE) };
        self.open[unit].store(true, Ordering::Release);
        Ok(())
    }

    fn at(&self, offset: usize) -> *mut libc::c_void {
        std::ptr::with_exposed_provenance_mut::<libc::c_void>(self.base).wrapping_byte_add(offset)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody can use it any more.
        unsafe { libc::munmap(self.at(0), self.len) };
    }
}

/// Opens a descriptor of another process, if its name is that of a range: to open anything else
/// might have effects.
fn open(pid: u32, identity: Identity) -> Result<File> {
    let path = format!("/proc/{pid}/fd/{}", identity.descriptor);
    let refused = |cause: &std::io::Error| Error::system(format_args!("opening {path}"), cause);
    let name = fs::read_link(&path).map_err(|cause| refused(&cause))?;
    if !name.to_string_lossy().starts_with(&format!("/memfd:{}", sparse::NAME.to_string_lossy())) {
        return Err(foreign(pid, identity));
    }
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    let opened = File::options().read(true).write(true).custom_flags(flags).open(&path);
    opened.map_err(|cause| refused(&cause))
}

fn foreign(pid: u32, identity: Identity) -> Error {
    let message = format!("process {pid} has no arena with {identity:?}");
    Error::new(ErrorKind::Connection, message)
}

#[cfg(test)]
mod tests {
    use super::super::sparse::Sparse;
    use super::*;
    use crate::base::buffer::Src;

    fn here(identity: Identity) -> Result<Window> {
        Window::open(std::process::id(), identity)
    }

    #[test]
    fn a_window_shows_the_same_bytes() {
        let sparse = Sparse::create().unwrap();
        sparse.commit(UNIT, UNIT).unwrap();
        let window = here(sparse.identity().unwrap()).unwrap();
        let at = (UNIT + 100) as u64;
        window.part(at, 4).unwrap().copy_from(Src::from(&[1_u8, 2, 3, 4][..]));
        let last = sparse.as_mut_ptr().wrapping_add(UNIT + 103);
        // SAFETY: the part has memory, and only this thread knows of it.
        assert_eq!(unsafe { last.read() }, 4);
        let base = window.part(0, 0).unwrap().as_mut_ptr().addr();
        assert_eq!(base % UNIT, 0);
        let open = || window.open.iter().filter(|unit| unit.load(Ordering::Relaxed)).count();
        assert_eq!(open(), 1);
        window.part(2 * UNIT as u64 - 1, 2).unwrap();
        assert_eq!(open(), 2);
        for (offset, len) in [(sparse.len() as u64 - 1, 2), (u64::MAX, 1), (1, usize::MAX)] {
            assert_eq!(window.part(offset, len).unwrap_err().kind(), ErrorKind::Connection);
        }
    }

    #[test]
    fn what_is_no_range_or_another_one_is_refused() {
        let (one, other) = (Sparse::create().unwrap(), Sparse::create().unwrap());
        let (one, other) = (one.identity().unwrap(), other.identity().unwrap());
        let swapped = Identity { inode: other.inode, ..one };
        assert_eq!(here(swapped).unwrap_err().kind(), ErrorKind::Connection);
        let file = File::open("/proc/self/exe").unwrap();
        let descriptor = u32::try_from(file.as_raw_fd()).unwrap();
        let inode = file.metadata().unwrap().ino();
        let error = here(Identity { descriptor, inode }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Connection);
        let nothing = Identity { descriptor: u32::MAX, ..one };
        assert_eq!(here(nothing).unwrap_err().kind(), ErrorKind::System);
    }
}
