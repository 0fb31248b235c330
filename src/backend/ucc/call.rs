//! The arguments of UCC for one collective.
//!
//! Calls without arithmetic transfer bytes. The blocks of a `_v` form may be anywhere, so their
//! displacements count from the lowest address. UCC reads the lists and the scratch memory of a
//! call until the call is finalised, so [`CallMemory`] keeps them.

use super::functions::{self, BlockBuffer, BufferInfo, CollectiveArguments, PlainBuffer};
use super::library::UccLibrary;
use super::operators;
use super::types::{BYTES, BufferMemory, reduction};
use crate::backend::OpKind;
use crate::backend::plugin::{PluginTask, TaskKind};
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{Rank, WorldSize};
use crate::base::op::ReduceOp;
use crate::kernel;
use std::ffi::{c_int, c_void};

/// The memory that UCC uses until the end of a call.
#[derive(Debug, Default)]
pub(super) struct CallMemory {
    /// Counts and displacements, which UCC reads.
    lists: Vec<Vec<u64>>,
    scratch: Vec<u128>,
    /// The result that is copied from the scratch memory at the end.
    copy_back: Option<CopyBack>,
}

/// The arguments of a call that are being set. They are large, so they are never moved.
struct CallBuilder<'p> {
    arguments: &'p mut CollectiveArguments,
    memory: CallMemory,
}

/// A copy from the start of the scratch memory to the caller's buffer.
#[derive(Clone, Copy, Debug)]
struct CopyBack {
    to: *mut u8,
    bytes: usize,
}

// SAFETY: the pointer is the address of memory that the caller lends to the call, on any thread.
unsafe impl Send for CopyBack {}

/// The arguments of a call, with values that are derived from them.
struct CallView<'a, 'b> {
    task: &'b PluginTask<'a>,
    kind: OpKind,
    rank: Rank,
    size: WorldSize,
    memory: c_int,
    element_bytes: usize,
}

impl<'a> CallView<'a, '_> {
    /// Returns the bytes of one block (of the whole vector, if there are no blocks).
    fn block_bytes(&self) -> usize {
        self.task.count * self.element_bytes
    }

    fn is_root(&self) -> bool {
        self.task.root == Some(self.rank)
    }

    fn is_in_place(&self) -> bool {
        self.task.is_in_place(self.rank)
    }

    fn sends(&self) -> Result<&'a [Src<'a>]> {
        self.task.sends.ok_or_else(|| Error::internal("the call has no send blocks"))
    }

    fn recvs(&self) -> Result<&'a [Dst<'a>]> {
        self.task.recvs.ok_or_else(|| Error::internal("the call has no receive blocks"))
    }

    fn source(&self, bytes: Src<'_>) -> BufferInfo {
        self.plain(bytes.as_ptr().cast_mut(), bytes.len() as u64, BYTES)
    }

    fn destination(&self, bytes: Dst<'_>) -> BufferInfo {
        self.source(bytes.as_src())
    }

    fn plain(&self, buffer: *mut u8, count: u64, datatype: u64) -> BufferInfo {
        let buffer: *mut c_void = buffer.cast();
        BufferInfo { plain: PlainBuffer { buffer, count, datatype, memory_type: self.memory } }
    }

    /// Returns true if no rank has data for this call. All ranks know it.
    fn is_empty(&self) -> bool {
        match self.kind {
            OpKind::Barrier | OpKind::GatherV | OpKind::ScatterV | OpKind::AllToAllV => false,
            OpKind::AllGatherV => {
                self.task.recvs.is_some_and(|all| all.iter().all(|block| block.is_empty()))
            }
            OpKind::ReduceScatterV => {
                self.task.sends.is_some_and(|all| all.iter().all(|block| block.is_empty()))
            }
            _ => self.task.count == 0,
        }
    }
}

/// The input of a reduction: its type in UCC, and whether this rank scales it first.
#[derive(Clone, Copy)]
struct ReductionInput {
    datatype: u64,
    is_scaled: bool,
}

/// Sets the arguments of UCC for a collective, and returns the memory that the call needs. Returns
/// `None` if the call is complete without UCC, because no rank has data.
///
/// # Errors
/// `Unsupported`, `OutOfMemory`.
pub(super) fn prepare(
    task: &PluginTask<'_>,
    (rank, size): (Rank, WorldSize),
    library: &UccLibrary,
    arguments: &mut CollectiveArguments,
) -> Result<Option<CallMemory>> {
    let TaskKind::Collective(kind) = task.kind else {
        return Err(Error::internal("a message is no collective"));
    };
    let memory = if task.gpu.is_some() { BufferMemory::Cuda } else { BufferMemory::Host };
    let element_bytes = task.dtype.map_or(1, DataType::size);
    let view = CallView { task, kind, rank, size, memory: memory.number(), element_bytes };
    if view.is_empty() {
        return Ok(None);
    }
    arguments.coll_type = coll_type(kind)?;
    let mut call = CallBuilder { arguments, memory: CallMemory::default() };
    if let Some(root) = task.root {
        call.arguments.root = root as u64;
    }
    if !kind.is_reduction() {
        call.set_moved_blocks(&view)?;
        return Ok(Some(call.memory));
    }
    let (Some(dtype), Some(op)) = (task.dtype, task.op) else {
        return Err(Error::internal("the reduction has no operator"));
    };
    let reduction = reduction(dtype, op, memory).ok_or_else(|| {
        let message = format!("{} ({dtype}, {op}): UCC has no such reduction", kind.name());
        Error::new(ErrorKind::Unsupported, message)
    })?;
    let datatype = match (reduction.datatype, reduction.kernel) {
        (Some(datatype), _) => datatype,
        (None, kernel) => operators::datatype(library, dtype, kernel.unwrap_or(op))?,
    };
    call.arguments.op = reduction.op;
    let input = ReductionInput { datatype, is_scaled: reduction.scales_input };
    match kind {
        OpKind::AllReduce | OpKind::Reduce => call.set_reduced_vector(&view, input)?,
        _ => call.set_reduced_blocks(&view, input)?,
    }
    Ok(Some(call.memory))
}

/// Returns UCC's type of a collective. A scatter is a `scatter_v` with equal counts, because UCC
/// 1.2 has no other one.
pub(super) fn coll_type(kind: OpKind) -> Result<c_int> {
    Ok(match kind {
        OpKind::AllReduce => functions::ALL_REDUCE,
        OpKind::Reduce => functions::REDUCE,
        OpKind::ReduceScatter => functions::REDUCE_SCATTER,
        OpKind::ReduceScatterV => functions::REDUCE_SCATTER_V,
        OpKind::Broadcast => functions::BROADCAST,
        OpKind::AllGather => functions::ALL_GATHER,
        OpKind::AllGatherV => functions::ALL_GATHER_V,
        OpKind::Gather => functions::GATHER,
        OpKind::GatherV => functions::GATHER_V,
        OpKind::Scatter | OpKind::ScatterV => functions::SCATTER_V,
        OpKind::AllToAll => functions::ALL_TO_ALL,
        OpKind::AllToAllV => functions::ALL_TO_ALL_V,
        OpKind::Barrier => functions::BARRIER,
        OpKind::Scan | OpKind::Exscan => {
            return Err(Error::internal("UCC has no prefix reductions"));
        }
    })
}

impl CallMemory {
    /// Copies the result from the scratch memory, if it is there. The call is complete.
    pub(super) fn copy_result(&self) {
        let Some(copy) = self.copy_back else { return };
        // SAFETY: the scratch memory has at least this length, and no other code writes to it.
        let from = unsafe { Src::new(self.scratch.as_ptr().cast(), copy.bytes) };
        // SAFETY: the caller lends this buffer to the call, until the call has ended.
        kernel::copy(unsafe { Dst::new(copy.to, copy.bytes) }, from);
    }
}

impl CallBuilder<'_> {
    fn set_in_place(&mut self) {
        self.arguments.flags |= functions::IN_PLACE;
    }

    /// Allocates the scratch memory of the call, aligned for every type.
    fn allocate_scratch(&mut self, bytes: usize) -> Result<Dst<'static>> {
        let words = bytes.div_ceil(size_of::<u128>());
        self.memory.scratch.try_reserve_exact(words).map_err(|_| {
            let message = format!("no memory for {bytes} bytes of scratch space of a collective");
            Error::new(ErrorKind::OutOfMemory, message)
        })?;
        self.memory.scratch.resize(words, 0);
        // SAFETY: the scratch memory has this length, and it neither moves nor ends before the
        // call.
        Ok(unsafe { Dst::new(self.memory.scratch.as_mut_ptr().cast(), bytes) })
    }

    /// Keeps a list for UCC and returns its address.
    fn keep(&mut self, list: Vec<u64>) -> *const u64 {
        let address = list.as_ptr();
        self.memory.lists.push(list);
        address
    }

    /// Returns the description of blocks, given as address and length of each.
    fn blocks(&mut self, memory: c_int, blocks: &[(*const u8, usize)]) -> BufferInfo {
        let filled = blocks.iter().filter(|(_, bytes)| *bytes > 0);
        let base = filled.map(|(start, _)| start.addr()).min().unwrap_or(0);
        let displacement = |&(start, bytes): &(*const u8, usize)| match bytes {
            0 => 0,
            _ => (start.addr() - base) as u64,
        };
        let displacements = self.keep(blocks.iter().map(displacement).collect());
        let counts = self.keep(blocks.iter().map(|&(_, bytes)| bytes as u64).collect());
        let start = blocks.iter().find(|(start, bytes)| *bytes > 0 && start.addr() == base);
        let buffer = start.map_or(std::ptr::null(), |(start, _)| *start).cast_mut().cast();
        let blocks =
            BlockBuffer { buffer, counts, displacements, datatype: BYTES, memory_type: memory };
        BufferInfo { blocks }
    }

    fn send_blocks(&mut self, view: &CallView<'_, '_>) -> Result<BufferInfo> {
        let all: Vec<_> = view.sends()?.iter().map(|it| (it.as_ptr(), it.len())).collect();
        Ok(self.blocks(view.memory, &all))
    }

    fn recv_blocks(&mut self, view: &CallView<'_, '_>) -> Result<BufferInfo> {
        let all = view.recvs()?.iter().map(|it| it.as_src());
        let all: Vec<_> = all.map(|it| (it.as_ptr(), it.len())).collect();
        Ok(self.blocks(view.memory, &all))
    }

    /// Sets the buffers of a call without arithmetic.
    fn set_moved_blocks(&mut self, view: &CallView<'_, '_>) -> Result<()> {
        let (task, is_root) = (view.task, view.is_root());
        let in_place = view.is_in_place();
        match view.kind {
            OpKind::Broadcast if is_root => self.arguments.src = view.source(task.send),
            OpKind::Broadcast => self.arguments.src = view.destination(task.recv),
            OpKind::AllGather | OpKind::AllToAll => {
                self.arguments.src = view.source(task.send);
                self.arguments.dst = view.destination(task.recv);
            }
            OpKind::Gather => {
                self.arguments.src = view.source(task.send);
                if is_root {
                    self.arguments.dst = view.destination(task.recv);
                }
            }
            OpKind::Scatter | OpKind::ScatterV => {
                if is_root {
                    self.arguments.src = match view.kind {
                        OpKind::Scatter => self.equal_blocks(view),
                        _ => self.send_blocks(view)?,
                    };
                }
                self.arguments.dst = view.destination(task.recv);
            }
            OpKind::AllGatherV => {
                self.arguments.src = view.source(task.send);
                self.arguments.dst = self.recv_blocks(view)?;
            }
            OpKind::GatherV => {
                self.arguments.src = view.source(task.send);
                if is_root {
                    self.arguments.dst = self.recv_blocks(view)?;
                }
            }
            OpKind::AllToAllV => {
                self.arguments.src = self.send_blocks(view)?;
                self.arguments.dst = self.recv_blocks(view)?;
            }
            _ => {}
        }
        // For a rooted call, UCC reads the flag on the root only.
        if in_place && (is_root || task.root.is_none()) {
            self.set_in_place();
        }
        Ok(())
    }

    /// Returns the send buffer of a scatter as blocks of equal length.
    fn equal_blocks(&mut self, view: &CallView<'_, '_>) -> BufferInfo {
        let (all, block) = (view.task.send, view.block_bytes());
        let blocks: Vec<_> =
            (0..view.size).map(|rank| (all.slice(rank * block, block).as_ptr(), block)).collect();
        self.blocks(view.memory, &blocks)
    }

    /// Sets the buffers of an all_reduce or a reduce.
    fn set_reduced_vector(
        &mut self,
        view: &CallView<'_, '_>,
        reduction: ReductionInput,
    ) -> Result<()> {
        let task = view.task;
        let has_result = view.kind == OpKind::AllReduce || view.is_root();
        let plain = |buffer| view.plain(buffer, task.count as u64, reduction.datatype);
        let mut source = task.send.as_ptr();
        let mut in_place = has_result && view.is_in_place();
        if reduction.is_scaled {
            let to = if has_result { task.recv } else { self.allocate_scratch(task.send.len())? };
            scale(view, to, task.send);
            (source, in_place) = (to.as_src().as_ptr(), has_result);
        }
        self.arguments.src = plain(source.cast_mut());
        if has_result {
            self.arguments.dst = plain(task.recv.as_src().as_ptr().cast_mut());
        }
        if in_place {
            self.set_in_place();
        }
        Ok(())
    }

    /// Sets the buffers of a reduce_scatter, also in its `_v` form.
    fn set_reduced_blocks(
        &mut self,
        view: &CallView<'_, '_>,
        reduction: ReductionInput,
    ) -> Result<()> {
        let task = view.task;
        let element_bytes = view.element_bytes;
        let lengths: Vec<usize> = match view.kind {
            OpKind::ReduceScatterV => view.sends()?.iter().map(|block| block.len()).collect(),
            _ => vec![view.block_bytes(); view.size],
        };
        let total: usize = lengths.iter().sum();
        let source = self.contiguous_input(view, reduction, total)?;
        let mut result = task.recv.as_src().as_ptr();
        // UCC may write the result before it has read all input. Without scratch memory, the input
        // is the caller's memory. In device memory, UCC's libraries support a result at its place.
        if view.is_in_place() && task.gpu.is_none() && self.memory.scratch.is_empty() {
            result = self.allocate_scratch(task.recv.len())?.as_src().as_ptr();
            let to = task.recv.as_src().as_ptr().cast_mut();
            self.memory.copy_back = Some(CopyBack { to, bytes: task.recv.len() });
        }
        let elements = |bytes: usize| (bytes / element_bytes) as u64;
        let datatype = reduction.datatype;
        self.arguments.src = view.plain(source.as_ptr().cast_mut(), elements(total), datatype);
        let buffer = result.cast_mut();
        if view.kind == OpKind::ReduceScatter {
            self.arguments.dst = view.plain(buffer, elements(view.block_bytes()), datatype);
            return Ok(());
        }
        let mut end = 0;
        let ends = lengths.iter().map(|&bytes| {
            let start = end;
            end += elements(bytes);
            start
        });
        let displacements = self.keep(ends.collect());
        let counts = self.keep(lengths.iter().map(|&bytes| elements(bytes)).collect());
        let (buffer, memory_type) = (buffer.cast(), view.memory);
        let blocks = BlockBuffer { buffer, counts, displacements, datatype, memory_type };
        self.arguments.dst = BufferInfo { blocks };
        Ok(())
    }

    /// Returns the input of a reduce_scatter as one vector: the caller's memory, or a copy that is
    /// scaled or whose blocks are joined.
    fn contiguous_input<'a>(
        &mut self,
        view: &CallView<'a, '_>,
        reduction: ReductionInput,
        total: usize,
    ) -> Result<Src<'a>> {
        let Some(blocks) = view.task.sends else {
            if !reduction.is_scaled {
                return Ok(view.task.send);
            }
            let to = self.allocate_scratch(total)?;
            scale(view, to, view.task.send);
            return Ok(to.as_src());
        };
        let first = blocks.iter().find(|block| !block.is_empty()).copied().unwrap_or(Src::empty());
        let mut end = first.as_ptr().addr();
        let is_contiguous = blocks.iter().filter(|block| !block.is_empty()).all(|block| {
            let is_next = block.as_ptr().addr() == end;
            end += block.len();
            is_next
        });
        if is_contiguous && !reduction.is_scaled {
            // SAFETY: the blocks follow each other without a gap, so their bytes are one vector.
            return Ok(unsafe { Src::new(first.as_ptr(), total) });
        }
        let to = self.allocate_scratch(total)?;
        let mut start = 0;
        for block in blocks.iter().filter(|block| !block.is_empty()) {
            let part = to.slice(start, block.len());
            match reduction.is_scaled {
                true => scale(view, part, *block),
                false => kernel::copy(part, *block),
            }
            start += block.len();
        }
        Ok(to.as_src())
    }
}

/// Writes the scaled vector of this rank: multiplied by its factor, or by 1/N for an average.
fn scale(view: &CallView<'_, '_>, to: Dst<'_>, from: Src<'_>) {
    let dtype = view.task.dtype.unwrap_or(DataType::F32);
    match view.task.op {
        Some(ReduceOp::PremulSum) => kernel::scale_copy(dtype, view.task.factor, to, from),
        _ => kernel::fold_average(dtype, to, &[from], view.size),
    }
}
