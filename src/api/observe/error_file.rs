//! The error file, in which a launcher finds the reason for the failure of this process. The
//! launcher shows the library's error text in its summary.
//!
//! torchrun and distrun set the path of the file in the environment. The file has torchrun's JSON
//! format:
//!
//! | key | value |
//! |---|---|
//! | `message.message` | the text |
//! | `message.extraInfo.py_callstack` | the text again, which torchrun shows |
//! | `message.extraInfo.timestamp` | the time in whole seconds, as text; read by torchrun |
//! | `message.extraInfo.timestamp_us` | the time in microseconds, as text; read by distrun |
//! | `message.extraInfo.culprit` | the rank that caused the error, if another; read by distrun |
//!
//! The library cannot know how its process will end. Therefore the library writes the file when it
//! returns the first fatal error (the failure of a group or of `dist_init`) to the caller. Later
//! errors do not change the file. A launcher reads the file only if the process fails afterwards. A
//! successful `dist_init` removes the library's file, because the process continues. The library
//! never replaces or removes a file that the program has written, and the program may overwrite the
//! library's file. If the file cannot be written, no call fails.
//!
//! torchrun treats the failure with the earliest time as the cause of all failures. If a rank is
//! killed, torchrun uses the time at which it notices the death. The errors of the surviving ranks,
//! which are only consequences, may have an earlier time. Therefore, if an error names another rank
//! as its culprit, `timestamp` is 1 s later than the real time.

use crate::base::config::{self, ERROR_FILE};
use crate::base::error::{Error, ErrorKind};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::process::this_process;
use serde_json::json;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time added to `timestamp` if the culprit is another rank.
const CONSEQUENCE_DELAY: Duration = Duration::from_secs(1);

/// The maximum length of the error text.
const MAX_TEXT_BYTES: usize = 16 << 10;

/// True after the first fatal error, so that later errors cost only a load. The thread that changes
/// this flag to true writes the file.
static HAS_WRITTEN: AtomicBool = AtomicBool::new(false);

/// The path and the content of the file that the library has written.
static WRITTEN_FILE: Mutex<Option<(PathBuf, Vec<u8>)>> = Mutex::new(None);

/// Writes the error file if this is the first fatal error. Called before an error is returned to
/// the program. `culprit` is the culprit's rank in the job; `None` if there is no culprit or this
/// rank is the culprit.
pub(in crate::api) fn write_first_fatal_error(error: &Error, culprit: Option<Rank>) {
    if HAS_WRITTEN.load(Ordering::Relaxed)
        || !is_fatal(error.kind())
        || HAS_WRITTEN.swap(true, Ordering::Relaxed)
    {
        return;
    }
    let Ok(Some(path)) = config::read_text(ERROR_FILE) else { return };
    let path = PathBuf::from(path);
    let content = render_error_file(error, culprit, SystemTime::now());
    match this_process::create_file(&path, &content) {
        Ok(true) => *lock_written_file() = Some((path, content)),
        Ok(false) => {}
        Err(cause) => crate::log!(LogLevel::Warn, "cannot write the error file: {cause}"),
    }
}

/// Removes the file that the library has written, because the process continues. The next fatal
/// error counts as the first again.
pub(in crate::api) fn retract() {
    let written = lock_written_file().take();
    HAS_WRITTEN.store(false, Ordering::Relaxed);
    let Some((path, content)) = written else { return };
    if let Err(cause) = this_process::remove_file_if_same(&path, &content) {
        crate::log!(LogLevel::Warn, "cannot remove the error file: {cause}");
    }
}

/// Returns whether a process is likely to end after an error of this kind. An error for a wrong
/// argument or a wrong state is not fatal, because the call has had no effect.
fn is_fatal(kind: ErrorKind) -> bool {
    match kind {
        ErrorKind::InvalidArgument
        | ErrorKind::InvalidHandle
        | ErrorKind::NotInitialized
        | ErrorKind::AlreadyInitialized
        | ErrorKind::Unsupported
        | ErrorKind::NotFound
        | ErrorKind::QueueEmpty
        | ErrorKind::NotANumber => false,
        ErrorKind::Timeout
        | ErrorKind::PeerFailed
        | ErrorKind::Mismatch
        | ErrorKind::Deadlock
        | ErrorKind::Aborted
        | ErrorKind::Connection
        | ErrorKind::Auth
        | ErrorKind::OutOfMemory
        | ErrorKind::System
        | ErrorKind::Backend
        | ErrorKind::Internal => true,
    }
}

fn render_error_file(error: &Error, culprit: Option<Rank>, now: SystemTime) -> Vec<u8> {
    let text = error.message();
    let mut end = text.len().min(MAX_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let text = format!("libdist: {}", &text[..end]);
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let dated = if culprit.is_some() { since + CONSEQUENCE_DELAY } else { since };
    let mut extra_info = json!({
        "py_callstack": text,
        "timestamp": dated.as_secs().to_string(),
        "timestamp_us": since.as_micros().to_string(),
    });
    if let Some(rank) = culprit {
        extra_info["culprit"] = json!(rank.to_string());
    }
    json!({ "message": { "message": text, "extraInfo": extra_info } }).to_string().into_bytes()
}

fn lock_written_file() -> MutexGuard<'static, Option<(PathBuf, Vec<u8>)>> {
    lock(&WRITTEN_FILE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn rendered_message(error: &Error, culprit: Option<Rank>) -> Value {
        let now = UNIX_EPOCH + Duration::from_micros(1_700_000_000_250_000);
        let value: Value = serde_json::from_slice(&render_error_file(error, culprit, now)).unwrap();
        assert_eq!(value["message"]["message"], value["message"]["extraInfo"]["py_callstack"]);
        value["message"].clone()
    }

    #[test]
    fn torchrun_format_dates_a_consequence_after_its_cause() {
        let error = Error::new(ErrorKind::PeerFailed, "rank 2 died: \"é\"\nand so on");
        let own = rendered_message(&error, None);
        assert_eq!(own["message"], "libdist: rank 2 died: \"é\"\nand so on");
        assert_eq!(own["extraInfo"]["timestamp"], "1700000000");
        assert!(own["extraInfo"].get("culprit").is_none());
        let other = rendered_message(&error, Some(2));
        assert_eq!(other["extraInfo"]["timestamp"], "1700000001");
        assert_eq!(other["extraInfo"]["timestamp_us"], "1700000000250000");
        assert_eq!(other["extraInfo"]["culprit"], "2");
    }

    #[test]
    fn long_text_is_cut_at_a_char_boundary() {
        let long = rendered_message(&Error::internal("é".repeat(MAX_TEXT_BYTES)), None);
        assert_eq!(long["message"].as_str().unwrap().len(), "libdist: ".len() + MAX_TEXT_BYTES);
    }

    #[test]
    fn a_callers_mistake_is_not_fatal() {
        assert!(is_fatal(ErrorKind::PeerFailed) && is_fatal(ErrorKind::Timeout));
        assert!(!is_fatal(ErrorKind::InvalidArgument) && !is_fatal(ErrorKind::Unsupported));
    }
}
