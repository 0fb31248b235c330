//! The buffers of one cell (one measured combination of operation, size and options). They are in
//! memory of the process, of the library or of a device. Between two calls, a rank fills, rewrites
//! or verifies them.
#![allow(unsafe_code, reason = "C functions take raw pointers to the buffers")]

use super::gpu::{GpuBuffer, RankGpu};
use super::op_calls;
use crate::ops::{BenchOp, ROOT};
use crate::request::BenchRequest;
use crate::values::{self, POISON};
use dist::sys::shm::Segment;
use std::alloc::Layout;

/// The page size. All engines align their buffers to pages, so that no engine has an advantage.
const ALIGNMENT: usize = 4096;

/// The size in bytes of a word. `RankBuffers::rewrite` writes memory in words.
const WORD: usize = 8;

/// The owner of a piece of memory.
#[derive(Debug)]
enum MemoryOwner {
    /// The allocator of the process, and the first byte.
    Allocator(Layout, *mut u8),
    /// `dist_mem_alloc`.
    Library,
    /// CUDA. The memory is on a device.
    Device(GpuBuffer),
    /// A shared segment, which another rank may have created.
    Segment(#[allow(dead_code, reason = "the field keeps the memory mapped")] Segment),
    /// The memory is empty and has no owner.
    Empty,
}

/// Memory with a size that is rounded up to complete words.
#[derive(Debug)]
struct AlignedMemory {
    ptr: *mut u8,
    len: usize,
    owner: MemoryOwner,
}

impl AlignedMemory {
    /// Allocates memory at this offset in a page; memory of the library or a GPU is at offset 0.
    fn new(
        bytes: usize,
        offset: usize,
        arena: bool,
        gpu: Option<&RankGpu>,
    ) -> Result<Self, String> {
        let len = bytes.next_multiple_of(WORD);
        if len == 0 {
            return Ok(Self { ptr: std::ptr::dangling_mut(), len, owner: MemoryOwner::Empty });
        }
        if let Some(gpu) = gpu {
            let memory = gpu.allocate(len)?;
            return Ok(Self { ptr: memory.device_ptr(), len, owner: MemoryOwner::Device(memory) });
        }
        if arena {
            let ptr = op_calls::allocate(len)?;
            // Write the memory, because its content is undefined. SAFETY: the library has returned
            // `len` bytes, which no other code uses.
            unsafe { ptr.write_bytes(0, len) };
            return Ok(Self { ptr, len, owner: MemoryOwner::Library });
        }
        let layout =
            Layout::from_size_align(len + offset, ALIGNMENT).map_err(|error| error.to_string())?;
        // SAFETY: the length is not 0.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        if start.is_null() {
            return Err(format!("cannot allocate {len} bytes for the buffers"));
        }
        let owner = MemoryOwner::Allocator(layout, start);
        Ok(Self { ptr: start.wrapping_add(offset), len, owner })
    }

    fn from_segment(segment: Segment) -> Self {
        let (ptr, len) = (segment.as_mut_ptr(), segment.len());
        Self { ptr, len, owner: MemoryOwner::Segment(segment) }
    }

    /// Returns the content. For device memory, returns the host copy.
    fn bytes(&self) -> &[u8] {
        if let MemoryOwner::Device(memory) = &self.owner {
            return &memory.host_copy;
        }
        // SAFETY: the object has `len` initialised bytes. No operation of the library uses them
        // now, because this function is only called between two calls.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        if let MemoryOwner::Device(memory) = &mut self.owner {
            return &mut memory.host_copy;
        }
        // SAFETY: as in `bytes`. The borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.len) }
    }
}

impl AlignedMemory {
    fn upload(&mut self) -> Result<(), String> {
        if let MemoryOwner::Device(memory) = &mut self.owner { memory.upload() } else { Ok(()) }
    }

    fn download(&mut self) -> Result<(), String> {
        if let MemoryOwner::Device(memory) = &mut self.owner { memory.download() } else { Ok(()) }
    }
}

impl Drop for AlignedMemory {
    fn drop(&mut self) {
        match self.owner {
            // SAFETY: the memory was allocated with this layout, and is freed once.
            MemoryOwner::Allocator(layout, start) => unsafe { std::alloc::dealloc(start, layout) },
            MemoryOwner::Library => op_calls::free(self.ptr),
            MemoryOwner::Device(_) | MemoryOwner::Segment(_) | MemoryOwner::Empty => {}
        }
    }
}

/// A range of elements in a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BufferRange {
    offset: usize,
    len: usize,
}

/// The sizes of a rank's two buffers, and the ranges that hold the input and the result of an
/// operation. For example, with 3 ranks and 12 elements, an all_gather has this layout on rank 2:
///
/// | in place | first buffer | second buffer | input | result |
/// |---|---|---|---|---|
/// | yes | 12 elements | empty | elements 8 to 11 of the first buffer | the first buffer |
/// | no | 4 elements | 12 elements | the first buffer | the second buffer |
#[derive(Debug, Default, PartialEq, Eq)]
struct BufferLayout {
    /// The number of elements of the first buffer, which always contains the input.
    first_len: usize,
    /// The number of elements of the second buffer. It contains the result, unless the result is in
    /// the first buffer.
    second_len: usize,
    input: BufferRange,
    result: BufferRange,
    /// True if the result is in the first buffer.
    is_result_in_first: bool,
}

impl BufferLayout {
    fn new(request: &BenchRequest, rank: usize, ranks: usize) -> Self {
        let (all, block) = (request.count, request.count / ranks);
        let whole = BufferRange { offset: 0, len: all };
        let (first_block, own) = (
            BufferRange { offset: 0, len: block },
            BufferRange { offset: rank * block, len: block },
        );
        let empty = BufferRange::default();
        let is_root = rank == ROOT;
        let in_one_buffer = |first: usize, input: BufferRange, result: BufferRange| Self {
            first_len: first,
            second_len: 0,
            input,
            result,
            is_result_in_first: true,
        };
        let in_two_buffers = |input: usize, result: usize| Self {
            first_len: input,
            second_len: result,
            input: BufferRange { offset: 0, len: input },
            result: BufferRange { offset: 0, len: result },
            is_result_in_first: false,
        };
        match (request.op, request.is_in_place) {
            (BenchOp::Barrier, _) => Self::default(),
            (BenchOp::AllToAll | BenchOp::SendRecv, _) | (BenchOp::AllReduce, false) => {
                in_two_buffers(all, all)
            }
            (BenchOp::AllReduce, true) => in_one_buffer(all, whole, whole),
            (BenchOp::Broadcast, _) => {
                in_one_buffer(all, if is_root { whole } else { empty }, whole)
            }
            (BenchOp::AllGather, true) => in_one_buffer(all, own, whole),
            (BenchOp::AllGather, false) => in_two_buffers(block, all),
            (BenchOp::ReduceScatter, true) => in_one_buffer(all, whole, own),
            (BenchOp::ReduceScatter, false) => in_two_buffers(all, block),
            (BenchOp::Reduce, _) if !is_root => in_one_buffer(all, whole, empty),
            (BenchOp::Reduce, true) => in_one_buffer(all, whole, whole),
            (BenchOp::Reduce, false) => in_two_buffers(all, all),
            (BenchOp::Gather, _) if !is_root => in_one_buffer(block, first_block, empty),
            (BenchOp::Gather, true) => in_one_buffer(all, own, whole),
            (BenchOp::Gather, false) => in_two_buffers(block, all),
            (BenchOp::Scatter, _) if !is_root => in_one_buffer(block, empty, first_block),
            (BenchOp::Scatter, true) => in_one_buffer(all, whole, own),
            (BenchOp::Scatter, false) => in_two_buffers(all, block),
        }
    }
}

/// The buffers of one rank. They fit all requests with the same operation, type, count and
/// placement.
#[derive(Debug)]
pub(crate) struct RankBuffers {
    first: AlignedMemory,
    second: AlignedMemory,
    layout: BufferLayout,
    element_bytes: usize,
}

impl RankBuffers {
    pub(crate) fn new(
        request: &BenchRequest,
        rank: usize,
        ranks: usize,
        gpu: Option<&RankGpu>,
    ) -> Result<Self, String> {
        let (shape, element) = (BufferLayout::new(request, rank, ranks), request.dtype.size());
        let (first_offset, second_offset) = request.offsets.of_rank(request.op, rank);
        let allocate = |elements: usize, offset: usize| {
            AlignedMemory::new(elements * element, offset, request.uses_arena, gpu)
        };
        let first = allocate(shape.first_len, first_offset)?;
        let second = allocate(shape.second_len, second_offset)?;
        Ok(Self { first, second, layout: shape, element_bytes: element })
    }

    /// Creates the buffers of an operation that uses only the first buffer. This buffer is in
    /// `segment`, which has the required size.
    pub(crate) fn in_segment(
        request: &BenchRequest,
        rank: usize,
        ranks: usize,
        segment: Segment,
    ) -> Self {
        let (shape, element) = (BufferLayout::new(request, rank, ranks), request.dtype.size());
        let second =
            AlignedMemory { ptr: std::ptr::dangling_mut(), len: 0, owner: MemoryOwner::Empty };
        Self {
            first: AlignedMemory::from_segment(segment),
            second,
            layout: shape,
            element_bytes: element,
        }
    }

    /// Returns the address of a call's input.
    pub(super) fn input(&self) -> *const u8 {
        self.first.ptr.wrapping_add(self.layout.input.offset * self.element_bytes)
    }

    /// Returns the address of a call's result.
    pub(crate) fn output(&self) -> *mut u8 {
        let memory = if self.layout.is_result_in_first { &self.first } else { &self.second };
        memory.ptr.wrapping_add(self.layout.result.offset * self.element_bytes)
    }

    /// Fills the input with known values, and all other elements with [`POISON`] bytes, which do
    /// not occur in a result.
    ///
    /// # Errors
    /// The reason why a copy to the device failed.
    pub(crate) fn fill(&mut self, request: &BenchRequest, rank: usize) -> Result<(), String> {
        self.first.bytes_mut().fill(POISON);
        self.second.bytes_mut().fill(POISON);
        let BufferRange { offset: at, len } = self.layout.input;
        let input =
            &mut self.first.bytes_mut()[at * self.element_bytes..][..len * self.element_bytes];
        values::fill_input(request.dtype, rank, input);
        self.first.upload()?;
        self.second.upload()
    }

    /// If the buffers are on a device, copies the result of a call to the host.
    ///
    /// # Errors
    /// The reason for a failed copy.
    pub(crate) fn download(&mut self) -> Result<(), String> {
        let memory =
            if self.layout.is_result_in_first { &mut self.first } else { &mut self.second };
        memory.download()
    }

    /// Returns the result of a call. The caller calls `download` before.
    pub(crate) fn result(&self) -> &[u8] {
        let memory = if self.layout.is_result_in_first { &self.first } else { &self.second };
        let BufferRange { offset: at, len } = self.layout.result;
        &memory.bytes()[at * self.element_bytes..][..len * self.element_bytes]
    }

    /// Overwrites the whole first buffer with `word`, as a program does that computes new values
    /// between two calls.
    pub(crate) fn rewrite(&mut self, word: u64) {
        let word = word.to_le_bytes();
        for chunk in self.first.bytes_mut().chunks_exact_mut(WORD) {
            chunk.copy_from_slice(&word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(op: &str, in_place: u8) -> BenchRequest {
        BenchRequest::parse(&format!("run {op} f32 sum 12 0 1 0 0 {in_place} 0 0 1")).unwrap()
    }

    fn shape(op: &str, in_place: u8, rank: usize) -> ((usize, usize), (usize, usize), bool) {
        let BufferLayout {
            first_len: first,
            second_len: second,
            input,
            result,
            is_result_in_first: together,
        } = BufferLayout::new(&request(op, in_place), rank, 3);
        assert!(input.offset + input.len <= first);
        assert!(result.offset + result.len <= if together { first } else { second });
        ((input.offset, input.len), (result.offset, result.len), together)
    }

    #[test]
    fn buffer_layout_follows_the_c_interface() {
        assert_eq!(shape("all_reduce", 1, 2), ((0, 12), (0, 12), true));
        assert_eq!(shape("all_gather", 1, 2), ((8, 4), (0, 12), true));
        assert_eq!(shape("all_gather", 0, 2), ((0, 4), (0, 12), false));
        assert_eq!(shape("reduce_scatter", 1, 1), ((0, 12), (4, 4), true));
        assert_eq!(shape("all_to_all", 1, 1), ((0, 12), (0, 12), false));
        assert_eq!(shape("broadcast", 1, 0), ((0, 12), (0, 12), true));
        assert_eq!(shape("broadcast", 1, 1), ((0, 0), (0, 12), true));
        assert_eq!(shape("reduce", 0, 1), ((0, 12), (0, 0), true));
        assert_eq!(shape("gather", 1, 1), ((0, 4), (0, 0), true));
        assert_eq!(shape("scatter", 0, 0), ((0, 12), (0, 4), false));
        assert_eq!(shape("barrier", 1, 0), ((0, 0), (0, 0), false));
    }

    #[test]
    fn buffers_are_filled_rewritten_and_checked() {
        let request = request("all_gather", 1);
        let mut buffers = RankBuffers::new(&request, 1, 3, None).unwrap();
        buffers.fill(&request, 1).unwrap();
        let wrong = values::count_wrong(&request, 1, 3, buffers.result());
        // In place, the rank's own block (4 elements) is already right. The other 8 elements are
        // wrong.
        assert_eq!(wrong, 8);
        buffers.rewrite(0x0102_0304_0506_0708);
        assert!(buffers.result().chunks(4).all(|e| e == [8, 7, 6, 5] || e == [4, 3, 2, 1]));
        assert_eq!(buffers.input(), buffers.output().wrapping_add(16).cast_const());
    }
}
