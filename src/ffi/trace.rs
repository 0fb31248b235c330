//! The output of a trace.

use super::args::required_str;
use crate::api::observe::trace;
use std::ffi::c_char;

dist_export! {
    /// Starts a trace of this process's operations as a file in Chrome's trace event format.
    ///
    /// Perfetto and chrome://tracing open such files. Each rank writes its own file; `dist-doctor
    /// trace` merges them on a common clock. The environment variable DIST_TRACE_FILE does the same
    /// from the first group to dist_finalize: the file's name is the variable's value followed by
    /// the rank and ".json".
    ///
    /// In the file, a process is a rank of the outermost group, and a thread is a group. The trace
    /// has the collectives and messages that begin after this call and end before dist_trace_stop.
    /// Each has type, operator, root, bytes, sequence number, algorithm and outcome, and inside it
    /// the waits for its turn and for each rank. Failures are recorded too.
    ///
    /// The file grows about 10 times a second and can be read at any time, also if the process was
    /// killed. Records that arrive faster than they can be written are dropped and counted. If the
    /// file cannot be written, only the trace ends; dist_group_describe and the log have the
    /// reason.
    ///
    /// @param path in: the file, which is created or emptied; borrowed for the call. Each process
    ///   needs its own.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if `path` is NULL or not UTF-8, or while another
    ///   trace is written; DIST_ERR_SYSTEM or DIST_ERR_OUT_OF_MEMORY if the file or the writer
    ///   thread cannot be created.
    /// @threads any.
    /// @since 0.1
    pub fn dist_trace_start(path: *const c_char) -> dist_status_t {
        trace::start(required_str(path, "path")?)
    }
}

dist_export! {
    /// Ends the trace of dist_trace_start or DIST_TRACE_FILE and completes its file.
    ///
    /// Operations that have not ended are not in the file. If there is no trace, the call does
    /// nothing.
    ///
    /// @agree nothing.
    /// @blocks until the file is written, at most 10 seconds.
    /// @return DIST_OK; DIST_ERR_SYSTEM or DIST_ERR_OUT_OF_MEMORY if an error ended the trace
    ///   before, for instance a full disk; DIST_ERR_TIMEOUT if the file was not written in time. In
    ///   both cases the written part can be read.
    /// @threads any.
    /// @since 0.1
    pub fn dist_trace_stop() -> dist_status_t {
        trace::stop()
    }
}
