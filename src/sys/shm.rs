//! Anonymous memory that processes share by passing its descriptor. It has no name, so no file is
//! left behind if a process dies.

use crate::base::error::{Error, ErrorKind, Result};
use crate::sys::{descriptor, host, limits};
use memmap2::{MmapOptions, MmapRaw};
use std::ffi::CStr;
use std::fmt::Display;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;

/// A mapped shared memory segment and its descriptor.
#[derive(Debug)]
pub struct Segment {
    file: File,
    map: MmapRaw,
}

impl Segment {
    /// Creates a segment of `len` zero bytes, and allocates all its pages. The size is sealed: no
    /// process can change it.
    ///
    /// # Errors
    /// As for [`Segment::create_sparse`].
    pub fn create(len: usize) -> Result<Self> {
        Self::create_sparse(len, len)
    }

    /// Creates a segment of `len` zero bytes. The size is sealed: no process can change it. The
    /// pages of the first `reserved` bytes are allocated in this call, so that an exhausted memory
    /// limit is an error of this call and not a later SIGBUS. [`SegmentMapping::reserve`] allocates
    /// further pages before their use.
    ///
    /// # Errors
    /// `OutOfMemory`, with the requested size in the error text, also if less than `len` bytes of
    /// memory are available; `System`.
    pub fn create_sparse(len: usize, reserved: usize) -> Result<Self> {
        check_length(len)?;
        let file = create_memfd(c"libdist")?;
        check_available(len, REMEDY)?;
        let size = u64::try_from(len).unwrap_or(u64::MAX);
        file.set_len(size).map_err(|cause| Error::system("ftruncate of a segment", cause))?;
        allocate(&file, 0, reserved, REMEDY)?;
        seal(&file, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)?;
        Self::map(file, len)
    }

    /// Returns whether the limit of this process on the size of files (`ulimit -f`) is smaller than
    /// a segment of `len` bytes.
    ///
    /// # Errors
    /// `System`.
    pub fn exceeds_file_limit(len: usize) -> Result<bool> {
        limits::max_file_bytes().map(|limit| u64::try_from(len).is_ok_and(|len| len > limit))
    }

    /// Returns the mapping, and the descriptor to pass it to other processes. The mapping does not
    /// need the descriptor, except on kernels older than 5.14.
    ///
    /// # Errors
    /// `System`.
    pub fn into_mapping(self) -> Result<(SegmentMapping, OwnedFd)> {
        let Self { file, map } = self;
        // An empty range tells only whether the kernel knows the advice.
        let can_populate = populate(map.as_mut_ptr(), 0).is_ok();
        let kept = match can_populate {
            true => None,
            false => {
                let copy = file.try_clone();
                Some(copy.map_err(|cause| Error::system("duplicating a descriptor", cause))?)
            }
        };
        Ok((SegmentMapping { map, file: kept }, file.into()))
    }

    /// Maps a segment whose descriptor came from another process. The descriptor must be that of a
    /// segment of exactly `len` bytes that no process can shrink.
    ///
    /// # Errors
    /// `Connection` if the descriptor is not that of such a segment; `System` or `OutOfMemory` if
    /// the segment cannot be mapped.
    pub fn open(fd: OwnedFd, len: usize) -> Result<Self> {
        let file = File::from(fd);
        let size = file.metadata().map_err(|e| Error::system("fstat of a segment", e))?.len();
        // SAFETY: F_GET_SEALS touches no memory.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        let sealed = seals >= 0 && seals & libc::F_SEAL_SHRINK != 0;
        if usize::try_from(size) != Ok(len) || !sealed {
            let message = format!(
                "the received descriptor is not a sealed segment of {len} bytes (its size is {size} bytes)"
            );
            return Err(Error::new(ErrorKind::Connection, message));
        }
        Self::map(file, len)
    }

    /// Returns the address of the first byte.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Returns true for an empty segment, which [`Segment::create`] never returns.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the descriptor, to pass it to another process.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn map(file: File, len: usize) -> Result<Self> {
        let map = MmapOptions::new().len(len).map_raw(&file).map_err(|cause| {
            Error::system(format_args!("mapping a shared segment of {len} bytes"), cause)
        })?;
        Ok(Self { file, map })
    }
}

/// The mapping of a shared memory segment.
#[derive(Debug)]
pub struct SegmentMapping {
    map: MmapRaw,
    /// The descriptor, on kernels that allocate the pages of a mapping only through it.
    file: Option<File>,
}

impl SegmentMapping {
    /// Returns the address of the first byte.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Returns true for an empty segment, which [`Segment::create`] never returns.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Allocates the pages of a range of whole pages, and maps them if the kernel can, so that
    /// their first access causes no page faults. Does not check the available memory again:
    /// [`Segment::create_sparse`] has checked it for the whole segment.
    ///
    /// # Errors
    /// `OutOfMemory` with the size, or `System`.
    ///
    /// # Panics
    /// If the range is outside of the segment.
    pub fn reserve(&self, offset: usize, len: usize) -> Result<()> {
        assert!(len <= self.len() && offset <= self.len() - len, "{offset} + {len} bytes");
        if let Some(file) = &self.file {
            return allocate(file, offset, len, REMEDY);
        }
        populate(self.as_mut_ptr().wrapping_add(offset), len).map_err(|cause| {
            // The kernel reports EFAULT if an access to the pages would cause a SIGBUS, because
            // there is no memory for them.
            match cause.raw_os_error() {
                Some(libc::EFAULT | libc::ENOMEM) => {
                    out_of_memory(len, &cause, REMEDY).with_source(cause)
                }
                _ => Error::system("allocating shared memory", cause),
            }
        })
    }
}

/// Allocates and maps the pages of a range of whole pages in a shared mapping. Does not change the
/// content of pages that exist.
///
/// # Errors
/// The error of the system; `InvalidInput` if the kernel is older than 5.14.
fn populate(start: *mut u8, len: usize) -> std::io::Result<()> {
    loop {
        // SAFETY: the caller owns the mapped range; the advice does not change its content.
        if unsafe { libc::madvise(start.cast(), len, libc::MADV_POPULATE_WRITE) } == 0 {
            return Ok(());
        }
        let cause = std::io::Error::last_os_error();
        // The kernel returns EAGAIN or EINTR in states that pass.
        if !matches!(cause.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) {
            return Err(cause);
        }
    }
}

/// Creates a sealed in-memory file with this content, to pass it to processes that inherit its
/// descriptor. No process can change it.
///
/// # Errors
/// `OutOfMemory` or `System`.
pub fn create_sealed_file(bytes: &[u8]) -> Result<OwnedFd> {
    check_length(bytes.len())?;
    let file = create_memfd(c"libdist-sealed")?;
    file.write_all_at(bytes, 0)
        .map_err(|cause| Error::system("writing an in-memory file", cause))?;
    seal(&file, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE)?;
    Ok(file.into())
}

/// Fails if an in-memory file of `len` bytes would exceed the file size limit of this process.
/// Without this check, the kernel would end the process by SIGXFSZ when the file grows.
pub(super) fn check_length(len: usize) -> Result<()> {
    if !Segment::exceeds_file_limit(len)? {
        return Ok(());
    }
    let limit = limits::max_file_bytes()?;
    let reason = format!("the limit of this process is {limit} bytes per file");
    Err(out_of_memory(len, &reason, "raise the limit (ulimit -f)"))
}

/// Creates an empty in-memory file (memfd), which has no name that a process could open.
pub(super) fn create_memfd(name: &CStr) -> Result<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string; the call creates a new descriptor.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
    let fd = descriptor::from_new(fd).map_err(|cause| denied_call_error("memfd_create", cause))?;
    Ok(File::from(fd))
}

/// Makes the kernel forbid the changes in `seals` (`F_SEAL_` flags) to an in-memory file
/// permanently.
pub(super) fn seal(file: &File, seals: i32) -> Result<()> {
    let seals = seals | libc::F_SEAL_SEAL;
    // SAFETY: F_ADD_SEALS takes an integer and touches no memory.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
        return Err(Error::system("sealing an in-memory file", std::io::Error::last_os_error()));
    }
    Ok(())
}

/// The remedy in the error text if there is no memory for a segment.
const REMEDY: &str = "lower DIST_SHM_SLOT_BYTES or raise the memory limit";

/// The maximum and the minimum number of bytes that [`allocate`] requests from one call of
/// fallocate. The minimum is one page.
const RESERVE_STEPS: (libc::off_t, libc::off_t) = (2 << 20, 4096);

/// Allocates the pages of `len` bytes of an in-memory file from `offset` on, if so much memory is
/// available. `remedy` is the advice in the error text if the memory is exhausted. After an error,
/// some pages may be allocated. ([`SegmentMapping::reserve`] allocates pages without the check of
/// available memory.)
pub(super) fn reserve(file: &File, offset: usize, len: usize, remedy: &str) -> Result<()> {
    check_available(len, remedy)?;
    allocate(file, offset, len, remedy)
}

/// Fails if less than `len` bytes of memory are available. This check is needed if no memory limit
/// is set: the kernel would then kill processes for a segment that is larger than the memory,
/// instead of returning an error.
fn check_available(len: usize, remedy: &str) -> Result<()> {
    match host::memory_available() {
        Some(available) if u64::try_from(len).is_ok_and(|len| len > available) => {
            Err(out_of_memory(len, &format_args!("{available} bytes are available"), remedy))
        }
        _ => Ok(()),
    }
}

/// Like [`reserve`], without the check of the available memory.
///
/// Calls fallocate for one step of the range at a time. If a signal interrupts fallocate, fallocate
/// releases all pages that it has allocated and fails. Under a periodic signal, one fallocate for a
/// large range would therefore never succeed. After an interruption, this function halves the step.
/// A fallocate for a single page is never interrupted.
fn allocate(file: &File, offset: usize, len: usize, remedy: &str) -> Result<()> {
    let end = offset.checked_add(len).and_then(|end| libc::off_t::try_from(end).ok());
    let ends = libc::off_t::try_from(offset).ok().zip(end);
    let (mut done, end) = ends.ok_or_else(|| {
        Error::invalid(format!("a segment of {len} bytes of shared memory is too large"))
    })?;
    let (max_step, min_step) = RESERVE_STEPS;
    let mut step = max_step;
    while done < end {
        let size = step.min(end - done);
        // SAFETY: fallocate touches no memory of this process.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, done, size) } == 0 {
            done += size;
            step = max_step.min(2 * step);
            continue;
        }
        let cause = std::io::Error::last_os_error();
        match cause.raw_os_error() {
            Some(libc::EINTR) => step = min_step.max(step / 2),
            Some(libc::ENOSPC | libc::ENOMEM) => {
                return Err(out_of_memory(len, &cause, remedy).with_source(cause));
            }
            _ if is_denied(&cause) => {
                let mapped = allocate_by_mapping(file, done, end - done);
                return mapped.map_err(|failure| match failure.raw_os_error() {
                    Some(libc::EFAULT | libc::ENOMEM) => {
                        out_of_memory(len, &failure, remedy).with_source(failure)
                    }
                    _ => denied_call_error("fallocate", cause),
                });
            }
            _ => return Err(Error::system("fallocate of shared memory", cause)),
        }
    }
    Ok(())
}

/// Returns whether a security profile (seccomp) has forbidden a system call, or the kernel does not
/// have it.
fn is_denied(cause: &std::io::Error) -> bool {
    matches!(cause.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::ENOSYS))
}

/// Returns the error of a system call that may have been forbidden.
fn denied_call_error(call: &str, cause: std::io::Error) -> Error {
    if is_denied(&cause) {
        let remedy = "allow it in the security profile (seccomp) of this process";
        return Error::system(format_args!("{call} ({remedy})"), cause);
    }
    Error::system(call, cause)
}

/// Allocates the pages of a range of whole pages through a temporary mapping, without fallocate.
///
/// # Errors
/// The error of the system; `EFAULT` if there is no memory, `EINVAL` if the kernel is older than
/// 5.14.
fn allocate_by_mapping(file: &File, offset: libc::off_t, len: libc::off_t) -> std::io::Result<()> {
    let to_usize = |number| usize::try_from(number).map_err(std::io::Error::other);
    let mut options = MmapOptions::new();
    let map = options.offset(offset.unsigned_abs()).len(to_usize(len)?).map_raw(file)?;
    populate(map.as_mut_ptr(), map.len())
}

fn out_of_memory(len: usize, reason: &dyn Display, remedy: &str) -> Error {
    let message = format!("cannot allocate {len} bytes of shared memory ({reason}); {remedy}");
    Error::new(ErrorKind::OutOfMemory, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn a_second_mapping_sees_the_same_bytes() {
        let first = Segment::create_sparse(8192, 4096).unwrap();
        let fd = first.as_fd().try_clone_to_owned().unwrap();
        let second = Segment::open(fd, 8192).unwrap();
        // SAFETY: both mappings are 8192 bytes long, and only this thread uses them.
        unsafe { first.as_mut_ptr().wrapping_add(100).write(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { second.as_mut_ptr().wrapping_add(100).read() }, 7);
    }

    #[test]
    fn a_foreign_descriptor_is_refused() {
        let fd = OwnedFd::from(File::open("/proc/self/exe").unwrap());
        assert_eq!(Segment::open(fd, 8192).unwrap_err().kind(), ErrorKind::Connection);
        let small = Segment::create(4096).unwrap();
        let fd = small.as_fd().try_clone_to_owned().unwrap();
        assert_eq!(Segment::open(fd, 8192).unwrap_err().kind(), ErrorKind::Connection);
    }

    #[test]
    fn sealed_file_cannot_be_changed() {
        let file = File::from(create_sealed_file(b"kept").unwrap());
        assert!(file.write_all_at(b"lost", 0).is_err());
        assert!(file.set_len(0).is_err());
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"kept");
    }

    #[test]
    fn range_is_reserved_completely_in_steps() {
        let file = create_memfd(c"libdist-test").unwrap();
        let (start, len) = (3 * 4096, (2 << 20) + 5 * 4096);
        reserve(&file, start, len, "").unwrap();
        let found = file.metadata().unwrap();
        assert_eq!(usize::try_from(found.len()).unwrap(), start + len);
        let taken = usize::try_from(found.blocks()).unwrap() * 512;
        assert!(taken >= len, "{taken} of {len} bytes");
    }

    #[test]
    fn unreserved_pages_take_no_memory() {
        let segment = Segment::create_sparse(1 << 20, 8192).unwrap();
        let (mapping, file) = segment.into_mapping().unwrap();
        let file = File::from(file);
        let taken = || file.metadata().unwrap().blocks() * 512;
        assert_eq!(taken(), 8192);
        mapping.reserve(256 << 10, 64 << 10).unwrap();
        assert_eq!(taken(), 8192 + (64 << 10));
        // Reserve the whole segment, including the reserved pages.
        mapping.reserve(0, mapping.len()).unwrap();
        assert_eq!(taken(), 1 << 20);
        // The way of older kernels, with the descriptor.
        let other = Segment::create_sparse(1 << 20, 4096).unwrap();
        let (mapping, file) = other.into_mapping().unwrap();
        let (copy, file) = (file.try_clone().unwrap(), File::from(file));
        let mapping = SegmentMapping { file: Some(copy.into()), ..mapping };
        mapping.reserve(256 << 10, 64 << 10).unwrap();
        assert_eq!(file.metadata().unwrap().blocks() * 512, 4096 + (64 << 10));
    }

    #[test]
    fn reserving_keeps_the_content() {
        let (mapping, _file) = Segment::create(8192).unwrap().into_mapping().unwrap();
        // SAFETY: the mapping is 8192 bytes long, and only this thread uses it.
        unsafe { mapping.as_mut_ptr().wrapping_add(5000).write(9) };
        mapping.reserve(0, 8192).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { mapping.as_mut_ptr().wrapping_add(5000).read() }, 9);
    }

    #[test]
    fn oversized_segment_error_names_the_size() {
        let error = Segment::create_sparse(1 << 50, 4096).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert!(error.message().contains("1125899906842624"), "{error}");
    }
}
