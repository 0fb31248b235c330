//! Reading small files whole: opened without waiting for anybody, read from the beginning whatever
//! others read meanwhile, and never more than a limit.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Opens a file for reading. A pipe with a name that nobody writes to is opened too, instead of waited
/// for.
///
/// # Errors
/// The reason as the system gives it.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// The file behind a descriptor that this process has inherited. The descriptor stays open.
///
/// # Errors
/// The reason as the system gives it, for instance that there is no such descriptor.
pub fn behind(fd: RawFd) -> io::Result<File> {
    // SAFETY: takes integers and touches no memory; the number need not be that of an open descriptor.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(copy) }))
}

/// Fills `bytes` from the beginning of a file as far as it goes, and returns how far that is. Where
/// others read through the same open file, neither disturbs the other.
///
/// # Errors
/// The reason as the system gives it, for instance that the file is a pipe.
pub fn read_from_start(file: &File, bytes: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < bytes.len() {
        match file.read_at(&mut bytes[got..], got as u64) {
            Ok(0) => break,
            Ok(count) => got += count,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(got)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::shm;
    use std::io::Read as _;
    use std::os::fd::AsRawFd as _;

    #[test]
    fn reading_from_the_start_moves_nobodys_position() {
        let mut original = File::from(shm::sealed_file(b"0123456789").unwrap());
        let copy = behind(original.as_raw_fd()).unwrap();
        let mut bytes = [0; 4];
        original.read_exact(&mut bytes).unwrap();
        let mut all = [0; 20];
        assert_eq!(read_from_start(&copy, &mut all).unwrap(), 10);
        assert_eq!(&all[..10], b"0123456789");
        assert_eq!(read_from_start(&copy, &mut all[..3]).unwrap(), 3);
        original.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"4567");
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        assert!(behind(-1).is_err());
        assert!(open(Path::new("/no/such/file")).is_err());
        let (reader, _writer) = io::pipe().unwrap();
        let file = behind(reader.as_raw_fd()).unwrap();
        assert!(read_from_start(&file, &mut [0; 4]).is_err());
    }
}
