//! One process's hold on the file: what it has read of it, and how it adds to it.
//!
//! What is said of locks here is the caller's obligation (`lock` fulfils it): whoever reads holds
//! the file's lock at least shared, so that no record is just being written; whoever writes holds
//! it exclusively and has read everything first.

use super::record::{Header, Record, Violation};
use super::replay::Replay;
use crate::base::log::Level;
use crate::base::{Error, ErrorKind, Result};
use crate::sys::file;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// How much is read at once, unless one record takes more.
const CHUNK_BYTES: u64 = 256 << 10;

/// What to do about a file that cannot be used.
pub(super) const REMEDY: &str = "remove it, or choose another path";

/// How what has been read ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tail {
    /// With a whole record.
    Whole,
    /// With the beginning of one, whose writer has died.
    Torn,
}

/// The open file and what it says.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    file: File,
    replay: Replay,
    /// Everything before this offset has been read.
    position: u64,
}

impl Log {
    /// Opens the file, and makes an empty one where there is none.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let what = || format!("opening the file store {}", path.display());
        let mut options = File::options();
        // For this user alone, since whoever can write to it can harm the job.
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(path).map_err(|cause| Error::system(what(), &cause))?;
        let metadata = file.metadata().map_err(|cause| Error::system(what(), &cause))?;
        if !metadata.is_file() {
            return Err(Error::invalid(format!("{} is not a regular file", path.display())));
        }
        Ok(Self { path: path.to_owned(), file, replay: Replay::default(), position: 0 })
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What has been read so far.
    pub(super) fn replay(&self) -> &Replay {
        &self.replay
    }

    /// True where the path still leads to this file: it was not removed since it was opened.
    pub(super) fn is_linked(&self) -> Result<bool> {
        let mine = self.metadata()?;
        match fs::metadata(&self.path) {
            Ok(there) => {
                Ok(mine.nlink() > 0 && (mine.dev(), mine.ino()) == (there.dev(), there.ino()))
            }
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(cause) => Err(self.failed("looking at", &cause)),
        }
    }

    /// Whether the file does not end where it was read to. Needs no lock.
    pub(super) fn has_news(&self) -> Result<bool> {
        Ok(self.size()? != self.position)
    }

    /// Reads what is new. Under a lock, shared or exclusive.
    pub(super) fn catch_up(&mut self) -> Result<Tail> {
        let size = self.size()?;
        let mut wanted = CHUNK_BYTES;
        let mut chunk = Vec::new();
        while self.position < size {
            let left = size - self.position;
            let length = usize::try_from(wanted.min(left)).map_err(|_| self.too_long())?;
            chunk.resize(length, 0);
            self.file
                .read_exact_at(&mut chunk, self.position)
                .map_err(|cause| self.failed("reading", &cause))?;
            let (progress, violation) = self.replay.read(&chunk);
            self.position += progress.used as u64;
            if let Some(violation) = violation {
                return Err(self.damaged(violation));
            }
            if progress.needed as u64 > size - self.position {
                return Ok(if self.position == size { Tail::Whole } else { Tail::Torn });
            }
            wanted = CHUNK_BYTES.max(progress.needed as u64);
        }
        Ok(Tail::Whole)
    }

    /// Reads what is new, and cuts off a torn tail. Under the exclusive lock.
    pub(super) fn settle(&mut self) -> Result<()> {
        match self.catch_up()? {
            Tail::Whole => Ok(()),
            Tail::Torn => self.mend(),
        }
    }

    fn mend(&self) -> Result<()> {
        let at = self.position;
        crate::log!(Level::Warn, "{}: a writer died at offset {at}", self.path.display());
        self.file.set_len(at).map_err(|cause| self.failed("cutting a torn record off", &cause))
    }

    /// Writes the header and the first record. Under the exclusive lock, to an empty file.
    pub(super) fn begin(&mut self, header: Header, first: &Record<'_>) -> Result<()> {
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        first.encode(&mut bytes);
        self.write(&bytes)?;
        self.replay.begin(header);
        self.apply(first)
    }

    /// Adds a record. Under the exclusive lock, when all others have been read. Where it fails,
    /// nothing is stored.
    pub(super) fn append(&mut self, record: &Record<'_>) -> Result<()> {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        self.write(&bytes)?;
        self.apply(record)
    }

    /// Removes the file. Under the exclusive lock, so that whoever opens it sees that it has gone.
    pub(super) fn remove(&self) -> Result<()> {
        fs::remove_file(&self.path).map_err(|cause| self.failed("removing", &cause))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if let Err(cause) = file::write_all_at(&self.file, bytes, self.position) {
            if let Err(cause) = self.file.set_len(self.position) {
                // The next writer does it.
                crate::log!(Level::Warn, "{}", self.failed("cutting a torn record off", &cause));
            }
            return Err(self.not_written(&cause));
        }
        self.position += bytes.len() as u64;
        Ok(())
    }

    fn apply(&mut self, record: &Record<'_>) -> Result<()> {
        self.replay.apply(record).map_err(|violation| self.damaged(violation))
    }

    fn metadata(&self) -> Result<Metadata> {
        self.file.metadata().map_err(|cause| self.failed("looking at", &cause))
    }

    /// The size of the file, which is still there and has not become shorter.
    fn size(&self) -> Result<u64> {
        let metadata = self.metadata()?;
        let path = self.path.display();
        let message = if metadata.nlink() == 0 {
            format!("the file store {path} has been removed by somebody while this process used it")
        } else if metadata.len() < self.position {
            format!("the file store {path} has become shorter: something else has written to it")
        } else {
            return Ok(metadata.len());
        };
        Err(Error::new(ErrorKind::Connection, message))
    }

    /// A system call on the file that has failed.
    pub(super) fn failed(&self, doing: &str, cause: &io::Error) -> Error {
        Error::new(
            ErrorKind::System,
            format!("{doing} the file store {}: {cause}", self.path.display()),
        )
    }

    /// Why a record could not be written, and what helps.
    fn not_written(&self, cause: &io::Error) -> Error {
        let path = self.path.display();
        let why = match cause.kind() {
            io::ErrorKind::StorageFull => format!("the file system of {path} is full"),
            io::ErrorKind::QuotaExceeded => format!("the disk quota for {path} is used up"),
            io::ErrorKind::FileTooLarge => {
                format!("{path} has the largest size that a file of this process may have")
            }
            _ => format!("writing to {path} failed"),
        };
        Error::new(ErrorKind::System, format!("{why}: {cause}; nothing was stored"))
    }

    fn damaged(&self, violation: Violation) -> Error {
        let path = self.path.display();
        let message = match violation {
            Violation::NotAStore => {
                format!("{path} is not a libdist store file; choose another path")
            }
            Violation::Version(_) => {
                format!("the file store {path} cannot be read: {violation}; {REMEDY}")
            }
            _ => {
                let at = self.position;
                format!("the file store {path} is damaged at offset {at}: {violation}; {REMEDY}")
            }
        };
        Error::new(ErrorKind::Mismatch, message)
    }

    fn too_long(&self) -> Error {
        Error::internal(format!("a record of {} does not fit the memory", self.path.display()))
    }
}
