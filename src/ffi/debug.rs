//! The exported functions of the debug level and of the back-traces of errors.

use super::last_error;
use crate::base::debug::{self, DebugLevel};
use crate::base::error::Error;
use std::ffi::c_char;

dist_export! {
    /// Sets the debug level of the process.
    ///
    /// The level takes effect with the next calls of this rank, with one exception: the arrival
    /// check of DIST_DEBUG_DETAIL. In this check, all ranks of a group wait before each collective
    /// until all ranks have arrived. The level of rank 0 at the creation of the group decides for
    /// all ranks whether the group has the check, and later changes have no effect on it. So no
    /// rank waits for a rank that does not run the check. Only groups whose host memory the native
    /// back end serves can have the check.
    ///
    /// If neither the program nor the environment has set a log level, the debug level also sets
    /// the log level. DIST_DEBUG_INFO and DIST_DEBUG_DETAIL set it to DIST_LOG_INFO, and
    /// DIST_DEBUG_OFF sets it to DIST_LOG_OFF.
    ///
    /// @param level in: DIST_DEBUG_OFF, DIST_DEBUG_INFO or DIST_DEBUG_DETAIL.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if `level` is no debug level.
    /// @threads Any thread may call this at any time.
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
    /// If no level has been set, the call first sets the level as dist_set_debug_level_from_env
    /// does.
    ///
    /// @agree nothing.
    /// @blocks no.
    /// @return the level; -1 if the environment variable has no valid level (see dist_last_error).
    /// @threads Any thread may call this, but not while another thread changes the environment.
    /// @since 0.1
    pub fn dist_get_debug_level() -> i32 {
        Ok(i32::from(debug::level_or_environment()? as u8))
    }
}

dist_export! {
    /// Sets the debug level of the process from the environment, and replaces an earlier level.
    ///
    /// The variable is DIST_DEBUG_LEVEL, or TORCH_DISTRIBUTED_DEBUG if DIST_DEBUG_LEVEL is unset.
    /// Both take OFF, INFO and DETAIL in upper or lower case. If both are unset, the level is
    /// DIST_DEBUG_OFF. The creation of the first group also reads the level from the environment if
    /// no level has been set. dist_set_debug_level describes the effect on the log level.
    ///
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if the variable has another word (the message
    ///   names the variable, and the level is unchanged).
    /// @threads Any thread may call this, but not while another thread changes the environment.
    /// @since 0.1
    pub fn dist_set_debug_level_from_env() -> dist_status_t {
        debug::set_level_from_environment()
    }
}

dist_export! {
    #[anywhere(c"".as_ptr())]
    /// Returns the call stack of the calling thread's last failed call.
    ///
    /// The stack begins at the called function of libdist, and has one or two lines for each frame.
    /// For the error of a work, the text also has the stack of the call that issued the work. The
    /// text has the names of functions for which the program has symbols.
    ///
    /// The library records stacks if the debug level is DIST_DEBUG_DETAIL, or if the variable
    /// DIST_SHOW_STACKTRACES is 1. If DIST_SHOW_STACKTRACES is unset, TORCH_SHOW_CPP_STACKTRACES
    /// has its effect. The library reads both variables whenever a group is created.
    ///
    /// @agree nothing.
    /// @blocks No. The first call for an error reads symbols, which may take a moment.
    /// @return the text; "" if no call of the thread has failed or no stack was recorded; valid
    ///   until the second next failing call of the thread.
    /// @threads Any thread may call this at any time. Each thread has its own text.
    /// @since 0.1
    pub fn dist_last_error_backtrace() -> *const c_char {
        Ok(last_error::backtrace_as_ptr())
    }
}
