//! Small files that are read and written as a whole.
//!
//! An open of a named pipe does not wait for a writer. A read starts at the beginning of the file,
//! is independent of other readers, and is limited in length. A write creates the file with all its
//! content or not at all. It does not replace a file that another process has created, except on
//! file systems without hard links.

use super::descriptor::{self, above_standard_streams};
use super::file;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::RawFd;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Opens a file for reading. A named pipe without a writer is opened at once, without waiting.
///
/// # Errors
/// The error of the system.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    above_standard_streams(OpenOptions::new().read(true).custom_flags(flags).open(path))
}

/// Reads a text file of the kernel, for example in `/proc`.
///
/// # Errors
/// The error of the system.
pub fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    let mut text = String::new();
    above_standard_streams(File::open(path))?.read_to_string(&mut text)?;
    Ok(text)
}

/// Reads a file of the kernel that may have bytes that are not text.
///
/// # Errors
/// The error of the system.
pub fn read_bytes(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    above_standard_streams(File::open(path))?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens a copy of a descriptor that this process has inherited. The original stays open in this
/// process. The programs that this process executes do not inherit it.
///
/// # Errors
/// The error of the system, for example if the descriptor does not exist.
pub fn from_inherited_fd(fd: RawFd) -> io::Result<File> {
    let copy = descriptor::copy(fd)?;
    descriptor::close_on_exec(fd)?;
    Ok(File::from(copy))
}

/// Reads from the beginning of a file until `bytes` is full or the file ends; returns the number of
/// bytes. The read neither uses nor changes the position of the open file, so other readers of the
/// same open file are not affected.
///
/// # Errors
/// The error of the system, for example if the file is a pipe.
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

/// Creates a file with this content. Returns false if a file of this name exists; that file is
/// unchanged.
///
/// # Errors
/// The error of the system. No file is created after an error.
pub fn create_atomically(path: &Path, content: &[u8]) -> io::Result<bool> {
    if path.symlink_metadata().is_ok() {
        return Ok(false);
    }
    let draft = draft_path(path);
    let written =
        above_standard_streams(OpenOptions::new().write(true).create_new(true).open(&draft))
            .and_then(|file| file::write_all_at(&file, content, 0));
    let outcome = written.and_then(|()| match fs::hard_link(&draft, path) {
        Ok(()) => Ok(true),
        Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        // The file system has no hard links. The rename replaces a file that another process
        // created after the check above.
        Err(_) => fs::rename(&draft, path).map(|()| true),
    });
    // After a rename, the draft no longer exists.
    drop(fs::remove_file(&draft));
    outcome
}

/// Removes a file that has exactly this content. Returns false if the content differs or the file
/// does not exist.
///
/// # Errors
/// The error of the system.
pub fn remove_if_same(path: &Path, content: &[u8]) -> io::Result<bool> {
    let mut found = vec![0; content.len() + 1];
    let length = match open(path).and_then(|file| read_from_start(&file, &mut found)) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(false),
        length => length?,
    };
    if &found[..length] != content {
        return Ok(false);
    }
    fs::remove_file(path).map(|()| true)
}

/// Returns the temporary path in the same folder, which contains this process's ID.
fn draft_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.draft", std::process::id()));
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::shm;
    use std::os::fd::AsRawFd as _;

    #[test]
    fn read_from_start_keeps_the_file_position() {
        let mut original = File::from(shm::create_sealed_file(b"0123456789").unwrap());
        let copy = from_inherited_fd(original.as_raw_fd()).unwrap();
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
    fn missing_file_or_descriptor_is_an_error() {
        assert!(from_inherited_fd(-1).is_err());
        assert!(open(Path::new("/no/such/file")).is_err());
        let (reader, _writer) = io::pipe().unwrap();
        let file = from_inherited_fd(reader.as_raw_fd()).unwrap();
        assert!(read_from_start(&file, &mut [0; 4]).is_err());
    }

    #[test]
    fn file_is_created_atomically_without_replacing() {
        let folder = std::env::temp_dir().join(format!("dist-whole-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("file");
        assert!(create_atomically(&path, b"first").unwrap());
        assert!(!create_atomically(&path, b"second").unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        for other in [&b"firs"[..], b"first and more", b"other"] {
            assert!(!remove_if_same(&path, other).unwrap());
        }
        assert!(remove_if_same(&path, b"first").unwrap());
        assert!(!remove_if_same(&path, b"first").unwrap());
        assert!(create_atomically(&folder.join("no/such/folder"), b"").is_err());
        fs::remove_dir(&folder).unwrap();
    }
}
