//! The error file: what a launcher reads when this process has failed, so that its summary has our
//! words.
//!
//! torchrun and distrun name it in the environment. Its form is torchrun's: `message.message` is
//! the text (and once more as `message.extraInfo.py_callstack`, which is what torchrun shows),
//! `message.extraInfo.timestamp` the time in whole seconds, as text. Beside it stand `timestamp_us`
//! and, where another rank is to blame, `culprit`, which distrun reads.
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
use crate::base::log::Level;
use crate::process::this;
use serde_json::json;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How much later an error is dated that another rank is to blame for.
const AFTER_ITS_CAUSE: Duration = Duration::from_secs(1);

/// The longest text that is kept of an error.
const LONGEST: usize = 16 << 10;

/// True once there is nothing more to write, so that later errors cost nothing. Whoever sets it
/// writes.
static IS_WRITTEN: AtomicBool = AtomicBool::new(false);

/// What was written, and where.
static WRITTEN: Mutex<Option<(PathBuf, Vec<u8>)>> = Mutex::new(None);

/// Notes a fatal error that a caller is about to be given. `culprit` is the rank of the job to
/// blame, if it is another than this one.
pub(super) fn note(error: &Error, culprit: Option<Rank>) {
    if IS_WRITTEN.load(Ordering::Relaxed)
        || !is_fatal(error.kind())
        || IS_WRITTEN.swap(true, Ordering::Relaxed)
    {
        return;
    }
    let Ok(Some(path)) = config::text(ERROR_FILE) else { return };
    let path = PathBuf::from(path);
    let content = content(error, culprit, SystemTime::now());
    match this::leave_file(&path, &content) {
        Ok(true) => *lock() = Some((path, content)),
        Ok(false) => {}
        Err(cause) => crate::log!(Level::Warn, "the error file cannot be written: {cause}"),
    }
}

/// The process goes on after what was noted: takes it back, and the next fatal error is the first
/// again.
pub(super) fn take_back() {
    let written = lock().take();
    IS_WRITTEN.store(false, Ordering::Relaxed);
    let Some((path, content)) = written else { return };
    if let Err(cause) = this::take_back_file(&path, &content) {
        crate::log!(Level::Warn, "the error file stays: {cause}");
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

fn content(error: &Error, culprit: Option<Rank>, now: SystemTime) -> Vec<u8> {
    let text = error.message();
    let mut end = text.len().min(LONGEST);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let text = format!("libdist: {}", &text[..end]);
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let dated = if culprit.is_some() { since + AFTER_ITS_CAUSE } else { since };
    let mut more = json!({
        "py_callstack": text,
        "timestamp": dated.as_secs().to_string(),
        "timestamp_us": since.as_micros().to_string(),
    });
    if let Some(rank) = culprit {
        more["culprit"] = json!(rank.to_string());
    }
    json!({ "message": { "message": text, "extraInfo": more } }).to_string().into_bytes()
}

fn lock() -> MutexGuard<'static, Option<(PathBuf, Vec<u8>)>> {
    WRITTEN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn extra(error: &Error, culprit: Option<Rank>) -> Value {
        let now = UNIX_EPOCH + Duration::from_micros(1_700_000_000_250_000);
        let value: Value = serde_json::from_slice(&content(error, culprit, now)).unwrap();
        assert_eq!(value["message"]["message"], value["message"]["extraInfo"]["py_callstack"]);
        value["message"].clone()
    }

    #[test]
    fn the_form_is_torchruns_and_a_consequence_is_dated_after_its_cause() {
        let error = Error::new(ErrorKind::PeerFailed, "rank 2 died: \"é\"\nand so on");
        let own = extra(&error, None);
        assert_eq!(own["message"], "libdist: rank 2 died: \"é\"\nand so on");
        assert_eq!(own["extraInfo"]["timestamp"], "1700000000");
        assert!(own["extraInfo"].get("culprit").is_none());
        let other = extra(&error, Some(2));
        assert_eq!(other["extraInfo"]["timestamp"], "1700000001");
        assert_eq!(other["extraInfo"]["timestamp_us"], "1700000000250000");
        assert_eq!(other["extraInfo"]["culprit"], "2");
    }

    #[test]
    fn a_long_text_is_cut_between_letters() {
        let long = extra(&Error::internal("é".repeat(LONGEST)), None);
        assert_eq!(long["message"].as_str().unwrap().len(), "libdist: ".len() + LONGEST);
    }

    #[test]
    fn a_callers_mistake_is_not_fatal() {
        assert!(is_fatal(ErrorKind::PeerFailed) && is_fatal(ErrorKind::Timeout));
        assert!(!is_fatal(ErrorKind::InvalidArgument) && !is_fatal(ErrorKind::Unsupported));
    }
}
