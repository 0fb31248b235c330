//! The buffers of one cell: the process's own memory or the library's, filled, rewritten and looked
//! at between calls.
#![allow(unsafe_code, reason = "memory that is lent to C functions is raw")]

use super::calls;
use super::gpu::{Gpu, OnGpu};
use crate::ops::{Op, ROOT};
use crate::order::Order;
use crate::values::{self, POISON};
use dist::sys::shm::Segment;
use std::alloc::Layout;

/// Pages, so that all engines' buffers lie alike.
const ALIGNMENT: usize = 4096;

/// Memory is written in words.
const WORD: usize = 8;

/// Who has made a piece of memory.
#[derive(Debug)]
enum Maker {
    /// The allocator of the process.
    Process(Layout),
    /// `dist_mem_alloc`.
    Library,
    /// CUDA: it is on a device.
    Device(OnGpu),
    /// Whoever has made the segment.
    Segment(#[allow(dead_code, reason = "it keeps the memory mapped")] Segment),
    /// Nobody: it is empty.
    Nobody,
}

/// Memory of some bytes, rounded up to whole words.
#[derive(Debug)]
struct Memory {
    ptr: *mut u8,
    len: usize,
    maker: Maker,
}

impl Memory {
    fn new(bytes: usize, arena: bool, gpu: Option<&Gpu>) -> Result<Self, String> {
        let len = bytes.next_multiple_of(WORD);
        if len == 0 {
            return Ok(Self { ptr: std::ptr::dangling_mut(), len, maker: Maker::Nobody });
        }
        if let Some(gpu) = gpu {
            let memory = gpu.allocate(len)?;
            return Ok(Self { ptr: memory.start(), len, maker: Maker::Device(memory) });
        }
        if arena {
            let ptr = calls::allocate(len)?;
            // What it holds is arbitrary until it is written.
            // SAFETY: the library has given `len` bytes, which are nobody else's.
            unsafe { ptr.write_bytes(0, len) };
            return Ok(Self { ptr, len, maker: Maker::Library });
        }
        let layout = Layout::from_size_align(len, ALIGNMENT).map_err(|error| error.to_string())?;
        // SAFETY: the length is not 0.
        let ptr = unsafe { std::alloc::alloc_zeroed(layout) };
        if ptr.is_null() {
            return Err(format!("there is no memory for {len} bytes"));
        }
        Ok(Self { ptr, len, maker: Maker::Process(layout) })
    }

    fn of_segment(segment: Segment) -> Self {
        let (ptr, len) = (segment.as_mut_ptr(), segment.len());
        Self { ptr, len, maker: Maker::Segment(segment) }
    }

    /// What is in it; on a device, what was when it was last copied.
    fn bytes(&self) -> &[u8] {
        if let Maker::Device(memory) = &self.maker {
            return &memory.shadow;
        }
        // SAFETY: `len` initialised bytes of ours, which no call uses between calls.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        if let Maker::Device(memory) = &mut self.maker {
            return &mut memory.shadow;
        }
        // SAFETY: as above, and borrowed as long as they are written.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.len) }
    }
}

impl Memory {
    fn upload(&mut self) -> Result<(), String> {
        if let Maker::Device(memory) = &mut self.maker { memory.upload() } else { Ok(()) }
    }

    fn fetch(&mut self) -> Result<(), String> {
        if let Maker::Device(memory) = &mut self.maker { memory.fetch() } else { Ok(()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.maker {
            // SAFETY: allocated with this layout, and freed once.
            Maker::Process(layout) => unsafe { std::alloc::dealloc(self.ptr, layout) },
            Maker::Library => calls::free(self.ptr),
            Maker::Device(_) | Maker::Segment(_) | Maker::Nobody => {}
        }
    }
}

/// The part of a buffer, in elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Part {
    at: usize,
    len: usize,
}

/// What an operation needs of the two buffers on one rank.
#[derive(Debug, Default, PartialEq, Eq)]
struct Shape {
    /// Elements of the first buffer, which has the input.
    first: usize,
    /// Elements of the second one, which has the result where that is not in the first.
    second: usize,
    input: Part,
    result: Part,
    /// The result is in the first one.
    together: bool,
}

impl Shape {
    fn new(order: &Order, rank: usize, ranks: usize) -> Self {
        let (all, block) = (order.count, order.count / ranks);
        let whole = Part { at: 0, len: all };
        let (one, own) = (Part { at: 0, len: block }, Part { at: rank * block, len: block });
        let nothing = Part::default();
        let is_root = rank == ROOT;
        let together = |first: usize, input: Part, result: Part| Self {
            first,
            second: 0,
            input,
            result,
            together: true,
        };
        let apart = |input: usize, result: usize| Self {
            first: input,
            second: result,
            input: Part { at: 0, len: input },
            result: Part { at: 0, len: result },
            together: false,
        };
        match (order.op, order.in_place) {
            (Op::Barrier, _) => Self::default(),
            (Op::AllToAll | Op::SendRecv, _) | (Op::AllReduce, false) => apart(all, all),
            (Op::AllReduce, true) => together(all, whole, whole),
            (Op::Broadcast, _) => together(all, if is_root { whole } else { nothing }, whole),
            (Op::AllGather, true) => together(all, own, whole),
            (Op::AllGather, false) => apart(block, all),
            (Op::ReduceScatter, true) => together(all, whole, own),
            (Op::ReduceScatter, false) => apart(all, block),
            (Op::Reduce, _) if !is_root => together(all, whole, nothing),
            (Op::Reduce, true) => together(all, whole, whole),
            (Op::Reduce, false) => apart(all, all),
            (Op::Gather, _) if !is_root => together(block, one, nothing),
            (Op::Gather, true) => together(all, own, whole),
            (Op::Gather, false) => apart(block, all),
            (Op::Scatter, _) if !is_root => together(block, nothing, one),
            (Op::Scatter, true) => together(all, whole, own),
            (Op::Scatter, false) => apart(all, block),
        }
    }
}

/// The buffers of one rank for one kind of order.
#[derive(Debug)]
pub(crate) struct Buffers {
    first: Memory,
    second: Memory,
    shape: Shape,
    element: usize,
}

impl Buffers {
    pub(crate) fn new(
        order: &Order,
        rank: usize,
        ranks: usize,
        gpu: Option<&Gpu>,
    ) -> Result<Self, String> {
        let (shape, element) = (Shape::new(order, rank, ranks), order.dtype.size());
        let first = Memory::new(shape.first * element, order.arena, gpu)?;
        let second = Memory::new(shape.second * element, order.arena, gpu)?;
        Ok(Self { first, second, shape, element })
    }

    /// The first buffer is a segment, of as many bytes as it takes; the second one is empty.
    pub(crate) fn in_segment(order: &Order, rank: usize, ranks: usize, segment: Segment) -> Self {
        let (shape, element) = (Shape::new(order, rank, ranks), order.dtype.size());
        let second = Memory { ptr: std::ptr::dangling_mut(), len: 0, maker: Maker::Nobody };
        Self { first: Memory::of_segment(segment), second, shape, element }
    }

    /// Where a call is to read.
    pub(super) fn input(&self) -> *const u8 {
        self.first.ptr.wrapping_add(self.shape.input.at * self.element)
    }

    /// Where a call is to write.
    pub(crate) fn output(&self) -> *mut u8 {
        let memory = if self.shape.together { &self.first } else { &self.second };
        memory.ptr.wrapping_add(self.shape.result.at * self.element)
    }

    /// Puts known values where a call reads, and what cannot be a result everywhere else.
    ///
    /// # Errors
    /// Why it cannot be copied to the device.
    pub(crate) fn fill(&mut self, order: &Order, rank: usize) -> Result<(), String> {
        self.first.bytes_mut().fill(POISON);
        self.second.bytes_mut().fill(POISON);
        let Part { at, len } = self.shape.input;
        let input = &mut self.first.bytes_mut()[at * self.element..][..len * self.element];
        values::fill(order.dtype, rank, input);
        self.first.upload()?;
        self.second.upload()
    }

    /// Gets what a call has written from the device.
    ///
    /// # Errors
    /// Why that cannot be.
    pub(crate) fn fetch(&mut self) -> Result<(), String> {
        let memory = if self.shape.together { &mut self.first } else { &mut self.second };
        memory.fetch()
    }

    /// What a call has written, once it was fetched.
    pub(crate) fn result(&self) -> &[u8] {
        let memory = if self.shape.together { &self.first } else { &self.second };
        let Part { at, len } = self.shape.result;
        &memory.bytes()[at * self.element..][..len * self.element]
    }

    /// Writes the whole of the first buffer anew, as a caller does that has new values.
    pub(crate) fn rewrite(&mut self, word: u64) {
        let word = word.to_le_bytes();
        for place in self.first.bytes_mut().chunks_exact_mut(WORD) {
            place.copy_from_slice(&word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(op: &str, in_place: u8) -> Order {
        Order::parse(&format!("run {op} f32 sum 12 0 1 0 0 {in_place} 0 0 1")).unwrap()
    }

    fn shape(op: &str, in_place: u8, rank: usize) -> ((usize, usize), (usize, usize), bool) {
        let Shape { first, second, input, result, together } =
            Shape::new(&order(op, in_place), rank, 3);
        assert!(input.at + input.len <= first);
        assert!(result.at + result.len <= if together { first } else { second });
        ((input.at, input.len), (result.at, result.len), together)
    }

    #[test]
    fn input_and_result_are_where_the_interface_says() {
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
    fn buffers_are_filled_rewritten_and_looked_at() {
        let order = order("all_gather", 1);
        let mut buffers = Buffers::new(&order, 1, 3, None).unwrap();
        buffers.fill(&order, 1).unwrap();
        let wrong = values::count_wrong(&order, 1, 3, buffers.result());
        // Its own block is there already.
        assert_eq!(wrong, 8);
        buffers.rewrite(0x0102_0304_0506_0708);
        assert!(buffers.result().chunks(4).all(|e| e == [8, 7, 6, 5] || e == [4, 3, 2, 1]));
        assert_eq!(buffers.input(), buffers.output().wrapping_add(16).cast_const());
    }
}
