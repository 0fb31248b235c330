//! One process's open file of a file store. It reads new records and appends records.
//!
//! The functions here do not lock the file. Their comments say which lock the caller must hold, and
//! the functions of the module `lock` take these locks. For a read, the caller holds the file lock,
//! shared or exclusive, so that no process is writing a record. For a write, the caller holds the
//! file lock exclusively and has read all earlier records.

use super::record::{FileFormatError, FileHeader, LogRecord};
use super::replay::LogReplay;
use crate::base::log::LogLevel;
use crate::base::{Error, ErrorKind, Result};
use crate::sys::descriptor::above_standard_streams;
use crate::sys::file;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// The number of bytes that one read call requests. If a record is longer, the call requests the
/// whole record.
const CHUNK_BYTES: u64 = 256 << 10;

/// The remedy in error messages for a file that cannot be used.
pub(super) const REMEDY: &str = "remove the file, or choose another path";

/// The end of the bytes that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogTail {
    /// The bytes end with a complete record.
    Complete,
    /// The bytes end with an incomplete record, whose writer died.
    Torn,
}

/// The open file and the state that its records describe.
#[derive(Debug)]
pub(super) struct FileLog {
    path: PathBuf,
    file: File,
    replay: LogReplay,
    /// All bytes before this offset have been read.
    position: u64,
}

impl FileLog {
    /// Opens the file, and creates an empty one if it is missing.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let context = || format!("cannot open the file store {}", path.display());
        let mut options = File::options();
        // Only this user has access, because a process that can write to the file can harm the job.
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = above_standard_streams(options.open(path));
        let file = file.map_err(|cause| Error::system(context(), cause))?;
        let metadata = file.metadata().map_err(|cause| Error::system(context(), cause))?;
        if !metadata.is_file() {
            return Err(Error::invalid(format!("{} is not a regular file", path.display())));
        }
        Ok(Self { path: path.to_owned(), file, replay: LogReplay::default(), position: 0 })
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the state after the records read so far.
    pub(super) fn replay(&self) -> &LogReplay {
        &self.replay
    }

    /// Returns true if the path still names this file. Returns false if the file was removed or
    /// replaced after this process opened it.
    pub(super) fn is_linked(&self) -> Result<bool> {
        let opened = self.metadata()?;
        match fs::metadata(&self.path) {
            Ok(linked) => {
                Ok(opened.nlink() > 0
                    && (opened.dev(), opened.ino()) == (linked.dev(), linked.ino()))
            }
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(cause) => Err(self.io_error("get the status of", cause)),
        }
    }

    /// Returns true if the file size differs from the read position. Needs no lock.
    pub(super) fn has_unread_bytes(&self) -> Result<bool> {
        Ok(self.size()? != self.position)
    }

    /// Reads new records. The caller holds the lock, shared or exclusive.
    pub(super) fn catch_up(&mut self) -> Result<LogTail> {
        let size = self.size()?;
        let mut wanted = CHUNK_BYTES;
        let mut chunk = Vec::new();
        while self.position < size {
            let left = size - self.position;
            let length =
                usize::try_from(wanted.min(left)).map_err(|_| self.record_too_long_error())?;
            chunk.resize(length, 0);
            self.file
                .read_exact_at(&mut chunk, self.position)
                .map_err(|cause| self.io_error("read", cause))?;
            let (progress, violation) = self.replay.read(&chunk);
            self.position += progress.consumed as u64;
            if let Some(violation) = violation {
                return Err(self.format_error(violation));
            }
            if progress.needed as u64 > size - self.position {
                return Ok(if self.position == size { LogTail::Complete } else { LogTail::Torn });
            }
            wanted = CHUNK_BYTES.max(progress.needed as u64);
        }
        Ok(LogTail::Complete)
    }

    /// Reads new records and truncates a torn tail. The caller holds the exclusive lock.
    pub(super) fn catch_up_and_truncate(&mut self) -> Result<()> {
        match self.catch_up()? {
            LogTail::Complete => Ok(()),
            LogTail::Torn => self.truncate_torn_tail(),
        }
    }

    fn truncate_torn_tail(&self) -> Result<()> {
        let at = self.position;
        crate::log!(
            LogLevel::Warn,
            "the file store {} ends with an incomplete record, whose writer died; truncating it at offset {at}",
            self.path.display()
        );
        self.file
            .set_len(at)
            .map_err(|cause| self.io_error("truncate an incomplete record of", cause))
    }

    /// Writes the header and the first record to an empty file. The caller holds the exclusive
    /// lock.
    pub(super) fn write_header(&mut self, header: FileHeader, first: &LogRecord<'_>) -> Result<()> {
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        first.encode(&mut bytes);
        self.write(&bytes)?;
        self.replay.set_header(header);
        self.apply(first)
    }

    /// Appends a record. The caller holds the exclusive lock and has read all earlier records. If
    /// the write fails, nothing is stored.
    pub(super) fn append(&mut self, record: &LogRecord<'_>) -> Result<()> {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        self.write(&bytes)?;
        self.apply(record)
    }

    /// Removes the file. The caller holds the exclusive lock. A process that opened the file before
    /// the removal gets the lock after it, and then sees with [`FileLog::is_linked`] that the file
    /// was removed.
    pub(super) fn remove(&self) -> Result<()> {
        fs::remove_file(&self.path).map_err(|cause| self.io_error("remove", cause))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if let Err(cause) = file::write_all_at(&self.file, bytes, self.position) {
            if let Err(cause) = self.file.set_len(self.position) {
                // The next writer truncates the torn record.
                crate::log!(
                    LogLevel::Warn,
                    "{}",
                    self.io_error("truncate an incomplete record of", cause)
                );
            }
            return Err(self.write_error(cause));
        }
        self.position += bytes.len() as u64;
        Ok(())
    }

    fn apply(&mut self, record: &LogRecord<'_>) -> Result<()> {
        self.replay.apply(record).map_err(|violation| self.format_error(violation))
    }

    fn metadata(&self) -> Result<Metadata> {
        self.file.metadata().map_err(|cause| self.io_error("get the status of", cause))
    }

    /// Returns the size of the file, after checking that it was not removed and did not become
    /// shorter.
    fn size(&self) -> Result<u64> {
        let metadata = self.metadata()?;
        let path = self.path.display();
        let message = if metadata.nlink() == 0 {
            format!("the file store {path} was removed while this process used it; restart the job")
        } else if metadata.len() < self.position {
            format!(
                "the file store {path} became shorter: another program changed it; restart the job with another path"
            )
        } else {
            return Ok(metadata.len());
        };
        Err(Error::new(ErrorKind::Connection, message))
    }

    /// Builds the error of a failed system call on the file.
    pub(super) fn io_error(&self, action: &str, cause: io::Error) -> Error {
        let message = format!("cannot {action} the file store {}: {cause}", self.path.display());
        Error::new(ErrorKind::System, message).with_source(cause)
    }

    /// Builds the error of a failed write, with the cause and a remedy.
    fn write_error(&self, cause: io::Error) -> Error {
        let path = self.path.display();
        let reason = match cause.kind() {
            io::ErrorKind::StorageFull => format!("the file system of {path} is full"),
            io::ErrorKind::QuotaExceeded => format!("the disk quota for {path} is used up"),
            io::ErrorKind::FileTooLarge => {
                format!("{path} has reached the maximum file size of this process or file system")
            }
            _ => format!("cannot write to {path}"),
        };
        let message = format!("{reason}: {cause}; nothing was stored");
        Error::new(ErrorKind::System, message).with_source(cause)
    }

    fn format_error(&self, violation: FileFormatError) -> Error {
        let path = self.path.display();
        let message = match violation {
            FileFormatError::BadMagic => {
                format!("{path} is not a libdist store file; choose another path")
            }
            FileFormatError::UnsupportedVersion(_) => {
                format!("the file store {path} cannot be read: {violation}; {REMEDY}")
            }
            _ => {
                let at = self.position;
                format!("the file store {path} is damaged at offset {at}: {violation}; {REMEDY}")
            }
        };
        Error::new(ErrorKind::Mismatch, message)
    }

    fn record_too_long_error(&self) -> Error {
        Error::internal(format!(
            "a record of the file store {} is larger than the address space",
            self.path.display()
        ))
    }
}
