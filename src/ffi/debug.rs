//! The debug level, and where an error comes from.

use super::last_error;
use crate::base::debug::{self, Level};
use crate::base::error::Error;
use std::ffi::c_char;

dist_export! {
    /// Sets the debug level of the process, at any time.
    ///
    /// `level`: DIST_DEBUG_OFF, DIST_DEBUG_INFO or DIST_DEBUG_DETAIL. Whether all ranks of a group come together before
    /// each collective (DETAIL) is decided by rank 0's level when the group is made, so that no rank waits for one that
    /// has another level; all else that a level adds is each rank's own and holds for its next calls. Where nobody has
    /// set a level of the log, INFO and DETAIL also set that to DIST_LOG_INFO. Does not block. Any thread.
    ///
    /// Returns DIST_OK, or DIST_ERR_INVALID_ARGUMENT for another number. Since 0.1.
    pub fn dist_set_debug_level(level: i32) -> dist_status_t {
        let known = u8::try_from(level).ok().and_then(Level::from_number);
        let known = known
            .ok_or_else(|| Error::invalid(format!("debug level {level} is not one from 0 to 2")))?;
        debug::set_level(known);
        Ok(())
    }
}

dist_export! {
    #[on_error(-1)]
    /// The debug level of the process: what was set, else what DIST_DEBUG_LEVEL or TORCH_DISTRIBUTED_DEBUG says, else
    /// DIST_DEBUG_OFF. Returns -1 where the variable names no level; dist_last_error says so. Does not block. Any
    /// thread. Since 0.1.
    pub fn dist_get_debug_level() -> i32 {
        Ok(i32::from(debug::level_or_environment()? as u8))
    }
}

dist_export! {
    /// Sets the debug level of the process to what DIST_DEBUG_LEVEL says, else TORCH_DISTRIBUTED_DEBUG, else
    /// DIST_DEBUG_OFF, whatever was set before. Both have the words OFF, INFO and DETAIL, in any case. Without this
    /// call that happens when the first group is made, if nobody has set a level. See dist_set_debug_level. Does not
    /// block. Not while another thread changes the environment.
    ///
    /// Returns DIST_OK, or DIST_ERR_INVALID_ARGUMENT for another word, with the variable's name; then the level is as it
    /// was. Since 0.1.
    pub fn dist_set_debug_level_from_env() -> dist_status_t {
        debug::set_level_from_environment()
    }
}

dist_export! {
    #[anywhere(c"".as_ptr())]
    /// Where in the program the calling thread's last failed call was made: one or two lines for each frame, from the
    /// function of libdist on, and for the error of a work those of the call that issued it. Names are there as far as
    /// the program has symbols.
    ///
    /// "" where no call has failed, or where neither DIST_SHOW_STACKTRACES or TORCH_SHOW_CPP_STACKTRACES was 1 nor the
    /// debug level DETAIL when it did. Valid until the thread's second next failing call. The first call for an error reads
    /// symbols, which may take a moment. Any thread. Since 0.1.
    pub fn dist_last_error_backtrace() -> *const c_char {
        Ok(last_error::backtrace_as_ptr())
    }
}
