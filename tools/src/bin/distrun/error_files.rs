//! The error files. Each rank gets the path of a file, and writes its error there before it exits.
//! distrun reads the file for its report. The folder of these files also gets the dumps that the
//! ranks write when a group fails, unless the user has chosen another place for them.
//!
//! A rank may write anything to its file. So the reader limits the number of bytes, and accepts
//! files that are not well-formed.

use crate::cli::Options;
use dist::sys::{host, small_file};
use dist_tools::Failure;
use serde_json::Value;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// The largest number of bytes that is read from a file.
const MAX_ERROR_FILE_BYTES: usize = 256 << 10;

const ERROR_FILE_NAME: &str = "error.json";

/// The beginning of the names of the ranks' dumps. A rank adds its number and `.json`.
const DUMP_PREFIX: &str = "flight_recorder_";

/// The location of the error files of this node's ranks.
#[derive(Debug)]
pub(crate) struct ErrorFiles {
    /// A temporary folder for the error files of a job without logs.
    own_folder: Option<PathBuf>,
    /// The prefix of the ranks' dumps, as an absolute path.
    dump_prefix: PathBuf,
}

impl ErrorFiles {
    /// Places the error files in the log folders, if the job has logs. Otherwise creates a
    /// temporary folder, which the drop removes.
    ///
    /// # Errors
    /// The reason why the folder cannot be created.
    pub(crate) fn new(options: &Options) -> Result<Self, Failure> {
        if let Some(logs) = &options.log_dir {
            let dump_prefix = std::path::absolute(logs.join(DUMP_PREFIX));
            let dump_prefix = dump_prefix.map_err(|cause| Failure::new(cause.to_string()))?;
            return Ok(Self { own_folder: None, dump_prefix });
        }
        let folder = std::env::temp_dir().join(format!("distrun-{}", host::random_nonce()?));
        fs::DirBuilder::new().mode(0o700).create(&folder).map_err(|cause| {
            Failure::new(format!(
                "cannot create the folder {} for the ranks' error files: {cause}; TMPDIR can name another parent folder",
                folder.display()
            ))
        })?;
        let dump_prefix = folder.join(DUMP_PREFIX);
        Ok(Self { own_folder: Some(folder), dump_prefix })
    }

    /// Returns the prefix of the names of the ranks' dumps.
    pub(crate) fn dump_prefix(&self) -> &Path {
        &self.dump_prefix
    }

    /// Removes the error files of a failed job, and keeps the ranks' dumps. Returns the prefix of
    /// their names, if there are dumps.
    pub(crate) fn into_kept_dumps(mut self) -> Option<PathBuf> {
        let folder = self.dump_prefix.parent()?;
        let files: Vec<_> = fs::read_dir(folder).ok()?.flatten().collect();
        let is_dump = |file: &fs::DirEntry| {
            file.file_name().to_str().is_some_and(|name| name.starts_with(DUMP_PREFIX))
        };
        if !files.iter().any(is_dump) {
            return None;
        }
        if self.own_folder.take().is_some() {
            let others = files.iter().filter(|file| !is_dump(file));
            // A file that cannot be removed does not change the outcome of the job.
            others.for_each(|file| drop(fs::remove_file(file.path())));
        }
        Some(std::mem::take(&mut self.dump_prefix))
    }

    /// Removes the error file and the dump of an earlier job, and returns the path of a rank's
    /// error file. `log_folder` is the rank's log folder, if any. The path is absolute, because a
    /// rank may change its working directory.
    ///
    /// # Errors
    /// The reason why the file cannot be written.
    pub(crate) fn prepare(
        &self,
        rank: usize,
        log_folder: Option<&Path>,
    ) -> Result<PathBuf, Failure> {
        let path = match (&self.own_folder, log_folder) {
            (None, Some(logs)) => logs.join(ERROR_FILE_NAME),
            (own, _) => own.clone().unwrap_or_default().join(format!("{rank}.json")),
        };
        let fail = |cause| {
            Failure::new(format!("cannot prepare the error file {}: {cause}", path.display()))
        };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(fail)?;
        }
        let dump = PathBuf::from(format!("{}{rank}.json", self.dump_prefix.display()));
        for outdated in [&path, &dump] {
            match fs::remove_file(outdated) {
                Err(cause) if cause.kind() != ErrorKind::NotFound => return Err(fail(cause)),
                _ => {}
            }
        }
        std::path::absolute(&path).map_err(fail)
    }
}

impl Drop for ErrorFiles {
    fn drop(&mut self) {
        if let Some(folder) = &self.own_folder {
            // If the folder cannot be removed, the job does not fail.
            drop(fs::remove_dir_all(folder));
        }
    }
}

/// The error in a rank's error file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RankError {
    /// The error text, which may have several lines.
    pub(crate) text: String,
    /// The rank that this rank names as the cause, if it is another rank.
    pub(crate) culprit: Option<usize>,
}

/// Reads a rank's error file. Returns `None` if the file contains no readable error.
pub(crate) fn read_error_file(path: &Path) -> Option<RankError> {
    let file = small_file::open(path).ok()?;
    let mut bytes = vec![0; MAX_ERROR_FILE_BYTES];
    let length = small_file::read_from_start(&file, &mut bytes).ok()?;
    parse_error(&bytes[..length])
}

/// Parses torchrun's format: the message is a text, or an object with a traceback or a text.
fn parse_error(bytes: &[u8]) -> Option<RankError> {
    let value: Value = serde_json::from_slice(bytes).ok()?;
    let message = value.get("message")?;
    let extra = message.get("extraInfo");
    let text = message
        .as_str()
        .or_else(|| extra?.get("py_callstack")?.as_str())
        .or_else(|| message.get("message")?.as_str())?;
    let culprit = extra.and_then(|extra| extra.get("culprit")?.as_str()?.parse().ok());
    let text = text.trim_end();
    (!text.is_empty()).then(|| RankError { text: text.to_owned(), culprit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_files_of_torch_and_libdist_are_parsed() {
        let parsed =
            |text: &str| parse_error(text.as_bytes()).map(|error| (error.text, error.culprit));
        let plain = r#"{"message": "out of apples", "timestamp": 17}"#;
        assert_eq!(parsed(plain), Some(("out of apples".into(), None)));
        let torch = r#"{"message": {"message": "E: x", "extraInfo": {"py_callstack": "Trace\n E: x\n",
                        "timestamp": "17"}}}"#;
        assert_eq!(parsed(torch), Some(("Trace\n E: x".into(), None)));
        let own = r#"{"message": {"message": "rank 2 died", "extraInfo": {"timestamp": "17", "culprit": "2"}}}"#;
        assert_eq!(parsed(own), Some(("rank 2 died".into(), Some(2))));
        for invalid in ["", "{", "[]", "{\"message\": 3}", "{\"message\": \" \"}", "\"text\""] {
            assert_eq!(parsed(invalid), None, "{invalid}");
        }
    }
}
