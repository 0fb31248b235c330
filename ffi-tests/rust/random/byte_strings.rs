//! Collectives of byte strings; only the owner of a string knows its length.
#![allow(unsafe_code, reason = "the C ABI takes raw pointers")]

use crate::block_moves::BlockLists;
use crate::c_api::{GroupHandle, WorkHandle, expect, work_slot};
use crate::operation_memory::{GuardedBuffer, OperationMemory};
use crate::program::{CollectiveCall, CollectiveKind};
use crate::values::{ElementType, contribution};
use dist::ffi::blob::{dist_blob_count, dist_blob_data, dist_blob_release};
use dist::ffi::bytes::{
    dist_all_gather_bytes, dist_broadcast_bytes, dist_gather_bytes, dist_scatter_bytes,
};
use dist::ffi::types::dist_blob_t;
use std::ptr::null_mut;

/// The output for a blob handle and the expected strings; `None` if this rank gets no blob.
#[derive(Debug)]
pub(crate) struct ExpectedStrings {
    blob: Box<*mut dist_blob_t>,
    strings: Option<Vec<Vec<u8>>>,
}

// SAFETY: a handle is a token that the library looks up; its header says that any thread may use
// it.
unsafe impl Send for ExpectedStrings {}

impl ExpectedStrings {
    /// Compares the received strings with the expected ones and releases the blob.
    pub(crate) fn check(&self, what: &str) {
        let blob = *self.blob;
        let Some(strings) = &self.strings else {
            assert!(blob.is_null(), "{what}: a blob where none is due");
            return;
        };
        // SAFETY: the handle is live.
        let count = unsafe { dist_blob_count(blob) };
        assert_eq!(count, strings.len(), "{what}: strings");
        for (i, expected) in strings.iter().enumerate() {
            let (mut ptr, mut len) = (std::ptr::null(), 0);
            // SAFETY: the handle is live, and both output pointers are valid.
            expect(unsafe { dist_blob_data(blob, i, &raw mut ptr, &raw mut len) });
            let got = match len {
                0 => &[],
                // SAFETY: the blob owns this many bytes until it is released.
                _ => unsafe { std::slice::from_raw_parts(ptr.cast::<u8>(), len) },
            };
            assert!(got == expected, "{what}: string {i} of {} bytes, {len} came", expected.len());
        }
        // SAFETY: the handle is live and not used after this call.
        expect(unsafe { dist_blob_release(blob) });
    }
}

/// Returns the string that one rank sends to another, or to all ranks.
fn string(call: &CollectiveCall, from: usize, to: usize) -> Vec<u8> {
    let len = match (usize::try_from(call.id % 4).unwrap() + 3 * from + to) % 4 {
        0 => 0,
        1 => call.count / 2,
        _ => call.count + from,
    };
    contribution(call.id, from, ElementType::U8, to, len)
}

/// Returns the buffers of such a call on one rank of `size`, with the lengths of the input strings.
pub(crate) fn prepare(
    what: String,
    call: &CollectiveCall,
    rank: usize,
    size: usize,
) -> OperationMemory {
    let is_root = rank == call.root;
    let (own, result) = match call.kind {
        CollectiveKind::BroadcastBytes => {
            let own = if is_root { vec![string(call, rank, 0)] } else { Vec::new() };
            (own, Some(vec![string(call, call.root, 0)]))
        }
        CollectiveKind::ScatterBytes => {
            let all = (0..size).map(|to| string(call, rank, to));
            let own = if is_root { all.collect() } else { Vec::new() };
            (own, Some(vec![string(call, call.root, rank)]))
        }
        _ => {
            let gets = is_root || call.kind == CollectiveKind::AllGatherBytes;
            let all = || (0..size).map(|from| string(call, from, 0)).collect();
            (vec![string(call, rank, 0)], gets.then(all))
        }
    };
    let mut at = 0;
    let mut span = |string: &Vec<u8>| {
        at += string.len();
        (at - string.len(), string.len())
    };
    let lists = BlockLists { sends: own.iter().map(&mut span).collect(), ..BlockLists::default() };
    let strings = Some(ExpectedStrings { blob: Box::new(null_mut()), strings: result });
    let (input, output, expected) = (own.concat(), GuardedBuffer::new(&[]), Vec::new());
    OperationMemory {
        description: what,
        input,
        output,
        offset: 0,
        expected,
        block_lists: lists,
        strings,
    }
}

impl GroupHandle {
    /// Makes such a call; the caller keeps its buffers until it completes.
    pub(crate) fn strings(
        self,
        call: &CollectiveCall,
        memory: &mut OperationMemory,
        work: Option<&mut WorkHandle>,
    ) {
        let base = memory.input.as_ptr();
        let data: Vec<_> =
            memory.block_lists.sends.iter().map(|s| base.wrapping_add(s.0).cast()).collect();
        let lens: Vec<usize> = memory.block_lists.sends.iter().map(|s| s.1).collect();
        let one = data.first().copied().unwrap_or(std::ptr::null());
        let len = lens.first().copied().unwrap_or(0);
        let root = i32::try_from(call.root).unwrap();
        let out = memory.strings.as_mut().map_or(null_mut(), |strings| &raw mut *strings.blob);
        let (group, options, work) = (self.0, std::ptr::null(), work_slot(work));
        // SAFETY (all): the strings and the output for the blob handle outlive the operation.
        let status = match call.kind {
            // SAFETY: as above.
            CollectiveKind::BroadcastBytes => unsafe {
                dist_broadcast_bytes(group, one, len, root, out, options, work)
            },
            // SAFETY: as above.
            CollectiveKind::AllGatherBytes => unsafe {
                dist_all_gather_bytes(group, one, len, out, options, work)
            },
            // SAFETY: as above.
            CollectiveKind::GatherBytes => unsafe {
                dist_gather_bytes(group, one, len, root, out, options, work)
            },
            // SAFETY: as above.
            _ => unsafe {
                let (data, lens) = (data.as_ptr(), lens.as_ptr());
                dist_scatter_bytes(group, data, lens, root, out, options, work)
            },
        };
        expect(status);
    }
}
