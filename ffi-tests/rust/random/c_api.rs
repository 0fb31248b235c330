//! Safe wrappers of the C ABI functions that the random programs use.
#![allow(unsafe_code, reason = "the C ABI takes raw pointers")]

use crate::program::{
    CollectiveCall, CollectiveKind, PlannedMessage, SubgroupCreation, SubgroupPlan,
};
use dist::ffi::batch::{dist_batch_begin, dist_batch_end};
use dist::ffi::callbacks::dist_work_on_complete;
use dist::ffi::collective::{
    dist_all_gather, dist_all_reduce, dist_barrier, dist_broadcast, dist_reduce,
    dist_reduce_scatter,
};
use dist::ffi::collective_blocks::{dist_all_to_all, dist_gather, dist_scatter};
use dist::ffi::collective_v::{
    dist_all_gather_v, dist_all_to_all_v, dist_gather_v, dist_reduce_scatter_v, dist_scatter_v,
};
use dist::ffi::group::{dist_group_create, dist_group_release};
use dist::ffi::group_new::{dist_group_new, dist_group_split};
use dist::ffi::monitored::dist_monitored_barrier;
use dist::ffi::point_to_point::{dist_recv, dist_send};
use dist::ffi::runtime::dist_last_error;
use dist::ffi::store_create::dist_store_hash_create;
use dist::ffi::store_handle::dist_store_release;
use dist::ffi::types::{
    DIST_ANY_SOURCE, DIST_ANY_TAG, DIST_FIELD_RANK, DIST_IN_PROGRESS, DIST_NO_COLOR, DIST_OK,
    DIST_WAIT_FOREVER, dist_group_new_options_t, dist_group_options_t, dist_group_t, dist_status_t,
    dist_store_t, dist_work_t,
};
use dist::ffi::work::{
    dist_work_received_count, dist_work_release, dist_work_source, dist_work_tag, dist_work_test,
    dist_work_wait,
};
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::null_mut;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// The deadline of every call; it is longer than any program takes.
pub(crate) const LIMIT_MS: i64 = 30_000;

/// Panics if a call has failed.
#[track_caller]
pub(crate) fn expect(status: dist_status_t) {
    if status != DIST_OK {
        // SAFETY: the call takes no arguments.
        let text = unsafe { dist_last_error() };
        // SAFETY: the text is terminated and valid until the next failing call of this thread.
        let text = unsafe { CStr::from_ptr(text) };
        panic!("status {status}: {}", text.to_string_lossy());
    }
}

/// A store handle that threads share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreHandle(*mut dist_store_t);

// SAFETY: a handle is a token that the library looks up; its header says that any thread may use
// it.
unsafe impl Send for StoreHandle {}
// SAFETY: as above.
unsafe impl Sync for StoreHandle {}

impl StoreHandle {
    pub(crate) fn new() -> Self {
        let mut store = null_mut();
        // SAFETY: `store` takes the handle.
        expect(unsafe { dist_store_hash_create(&raw mut store) });
        Self(store)
    }

    pub(crate) fn release(self) {
        // SAFETY: the handle is live and not used after this call.
        expect(unsafe { dist_store_release(self.0) });
    }
}

/// The blocks of a collective with one block per rank, on one rank.
#[derive(Debug)]
pub(crate) struct BlockArguments {
    pub(crate) sends: Vec<*const u8>,
    pub(crate) send_counts: Vec<usize>,
    pub(crate) recvs: Vec<*mut u8>,
    pub(crate) recv_counts: Vec<usize>,
}

/// A group handle of one rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupHandle(pub(crate) *mut dist_group_t);

// SAFETY: a handle is a token that the library looks up, as for `StoreHandle`.
unsafe impl Send for GroupHandle {}

impl GroupHandle {
    pub(crate) fn join(
        store: StoreHandle,
        name: &str,
        rank: usize,
        size: usize,
        options: &str,
    ) -> Self {
        let (name, wishes) = (CString::new(name).unwrap(), CString::new(options).unwrap());
        // SAFETY: the header promises that zero bytes mean the defaults of every options struct.
        let mut options: dist_group_options_t = unsafe { std::mem::zeroed() };
        options.struct_size = size_of::<dist_group_options_t>();
        options.fields = DIST_FIELD_RANK;
        options.store = store.0;
        options.rank = i32::try_from(rank).unwrap();
        options.world_size = i32::try_from(size).unwrap();
        options.name = name.as_ptr();
        options.backend_options = wishes.as_ptr();
        options.timeout_ms = LIMIT_MS;
        options.connect_timeout_ms = LIMIT_MS;
        let mut group = null_mut();
        // SAFETY: the options and their texts outlive the call, and `group` takes the handle.
        expect(unsafe { dist_group_create(&raw const options, &raw mut group) });
        Self(group)
    }

    pub(crate) fn release(self) {
        // SAFETY: the handle is live and not used after this call.
        expect(unsafe { dist_group_release(self.0) });
    }

    /// Creates a subgroup of this group of `size` ranks. `subgroup_rank` is this rank's number in
    /// the subgroup, or `None` if it is no member.
    pub(crate) fn create_subgroup(
        self,
        team: &SubgroupPlan,
        size: usize,
        subgroup_rank: Option<usize>,
    ) -> Option<Self> {
        let name = CString::new(format!("team{}", team.id)).unwrap();
        // SAFETY: the header promises that zero bytes mean the defaults of every options struct.
        let mut options: dist_group_new_options_t = unsafe { std::mem::zeroed() };
        options.struct_size = size_of::<dist_group_new_options_t>();
        options.name = name.as_ptr();
        options.connect_timeout_ms = LIMIT_MS;
        options.use_local_synchronization = i64::from(team.creation == SubgroupCreation::Members);
        if team.creation == SubgroupCreation::Members && subgroup_rank.is_none() {
            return None;
        }
        let ranks: Vec<i32> = team.members.iter().map(|&r| i32::try_from(r).unwrap()).collect();
        let (ranks, n) = match is_whole_group(&team.members, size) {
            true => (std::ptr::null(), 0),
            false => (ranks.as_ptr(), ranks.len()),
        };
        let key = subgroup_rank.map_or(0, |rank| 10 * i32::try_from(rank).unwrap());
        let color = if subgroup_rank.is_some() { 3 } else { DIST_NO_COLOR };
        let (parent, options, mut group) = (self.0, &raw const options, null_mut());
        // SAFETY (both): options, name and ranks outlive the call, and `group` takes the handle.
        let status = match team.creation {
            // SAFETY: as above.
            SubgroupCreation::Split => unsafe {
                dist_group_split(parent, color, key, options, &raw mut group)
            },
            // SAFETY: as above.
            _ => unsafe { dist_group_new(parent, ranks, n, options, &raw mut group) },
        };
        expect(status);
        (!group.is_null()).then_some(Self(group))
    }

    /// Makes a collective; the caller keeps the buffers until it completes. With a `work`, the call
    /// is asynchronous.
    pub(crate) fn issue_collective(
        self,
        call: &CollectiveCall,
        send: *const u8,
        recv: *mut u8,
        work: Option<&mut WorkHandle>,
    ) {
        let CollectiveCall { kind, dtype, op, count, root, .. } = *call;
        let (group, dtype, op) = (self.0, dtype.number(), op.number());
        let (send, recv) = (send.cast::<c_void>(), recv.cast::<c_void>());
        let root = i32::try_from(root).unwrap();
        let (options, work) = (std::ptr::null(), work_slot(work));
        // SAFETY (all): the buffers have the sizes that the call gives, and outlive the operation.
        let status = match kind {
            // SAFETY: as above.
            CollectiveKind::AllReduce => unsafe {
                dist_all_reduce(group, send, recv, count, dtype, op, options, work)
            },
            // SAFETY: as above.
            CollectiveKind::Reduce => unsafe {
                dist_reduce(group, send, recv, count, dtype, op, root, options, work)
            },
            // SAFETY: as above.
            CollectiveKind::Broadcast => unsafe {
                dist_broadcast(group, recv, count, dtype, root, options, work)
            },
            // SAFETY: as above.
            CollectiveKind::AllGather => unsafe {
                dist_all_gather(group, send, recv, count, dtype, options, work)
            },
            // SAFETY: as above.
            CollectiveKind::ReduceScatter => unsafe {
                dist_reduce_scatter(group, send, recv, count, dtype, op, options, work)
            },
            // SAFETY: as above.
            CollectiveKind::Barrier => unsafe { dist_barrier(group, options, work) },
            _ => panic!("{call:?} has blocks"),
        };
        expect(status);
    }

    /// Makes a collective with one block per rank, like [`Self::issue_collective`].
    pub(crate) fn issue_block_move(
        self,
        call: &CollectiveCall,
        blocks: &BlockArguments,
        work: Option<&mut WorkHandle>,
    ) {
        let (group, dtype, op) = (self.0, call.dtype.number(), call.op.number());
        let (count, root) = (call.count, i32::try_from(call.root).unwrap());
        let sends: Vec<*const c_void> = blocks.sends.iter().map(|ptr| ptr.cast()).collect();
        let recvs: Vec<*mut c_void> = blocks.recvs.iter().map(|ptr| ptr.cast()).collect();
        let first = |counts: &[usize]| counts.first().copied().unwrap_or(0);
        let (out, into) = (first(&blocks.send_counts), first(&blocks.recv_counts));
        let send = sends.first().copied().unwrap_or(std::ptr::null());
        let recv = recvs.first().copied().unwrap_or(null_mut());
        let (from, to) = (sends.as_ptr(), recvs.as_ptr());
        let (send_counts, recv_counts) = (blocks.send_counts.as_ptr(), blocks.recv_counts.as_ptr());
        let (options, work) = (std::ptr::null(), work_slot(work));
        // SAFETY (all): the lists have one entry per rank where the header requires a list, and the
        // buffers have the sizes that the call gives. The lists outlive the call, and the buffers
        // outlive the operation.
        let status = match call.kind {
            // SAFETY: as above.
            CollectiveKind::Gather => unsafe {
                dist_gather(group, send, recv, count, dtype, root, options, work)
            },
            // SAFETY: as above.
            CollectiveKind::Scatter => unsafe {
                dist_scatter(group, send, recv, count, dtype, root, options, work)
            },
            // SAFETY: as above.
            CollectiveKind::AllToAll => unsafe {
                dist_all_to_all(group, send, recv, count, dtype, options, work)
            },
            // SAFETY: as above.
            CollectiveKind::AllGatherV => unsafe {
                dist_all_gather_v(group, send, to, recv_counts, dtype, options, work)
            },
            // SAFETY: as above.
            CollectiveKind::GatherV => unsafe {
                dist_gather_v(group, send, out, to, recv_counts, dtype, root, options, work)
            },
            // SAFETY: as above.
            CollectiveKind::ScatterV => unsafe {
                dist_scatter_v(group, from, send_counts, recv, into, dtype, root, options, work)
            },
            // SAFETY: as above.
            CollectiveKind::ReduceScatterV => unsafe {
                dist_reduce_scatter_v(group, from, send_counts, recv, dtype, op, options, work)
            },
            // SAFETY: as above.
            CollectiveKind::AllToAllV => unsafe {
                dist_all_to_all_v(group, from, send_counts, to, recv_counts, dtype, options, work)
            },
            _ => panic!("{call:?} moves no blocks"),
        };
        expect(status);
    }

    pub(crate) fn monitored_barrier(self) {
        // SAFETY: the list of absent ranks is optional, and its pointers are NULL.
        expect(unsafe { dist_monitored_barrier(self.0, 0, 1, null_mut(), null_mut()) });
    }

    /// Sends a message; the caller keeps the buffer until it completes.
    pub(crate) fn send(
        self,
        message: &PlannedMessage,
        bytes: *const u8,
        work: Option<&mut WorkHandle>,
    ) {
        let PlannedMessage { to, tag, dtype, count, .. } = *message;
        let to = i32::try_from(to).unwrap();
        let (options, work) = (std::ptr::null(), work_slot(work));
        // SAFETY: the buffer has `count` elements and outlives the operation.
        let status = unsafe {
            dist_send(self.0, bytes.cast(), count, dtype.number(), to, tag, options, work)
        };
        expect(status);
    }

    /// Receives a message into a buffer of `count` elements; `None` means any source or any tag.
    pub(crate) fn receive(
        self,
        (from, tag): (Option<usize>, Option<i32>),
        (message, count): (&PlannedMessage, usize),
        bytes: *mut u8,
        work: Option<&mut WorkHandle>,
    ) {
        let from = from.map_or(DIST_ANY_SOURCE, |rank| i32::try_from(rank).unwrap());
        let tag = tag.unwrap_or(DIST_ANY_TAG);
        let dtype = message.dtype.number();
        let (options, status_out, work) = (std::ptr::null(), null_mut(), work_slot(work));
        // SAFETY: the buffer has room for `count` elements and outlives the operation.
        let status = unsafe {
            dist_recv(self.0, bytes.cast(), count, dtype, from, tag, status_out, options, work)
        };
        expect(status);
    }
}

/// Returns true if the members are all ranks in order, so that the list may be NULL.
fn is_whole_group(members: &[usize], size: usize) -> bool {
    members.iter().copied().eq(0..size)
}

pub(crate) fn batch_begin() {
    // SAFETY: the list is NULL and its length is 0.
    expect(unsafe { dist_batch_begin(std::ptr::null(), 0) });
}

/// Ends a batch. With a `work`, the call is asynchronous.
pub(crate) fn batch_end(work: Option<&mut WorkHandle>) {
    // SAFETY: the pointer is NULL or valid for the handle.
    expect(unsafe { dist_batch_end(work_slot(work)) });
}

pub(crate) fn work_slot(work: Option<&mut WorkHandle>) -> *mut *mut dist_work_t {
    work.map_or(null_mut(), |work| &raw mut work.0)
}

/// A work handle.
#[derive(Debug)]
pub(crate) struct WorkHandle(*mut dist_work_t);

// SAFETY: a handle is a token that the library looks up, as for `StoreHandle`.
unsafe impl Send for WorkHandle {}

impl WorkHandle {
    /// Returns an empty value into which a call writes its handle.
    pub(crate) fn none() -> Self {
        Self(null_mut())
    }

    pub(crate) fn wait(&self) {
        // SAFETY: the handle is live.
        expect(unsafe { dist_work_wait(self.0, DIST_WAIT_FOREVER) });
    }

    /// Waits for at most 1 ms. Returns true if the work has completed.
    pub(crate) fn wait_briefly(&self) -> bool {
        // SAFETY: the handle is live.
        match unsafe { dist_work_wait(self.0, 1) } {
            DIST_IN_PROGRESS => false,
            status => {
                expect(status);
                true
            }
        }
    }

    pub(crate) fn test(&self) -> bool {
        let mut done = 0;
        // SAFETY: the handle is live, and `done` is valid for the result.
        expect(unsafe { dist_work_test(self.0, &raw mut done) });
        done != 0
    }

    /// Increments the counter when the work completes.
    pub(crate) fn count_completion(&self, counter: &'static CompletionCounter) {
        let user = std::ptr::from_ref(counter).cast_mut().cast();
        // SAFETY: the handle is live, and the counter lives as long as the process.
        expect(unsafe { dist_work_on_complete(self.0, Some(count_completion_callback), user) });
    }

    /// Returns the source, the tag and the number of elements of a received message.
    pub(crate) fn received_message(&self) -> (usize, i32, usize) {
        // SAFETY: the handle is live.
        let source = unsafe { dist_work_source(self.0) };
        // SAFETY: as above.
        let tag = unsafe { dist_work_tag(self.0) };
        // SAFETY: as above.
        let count = unsafe { dist_work_received_count(self.0) };
        (usize::try_from(source).unwrap(), tag, count)
    }

    pub(crate) fn release(self) {
        // SAFETY: the handle is live and not used after this call.
        expect(unsafe { dist_work_release(self.0) });
    }
}

/// Counts completion callbacks.
#[derive(Debug, Default)]
pub(crate) struct CompletionCounter {
    count: Mutex<usize>,
    changed: Condvar,
}

impl CompletionCounter {
    /// Returns a counter that lives as long as the process.
    pub(crate) fn leaked() -> &'static Self {
        Box::leak(Box::default())
    }

    pub(crate) fn wait_for(&self, wanted: usize) {
        let limit = Duration::from_millis(u64::try_from(LIMIT_MS).unwrap());
        let count = self.count.lock().unwrap();
        let missing = |count: &mut usize| *count < wanted;
        let (count, _) = self.changed.wait_timeout_while(count, limit, missing).unwrap();
        assert_eq!(*count, wanted, "calls back");
    }
}

unsafe extern "C" fn count_completion_callback(
    status: dist_status_t,
    _message: *const c_char,
    user: *mut c_void,
) {
    if status == DIST_OK {
        // SAFETY: `count_completion` passes a counter that lives as long as the process.
        let counter = unsafe { &*user.cast::<CompletionCounter>() };
        if let Ok(mut count) = counter.count.lock() {
            *count += 1;
            counter.changed.notify_all();
        }
    }
}
