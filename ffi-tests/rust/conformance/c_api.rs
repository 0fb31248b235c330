//! Calls every collective through the C interface, with the pointers, counts, options and works of
//! a C caller. The calls block, or are issued ahead as works, and each rank waits for the works in
//! its own order.
#![allow(unsafe_code, reason = "the C ABI takes raw pointers")]

use crate::expected_results::PreparedScene;
use crate::guarded_memory::{BlockAlignment, GuardedMemory};
use crate::input_values::{InputKind, factor, mix_bits};
use crate::matrix::{
    AlgorithmChoice, CallScene, CallVariant, LAYOUTS, NodeLayout, SIZES, SLOT_BYTES, has_in_place,
    scenes,
};
use dist::base::buffer::{Dst, Src};
use dist::base::op::ReduceOp;
use dist::ffi::collective::*;
use dist::ffi::collective_blocks::*;
use dist::ffi::collective_v::*;
use dist::ffi::group::{dist_group_create, dist_group_release};
use dist::ffi::runtime::dist_last_error;
use dist::ffi::store_create::dist_store_hash_create;
use dist::ffi::store_handle::dist_store_release;
use dist::ffi::types::{
    DIST_CALL_CANONICAL, DIST_FIELD_RANK, DIST_OK, DIST_WAIT_FOREVER, dist_call_options_t,
    dist_group_options_t, dist_group_t, dist_status_t, dist_store_t, dist_work_t,
};
use dist::ffi::work::{dist_work_release, dist_work_wait};
use dist::transport::OpKind;
use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;

/// Panics if a call has failed.
#[track_caller]
fn expect(status: dist_status_t) {
    if status != DIST_OK {
        // SAFETY: the call takes no arguments.
        let text = unsafe { dist_last_error() };
        // SAFETY: the text is terminated and valid until the next failing call of this thread.
        let text = unsafe { CStr::from_ptr(text) };
        panic!("status {status}: {}", text.to_string_lossy());
    }
}

/// A store handle that threads share.
#[derive(Clone, Copy)]
struct SharedStore(*mut dist_store_t);

// SAFETY: a handle is a token that the library looks up; its header says that any thread may use
// it.
unsafe impl Send for SharedStore {}
// SAFETY: as above.
unsafe impl Sync for SharedStore {}

fn join(store: SharedStore, rank: usize, ranks: usize, layout: &NodeLayout) -> *mut dist_group_t {
    let (name, wishes) = (c"abi", CString::new(layout.options(rank, SLOT_BYTES)).unwrap());
    // SAFETY: the header promises that zero bytes mean the defaults of every options struct.
    let mut options: dist_group_options_t = unsafe { std::mem::zeroed() };
    options.struct_size = size_of::<dist_group_options_t>();
    options.fields = DIST_FIELD_RANK;
    options.store = store.0;
    options.rank = i32::try_from(rank).unwrap();
    options.world_size = i32::try_from(ranks).unwrap();
    options.name = name.as_ptr();
    options.backend_options = wishes.as_ptr();
    options.timeout_ms = 60_000;
    options.connect_timeout_ms = 60_000;
    let mut group = null_mut();
    // SAFETY: the options and their texts outlive the call, and `group` takes the handle.
    expect(unsafe { dist_group_create(&raw const options, &raw mut group) });
    group
}

/// The pointers and counts that a C caller passes for one side of a call.
struct BlockPointers<P> {
    all: Vec<P>,
    counts: Vec<usize>,
}

impl<P: Copy> BlockPointers<P> {
    /// Returns the first block and its length; NULL and 0 if there is none.
    fn first(&self, null: P) -> (P, usize) {
        (self.all.first().copied().unwrap_or(null), self.counts.first().copied().unwrap_or(0))
    }
}

fn of_inputs(blocks: &[Src<'_>], width: usize) -> BlockPointers<*const c_void> {
    let pointer = |block: &Src<'_>| {
        if block.is_empty() { std::ptr::null() } else { block.as_ptr().cast::<c_void>() }
    };
    let counts = blocks.iter().map(|block| block.len() / width).collect();
    BlockPointers { all: blocks.iter().map(pointer).collect(), counts }
}

fn of_outputs(blocks: &[Dst<'_>], width: usize) -> BlockPointers<*mut c_void> {
    let pointer = |block: &Dst<'_>| {
        if block.is_empty() { null_mut() } else { block.as_mut_ptr().cast::<c_void>() }
    };
    let counts = blocks.iter().map(|block| block.len() / width).collect();
    BlockPointers { all: blocks.iter().map(pointer).collect(), counts }
}

/// Makes the call of a rank. If `work` is not null, the call only issues the operation.
fn call(
    group: *mut dist_group_t,
    (scene, root): (&CallScene, usize),
    (inputs, outputs): (&[Src<'_>], &[Dst<'_>]),
    options: &dist_call_options_t,
    work: *mut *mut dist_work_t,
) -> dist_status_t {
    let CallScene { kind, dtype, ranks, size, .. } = *scene;
    let count = size.elements(kind, dtype, ranks);
    let (sends, recvs) = (of_inputs(inputs, dtype.size()), of_outputs(outputs, dtype.size()));
    let ((send, sent), (recv, got)) = (sends.first(std::ptr::null()), recvs.first(null_mut()));
    let (sends, send_counts) = (sends.all.as_ptr(), sends.counts.as_ptr());
    let (recvs, recv_counts) = (recvs.all.as_ptr(), recvs.counts.as_ptr());
    let buf = if recv.is_null() { send.cast_mut() } else { recv };
    let op = scene.op.map_or(0, ReduceOp::number);
    let (dtype, root, o) = (dtype.number(), i32::try_from(root).unwrap(), &raw const *options);
    // SAFETY (all): the buffers have the sizes that the call gives, and outlive the operation. The
    // lists that this rank uses have one entry per rank. The options outlive the call.
    use OpKind::*;
    match kind {
        // SAFETY: as above.
        AllReduce => unsafe { dist_all_reduce(group, send, recv, count, dtype, op, o, work) },
        // SAFETY: as above.
        Scan => unsafe { dist_scan(group, send, recv, count, dtype, op, o, work) },
        // SAFETY: as above.
        Exscan => unsafe { dist_exscan(group, send, recv, count, dtype, op, o, work) },
        // SAFETY: as above.
        Reduce => unsafe { dist_reduce(group, send, recv, count, dtype, op, root, o, work) },
        // SAFETY: as above; the root's buffer is only read.
        Broadcast => unsafe { dist_broadcast(group, buf, count, dtype, root, o, work) },
        // SAFETY: as above.
        AllGather => unsafe { dist_all_gather(group, send, recv, count, dtype, o, work) },
        // SAFETY: as above.
        Gather => unsafe { dist_gather(group, send, recv, count, dtype, root, o, work) },
        // SAFETY: as above.
        Scatter => unsafe { dist_scatter(group, send, recv, count, dtype, root, o, work) },
        // SAFETY: as above.
        ReduceScatter => unsafe {
            dist_reduce_scatter(group, send, recv, count, dtype, op, o, work)
        },
        // SAFETY: as above.
        AllToAll => unsafe { dist_all_to_all(group, send, recv, count, dtype, o, work) },
        // SAFETY: as above.
        AllGatherV => unsafe { dist_all_gather_v(group, send, recvs, recv_counts, dtype, o, work) },
        // SAFETY: as above.
        GatherV => unsafe {
            dist_gather_v(group, send, sent, recvs, recv_counts, dtype, root, o, work)
        },
        // SAFETY: as above.
        ScatterV => unsafe {
            dist_scatter_v(group, sends, send_counts, recv, got, dtype, root, o, work)
        },
        // SAFETY: as above.
        ReduceScatterV => unsafe {
            dist_reduce_scatter_v(group, sends, send_counts, recv, dtype, op, o, work)
        },
        // SAFETY: as above.
        AllToAllV => unsafe {
            dist_all_to_all_v(group, sends, send_counts, recvs, recv_counts, dtype, o, work)
        },
        // SAFETY: as above.
        Barrier => unsafe { dist_barrier(group, o, work) },
    }
}

/// Returns a sample of types and operators for each function, with small sizes, in place and not.
fn selected_scenes(ranks: usize) -> Vec<(CallScene, bool)> {
    let sizes = [SIZES[0], SIZES[3], SIZES[6]];
    let is_wanted = |scene: &CallScene| {
        let turn = scene.pair_index + scene.kind as usize + ranks;
        let of = if scene.kind.is_reduction() { 11 } else { 3 };
        sizes.contains(&scene.size) && (scene.kind == OpKind::Barrier || turn.is_multiple_of(of))
    };
    let places = |scene: CallScene| {
        let in_place = has_in_place(scene.kind).then_some((scene, true));
        [Some((scene, false)), in_place].into_iter().flatten()
    };
    scenes(ranks).into_iter().filter(is_wanted).flat_map(places).collect()
}

/// An issued call that has not completed.
struct PendingCall {
    work: *mut dist_work_t,
    arena: GuardedMemory,
    what: String,
}

/// The number of works in progress at a time.
const MAX_PENDING_CALLS: usize = 12;

fn run_through_c_api(layout: &NodeLayout, ranks: usize) {
    let mut handle = null_mut();
    // SAFETY: `handle` takes the store.
    expect(unsafe { dist_store_hash_create(&raw mut handle) });
    let store = SharedStore(handle);
    let prepared: Vec<(CallScene, bool, PreparedScene)> = selected_scenes(ranks)
        .into_iter()
        .map(|(scene, in_place)| (scene, in_place, PreparedScene::new(&scene, InputKind::Any)))
        .collect();
    std::thread::scope(|scope| {
        for rank in 0..ranks {
            let prepared = &prepared;
            scope.spawn(move || {
                let store = store;
                let group = join(store, rank, ranks, layout);
                prepared
                    .chunks(MAX_PENDING_CALLS)
                    .for_each(|some| run_blocking(group, rank, layout, some));
                prepared
                    .chunks(MAX_PENDING_CALLS)
                    .for_each(|some| run_issued_ahead(group, rank, layout, some));
                // SAFETY: the handle is live and not used after this call.
                expect(unsafe { dist_group_release(group) });
            });
        }
    });
    // SAFETY: as above.
    expect(unsafe { dist_store_release(store.0) });
}

/// Returns call options with the canonical order, so that the result equals the oracle's on all
/// placements of the ranks.
fn options(rank: usize) -> dist_call_options_t {
    // SAFETY: the header promises that zero bytes mean the defaults of every options struct.
    let mut options: dist_call_options_t = unsafe { std::mem::zeroed() };
    options.struct_size = size_of::<dist_call_options_t>();
    options.premul_scale = factor(rank);
    options.flags = DIST_CALL_CANONICAL;
    options
}

type PreparedCase = (CallScene, bool, PreparedScene);

fn text((scene, in_place, _): &PreparedCase, layout: &NodeLayout, rank: usize) -> String {
    let variant =
        CallVariant { layout: *layout, in_place: *in_place, choice: AlgorithmChoice::Canonical };
    format!("{scene}{variant}, rank {rank}")
}

fn run_blocking(group: *mut dist_group_t, rank: usize, layout: &NodeLayout, some: &[PreparedCase]) {
    for case in some {
        let (scene, in_place, prepared) = case;
        let mut arena = GuardedMemory::new(scene, &prepared.parts[rank], *in_place);
        arena.reset(BlockAlignment::Unaligned);
        let (inputs, outputs) = arena.views();
        let whole = (scene, prepared.root);
        expect(call(group, whole, (&inputs, &outputs), &options(rank), null_mut()));
        assert_eq!(arena.find_fault(), None, "{}", text(case, layout, rank));
    }
}

fn run_issued_ahead(
    group: *mut dist_group_t,
    rank: usize,
    layout: &NodeLayout,
    some: &[PreparedCase],
) {
    let mut pending = Vec::new();
    for case in some {
        let (scene, in_place, prepared) = case;
        let mut arena = GuardedMemory::new(scene, &prepared.parts[rank], *in_place);
        arena.reset(BlockAlignment::Unaligned);
        let mut work = null_mut();
        let (inputs, outputs) = arena.views();
        let whole = (scene, prepared.root);
        expect(call(group, whole, (&inputs, &outputs), &options(rank), &raw mut work));
        pending.push(PendingCall { work, arena, what: text(case, layout, rank) });
    }
    while !pending.is_empty() {
        let next = mix_bits((rank * 64 + pending.len()) as u64) % pending.len() as u64;
        let PendingCall { work, arena, what } = pending.swap_remove(usize::try_from(next).unwrap());
        // SAFETY: the handle is live.
        expect(unsafe { dist_work_wait(work, DIST_WAIT_FOREVER) });
        assert_eq!(arena.find_fault(), None, "{what}");
        // SAFETY: the handle is live and not used after this call.
        expect(unsafe { dist_work_release(work) });
    }
}

#[test]
fn every_collective_through_the_c_api() {
    for (layout, ranks) in LAYOUTS.iter().zip([2, 3, 4, 5, 3, 7]) {
        run_through_c_api(layout, ranks);
    }
}

#[test]
fn single_rank_through_the_c_api() {
    run_through_c_api(&LAYOUTS[0], 1);
}
