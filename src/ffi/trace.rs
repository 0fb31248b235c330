//! Traces: `dist_trace_start` and `dist_trace_stop`.

use super::args::required_str;
use crate::api::observe::trace;
use std::ffi::c_char;

dist_export! {
    /// Starts a trace of this process's operations as a file in Chrome's trace event format.
    ///
    /// Perfetto and chrome://tracing open such files. Each rank writes its own file; `dist-doctor
    /// trace` merges the files on a common clock. The environment variable DIST_TRACE_FILE also
    /// starts a trace, which lasts from the first group to dist_finalize. The name of its file is
    /// the variable's value followed by the rank and ".json".
    ///
    /// The trace viewer shows each rank of the world as a process, and each group as a thread of
    /// this process. The trace has the collectives, messages and monitored barriers that begin
    /// after this call and end before dist_trace_stop. Each operation has type, operator, root,
    /// bytes, sizes of inputs and outputs, sequence number, algorithm and outcome. For a call that
    /// was enqueued on a GPU over NCCL, the trace also has the time that the GPU needed. Inside an
    /// operation, the trace shows how long it waited for earlier operations of its group and for
    /// each peer. The trace also has failures.
    ///
    /// The library writes to the file about 10 times a second. The file can be read at any time,
    /// even if the process was killed. If records arrive faster than they can be written, the
    /// library drops records and counts them. If the file cannot be written, only the trace ends;
    /// dist_group_describe and the log have the reason.
    ///
    /// @param path in: the file, which is created or emptied; borrowed for the call. Each process
    ///   needs a different file.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if `path` is NULL or not UTF-8, or if a trace is
    ///   already running; DIST_ERR_SYSTEM or DIST_ERR_OUT_OF_MEMORY if the file or the writer
    ///   thread cannot be created.
    /// @threads Any thread may call this at any time.
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
    /// @blocks Until the file is written, but at most 10 seconds.
    /// @return DIST_OK; DIST_ERR_SYSTEM or DIST_ERR_OUT_OF_MEMORY if an error has ended the trace
    ///   before this call, for instance a full disk; DIST_ERR_TIMEOUT if the file was not written
    ///   in time. After an error, the written part of the file can be read.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_trace_stop() -> dist_status_t {
        trace::stop()
    }
}
