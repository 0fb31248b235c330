//! Calls of a plug-in's functions: converts the arguments to C, and checks all returned values.

use super::args::timeout;
use super::backend_types::*;
use super::constants::*;
use super::status::{self, kind_of};
use crate::api::store::DEFAULT_TIMEOUT_MS;
use crate::backend::plugin::{
    GrowableBuffer, PluginMessageStatus, PluginTask, ReleaseReport, TaskKind,
};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::{Deadline, Timeout};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::time::Duration;

/// The size in bytes of the buffer for a plug-in's error text.
const MESSAGE_BYTES: usize = 512;

/// The function of a plug-in that is called, for error messages.
#[derive(Clone, Copy)]
pub(super) struct PluginCallSite<'a> {
    pub(super) plugin: &'a str,
    pub(super) function: &'a str,
    /// The number of ranks in the group; 0 outside of a group. A culprit outside of this range is
    /// ignored.
    pub(super) size: usize,
}

impl PluginCallSite<'_> {
    /// Returns the culprit that a plug-in reported; `None` if it is no rank of the group.
    pub(super) fn culprit(&self, rank: i32) -> Option<usize> {
        usize::try_from(rank).ok().filter(|&rank| rank < self.size)
    }
}

/// Calls a function of a plug-in. Returns `None` if the function returns DIST_IN_PROGRESS.
pub(super) fn call_plugin(
    site: PluginCallSite<'_>,
    call: impl FnOnce(*mut dist_backend_outcome_t) -> dist_status_t,
) -> Result<Option<PluginMessageStatus>> {
    call_plugin_for(site, call, message_status)
}

/// As `call_plugin`, but the function `read` extracts the result from the outcome.
pub(super) fn call_plugin_for<T>(
    site: PluginCallSite<'_>,
    call: impl FnOnce(*mut dist_backend_outcome_t) -> dist_status_t,
    read: impl FnOnce(&dist_backend_outcome_t) -> T,
) -> Result<Option<T>> {
    // One byte more than the plug-in may use, so that the text is always terminated.
    let mut text = [0; MESSAGE_BYTES + 1];
    let mut outcome = dist_backend_outcome_t {
        struct_size: size_of::<dist_backend_outcome_t>(),
        culprit: -1,
        peer: -1,
        tag: -1,
        len_bytes: -1,
        text: (&raw mut text).cast(),
        text_cap: MESSAGE_BYTES,
        flags: 0,
    };
    match call(&raw mut outcome) {
        DIST_OK => Ok(Some(read(&outcome))),
        DIST_IN_PROGRESS => Ok(None),
        status => Err(call_error(site, status, &outcome, &text)),
    }
}

/// As `call_plugin`, for a function that must not return DIST_IN_PROGRESS.
pub(super) fn call_plugin_to_end(
    site: PluginCallSite<'_>,
    call: impl FnOnce(*mut dist_backend_outcome_t) -> dist_status_t,
) -> Result<()> {
    match call_plugin(site, call)? {
        Some(_) => Ok(()),
        None => Err(unexpected_status(site, DIST_IN_PROGRESS)),
    }
}

/// As `call_plugin_to_end`, for the plug-in's `release`. This function may return a text and a
/// culprit even with DIST_OK.
pub(super) fn call_plugin_release(
    site: PluginCallSite<'_>,
    call: impl FnOnce(*mut dist_backend_outcome_t) -> dist_status_t,
) -> Result<ReleaseReport> {
    let mut report = ReleaseReport::default();
    call_plugin_to_end(site, |outcome| {
        // SAFETY: the struct was made for this call.
        let text = unsafe { outcome.read() }.text;
        let status = call(outcome);
        // SAFETY: the struct was made for this call; the plug-in may have changed its contents.
        report.culprit = site.culprit(unsafe { outcome.read() }.culprit);
        if status == DIST_OK {
            // SAFETY: the buffer was made for this call, and ends with a zero byte behind the part
            // that the plug-in may write. `text` was read before the call, so the plug-in cannot
            // replace the pointer.
            report.text = unsafe { copy_c_text(text) };
        }
        status
    })?;
    Ok(report)
}

/// Reads the message status of an outcome.
pub(super) fn message_status(outcome: &dist_backend_outcome_t) -> PluginMessageStatus {
    PluginMessageStatus {
        peer: usize::try_from(outcome.peer).ok(),
        tag: u32::try_from(outcome.tag).ok(),
        bytes: u64::try_from(outcome.len_bytes).ok(),
    }
}

/// Returns the error that a plug-in reported, with the plug-in's text and culprit.
#[cold]
pub(super) fn call_error(
    site: PluginCallSite<'_>,
    status: dist_status_t,
    outcome: &dist_backend_outcome_t,
    text: &[c_char],
) -> Error {
    let message_bytes: Vec<u8> = text
        .iter()
        .take_while(|&&byte| byte != 0)
        .map(|byte| u8::from_le_bytes(byte.to_le_bytes()))
        .collect();
    let error = status_error(site, status, &String::from_utf8_lossy(&message_bytes));
    match site.culprit(outcome.culprit) {
        Some(culprit) => error.with_culprit(culprit),
        None => error,
    }
}

/// Converts a status and its text to an error.
pub(super) fn status_error(site: PluginCallSite<'_>, status: dist_status_t, text: &str) -> Error {
    let PluginCallSite { plugin, function, .. } = site;
    let meaning = status::status_text(status);
    if status >= DIST_OK || meaning == status::status_text(i32::MIN) {
        return unexpected_status(site, status);
    }
    let message = match text {
        "" => format!(
            "{function} of the back end {plugin} returned {status} ({})",
            meaning.to_string_lossy()
        ),
        _ => format!("back end {plugin}: {text}"),
    };
    Error::new(kind_of(status), message)
}

fn unexpected_status(site: PluginCallSite<'_>, status: dist_status_t) -> Error {
    let PluginCallSite { plugin, function, .. } = site;
    let message = format!(
        "{function} of the back end {plugin} returned {status}, which the interface does not \
         allow: a defect of that back end"
    );
    Error::new(ErrorKind::Backend, message)
}

/// Returns the time until a deadline as a C timeout.
pub(super) fn remaining_ms(deadline: &Deadline) -> i64 {
    to_timeout_ms(deadline.remaining())
}

/// From this duration on, a time counts as no limit.
const FOREVER_THRESHOLD: Duration = Duration::from_secs(50 * 365 * 24 * 3600);

/// Converts a duration to a C timeout in milliseconds, rounded up, so that no wait ends too early.
/// Zero becomes DIST_NO_WAIT.
pub(super) fn to_timeout_ms(time: Duration) -> i64 {
    if time >= FOREVER_THRESHOLD {
        return DIST_WAIT_FOREVER;
    }
    // Do not convert through nanoseconds: the division of such large numbers is slow.
    match time.as_secs() * 1000 + u64::from(time.subsec_nanos().div_ceil(1_000_000)) {
        0 => DIST_NO_WAIT,
        ms => i64::try_from(ms).unwrap_or(DIST_WAIT_FOREVER),
    }
}

/// Returns the deadline of a plug-in's store call that does not wait for a key. The call needs one
/// round trip to the store. Therefore DIST_NO_WAIT gives the default timeout.
pub(super) fn call_deadline(timeout_ms: i64) -> Result<Deadline> {
    Ok(match timeout(timeout_ms, "timeout_ms")? {
        Timeout::NoWait => Deadline::after_ms(DEFAULT_TIMEOUT_MS),
        limit => Deadline::after_ms(limit.ms_or(DEFAULT_TIMEOUT_MS)),
    })
}

/// Returns the deadline of a plug-in's wait for a key. With DIST_NO_WAIT the deadline has already
/// passed, so the wait checks the key once.
pub(super) fn wait_deadline(timeout_ms: i64) -> Result<Deadline> {
    Ok(Deadline::after_ms(timeout(timeout_ms, "timeout_ms")?.ms_or(DEFAULT_TIMEOUT_MS)))
}

/// The counts and displacements of the blocks of a call. The next call reuses the memory of the
/// lists.
#[derive(Debug, Default)]
pub(super) struct BlockLists {
    send: BlockLayout,
    recv: BlockLayout,
}

#[derive(Debug, Default)]
struct BlockLayout {
    counts: Vec<usize>,
    displs: Vec<usize>,
}

impl BlockLayout {
    /// Sets the lists for blocks that are given as pairs of an address and a length in bytes.
    /// `element` is the size of an element in bytes. Returns the lowest address of a block that is
    /// not empty, or 0 if all blocks are empty.
    ///
    /// For example, elements of 4 bytes in 8 bytes at address 96 and 4 bytes at address 64 give:
    ///
    /// ```text
    /// counts = [2, 1]    displs = [32, 0]    result = 64
    /// ```
    fn set_from(
        &mut self,
        blocks: impl Iterator<Item = (usize, usize)> + Clone,
        element: usize,
    ) -> usize {
        let full = blocks.clone().filter(|(_, len)| *len > 0);
        let base = full.map(|(address, _)| address).min().unwrap_or(0);
        self.counts.clear();
        self.displs.clear();
        for (address, len) in blocks {
            self.counts.push(len / element);
            self.displs.push(if len > 0 { address - base } else { 0 });
        }
        base
    }
}

fn optional_index(value: Option<usize>) -> i32 {
    value.and_then(|value| i32::try_from(value).ok()).unwrap_or(-1)
}

fn src_ptr(bytes: Src<'_>) -> *const c_void {
    if bytes.is_empty() { ptr::null() } else { bytes.as_ptr().cast() }
}

fn dst_ptr(bytes: Dst<'_>) -> *mut c_void {
    if bytes.is_empty() { ptr::null_mut() } else { bytes.as_mut_ptr().cast() }
}

/// Returns the C number of an operation.
pub(super) fn kind_number(kind: TaskKind) -> i32 {
    match kind {
        TaskKind::Collective(kind) => kind as i32,
        TaskKind::Send => DIST_KIND_SEND,
        TaskKind::Receive => DIST_KIND_RECV,
    }
}

/// Converts an operation of rank `rank` to C, without its blocks, which [`add_blocks`] adds.
#[inline]
pub(super) fn c_operation(
    task: &PluginTask<'_>,
    rank: usize,
    ticket: u64,
) -> dist_backend_operation_t {
    let tag = match (task.kind, task.tag) {
        (_, Some(tag)) => i64::from(tag),
        _ => i64::from(DIST_ANY_TAG),
    };
    let mut operation = dist_backend_operation_t {
        struct_size: size_of::<dist_backend_operation_t>(),
        kind: kind_number(task.kind),
        dtype: task.dtype.map_or(-1, |dtype| dtype.number()),
        op: task.op.map_or(-1, |op| op.number()),
        root: optional_index(task.root),
        peer: optional_index(task.peer),
        device: task.gpu.map_or(DIST_DEVICE_HOST, |gpu| optional_index(Some(gpu.device))),
        tag,
        send: src_ptr(task.send),
        recv: dst_ptr(task.recv),
        count: task.count,
        send_counts: ptr::null(),
        send_displs: ptr::null(),
        recv_counts: ptr::null(),
        recv_displs: ptr::null(),
        send_count: 0,
        recv_count: 0,
        factor: task.factor,
        timeout_ms: to_timeout_ms(task.time_left()),
        sequence: task.sequence,
        part: task.part,
        stream: ptr::with_exposed_provenance_mut(task.gpu.and_then(|gpu| gpu.stream).unwrap_or(0)),
        flags: if task.is_in_place(rank) { DIST_BACKEND_IN_PLACE } else { 0 },
        ticket,
        grow: None,
        grow_arg: ptr::null_mut(),
    };
    if let Some(buffer) = task.growable_buffer {
        operation.grow = Some(grow);
        operation.grow_arg = ptr::from_ref(buffer).cast_mut().cast();
    }
    operation
}

/// Adds the blocks of a `_v` form to an operation. The operation then points into `lists`, so the
/// lists must not change while it is used.
#[cold]
pub(super) fn add_blocks(
    operation: &mut dist_backend_operation_t,
    task: &PluginTask<'_>,
    lists: &mut BlockLists,
) {
    let element = task.dtype.map_or(1, DataType::size);
    operation.send_count = task.send.len() / element;
    operation.recv_count = task.recv.len() / element;
    if let Some(sends) = task.sends {
        let blocks = sends.iter().map(|block| (block.as_ptr().addr(), block.len()));
        let base = lists.send.set_from(blocks, element);
        let first = sends.iter().find(|block| !block.is_empty() && block.as_ptr().addr() == base);
        operation.send = first.map_or(ptr::null(), |block| block.as_ptr().cast());
        operation.send_counts = lists.send.counts.as_ptr();
        operation.send_displs = lists.send.displs.as_ptr();
    }
    if let Some(recvs) = task.recvs {
        let blocks = recvs.iter().map(|block| (block.as_mut_ptr().addr(), block.len()));
        let base = lists.recv.set_from(blocks, element);
        let first =
            recvs.iter().find(|block| !block.is_empty() && block.as_mut_ptr().addr() == base);
        operation.recv = first.map_or(ptr::null_mut(), |block| block.as_mut_ptr().cast());
        operation.recv_counts = lists.recv.counts.as_ptr();
        operation.recv_displs = lists.recv.displs.as_ptr();
    }
}

/// The function `grow` of an operation: allocates the buffer for a received message when the
/// plug-in knows the length of the message.
unsafe extern "C" fn grow(grow_arg: *mut c_void, len_bytes: usize) -> *mut c_void {
    if grow_arg.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the plug-in passes `grow_arg` of an operation that has not ended, so the buffer still
    // exists.
    let buffer = unsafe { &*grow_arg.cast::<GrowableBuffer>() };
    buffer.allocate(len_bytes).map_or(ptr::null_mut(), <*mut u8>::cast)
}

/// Copies a text of a plug-in into a string.
///
/// # Safety
/// `text` is a terminated string, or NULL.
pub(super) unsafe fn copy_c_text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_for_plugins_are_timeouts_and_never_the_default() {
        for (time, number) in [
            (Duration::ZERO, DIST_NO_WAIT),
            (Duration::from_nanos(1), 1),
            (Duration::from_millis(7), 7),
            (Duration::from_millis(u64::MAX), DIST_WAIT_FOREVER),
        ] {
            assert_eq!(to_timeout_ms(time), number, "{time:?}");
        }
    }

    #[test]
    fn timeouts_of_plugins_follow_the_rule() {
        let default = Duration::from_millis(DEFAULT_TIMEOUT_MS);
        assert_eq!(call_deadline(0).unwrap().timeout(), default);
        assert_eq!(call_deadline(DIST_NO_WAIT).unwrap().timeout(), default);
        assert_eq!(wait_deadline(0).unwrap().timeout(), default);
        assert!(wait_deadline(DIST_NO_WAIT).unwrap().has_passed());
        for read in [call_deadline, wait_deadline] {
            assert_eq!(read(5).unwrap().timeout(), Duration::from_millis(5));
            assert!(read(DIST_WAIT_FOREVER).unwrap().remaining() > default);
            assert!(read(-3).unwrap_err().message().contains("timeout_ms is -3"));
        }
    }
}
