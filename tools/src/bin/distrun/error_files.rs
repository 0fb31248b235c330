//! The error files. Each rank gets the path of a file, and writes its error there before it exits.
//! distrun reads the file for its report.
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

/// The location of the error files of this node's ranks.
#[derive(Debug)]
pub(crate) struct ErrorFiles {
    /// A temporary folder for the error files of a job without logs.
    own_folder: Option<PathBuf>,
}

impl ErrorFiles {
    /// Places the error files in the log folders, if the job has logs. Otherwise creates a
    /// temporary folder, which the drop removes.
    ///
    /// # Errors
    /// The reason why the folder cannot be created.
    pub(crate) fn new(options: &Options) -> Result<Self, Failure> {
        if options.log_dir.is_some() {
            return Ok(Self { own_folder: None });
        }
        let folder = std::env::temp_dir().join(format!("distrun-{}", host::random_nonce()?));
        fs::DirBuilder::new().mode(0o700).create(&folder).map_err(|cause| {
            Failure::new(format!(
                "cannot create the folder {} for the ranks' error files: {cause}; TMPDIR can name another parent folder",
                folder.display()
            ))
        })?;
        Ok(Self { own_folder: Some(folder) })
    }

    /// Removes the error file of an earlier job, and returns the path of a rank's error file.
    /// `log_folder` is the rank's log folder, if any. The path is absolute, because a rank may
    /// change its working directory.
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
        match fs::remove_file(&path) {
            Err(cause) if cause.kind() != ErrorKind::NotFound => return Err(fail(cause)),
            _ => {}
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
