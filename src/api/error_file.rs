//! The error file: what a launcher reads when this process has failed, so that its summary has our
//! words.
//!
//! torchrun and distrun name it in the environment. Its form is torchrun's: `descriptor.descriptor`
//! is the text (and once more as `descriptor.extraInfo.py_callstack`, which is what torchrun
//! shows), `descriptor.extraInfo.timestamp` the time in whole seconds, as text. Beside it stand
//! `timestamp_us` and, where another rank is to blame, `culprit`, which distrun reads.
//!
//! The library cannot know how its process will end. So the first fatal error, which is the failure
//! of a group or of `dist_init`, is written when it is handed to the caller, and once; a launcher
//! reads it only where the process then fails. A `dist_init` that succeeds takes it back: the
//! process goes on. What the program has written there itself stays, and it may replace what is
//! written here. Nothing fails because the file cannot be written.
//!
//! torchrun takes the failure with the smallest time for the cause of all, and gives a killed rank
//! the time at which it notices the death, which may be later than what survivors tell. So an error
//! that blames another rank is dated a second later than it was.

use crate::base::config::{self, ERROR_FILE};
use crate::base::error::{Error, ErrorKind};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::process::this_process;
use serde_json::json;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How much later an error is dated that another rank is to blame for.
const CONSEQUENCE_DELAY: Duration = Duration::from_secs(1);

/// The longest text that is kept of an error.
const MAX_TEXT_BYTES: usize = 16 << 10;

/// True once there is nothing more to write, so that later errors cost nothing. Whoever sets it
/// writes.
static HAS_WRITTEN: AtomicBool = AtomicBool::new(false);

/// What was written, and where.
static WRITTEN_FILE: Mutex<Option<(PathBuf, Vec<u8>)>> = Mutex::new(None);

/// Notes a fatal error that a caller is about to be given. `culprit` is the rank of the job to
/// blame, if it is another than this one.
pub(super) fn write_first_fatal_error(error: &Error, culprit: Option<Rank>) {
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
        Err(cause) => crate::log!(LogLevel::Warn, "the error file cannot be written: {cause}"),
    }
}

/// The process goes on after what was noted: takes it back, and the next fatal error is the first
/// again.
pub(super) fn retract() {
    let written = lock_written_file().take();
    HAS_WRITTEN.store(false, Ordering::Relaxed);
    let Some((path, content)) = written else { return };
    if let Err(cause) = this_process::remove_file_if_same(&path, &content) {
        crate::log!(LogLevel::Warn, "the error file stays: {cause}");
    }
}

/// Whether a process is likely to end with such an error of a group. What is the caller's mistake
/// changes nothing.
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
    WRITTEN_FILE.lock().unwrap_or_else(PoisonError::into_inner)
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
