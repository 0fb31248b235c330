//! Safe wrappers of the C ABI for the ranks of a scenario: one wrapper per function, without any
//! policy.
#![allow(unsafe_code, reason = "the C ABI takes raw pointers")]

use crate::checked_collective::CheckedCollective;
use crate::scenario::CollectiveKind;
use dist::ffi::blob::{dist_blob_data, dist_blob_release};
use dist::ffi::collective::{
    dist_all_gather, dist_all_reduce, dist_barrier, dist_broadcast, dist_reduce,
    dist_reduce_scatter,
};
use dist::ffi::collective_blocks::{dist_all_to_all, dist_gather, dist_scatter};
use dist::ffi::collective_v::{
    dist_all_gather_v, dist_all_to_all_v, dist_gather_v, dist_reduce_scatter_v, dist_scatter_v,
};
use dist::ffi::culprit::dist_group_culprit;
use dist::ffi::group::{dist_group_abort, dist_group_create, dist_group_release, dist_world};
use dist::ffi::group_new::{dist_group_new, dist_group_split};
use dist::ffi::group_shrink::dist_group_shrink;
use dist::ffi::memory::{dist_mem_alloc, dist_mem_free};
use dist::ffi::monitored::dist_monitored_barrier;
use dist::ffi::point_to_point::{dist_recv, dist_send};
use dist::ffi::runtime::{
    dist_finalize, dist_get_rank, dist_get_world_size, dist_init, dist_last_error,
};
use dist::ffi::store::{dist_store_get, dist_store_set, dist_store_wait};
use dist::ffi::store_create::{dist_store_file_create, dist_store_tcp_create};
use dist::ffi::store_handle::{dist_store_release, dist_store_set_timeout};
use dist::ffi::types::{
    DIST_DEVICE_HOST, DIST_FIELD_LISTEN_FD, DIST_FIELD_RANK, DIST_I32, DIST_OK, DIST_SUM,
    DIST_TERMINATED, DIST_WAIT_FOREVER, dist_culprit_t, dist_group_new_options_t,
    dist_group_options_t, dist_group_t, dist_init_options_t, dist_shrink_options_t, dist_status_t,
    dist_store_file_options_t, dist_store_t, dist_store_tcp_options_t, dist_work_t,
};
use dist::ffi::work::{dist_work_release, dist_work_wait};
use std::ffi::{CStr, CString, c_void};
use std::ptr::{NonNull, null, null_mut};

/// The status and message of a failed call.
#[derive(Clone, Debug)]
pub(crate) struct CallError {
    pub(crate) status: i32,
    pub(crate) message: String,
}

/// The result of a call.
pub(crate) type CallResult<T = ()> = Result<T, CallError>;

fn outcome(status: dist_status_t) -> CallResult {
    if status == DIST_OK {
        return Ok(());
    }
    // SAFETY: the call takes no arguments.
    let text = unsafe { dist_last_error() };
    // SAFETY: the text is terminated and valid until the next failing call of this thread.
    let message = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    Err(CallError { status, message })
}

/// Allocates `len` values in the library's memory. Returns `None` if the allocation fails or the
/// world group no longer exists.
pub(crate) fn allocate(len: usize) -> Option<NonNull<i32>> {
    let mut ptr = null_mut();
    let world = world().0;
    // SAFETY: the output pointer is valid during the call.
    let status = unsafe { dist_mem_alloc(world, 4 * len, DIST_DEVICE_HOST, &raw mut ptr) };
    NonNull::new(ptr.cast()).filter(|_| status == DIST_OK)
}

/// Frees memory that [`allocate`] returned.
pub(crate) fn free(start: NonNull<i32>) {
    // SAFETY: `allocate` returned the memory, and no code uses it any more.
    unsafe { dist_mem_free(start.as_ptr().cast()) };
}

fn terminated(text: &str) -> CString {
    CString::new(text).unwrap()
}

fn defaults<T>() -> T {
    // SAFETY: the header promises that zero bytes mean the defaults of every options struct.
    unsafe { std::mem::zeroed() }
}

/// Whether a process hosts the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreRole {
    Client,
    Server,
    /// The process hosts the store on an inherited socket.
    InheritedServer(i32),
}

/// A store handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreHandle(*mut dist_store_t);

// SAFETY: a handle is a token that the library looks up; its header says that any thread may use
// it.
unsafe impl Send for StoreHandle {}
// SAFETY: as above.
unsafe impl Sync for StoreHandle {}

impl StoreHandle {
    /// Creates a client of the store at this port of `host`, and the store's server if the role
    /// asks for it.
    pub(crate) fn tcp(host: &str, port: u16, role: StoreRole, timeout_ms: i64) -> CallResult<Self> {
        let host = terminated(host);
        let mut options: dist_store_tcp_options_t = defaults();
        options.struct_size = size_of::<dist_store_tcp_options_t>();
        options.host = host.as_ptr();
        options.port = i32::from(port);
        options.timeout_ms = timeout_ms;
        options.is_server = i32::from(role != StoreRole::Client);
        if let StoreRole::InheritedServer(listen) = role {
            options.fields |= DIST_FIELD_LISTEN_FD;
            options.listen_fd = listen;
        }
        let mut store = null_mut();
        // SAFETY: options and text outlive the call, and `store` takes the handle.
        outcome(unsafe { dist_store_tcp_create(&raw const options, &raw mut store) })?;
        Ok(Self(store))
    }

    pub(crate) fn file(path: &str, size: usize, timeout_ms: i64) -> CallResult<Self> {
        let path = terminated(path);
        let mut options: dist_store_file_options_t = defaults();
        options.struct_size = size_of::<dist_store_file_options_t>();
        options.timeout_ms = timeout_ms;
        let (size, mut store) = (i32::try_from(size).unwrap(), null_mut());
        // SAFETY: options and path outlive the call, and `store` takes the handle.
        let status = unsafe {
            dist_store_file_create(path.as_ptr(), size, &raw const options, &raw mut store)
        };
        outcome(status)?;
        Ok(Self(store))
    }

    /// Sets the deadline of the store's later calls.
    pub(crate) fn set_timeout(self, timeout_ms: i64) -> CallResult {
        // SAFETY: the call takes a handle, which the library checks.
        outcome(unsafe { dist_store_set_timeout(self.0, timeout_ms) })
    }

    pub(crate) fn set(self, key: &str, value: &str) -> CallResult {
        let key = terminated(key);
        let (data, len) = (value.as_ptr().cast(), value.len());
        // SAFETY: key and value outlive the call, and the length is the value's.
        outcome(unsafe { dist_store_set(self.0, key.as_ptr(), DIST_TERMINATED, data, len) })
    }

    pub(crate) fn wait(self, key: &str, timeout_ms: i64) -> CallResult {
        let key = terminated(key);
        let keys = [key.as_ptr()];
        // SAFETY: one key, which outlives the call.
        outcome(unsafe { dist_store_wait(self.0, keys.as_ptr(), null(), 1, timeout_ms) })
    }

    pub(crate) fn get(self, key: &str) -> CallResult<String> {
        let key = terminated(key);
        let mut blob = null_mut();
        // SAFETY: the key outlives the call, and `blob` takes the handle.
        outcome(unsafe { dist_store_get(self.0, key.as_ptr(), DIST_TERMINATED, &raw mut blob) })?;
        let (mut data, mut len) = (null(), 0);
        // SAFETY: both output pointers are valid.
        outcome(unsafe { dist_blob_data(blob, 0, &raw mut data, &raw mut len) })?;
        // SAFETY: the blob owns this many bytes until it is released.
        let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) };
        let text = String::from_utf8_lossy(bytes).into_owned();
        // SAFETY: no pointer into the blob is used after this call.
        outcome(unsafe { dist_blob_release(blob) })?;
        Ok(text)
    }

    pub(crate) fn release(self) -> CallResult {
        // SAFETY: the call takes a handle, which the library checks.
        outcome(unsafe { dist_store_release(self.0) })
    }
}

/// The arguments with which a rank joins the world group or another group of all ranks.
pub(crate) struct JoinOptions {
    pub(crate) store: StoreHandle,
    pub(crate) name: String,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) timeout_ms: i64,
    pub(crate) connect_ms: i64,
    pub(crate) backend_options: String,
}

pub(crate) fn init(join: &JoinOptions) -> CallResult {
    let (wishes, name) = (terminated(&join.backend_options), terminated(&join.name));
    let mut options: dist_init_options_t = defaults();
    options.struct_size = size_of::<dist_init_options_t>();
    options.fields = DIST_FIELD_RANK;
    options.store = join.store.0;
    options.rank = i32::try_from(join.rank).unwrap();
    options.world_size = i32::try_from(join.size).unwrap();
    options.timeout_ms = join.timeout_ms;
    options.connect_timeout_ms = join.connect_ms;
    options.backend_options = wishes.as_ptr();
    options.group_name = name.as_ptr();
    // SAFETY: the options and their texts outlive the call.
    outcome(unsafe { dist_init(&raw const options) })
}

pub(crate) fn finalize() -> CallResult {
    // SAFETY: the call takes no arguments.
    outcome(unsafe { dist_finalize() })
}

/// A work handle.
#[derive(Debug)]
pub(crate) struct WorkHandle(*mut dist_work_t);

impl WorkHandle {
    pub(crate) fn wait(&self) -> CallResult {
        // SAFETY: the call takes a handle, which the library checks.
        outcome(unsafe { dist_work_wait(self.0, DIST_WAIT_FOREVER) })
    }
}

impl Drop for WorkHandle {
    fn drop(&mut self) {
        // SAFETY: the call takes a handle, which the library checks.
        unsafe { dist_work_release(self.0) };
    }
}

/// A group handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupHandle(*mut dist_group_t);

/// Returns the world group.
pub(crate) fn world() -> GroupHandle {
    // SAFETY: the call takes no arguments.
    GroupHandle(unsafe { dist_world() })
}

/// The peer and the tag of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageAddress {
    pub(crate) peer: usize,
    pub(crate) tag: usize,
}

impl GroupHandle {
    pub(crate) fn rank(self) -> usize {
        // SAFETY: the call takes a handle, which the library checks.
        usize::try_from(unsafe { dist_get_rank(self.0) }).unwrap()
    }

    pub(crate) fn size(self) -> usize {
        // SAFETY: the call takes a handle, which the library checks.
        usize::try_from(unsafe { dist_get_world_size(self.0) }).unwrap()
    }

    /// Creates a group of all ranks through the store.
    pub(crate) fn create(join: &JoinOptions) -> CallResult<Self> {
        let (wishes, name) = (terminated(&join.backend_options), terminated(&join.name));
        let mut options: dist_group_options_t = defaults();
        options.struct_size = size_of::<dist_group_options_t>();
        options.fields = DIST_FIELD_RANK;
        options.store = join.store.0;
        options.rank = i32::try_from(join.rank).unwrap();
        options.world_size = i32::try_from(join.size).unwrap();
        options.timeout_ms = join.timeout_ms;
        options.connect_timeout_ms = join.connect_ms;
        options.backend_options = wishes.as_ptr();
        options.name = name.as_ptr();
        let world_ranks: Vec<i32> = (0..options.world_size).collect();
        options.global_ranks = world_ranks.as_ptr();
        options.n_global_ranks = world_ranks.len();
        let mut group = null_mut();
        // SAFETY: the options and their texts outlive the call, and `group` takes the handle.
        let status = unsafe { dist_group_create(&raw const options, &raw mut group) };
        outcome(status).map(|()| Self(group))
    }

    /// Returns the rank that has failed the group and the kind of its failure, if the group has
    /// failed and its error names a rank.
    pub(crate) fn culprit(self) -> Option<(usize, i32)> {
        let mut culprit: dist_culprit_t = defaults();
        culprit.struct_size = size_of::<dist_culprit_t>();
        // SAFETY: the output pointer is valid during the call.
        outcome(unsafe { dist_group_culprit(self.0, &raw mut culprit) }).ok()?;
        Some((usize::try_from(culprit.rank).ok()?, culprit.kind))
    }

    /// Splits the group by color and returns this rank's new group.
    pub(crate) fn split(self, color: usize, connect_ms: i64) -> CallResult<Self> {
        let mut options: dist_group_new_options_t = defaults();
        options.struct_size = size_of::<dist_group_new_options_t>();
        options.connect_timeout_ms = connect_ms;
        let (color, mut group) = (i32::try_from(color).unwrap(), null_mut());
        // SAFETY: the options outlive the call, and `group` takes the handle.
        let status =
            unsafe { dist_group_split(self.0, color, 0, &raw const options, &raw mut group) };
        outcome(status).map(|()| Self(group))
    }

    /// Creates a group of `ranks`. Returns `None` on all ranks that are not in the list.
    pub(crate) fn subgroup(self, ranks: &[usize], connect_ms: i64) -> CallResult<Option<Self>> {
        let mut options: dist_group_new_options_t = defaults();
        options.struct_size = size_of::<dist_group_new_options_t>();
        options.connect_timeout_ms = connect_ms;
        let ranks: Vec<i32> = ranks.iter().map(|&rank| i32::try_from(rank).unwrap()).collect();
        let (list, n, mut group) = (ranks.as_ptr(), ranks.len(), null_mut());
        // SAFETY: options and list outlive the call, and `group` takes the handle.
        let status = unsafe { dist_group_new(self.0, list, n, &raw const options, &raw mut group) };
        outcome(status).map(|()| (!group.is_null()).then_some(Self(group)))
    }

    /// Creates a group of the survivors of this failed group.
    pub(crate) fn shrink(self, window_ms: i64, connect_ms: i64) -> CallResult<Self> {
        let mut options: dist_shrink_options_t = defaults();
        options.struct_size = size_of::<dist_shrink_options_t>();
        options.timeout_ms = window_ms;
        options.connect_timeout_ms = connect_ms;
        let mut group = null_mut();
        // SAFETY: the options outlive the call, and `group` takes the handle.
        let status = unsafe { dist_group_shrink(self.0, &raw const options, &raw mut group) };
        outcome(status).map(|()| Self(group))
    }

    pub(crate) fn release(self) -> CallResult {
        // SAFETY: the call takes a handle, which the library checks.
        outcome(unsafe { dist_group_release(self.0) })
    }

    /// Aborts the group on all ranks with a reason.
    pub(crate) fn abort(self, reason: &str) -> CallResult {
        let reason = terminated(reason);
        // SAFETY: the text outlives the call.
        outcome(unsafe { dist_group_abort(self.0, reason.as_ptr()) })
    }

    /// Makes a blocking collective call.
    pub(crate) fn run(self, operation: &mut CheckedCollective) -> CallResult {
        outcome(self.call(operation, null_mut()))
    }

    /// Issues a collective and returns its work.
    pub(crate) fn issue(self, operation: &mut CheckedCollective) -> CallResult<WorkHandle> {
        let mut work = null_mut();
        outcome(self.call(operation, &raw mut work)).map(|()| WorkHandle(work))
    }

    fn call(self, operation: &mut CheckedCollective, work: *mut *mut dist_work_t) -> dist_status_t {
        let (group, no, count, kind) = (self.0, null(), operation.count, operation.kind);
        let root = i32::try_from(operation.root).unwrap();
        let send: *const c_void = operation.send.as_ptr().cast();
        let recv: *mut c_void = operation.recv.as_mut_ptr().cast();
        let (dtype, op) = (DIST_I32, DIST_SUM);
        // SAFETY (all): the buffers have the lengths that the call gives, and outlive the
        // operation.
        match kind {
            // SAFETY: as above.
            CollectiveKind::AllReduce => unsafe {
                dist_all_reduce(group, send, recv, count, dtype, op, no, work)
            },
            // SAFETY: as above.
            CollectiveKind::Reduce => unsafe {
                dist_reduce(group, send, recv, count, dtype, op, root, no, work)
            },
            // SAFETY: as above.
            CollectiveKind::Broadcast => unsafe {
                dist_broadcast(group, recv, count, dtype, root, no, work)
            },
            // SAFETY: as above.
            CollectiveKind::AllGather => unsafe {
                dist_all_gather(group, send, recv, count, dtype, no, work)
            },
            // SAFETY: as above.
            CollectiveKind::Gather => unsafe {
                dist_gather(group, send, recv, count, dtype, root, no, work)
            },
            // SAFETY: as above.
            CollectiveKind::Scatter => unsafe {
                dist_scatter(group, send, recv, count, dtype, root, no, work)
            },
            // SAFETY: as above.
            CollectiveKind::ReduceScatter => unsafe {
                dist_reduce_scatter(group, send, recv, count, dtype, op, no, work)
            },
            // SAFETY: as above.
            CollectiveKind::AllToAll => unsafe {
                dist_all_to_all(group, send, recv, count, dtype, no, work)
            },
            // SAFETY: as above.
            CollectiveKind::Barrier => unsafe { dist_barrier(group, no, work) },
            // SAFETY: the list of absent ranks is optional, and its pointers are NULL.
            CollectiveKind::MonitoredBarrier => unsafe {
                dist_monitored_barrier(group, 0, 1, null_mut(), null_mut())
            },
            _ => self.call_with_lists(operation, work),
        }
    }

    /// Makes a call with a list of blocks; here all blocks have the same length.
    fn call_with_lists(
        self,
        operation: &mut CheckedCollective,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let (group, no, count, dtype) = (self.0, null(), operation.count, DIST_I32);
        let root = i32::try_from(operation.root).unwrap();
        let send = operation.send.as_ptr();
        let recv = operation.recv.as_mut_ptr();
        let (blocks, counts) = (0..operation.size, vec![count; operation.size]);
        let sends: Vec<*const c_void> =
            blocks.clone().map(|block| send.wrapping_add(block * count).cast()).collect();
        let recvs: Vec<*mut c_void> =
            blocks.map(|block| recv.wrapping_add(block * count).cast()).collect();
        let (send, recv) = (send.cast(), recv.cast());
        let (sends, recvs, counts) = (sends.as_ptr(), recvs.as_ptr(), counts.as_ptr());
        // SAFETY (all): the lists have one entry per rank and outlive the call. The blocks that
        // this rank uses have the lengths in `counts` and outlive the operation.
        match operation.kind {
            // SAFETY: as above.
            CollectiveKind::AllGatherV => unsafe {
                dist_all_gather_v(group, send, recvs, counts, dtype, no, work)
            },
            // SAFETY: as above.
            CollectiveKind::GatherV => unsafe {
                dist_gather_v(group, send, count, recvs, counts, dtype, root, no, work)
            },
            // SAFETY: as above.
            CollectiveKind::ScatterV => unsafe {
                dist_scatter_v(group, sends, counts, recv, count, dtype, root, no, work)
            },
            // SAFETY: as above.
            CollectiveKind::ReduceScatterV => unsafe {
                dist_reduce_scatter_v(group, sends, counts, recv, dtype, DIST_SUM, no, work)
            },
            // SAFETY: as above.
            _ => unsafe { dist_all_to_all_v(group, sends, counts, recvs, counts, dtype, no, work) },
        }
    }

    /// Sends a message. If `wait` is set, the call blocks; else it returns the work, and the caller
    /// keeps the values until the work completes.
    pub(crate) fn send(
        self,
        message: MessageAddress,
        values: &[i32],
        wait: bool,
    ) -> CallResult<Option<WorkHandle>> {
        let (peer, tag) = message.numbers();
        let (buffer, count, mut work) = (values.as_ptr().cast(), values.len(), null_mut());
        let work_slot = if wait { null_mut() } else { &raw mut work };
        // SAFETY: the buffer has `count` elements and outlives the operation.
        let status =
            unsafe { dist_send(self.0, buffer, count, DIST_I32, peer, tag, null(), work_slot) };
        outcome(status).map(|()| (!wait).then_some(WorkHandle(work)))
    }

    /// Receives a message. If `wait` is set, the call blocks; else it returns the work, and the
    /// caller keeps the buffer until the work completes.
    pub(crate) fn receive(
        self,
        message: MessageAddress,
        values: &mut [i32],
        wait: bool,
    ) -> CallResult<Option<WorkHandle>> {
        let (peer, tag) = message.numbers();
        let (buffer, count, mut work) = (values.as_mut_ptr().cast(), values.len(), null_mut());
        let work_slot = if wait { null_mut() } else { &raw mut work };
        let no_status = null_mut();
        // SAFETY: the buffer has room for `count` elements and outlives the operation.
        let status = unsafe {
            dist_recv(self.0, buffer, count, DIST_I32, peer, tag, no_status, null(), work_slot)
        };
        outcome(status).map(|()| (!wait).then_some(WorkHandle(work)))
    }
}

impl MessageAddress {
    fn numbers(self) -> (i32, i32) {
        (i32::try_from(self.peer).unwrap(), i32::try_from(self.tag).unwrap())
    }
}
