//! Collectives of byte strings; only the owner of a string knows its length.
#![allow(unsafe_code, reason = "the C ABI takes raw pointers")]

use crate::calls::{Group, Work, expect, place};
use crate::execute::{Guarded, Memory};
use crate::moves::Lists;
use crate::program::{Collective, Kind};
use crate::values::{Type, contribution};
use dist::ffi::blob::{dist_blob_count, dist_blob_data, dist_blob_release};
use dist::ffi::bytes::{
    dist_all_gather_bytes, dist_broadcast_bytes, dist_gather_bytes, dist_scatter_bytes,
};
use dist::ffi::types::dist_blob_t;
use std::ptr::null_mut;

/// The output for a blob handle and the expected strings; `None` if this rank gets no blob.
#[derive(Debug)]
pub(crate) struct Expected {
    blob: Box<*mut dist_blob_t>,
    strings: Option<Vec<Vec<u8>>>,
}

// SAFETY: a handle is a token that the library looks up; its header says that any thread may use
// it.
unsafe impl Send for Expected {}

impl Expected {
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
fn string(call: &Collective, from: usize, to: usize) -> Vec<u8> {
    let len = match (usize::try_from(call.id % 4).unwrap() + 3 * from + to) % 4 {
        0 => 0,
        1 => call.count / 2,
        _ => call.count + from,
    };
    contribution(call.id, from, Type::U8, to, len)
}

/// Returns the buffers of such a call on one rank of `size`, with the lengths of the input strings.
pub(crate) fn prepare(what: String, call: &Collective, rank: usize, size: usize) -> Memory {
    let is_root = rank == call.root;
    let (own, result) = match call.kind {
        Kind::BroadcastBytes => {
            let own = if is_root { vec![string(call, rank, 0)] } else { Vec::new() };
            (own, Some(vec![string(call, call.root, 0)]))
        }
        Kind::ScatterBytes => {
            let all = (0..size).map(|to| string(call, rank, to));
            let own = if is_root { all.collect() } else { Vec::new() };
            (own, Some(vec![string(call, call.root, rank)]))
        }
        _ => {
            let gets = is_root || call.kind == Kind::AllGatherBytes;
            let all = || (0..size).map(|from| string(call, from, 0)).collect();
            (vec![string(call, rank, 0)], gets.then(all))
        }
    };
    let mut at = 0;
    let mut span = |string: &Vec<u8>| {
        at += string.len();
        (at - string.len(), string.len())
    };
    let lists = Lists { sends: own.iter().map(&mut span).collect(), ..Lists::default() };
    let strings = Some(Expected { blob: Box::new(null_mut()), strings: result });
    let (input, output, expected) = (own.concat(), Guarded::new(&[]), Vec::new());
    Memory { what, input, output, offset: 0, expected, lists, strings }
}

impl Group {
    /// Makes such a call; the caller keeps its buffers until it completes.
    pub(crate) fn strings(self, call: &Collective, memory: &mut Memory, work: Option<&mut Work>) {
        let base = memory.input.as_ptr();
        let data: Vec<_> =
            memory.lists.sends.iter().map(|s| base.wrapping_add(s.0).cast()).collect();
        let lens: Vec<usize> = memory.lists.sends.iter().map(|s| s.1).collect();
        let one = data.first().copied().unwrap_or(std::ptr::null());
        let len = lens.first().copied().unwrap_or(0);
        let root = i32::try_from(call.root).unwrap();
        let out = memory.strings.as_mut().map_or(null_mut(), |strings| &raw mut *strings.blob);
        let (group, options, work) = (self.0, std::ptr::null(), place(work));
        // SAFETY (all): the strings and the output for the blob handle outlive the operation.
        let status = match call.kind {
            // SAFETY: as above.
            Kind::BroadcastBytes => unsafe {
                dist_broadcast_bytes(group, one, len, root, out, options, work)
            },
            // SAFETY: as above.
            Kind::AllGatherBytes => unsafe {
                dist_all_gather_bytes(group, one, len, out, options, work)
            },
            // SAFETY: as above.
            Kind::GatherBytes => unsafe {
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
