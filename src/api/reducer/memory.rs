//! The memory of the buckets: places for gradients, separate results, and scratch memory to collect
//! the caller's gradients.
//!
//! The memory comes from the back end, so the other ranks of a host can access it without copies.
//! It may outlive the group for which it was allocated. Running operations hold a reference to it,
//! which keeps it allocated.

#![allow(unsafe_code, reason = "views of memory that this file owns")]

use super::device::GradStream;
use super::layout::{BucketLayout, BucketSpec};
use super::pool::GradBlockPool;
use crate::api::group::Group;
use crate::backend::BackendMemory;
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::base::sync::lock;
use std::sync::{Arc, Mutex};

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

/// A layout and the memory of its buckets.
#[derive(Debug)]
pub(super) struct GradMemory {
    pub(super) layout: BucketLayout,
    /// The places of each bucket that has places.
    places: Vec<Option<GradBlock>>,
    /// The memory for the result of each bucket, if it is separate from the gradients.
    results: Vec<Option<GradBlock>>,
    /// Scratch memory to collect the caller's gradients. The operations of a group run one at a
    /// time, so they share it.
    scratch: Mutex<Option<Arc<GradBlock>>>,
    /// The shared memory of buckets of places, if they share memory.
    pub(super) pool: Option<GradBlockPool>,
}

impl GradMemory {
    /// Allocates the memory of a layout. `is_apart`: results do not overwrite the gradients;
    /// `is_shared`: buckets of places share memory.
    ///
    /// # Errors
    /// `OutOfMemory`, `System`, and `Unsupported` for a device that the back end does not serve.
    pub(super) fn new(
        group: &Group,
        layout: BucketLayout,
        (is_apart, is_shared): (bool, bool),
        device: Option<&GradStream>,
    ) -> Result<Self> {
        let mut places = Vec::with_capacity(layout.buckets.len());
        let mut results = Vec::with_capacity(layout.buckets.len());
        for bucket in &layout.buckets {
            let device = device.filter(|_| bucket.device.is_some());
            let block = || GradBlock::new(group, bucket.bytes, device);
            places.push(if bucket.is_owned || is_shared { None } else { Some(block()?) });
            results.push(if is_apart { Some(block()?) } else { None });
        }
        let scratch = match layout.largest_collected() {
            bytes if bytes > 0 && !is_apart => Some(Arc::new(GradBlock::new(group, bytes, None)?)),
            _ => None,
        };
        let largest = layout.buckets.iter().filter(|bucket| !bucket.is_owned);
        let largest = largest.map(|bucket| bucket.bytes).max().unwrap_or(0);
        let pool = is_shared.then(|| GradBlockPool::new(largest));
        Ok(Self { layout, places, results, scratch: Mutex::new(scratch), pool })
    }

    /// Returns the place of a gradient, if the reducer provides it.
    pub(super) fn place(&self, param: usize) -> Option<Dst<'static>> {
        let (bucket, position) = self.layout.places[param]?;
        let block = self.places[bucket].as_ref()?;
        Some(self.layout.buckets[bucket].part(block.view(), position))
    }

    /// Returns the places of a bucket.
    pub(super) fn bucket_places(&self, bucket: usize) -> Option<Dst<'static>> {
        self.places[bucket].as_ref().map(GradBlock::view)
    }

    /// Returns the memory for the result of a bucket, if it is separate from the gradients.
    pub(super) fn bucket_result(&self, bucket: usize) -> Option<Dst<'static>> {
        self.results[bucket].as_ref().map(GradBlock::view)
    }

    /// Returns the reduced gradient of a parameter, if it is separate from the gradient.
    pub(super) fn result(&self, param: usize) -> Option<Dst<'static>> {
        let (bucket, position) = self.layout.places[param]?;
        let block = self.results[bucket].as_ref()?;
        Some(self.layout.buckets[bucket].part(block.view(), position))
    }

    /// Returns the size of all this memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        let blocks = self.places.iter().chain(&self.results).flatten();
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
        for (param, place) in self.layout.places.iter().enumerate() {
            let Some((bucket, _)) = *place else { continue };
            let is_on_device = self.layout.buckets[bucket].device.is_some();
            copy(former.place(param), self.place(param), is_on_device)?;
            copy(former.result(param), self.result(param), is_on_device)?;
        }
        Ok(())
    }
}

impl BucketSpec {
    /// Returns the part of a bucket's memory for the gradient at this position.
    pub(super) fn part(&self, bucket: Dst<'static>, position: usize) -> Dst<'static> {
        bucket.slice(self.offsets[position], self.lengths[position])
    }
}
