//! The debug level, and the back-traces of errors.

use super::last_error;
use crate::base::debug::{self, DebugLevel};
use crate::base::error::Error;
use std::ffi::c_char;

dist_export! {
    /// Sets the debug level of the process.
    ///
    /// Effects of a level apply to this rank's next calls, with one exception. If rank 0 has DETAIL
    /// when a group is created whose host memory the native back end serves, all ranks check before
    /// each collective that all ranks have arrived. Later changes do not affect this check, so that
    /// ranks with different levels do not wait for each other.
    ///
    /// If neither the program nor the environment has set a log level, INFO and DETAIL set it to
    /// DIST_LOG_INFO, and OFF to DIST_LOG_OFF.
    ///
    /// @param level in: DIST_DEBUG_OFF, DIST_DEBUG_INFO or DIST_DEBUG_DETAIL.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if `level` is no debug level.
    /// @threads any.
    /// @since 0.1
    pub fn dist_set_debug_level(level: i32) -> dist_status_t {
        let known = u8::try_from(level).ok().and_then(DebugLevel::from_number);
        let known = known
            .ok_or_else(|| Error::invalid(format!("debug level {level} is invalid: use 0 to 2")))?;
        debug::set_level(known);
        Ok(())
    }
}

dist_export! {
    #[on_error(-1)]
    /// Returns the debug level of the process.
    ///
    /// If no level has been set, the call sets it as dist_set_debug_level_from_env does.
    ///
    /// @agree nothing.
    /// @blocks no.
    /// @return the level; -1 if the environment variable has no valid level (see dist_last_error).
    /// @threads any, but not while another thread changes the environment.
    /// @since 0.1
    pub fn dist_get_debug_level() -> i32 {
        Ok(i32::from(debug::level_or_environment()? as u8))
    }
}

dist_export! {
    /// Sets the debug level of the process from the environment, and replaces an earlier level.
    ///
    /// The variable is DIST_DEBUG_LEVEL, or TORCH_DISTRIBUTED_DEBUG if the former is unset. Both
    /// take OFF, INFO and DETAIL in upper or lower case. If both are unset, the level is
    /// DIST_DEBUG_OFF. If no level has been set, creating the first group has the same effect. For
    /// the log level see dist_set_debug_level.
    ///
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if the variable has another word (the message
    ///   names the variable; the level is unchanged).
    /// @threads any, but not while another thread changes the environment.
    /// @since 0.1
    pub fn dist_set_debug_level_from_env() -> dist_status_t {
        debug::set_level_from_environment()
    }
}

dist_export! {
    #[anywhere(c"".as_ptr())]
    /// Returns the call stack of the calling thread's last failed call.
    ///
    /// The stack begins at the function of libdist, with one or two lines for each frame. For the
    /// error of a work it also has the stack of the call that issued the work. Names appear as far
    /// as the program has symbols.
    ///
    /// Stacks are recorded at the debug level DETAIL and if DIST_SHOW_STACKTRACES is 1. If the
    /// latter is unset, TORCH_SHOW_CPP_STACKTRACES is used. Both are read whenever a group is
    /// created.
    ///
    /// @agree nothing.
    /// @blocks no; the first call for an error reads symbols, which may take a moment.
    /// @return the text; "" if no call of the thread has failed or no stack was recorded; valid
    ///   until the second next failing call of the thread.
    /// @threads any; each thread has its own text.
    /// @since 0.1
    pub fn dist_last_error_backtrace() -> *const c_char {
        Ok(last_error::backtrace_as_ptr())
    }
}
