//! The log level, and the sink of log lines.

use super::types::dist_log_fn;
use crate::base::error::Error;
use crate::base::log::{self, LogLevel, LogSink};
use std::ffi::{CString, c_char, c_void};

/// The caller's function for log lines, and its argument.
struct CLogSink {
    function: unsafe extern "C" fn(level: i32, line: *const c_char, user: *mut c_void),
    user: *mut c_void,
}

// SAFETY: the caller promises that the function may be called from any thread with that pointer.
unsafe impl Send for CLogSink {}
// SAFETY: the caller promises the same for calls from several threads at once.
unsafe impl Sync for CLogSink {}

impl LogSink for CLogSink {
    fn write_line(&self, level: LogLevel, text: &str) {
        let line = CString::new(text.replace('\0', "?")).unwrap_or_default();
        // SAFETY: the caller's function gets the caller's pointer and a terminated line.
        unsafe { (self.function)(i32::from(level as u8), line.as_ptr(), self.user) };
    }
}

dist_export! {
    /// Sends log lines to a function instead of standard error.
    ///
    /// The function gets all lines up to the log level (dist_set_log_level or DIST_LOG_LEVEL).
    ///
    /// @param function in, optional: called on any thread of the process; must not call libdist and
    ///   must not throw. NULL sends lines to standard error again.
    /// @param user in, optional: passed to `function`; must stay valid until the function has been
    ///   replaced.
    /// @agree nothing.
    /// @blocks Until running calls of the previous function have returned. The library does not
    ///   call the previous function again.
    /// @return DIST_OK.
    /// @threads Any thread may call this at any time, but not inside `function`.
    /// @since 0.1
    pub fn dist_set_log_callback(function: dist_log_fn, user: *mut c_void) -> dist_status_t {
        let sink = function.map(|function| Box::new(CLogSink { function, user }) as Box<dyn LogSink>);
        log::set_sink(sink);
        Ok(())
    }
}

dist_export! {
    /// Sets the log level of the process.
    ///
    /// This level has priority over the environment and the debug level.
    ///
    /// @param level in: DIST_LOG_OFF (the default) to DIST_LOG_TRACE.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if `level` is no log level.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_set_log_level(level: i32) -> dist_status_t {
        let number = u8::try_from(level).ok().filter(|&number| number <= LogLevel::Trace as u8);
        let number = number
            .ok_or_else(|| Error::invalid(format!("log level {level} is invalid: use 0 to 5")))?;
        log::set_level(LogLevel::from_number(number));
        Ok(())
    }
}
