//! One call of a plug-in's function: what goes in, and what comes back, of which nothing is
//! believed unseen.

use super::args::timeout;
use super::backend_types::*;
use super::constants::*;
use super::status::{self, kind_of};
use crate::api::store::DEFAULT_TIMEOUT_MS;
use crate::backend::plugin::{Awaited, Growth, Received, Task, What};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::{Deadline, Timeout};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::time::Duration;

/// Room for what a plug-in says.
const TEXT_BYTES: usize = 512;

/// Which function is called, for messages.
#[derive(Clone, Copy)]
pub(super) struct Called<'a> {
    pub(super) plugin: &'a str,
    pub(super) function: &'a str,
    /// Of the group, where there is one: nobody beyond is to blame.
    pub(super) size: usize,
}

impl Called<'_> {
    pub(super) fn culprit(&self, rank: i32) -> Option<usize> {
        usize::try_from(rank).ok().filter(|&rank| rank < self.size)
    }
}

/// Calls a function of a plug-in; `None` where it says that something goes on.
pub(super) fn ask(
    of: Called<'_>,
    call: impl FnOnce(*mut dist_backend_outcome_t) -> dist_status_t,
) -> Result<Option<Received>> {
    ask_for(of, call, received)
}

/// The same, where something else is read of what it says.
pub(super) fn ask_for<T>(
    of: Called<'_>,
    call: impl FnOnce(*mut dist_backend_outcome_t) -> dist_status_t,
    read: impl FnOnce(&dist_backend_outcome_t) -> T,
) -> Result<Option<T>> {
    // One more than the plug-in is told of, so that it always ends.
    let mut text = [0; TEXT_BYTES + 1];
    let mut outcome = dist_backend_outcome_t {
        struct_size: size_of::<dist_backend_outcome_t>(),
        culprit: -1,
        peer: -1,
        tag: -1,
        len_bytes: -1,
        text: (&raw mut text).cast(),
        text_cap: TEXT_BYTES,
        flags: 0,
    };
    match call(&raw mut outcome) {
        DIST_OK => Ok(Some(read(&outcome))),
        DIST_IN_PROGRESS => Ok(None),
        status => Err(failed(of, status, &outcome, &text)),
    }
}

/// The same for a function that ends what it begins.
pub(super) fn ask_once(
    of: Called<'_>,
    call: impl FnOnce(*mut dist_backend_outcome_t) -> dist_status_t,
) -> Result<()> {
    match ask(of, call)? {
        Some(_) => Ok(()),
        None => Err(unexpected(of, DIST_IN_PROGRESS)),
    }
}

/// The same for a function that may have something to say also where all is well.
pub(super) fn ask_why(
    of: Called<'_>,
    call: impl FnOnce(*mut dist_backend_outcome_t) -> dist_status_t,
) -> Result<Awaited> {
    let mut awaited = Awaited::default();
    ask_once(of, |outcome| {
        // SAFETY: the struct that was made for this call.
        let room = unsafe { outcome.read() }.text;
        let status = call(outcome);
        // SAFETY: as above; the plug-in may have changed what is in it.
        awaited.culprit = of.culprit(unsafe { outcome.read() }.culprit);
        if status == DIST_OK {
            // SAFETY: the room that was made for this call, behind which a zero stays, wherever the
            // struct points now.
            awaited.words = unsafe { words(room) };
        }
        status
    })?;
    Ok(awaited)
}

/// What there is to say of a message.
pub(super) fn received(outcome: &dist_backend_outcome_t) -> Received {
    Received {
        peer: usize::try_from(outcome.peer).ok(),
        tag: u32::try_from(outcome.tag).ok(),
        bytes: u64::try_from(outcome.len_bytes).ok(),
    }
}

/// The error that a plug-in has returned, with its own words.
#[cold]
pub(super) fn failed(
    of: Called<'_>,
    status: dist_status_t,
    outcome: &dist_backend_outcome_t,
    text: &[c_char],
) -> Error {
    let words: Vec<u8> =
        text.iter().take_while(|&&byte| byte != 0).map(|byte| byte.cast_unsigned()).collect();
    let error = error_of(of, status, &String::from_utf8_lossy(&words));
    match of.culprit(outcome.culprit) {
        Some(culprit) => error.with_culprit(culprit),
        None => error,
    }
}

/// A status, and what was said with it.
pub(super) fn error_of(of: Called<'_>, status: dist_status_t, words: &str) -> Error {
    let Called { plugin, function, .. } = of;
    let meaning = status::text(status);
    if status >= DIST_OK || meaning == status::text(i32::MIN) {
        return unexpected(of, status);
    }
    let message = match words {
        "" => format!(
            "{function} of the back end {plugin} returned {status} ({})",
            meaning.to_string_lossy()
        ),
        _ => format!("back end {plugin}: {words}"),
    };
    Error::new(kind_of(status), message)
}

fn unexpected(of: Called<'_>, status: dist_status_t) -> Error {
    let Called { plugin, function, .. } = of;
    let message = format!(
        "{function} of the back end {plugin} returned {status}, which it must not: a defect of that back end"
    );
    Error::new(ErrorKind::Backend, message)
}

/// What is left until a deadline, for C.
pub(super) fn left_ms(deadline: &Deadline) -> i64 {
    whole_ms(deadline.left())
}

/// More than anybody waits for.
const HALF_A_CENTURY: Duration = Duration::from_secs(50 * 365 * 24 * 3600);

/// A time as a time-out for C, rounded up, so that nothing times out before its time; none is
/// DIST_NO_WAIT.
pub(super) fn whole_ms(time: Duration) -> i64 {
    if time >= HALF_A_CENTURY {
        return DIST_WAIT_FOREVER;
    }
    // Not by way of nanoseconds: numbers that large are divided slowly.
    match time.as_secs() * 1000 + u64::from(time.subsec_nanos().div_ceil(1_000_000)) {
        0 => DIST_NO_WAIT,
        ms => i64::try_from(ms).unwrap_or(DIST_WAIT_FOREVER),
    }
}

/// The deadline of a plug-in's call on the group's store that waits for no other rank. It needs
/// time for a round trip, also with DIST_NO_WAIT.
pub(super) fn deadline(timeout_ms: i64) -> Result<Deadline> {
    Ok(match timeout(timeout_ms, "timeout_ms")? {
        Timeout::NoWait => Deadline::after_ms(DEFAULT_TIMEOUT_MS),
        given => Deadline::after_ms(given.ms_or(DEFAULT_TIMEOUT_MS)),
    })
}

/// The deadline of a plug-in's wait for a key, which looks once with DIST_NO_WAIT.
pub(super) fn wait_deadline(timeout_ms: i64) -> Result<Deadline> {
    Ok(Deadline::after_ms(timeout(timeout_ms, "timeout_ms")?.ms_or(DEFAULT_TIMEOUT_MS)))
}

/// Counts and places of the blocks of a call, kept for the next one.
#[derive(Debug, Default)]
pub(super) struct Lists {
    send: Blocks,
    recv: Blocks,
}

#[derive(Debug, Default)]
struct Blocks {
    counts: Vec<usize>,
    displs: Vec<usize>,
}

impl Blocks {
    /// Fills in the blocks, as addresses and lengths in bytes; returns the lowest address, 0 where
    /// all are empty.
    fn fill(
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

fn index(value: Option<usize>) -> i32 {
    value.and_then(|value| i32::try_from(value).ok()).unwrap_or(-1)
}

fn source(bytes: Src<'_>) -> *const c_void {
    if bytes.is_empty() { ptr::null() } else { bytes.as_ptr().cast() }
}

fn sink(bytes: Dst<'_>) -> *mut c_void {
    if bytes.is_empty() { ptr::null_mut() } else { bytes.as_mut_ptr().cast() }
}

/// The number of an operation in C.
pub(super) fn number(what: What) -> i32 {
    match what {
        What::Collective(kind) => kind as i32,
        What::Send => DIST_KIND_SEND,
        What::Receive => DIST_KIND_RECV,
    }
}

/// An operation for C, for rank `rank`, but for what [`add_blocks`] adds.
#[inline]
pub(super) fn operation(task: &Task<'_>, rank: usize, ticket: u64) -> dist_backend_operation_t {
    let tag = match (task.what, task.tag) {
        (_, Some(tag)) => i64::from(tag),
        _ => i64::from(DIST_ANY_TAG),
    };
    let mut operation = dist_backend_operation_t {
        struct_size: size_of::<dist_backend_operation_t>(),
        kind: number(task.what),
        dtype: task.dtype.map_or(-1, |dtype| dtype.number()),
        op: task.op.map_or(-1, |op| op.number()),
        root: index(task.root),
        peer: index(task.peer),
        device: task.gpu.map_or(DIST_DEVICE_HOST, |gpu| index(Some(gpu.device))),
        tag,
        send: source(task.send),
        recv: sink(task.recv),
        count: task.count,
        send_counts: ptr::null(),
        send_displs: ptr::null(),
        recv_counts: ptr::null(),
        recv_displs: ptr::null(),
        send_count: 0,
        recv_count: 0,
        factor: task.factor,
        timeout_ms: whole_ms(task.left()),
        sequence: task.sequence,
        part: task.part,
        stream: ptr::with_exposed_provenance_mut(task.gpu.and_then(|gpu| gpu.stream).unwrap_or(0)),
        flags: if task.is_in_place(rank) { DIST_BACKEND_IN_PLACE } else { 0 },
        ticket,
        grow: None,
        grow_arg: ptr::null_mut(),
    };
    if let Some(room) = task.room {
        operation.grow = Some(grow);
        operation.grow_arg = ptr::from_ref(room).cast_mut().cast();
    }
    operation
}

/// Adds the blocks of a call that has them. The lists must stay as they are while it is used.
#[cold]
pub(super) fn add_blocks(
    operation: &mut dist_backend_operation_t,
    task: &Task<'_>,
    lists: &mut Lists,
) {
    let element = task.dtype.map_or(1, DataType::size);
    operation.send_count = task.send.len() / element;
    operation.recv_count = task.recv.len() / element;
    if let Some(sends) = task.sends {
        let blocks = sends.iter().map(|block| (block.as_ptr().addr(), block.len()));
        let base = lists.send.fill(blocks, element);
        let first = sends.iter().find(|block| !block.is_empty() && block.as_ptr().addr() == base);
        operation.send = first.map_or(ptr::null(), |block| block.as_ptr().cast());
        operation.send_counts = lists.send.counts.as_ptr();
        operation.send_displs = lists.send.displs.as_ptr();
    }
    if let Some(recvs) = task.recvs {
        let blocks = recvs.iter().map(|block| (block.as_mut_ptr().addr(), block.len()));
        let base = lists.recv.fill(blocks, element);
        let first =
            recvs.iter().find(|block| !block.is_empty() && block.as_mut_ptr().addr() == base);
        operation.recv = first.map_or(ptr::null_mut(), |block| block.as_mut_ptr().cast());
        operation.recv_counts = lists.recv.counts.as_ptr();
        operation.recv_displs = lists.recv.displs.as_ptr();
    }
}

/// The memory for a message whose length has become known.
unsafe extern "C" fn grow(grow_arg: *mut c_void, len_bytes: usize) -> *mut c_void {
    if grow_arg.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the plug-in passes on what it was given with the operation, which has not ended.
    let room = unsafe { &*grow_arg.cast::<Growth>() };
    room.make(len_bytes).map_or(ptr::null_mut(), <*mut u8>::cast)
}

/// A text of a plug-in, for messages.
///
/// # Safety
/// A terminated string, or NULL.
pub(super) unsafe fn words(text: *const c_char) -> String {
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
            assert_eq!(whole_ms(time), number, "{time:?}");
        }
    }

    #[test]
    fn timeouts_of_plugins_follow_the_rule() {
        let default = Duration::from_millis(DEFAULT_TIMEOUT_MS);
        assert_eq!(deadline(0).unwrap().allowed(), default);
        assert_eq!(deadline(DIST_NO_WAIT).unwrap().allowed(), default);
        assert_eq!(wait_deadline(0).unwrap().allowed(), default);
        assert!(wait_deadline(DIST_NO_WAIT).unwrap().has_passed());
        for read in [deadline, wait_deadline] {
            assert_eq!(read(5).unwrap().allowed(), Duration::from_millis(5));
            assert!(read(DIST_WAIT_FOREVER).unwrap().left() > default);
            assert!(read(-3).unwrap_err().message().contains("timeout_ms is -3"));
        }
    }
}
