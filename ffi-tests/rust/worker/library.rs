//! Safe wrappers of the C ABI functions for the worker.
#![allow(unsafe_code, reason = "the C ABI takes raw pointers")]

use super::command_words::CommandWords;
use super::outstanding_works::WorkHandle;
use dist::ffi::blob::{dist_blob_data, dist_blob_release};
use dist::ffi::collective::{
    dist_all_gather, dist_all_reduce, dist_barrier, dist_broadcast, dist_reduce,
    dist_reduce_scatter,
};
use dist::ffi::culprit::{dist_group_culprit, dist_work_culprit};
use dist::ffi::debug::dist_set_debug_level;
use dist::ffi::group::{
    dist_group_abort, dist_group_create, dist_group_describe, dist_group_release, dist_world,
};
use dist::ffi::monitored::dist_monitored_barrier;
use dist::ffi::runtime::{
    dist_finalize, dist_get_rank, dist_get_world_size, dist_init, dist_last_error,
};
use dist::ffi::store::{dist_store_add, dist_store_get, dist_store_set, dist_store_wait};
use dist::ffi::store_create::{dist_store_file_create, dist_store_tcp_create};
use dist::ffi::store_handle::dist_store_release;
use dist::ffi::store_queue::{dist_store_barrier, dist_store_queue_pop};
use dist::ffi::trace::{dist_trace_start, dist_trace_stop};
use dist::ffi::types::{
    DIST_AVG, DIST_F32, DIST_F64, DIST_FIELD_RANK, DIST_I32, DIST_MAX, DIST_OK, DIST_SUM,
    DIST_TERMINATED, dist_blob_t, dist_call_options_t, dist_culprit_t, dist_dtype_t,
    dist_group_options_t, dist_group_t, dist_init_options_t, dist_op_t, dist_status_t,
    dist_store_file_options_t, dist_store_t, dist_store_tcp_options_t, dist_work_t,
};
use std::ffi::{CStr, CString};
use std::ptr::{null, null_mut};

/// The status for a successful call with a wrong result.
pub(super) const WRONG_RESULT: dist_status_t = -999;

/// A status and its message, which is empty for success.
pub(super) type CommandOutcome = (dist_status_t, String);

/// A group handle.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupHandle(pub(super) *mut dist_group_t);

// SAFETY: a handle is a token that the library looks up; its header says that any thread may use
// it.
unsafe impl Send for GroupHandle {}

/// A store handle.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreHandle(*mut dist_store_t);

// SAFETY: a handle is a token that the library looks up, as for `GroupHandle`.
unsafe impl Send for StoreHandle {}

/// Returns the world group.
pub(super) fn world() -> GroupHandle {
    // SAFETY: the call takes no arguments.
    GroupHandle(unsafe { dist_world() })
}

/// An invalid handle, which the library has never returned.
pub(super) const INVALID_GROUP: GroupHandle =
    GroupHandle(std::ptr::without_provenance_mut(usize::MAX));

pub(super) fn outcome(status: dist_status_t) -> CommandOutcome {
    let message = if status == DIST_OK { String::new() } else { last_error() };
    (status, message)
}

fn last_error() -> String {
    // SAFETY: the call takes no arguments.
    let text = unsafe { dist_last_error() };
    // SAFETY: the text is terminated and valid until the next failing call of this thread.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned()
}

/// Returns a terminated copy of a text that lives as long as the process.
fn terminated(text: &str) -> *const std::ffi::c_char {
    Box::leak(CString::new(text).unwrap().into_boxed_c_str()).as_ptr()
}

fn text(words: &CommandWords<'_>, key: &str) -> *const std::ffi::c_char {
    words.text(key).map_or(null(), terminated)
}

/// Returns an options struct with default values.
pub(super) fn defaults<T>() -> T {
    // SAFETY: the header promises that zero bytes mean the defaults of every options struct.
    unsafe { std::mem::zeroed() }
}

/// Executes `init` with `url=`, `rank=`, `size=`, `group=`, `timeout_ms=`, `connect_timeout_ms=`,
/// and a store.
pub(super) fn init(words: &CommandWords<'_>, store: Option<StoreHandle>) -> CommandOutcome {
    let mut options: dist_init_options_t = defaults();
    options.struct_size = size_of::<dist_init_options_t>();
    options.init_method = text(words, "url");
    options.group_name = text(words, "group");
    options.backend = text(words, "backend");
    options.store = store.map_or(null(), |store| store.0);
    options.timeout_ms = words.number("timeout_ms").unwrap_or(0);
    options.connect_timeout_ms = words.number("connect_timeout_ms").unwrap_or(0);
    options.world_size = words.number("size").unwrap_or(0);
    if let Some(rank) = words.number("rank") {
        options.fields |= DIST_FIELD_RANK;
        options.rank = rank;
    }
    // SAFETY: the options and their texts outlive the call.
    outcome(unsafe { dist_init(&raw const options) })
}

pub(super) fn finalize() -> CommandOutcome {
    // SAFETY: the call takes no arguments.
    outcome(unsafe { dist_finalize() })
}

/// Creates a group of the world's ranks through a store; the first word is its name.
pub(super) fn create_group(
    words: &CommandWords<'_>,
    store: StoreHandle,
) -> Result<GroupHandle, CommandOutcome> {
    let mut options: dist_group_options_t = defaults();
    options.struct_size = size_of::<dist_group_options_t>();
    options.fields = DIST_FIELD_RANK;
    options.store = store.0;
    options.name = terminated(words.at(0));
    options.rank = words.number("rank").unwrap_or_else(|| rank(world()));
    options.world_size = words.number("size").unwrap_or_else(|| size(world()));
    options.timeout_ms = words.number("timeout_ms").unwrap_or(0);
    options.connect_timeout_ms = words.number("connect_timeout_ms").unwrap_or(0);
    let mut group = null_mut();
    // SAFETY: the options and their texts outlive the call, and `group` takes the handle.
    match unsafe { dist_group_create(&raw const options, &raw mut group) } {
        DIST_OK => Ok(GroupHandle(group)),
        status => Err(outcome(status)),
    }
}

pub(super) fn set_debug_level(level: i32) -> CommandOutcome {
    // SAFETY: the call takes only a number.
    outcome(unsafe { dist_set_debug_level(level) })
}

pub(super) fn release_group(group: GroupHandle) -> CommandOutcome {
    // SAFETY: the call takes a handle, which the library checks.
    outcome(unsafe { dist_group_release(group.0) })
}

/// Reports the culprit of a group's failure as text.
pub(super) fn culprit(group: GroupHandle) -> CommandOutcome {
    // SAFETY: the call takes a handle, which the library checks, and a valid pointer to a struct.
    culprit_outcome(|out| unsafe { dist_group_culprit(group.0, out) })
}

/// Reports the culprit of a work's error as text.
pub(super) fn work_culprit(work: *const dist_work_t) -> CommandOutcome {
    // SAFETY: as above.
    culprit_outcome(|out| unsafe { dist_work_culprit(work, out) })
}

fn culprit_outcome(ask: impl FnOnce(*mut dist_culprit_t) -> dist_status_t) -> CommandOutcome {
    let mut culprit: dist_culprit_t = defaults();
    culprit.struct_size = size_of::<dist_culprit_t>();
    let (status, message) = outcome(ask(&raw mut culprit));
    if status != DIST_OK {
        return (status, message);
    }
    let dist_culprit_t { rank, kind, pid, host, .. } = culprit;
    let host: Vec<u8> = host.iter().map(|byte| byte.cast_unsigned()).collect();
    let host = CStr::from_bytes_until_nul(&host).unwrap().to_str().unwrap();
    (DIST_OK, format!("rank {rank}, kind {kind}, pid {pid}, host {host}"))
}

pub(super) fn abort(group: GroupHandle, reason: &str) -> CommandOutcome {
    // SAFETY: the text outlives the call.
    outcome(unsafe { dist_group_abort(group.0, terminated(reason)) })
}

pub(super) fn rank(group: GroupHandle) -> i32 {
    // SAFETY: the call takes a handle, which the library checks.
    unsafe { dist_get_rank(group.0) }
}

/// Makes a monitored barrier and appends the list of absent ranks to the message.
pub(super) fn monitored_barrier(words: &CommandWords<'_>, group: GroupHandle) -> CommandOutcome {
    let mut missing = [-1; 8];
    let mut count = missing.len();
    let timeout_ms = words.at(0).parse().unwrap();
    let list = missing.as_mut_ptr();
    // SAFETY: `count` is the length of the list, and is valid for the number of absent ranks.
    let status = unsafe { dist_monitored_barrier(group.0, timeout_ms, 1, list, &raw mut count) };
    let (status, message) = outcome(status);
    let list = &missing[..count.min(missing.len())];
    (status, if status == DIST_OK { message } else { format!("{message} (list: {list:?})") })
}

/// Starts a trace.
pub(super) fn start_trace(path: &str) -> CommandOutcome {
    // SAFETY: the text is terminated and outlives the call.
    outcome(unsafe { dist_trace_start(terminated(path)) })
}

/// Stops the trace.
pub(super) fn stop_trace() -> CommandOutcome {
    // SAFETY: the call takes no arguments.
    outcome(unsafe { dist_trace_stop() })
}

/// Reports the description of a group as JSON.
pub(super) fn describe(group: GroupHandle) -> CommandOutcome {
    let mut blob = null_mut();
    // SAFETY: `blob` takes the handle.
    match unsafe { dist_group_describe(group.0, &raw mut blob) } {
        DIST_OK => (DIST_OK, first_text_of_blob(blob)),
        status => outcome(status),
    }
}

fn size(group: GroupHandle) -> i32 {
    // SAFETY: the call takes a handle, which the library checks.
    unsafe { dist_get_world_size(group.0) }
}

/// Creates a client of the store at an address, and the store's server if `is_server` is set.
pub(super) fn connect(
    host: &str,
    port: i32,
    is_server: bool,
    timeout_ms: i64,
) -> Result<StoreHandle, CommandOutcome> {
    let mut options: dist_store_tcp_options_t = defaults();
    options.struct_size = size_of::<dist_store_tcp_options_t>();
    options.host = terminated(host);
    options.port = port;
    options.is_server = i32::from(is_server);
    options.timeout_ms = timeout_ms;
    let mut store = null_mut();
    // SAFETY: the options and their texts outlive the call, and `store` takes the handle.
    match unsafe { dist_store_tcp_create(&raw const options, &raw mut store) } {
        DIST_OK => Ok(StoreHandle(store)),
        status => Err(outcome(status)),
    }
}

/// Opens the file store at the path in the first word, with `size=` and `job=`.
pub(super) fn open_file(words: &CommandWords<'_>) -> Result<StoreHandle, CommandOutcome> {
    let mut options: dist_store_file_options_t = defaults();
    options.struct_size = size_of::<dist_store_file_options_t>();
    options.job_id = text(words, "job");
    options.timeout_ms = words.number("timeout_ms").unwrap_or(20_000);
    let (path, size) = (terminated(words.at(0)), words.number("size").unwrap_or(0));
    let mut store = null_mut();
    // SAFETY: the options and their texts outlive the call, and `store` takes the handle.
    match unsafe { dist_store_file_create(path, size, &raw const options, &raw mut store) } {
        DIST_OK => Ok(StoreHandle(store)),
        status => Err(outcome(status)),
    }
}

pub(super) fn release_store(store: StoreHandle) -> CommandOutcome {
    // SAFETY: the call takes a handle, which the library checks.
    outcome(unsafe { dist_store_release(store.0) })
}

pub(super) fn store_set(store: StoreHandle, key: &str, value: &str) -> CommandOutcome {
    let (data, len) = (value.as_ptr().cast(), value.len());
    // SAFETY: key and value outlive the call, and the length is the value's.
    outcome(unsafe { dist_store_set(store.0, terminated(key), DIST_TERMINATED, data, len) })
}

/// Adds 1 to a counter.
pub(super) fn store_add(store: StoreHandle, key: &str) -> CommandOutcome {
    let mut sum = 0;
    // SAFETY: the key outlives the call, and `sum` takes the result.
    outcome(unsafe { dist_store_add(store.0, terminated(key), DIST_TERMINATED, 1, &raw mut sum) })
}

pub(super) fn store_wait(store: StoreHandle, key: &str) -> CommandOutcome {
    let keys = [terminated(key)];
    // SAFETY: one key, which outlives the call.
    outcome(unsafe { dist_store_wait(store.0, keys.as_ptr(), null(), keys.len(), 0) })
}

pub(super) fn store_barrier(store: StoreHandle, key: &str, size: i32) -> CommandOutcome {
    // SAFETY: the key outlives the call.
    outcome(unsafe { dist_store_barrier(store.0, terminated(key), DIST_TERMINATED, size, 0) })
}

pub(super) fn store_pop(store: StoreHandle, queue: &str) -> CommandOutcome {
    let mut blob = null_mut();
    // SAFETY: the name outlives the call, and `blob` takes the handle.
    let popped = outcome(unsafe {
        dist_store_queue_pop(store.0, terminated(queue), DIST_TERMINATED, 1, &raw mut blob)
    });
    // SAFETY: the argument is NULL or a handle, and no pointer into the blob exists.
    assert_eq!(unsafe { dist_blob_release(blob) }, DIST_OK);
    popped
}

/// Returns the first string of a blob and releases the blob.
fn first_text_of_blob(blob: *mut dist_blob_t) -> String {
    let (mut data, mut len) = (null(), 0);
    // SAFETY: both output pointers are valid.
    let status = unsafe { dist_blob_data(blob, 0, &raw mut data, &raw mut len) };
    assert_eq!(status, DIST_OK);
    // SAFETY: the blob owns this many bytes until it is released.
    let value = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) };
    let text = String::from_utf8_lossy(value).into_owned();
    // SAFETY: no pointer into the blob is used after this call.
    assert_eq!(unsafe { dist_blob_release(blob) }, DIST_OK);
    text
}

/// Gets a key and compares its value with the expected one.
pub(super) fn store_get(store: StoreHandle, key: &str, expected: &str) -> CommandOutcome {
    let mut blob = null_mut();
    // SAFETY: the key outlives the call, and `blob` takes the handle.
    let status =
        unsafe { dist_store_get(store.0, terminated(key), DIST_TERMINATED, &raw mut blob) };
    if status != DIST_OK {
        return outcome(status);
    }
    let value = first_text_of_blob(blob);
    if value == expected {
        return (DIST_OK, String::new());
    }
    (WRONG_RESULT, format!("{key} is \"{value}\", not \"{expected}\""))
}

fn dtype(name: &str) -> (dist_dtype_t, usize) {
    match name {
        "f32" => (DIST_F32, 4),
        "i32" => (DIST_I32, 4),
        "f64" => (DIST_F64, 8),
        _ => panic!("the worker knows no dtype \"{name}\""),
    }
}

fn operator(name: &str) -> dist_op_t {
    match name {
        "SUM" => DIST_SUM,
        "MAX" => DIST_MAX,
        "AVG" => DIST_AVG,
        _ => panic!("the worker knows no operator \"{name}\""),
    }
}

/// A collective call that can be repeated with the same buffers.
pub(super) struct CollectiveCall<'a> {
    words: CommandWords<'a>,
    group: GroupHandle,
    options: dist_call_options_t,
    send: Vec<f32>,
    recv: Vec<f32>,
}

/// Returns the element that a rank contributes at an index: small whole numbers, whose sums are
/// exact.
fn input_element(rank: i32, index: usize) -> f32 {
    let step = u8::try_from(index % 7).unwrap();
    let rank = u16::try_from(rank).unwrap();
    f32::from(rank + 1) * f32::from(step + 1)
}

impl<'a> CollectiveCall<'a> {
    /// Parses `all_reduce f32 SUM 10`, `reduce f32 SUM 10 0`, `broadcast f32 10 0`, `all_gather f32
    /// 10`, `reduce_scatter f32 SUM 10`, or `barrier`, with `timeout_ms=` and `algorithm=`. With
    /// `nan=INDEX`, the element at that index is NaN.
    pub(super) fn new(words: CommandWords<'a>, group: GroupHandle) -> Self {
        let mut options: dist_call_options_t = defaults();
        options.struct_size = size_of::<dist_call_options_t>();
        options.timeout_ms = words.number("timeout_ms").unwrap_or(0);
        options.algorithm = text(&words, "algorithm");
        // An invalid group has no size; the later call returns the error.
        let ranks = usize::try_from(size(group)).unwrap_or(1);
        let blocks = if words.verb().contains("gather") || words.verb().contains("scatter") {
            ranks
        } else {
            1
        };
        let room = if words.verb() == "barrier" {
            0
        } else {
            words.count() * blocks * dtype(words.at(0)).1 / 4
        };
        let own_rank = rank(group).max(0);
        let mut send: Vec<f32> = (0..room).map(|index| input_element(own_rank, index)).collect();
        if let Some(index) = words.number::<usize>("nan") {
            send[index] = f32::NAN;
        }
        Self { words, group, options, send, recv: vec![0.0; room] }
    }

    /// Makes the call and checks the result.
    pub(super) fn call_and_check(&mut self) -> CommandOutcome {
        let (status, message) = self.call_blocking();
        if status == DIST_OK { self.check_result() } else { (status, message) }
    }

    /// Checks the result of a successful call.
    pub(super) fn check_result(&self) -> CommandOutcome {
        match self.expected().and_then(|expected| self.first_difference(&expected)) {
            Some(difference) => (WRONG_RESULT, difference),
            None => (DIST_OK, String::new()),
        }
    }

    /// Makes the call without a check of the result.
    pub(super) fn call_blocking(&mut self) -> CommandOutcome {
        outcome(self.call(null_mut()))
    }

    /// Issues the call. The caller keeps this value, with its buffers, until the work completes.
    pub(super) fn issue(&mut self) -> Result<WorkHandle, CommandOutcome> {
        WorkHandle::issued(|work| self.call(work))
    }

    fn call(&mut self, work: *mut *mut dist_work_t) -> dist_status_t {
        let (words, group, options) = (&self.words, self.group.0, &raw const self.options);
        if words.verb() == "barrier" {
            // SAFETY: the options outlive the call.
            return unsafe { dist_barrier(group, options, work) };
        }
        let (dtype, _) = dtype(words.at(0));
        let (send, recv) = (self.send.as_ptr().cast(), self.recv.as_mut_ptr().cast());
        let count = words.count();
        match words.verb() {
            "all_reduce" => {
                let op = operator(words.at(1));
                // SAFETY: both buffers hold `count` elements and outlive the operation.
                unsafe { dist_all_reduce(group, send, recv, count, dtype, op, options, work) }
            }
            "reduce" => {
                let (op, root) = (operator(words.at(1)), words.root());
                // SAFETY: both buffers hold `count` elements and outlive the operation.
                unsafe { dist_reduce(group, send, recv, count, dtype, op, root, options, work) }
            }
            "broadcast" => {
                let root = words.root();
                if rank(self.group) == root {
                    self.recv.copy_from_slice(&self.send);
                }
                // SAFETY: the buffer holds `count` elements and outlives the operation.
                unsafe { dist_broadcast(group, recv, count, dtype, root, options, work) }
            }
            // SAFETY: both buffers hold `count` elements for each rank and outlive the operation.
            "all_gather" => unsafe {
                dist_all_gather(group, send, recv, count, dtype, options, work)
            },
            "reduce_scatter" => {
                let op = operator(words.at(1));
                // SAFETY: both buffers hold `count` elements for each rank and outlive the
                // operation.
                unsafe { dist_reduce_scatter(group, send, recv, count, dtype, op, options, work) }
            }
            verb => panic!("the worker knows no command \"{verb}\""),
        }
    }

    /// Returns the expected content of `recv`, if the worker checks it.
    fn expected(&self) -> Option<Vec<f32>> {
        let words = &self.words;
        if words.verb() == "barrier" || words.at(0) != "f32" {
            return None;
        }
        let indices = 0..words.count();
        let ranks = size(self.group);
        let sum = f32::from(u16::try_from(ranks * (ranks + 1) / 2).unwrap());
        let is_sum = words.at(1) == "SUM";
        match words.verb() {
            "all_reduce" if is_sum => Some(indices.map(|i| sum * input_element(0, i)).collect()),
            "all_reduce" if words.at(1) == "MAX" => {
                Some(indices.map(|i| input_element(ranks - 1, i)).collect())
            }
            "reduce" if is_sum && rank(self.group) == words.root() => {
                Some(indices.map(|i| sum * input_element(0, i)).collect())
            }
            "reduce_scatter" if is_sum => {
                let first = usize::try_from(rank(self.group)).unwrap() * words.count();
                Some(indices.map(|i| sum * input_element(0, first + i)).collect())
            }
            "all_gather" => {
                let block = |rank| indices.clone().map(move |i| input_element(rank, i));
                Some((0..ranks).flat_map(block).collect())
            }
            "broadcast" => Some(indices.map(|i| input_element(words.root(), i)).collect()),
            _ => None,
        }
    }

    fn first_difference(&self, expected: &[f32]) -> Option<String> {
        let differs = |(found, expected): &(&f32, &f32)| found.to_bits() != expected.to_bits();
        let index = self.recv.iter().zip(expected).position(|pair| differs(&pair))?;
        Some(format!("element {index} is {}, not {}", self.recv[index], expected[index]))
    }
}
