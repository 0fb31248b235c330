//! Writing a trace.

use super::args::required_str;
use crate::api::trace;
use std::ffi::c_char;

dist_export! {
    /// Begins to write what this process does to a file, in the trace event format of Chrome, which Perfetto and
    /// chrome://tracing open.
    ///
    /// Each rank writes its own file; `dist-doctor trace` makes one of all, on a common clock. Ranks need not agree. The
    /// environment variable DIST_TRACE_FILE does the same from the first group to dist_finalize.
    ///
    /// A process of the trace is a rank of the outermost group, a thread of it a group. In the file are the collectives and
    /// messages that begin from now on and end before dist_trace_stop, with type, operator, root, bytes, sequence number,
    /// algorithm and outcome; inside of them the wait for their turn and for each rank; and failures. The file grows several
    /// times a second, and what there is of it can be read at any time, also after the process was killed. What is recorded
    /// faster than it can be written is left out and counted. A file that cannot be written ends the trace and nothing else;
    /// dist_group_describe and a line of the log tell of it.
    ///
    /// `path`: required, borrowed for the call; the file, which is made, or emptied. Give each process its own. Does not block
    /// on other ranks. Any thread.
    ///
    /// Returns DIST_OK; DIST_ERR_INVALID_ARGUMENT for NULL, text that is not UTF-8, and while another trace is being written;
    /// DIST_ERR_SYSTEM or DIST_ERR_OUT_OF_MEMORY where the file or the thread that writes it cannot be made. Since 0.1.
    pub fn dist_trace_start(path: *const c_char) -> dist_status_t {
        trace::start(required_str(path, "path")?)
    }
}

dist_export! {
    /// Ends the trace that dist_trace_start or the environment has begun, and its file. Operations under way are not in it.
    ///
    /// Blocks until the file is written, 10 seconds at most. Any thread. Does nothing where no trace is written.
    ///
    /// Returns DIST_OK; DIST_ERR_SYSTEM or DIST_ERR_OUT_OF_MEMORY for what ended the trace before (a disk that was full);
    /// DIST_ERR_TIMEOUT where the file is not written by then; what there is of it can be read. Since 0.1.
    pub fn dist_trace_stop() -> dist_status_t {
        trace::stop()
    }
}
