//! The memory of the buckets: slots for gradients, separate results, and scratch memory to collect
//! the caller's gradients.
//!
//! A slot is the part of a bucket's memory for one gradient, if the reducer provides the memory.
//! The buckets can share a pool of memory (ZeRO-2). A bucket then has memory from the first request
//! for one of its slots until its gradients are reduced.
//!
//! The memory comes from the back end, so the other ranks of a host can access it without copies.
//! The memory may outlive the group for which it was allocated. Running operations hold a
//! reference, which keeps the memory allocated.

#![allow(unsafe_code, reason = "views of memory that this file owns")]

use super::device::GradStream;
use super::layout::{BucketLayout, BucketSpec, GradPosition};
use super::param::Param;
use crate::api::group::process_group::Group;
use crate::backend::BackendMemory;
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::base::sync::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// Memory of a back end, initially zero.
#[derive(Debug)]
pub(super) struct GradBlock {
    memory: Option<Box<dyn BackendMemory>>,
    view: Dst<'static>,
}

// SAFETY: threads that share the block use only `view`, which is `Sync`; `memory` is used only by
// the one thread that drops the block.
unsafe impl Sync for GradBlock {}

impl GradBlock {
    pub(super) fn new(group: &Group, bytes: usize, device: Option<&GradStream>) -> Result<Self> {
        if bytes == 0 {
            return Ok(Self { memory: None, view: Dst::empty() });
        }
        let memory = match device {
            None => group.backend.allocate(bytes)?,
            Some(stream) => group.backend.allocate_on(stream.gpu().device, bytes)?,
        };
        // SAFETY: the memory has that many bytes while `memory` exists. Views outlive the block
        // only in operations, which hold the block.
        let view = unsafe { Dst::new(memory.as_mut_ptr(), bytes) };
        match device {
            None => view.fill_zero(),
            Some(stream) => stream.fill_zero(view)?,
        }
        Ok(Self { memory: Some(memory), view })
    }

    /// Returns the whole block.
    pub(super) fn view(&self) -> Dst<'static> {
        self.view
    }

    fn len(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.len())
    }
}

/// The memory that the options of a reducer need.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryNeeds {
    /// Whether results do not overwrite the gradients.
    pub(super) has_separate_results: bool,
    /// Whether buckets share memory for gradient slots.
    pub(super) shares_slots: bool,
}

/// A layout and the memory of its buckets.
#[derive(Debug)]
pub(super) struct GradMemory {
    pub(super) layout: BucketLayout,
    /// The gradient slots of each bucket that has its own memory for them.
    slots: Vec<Option<GradBlock>>,
    /// The memory for the result of each bucket, if it is separate from the gradients.
    results: Vec<Option<GradBlock>>,
    /// Scratch memory to collect the caller's gradients. The operations of a group run one at a
    /// time, so all of them use the same scratch memory.
    scratch: Mutex<Option<Arc<GradBlock>>>,
    /// The pool from which the buckets take memory for gradient slots, if they share memory.
    pub(super) pool: Option<GradBlockPool>,
}

impl GradMemory {
    /// Allocates the memory of a layout.
    ///
    /// # Errors
    /// `OutOfMemory`, `System`, and `Unsupported` for a device that the back end does not serve.
    pub(super) fn new(
        group: &Group,
        layout: BucketLayout,
        needs: MemoryNeeds,
        device: Option<&GradStream>,
    ) -> Result<Self> {
        let mut slots = Vec::with_capacity(layout.buckets.len());
        let mut results = Vec::with_capacity(layout.buckets.len());
        for bucket in &layout.buckets {
            let device = device.filter(|_| bucket.device.is_some());
            let block = || GradBlock::new(group, bucket.bytes, device);
            slots.push(if bucket.is_owned || needs.shares_slots { None } else { Some(block()?) });
            results.push(if needs.has_separate_results { Some(block()?) } else { None });
        }
        let scratch = match layout.largest_collected() {
            bytes if bytes > 0 && !needs.has_separate_results => {
                Some(Arc::new(GradBlock::new(group, bytes, None)?))
            }
            _ => None,
        };
        let largest = layout.buckets.iter().filter(|bucket| !bucket.is_owned);
        let largest = largest.map(|bucket| bucket.bytes).max().unwrap_or(0);
        let pool = needs.shares_slots.then(|| GradBlockPool::new(largest));
        Ok(Self { layout, slots, results, scratch: Mutex::new(scratch), pool })
    }

    /// Returns the slot of a gradient, if the reducer provides its memory.
    pub(super) fn slot(&self, param: usize) -> Option<Dst<'static>> {
        self.part_of(&self.slots, param)
    }

    /// Returns the gradient slots of a bucket.
    pub(super) fn bucket_slots(&self, bucket: usize) -> Option<Dst<'static>> {
        self.slots[bucket].as_ref().map(GradBlock::view)
    }

    /// Returns the memory for the result of a bucket, if it is separate from the gradients.
    pub(super) fn bucket_result(&self, bucket: usize) -> Option<Dst<'static>> {
        self.results[bucket].as_ref().map(GradBlock::view)
    }

    /// Returns the memory of a parameter's reduced gradient, if it is separate from the gradient.
    pub(super) fn result(&self, param: usize) -> Option<Dst<'static>> {
        self.part_of(&self.results, param)
    }

    fn part_of(&self, blocks: &[Option<GradBlock>], param: usize) -> Option<Dst<'static>> {
        let GradPosition { bucket, index } = self.layout.positions[param]?;
        let block = blocks[bucket].as_ref()?;
        Some(self.layout.buckets[bucket].part(block.view(), index))
    }

    /// Returns the memory that contains the reduced gradient of a parameter after the end of a
    /// step. The gradient must be dense.
    pub(super) fn reduced_grad(&self, param: usize, params: &[Param]) -> Option<Dst<'static>> {
        params[param].grad.or_else(|| self.result(param)).or_else(|| self.slot(param))
    }

    /// Returns the size of all this memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        let blocks = self.slots.iter().chain(&self.results).flatten();
        let scratch = lock(&self.scratch);
        let pool = self.pool.as_ref().map_or(0, GradBlockPool::bytes);
        let scratch = scratch.as_ref().map_or(0, |block| block.len());
        blocks.map(GradBlock::len).sum::<usize>() + scratch + pool
    }

    /// Returns scratch memory of at least `bytes` bytes.
    ///
    /// # Errors
    /// `OutOfMemory`, `System`.
    pub(super) fn scratch(&self, group: &Group, bytes: usize) -> Result<Arc<GradBlock>> {
        let mut scratch = lock(&self.scratch);
        if let Some(block) = scratch.as_ref().filter(|block| block.len() >= bytes) {
            return Ok(Arc::clone(block));
        }
        let block = Arc::new(GradBlock::new(group, bytes, None)?);
        *scratch = Some(Arc::clone(&block));
        Ok(block)
    }

    /// Copies the gradients and the separate results from the memory of another layout of the same
    /// parameters.
    ///
    /// # Errors
    /// `Backend`, from a device.
    pub(super) fn take_values(&self, former: &Self, device: Option<&GradStream>) -> Result<()> {
        let copy = |from: Option<Dst<'static>>, to: Option<Dst<'static>>, is_on_device: bool| match (
            from,
            to,
            device.filter(|_| is_on_device),
        ) {
            (Some(from), Some(to), Some(stream)) => stream.copy(from.as_src(), to),
            (Some(from), Some(to), None) => {
                to.copy_from(from.as_src());
                Ok(())
            }
            _ => Ok(()),
        };
        for (param, position) in self.layout.positions.iter().enumerate() {
            let Some(GradPosition { bucket, .. }) = *position else { continue };
            let is_on_device = self.layout.buckets[bucket].device.is_some();
            copy(former.slot(param), self.slot(param), is_on_device)?;
            copy(former.result(param), self.result(param), is_on_device)?;
        }
        Ok(())
    }
}

/// The number of buckets that usually have memory at the same time: the caller fills one bucket, an
/// operation reduces another, and two buckets wait. If a caller fills more buckets at the same
/// time, more buckets have memory.
const MOST_BLOCKS: usize = 4;

/// Memory that buckets share.
#[derive(Debug)]
pub(super) struct GradBlockPool {
    block_bytes: usize,
    blocks: Mutex<PoolBlocks>,
}

#[derive(Debug, Default)]
struct PoolBlocks {
    free: Vec<Arc<GradBlock>>,
    /// The blocks of buckets that have memory and are not yet sent, by bucket.
    assigned: HashMap<usize, Arc<GradBlock>>,
    /// The number of blocks that were allocated.
    made: usize,
}

impl GradBlockPool {
    pub(super) fn new(block_bytes: usize) -> Self {
        Self { block_bytes, blocks: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, PoolBlocks> {
        lock(&self.blocks)
    }

    /// Returns the block of a bucket, and assigns a block if the bucket has none. Returns `None` if
    /// [`MOST_BLOCKS`] blocks are in use, so that the caller should wait until another bucket is
    /// reduced. If `at_once` is true, allocates a further block instead.
    ///
    /// # Errors
    /// `OutOfMemory`, `System`.
    pub(super) fn assign(
        &self,
        group: &Group,
        bucket: usize,
        at_once: bool,
    ) -> Result<Option<Arc<GradBlock>>> {
        let mut blocks = self.lock();
        if let Some(block) = blocks.assigned.get(&bucket) {
            return Ok(Some(Arc::clone(block)));
        }
        let block = match blocks.free.pop() {
            Some(block) => block,
            None if blocks.made >= MOST_BLOCKS && !at_once => return Ok(None),
            None => {
                let block = Arc::new(GradBlock::new(group, self.block_bytes, None)?);
                blocks.made += 1;
                block
            }
        };
        blocks.assigned.insert(bucket, Arc::clone(&block));
        Ok(Some(block))
    }

    /// Ends the assignment of a block to a bucket, because the bucket is sent. The operation
    /// returns the block with [`Self::give_back`].
    pub(super) fn send(&self, bucket: usize) {
        self.lock().assigned.remove(&bucket);
    }

    /// Takes back the block of a bucket that has been reduced.
    pub(super) fn give_back(&self, block: Arc<GradBlock>) {
        self.lock().free.push(block);
    }

    /// Drops the memory of an abandoned step.
    pub(super) fn reset(&self) {
        *self.lock() = PoolBlocks::default();
    }

    /// Returns the size of all memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.lock().made * self.block_bytes
    }
}

impl BucketSpec {
    /// Returns the part of a bucket's memory for the gradient at this position.
    pub(super) fn part(&self, bucket: Dst<'static>, position: usize) -> Dst<'static> {
        bucket.slice(self.offsets[position], self.lengths[position])
    }
}
