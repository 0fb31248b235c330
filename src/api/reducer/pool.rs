//! A pool of memory for places, which the buckets share (ZeRO-2). A bucket has memory from the
//! first request for one of its places until its gradients are reduced.

use super::memory::GradBlock;
use crate::api::group::Group;
use crate::base::error::Result;
use crate::base::sync::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// The number of buckets that usually have memory at a time: one that is filled, one that is
/// reduced, and two that wait. If a caller fills more buckets at a time, more buckets have memory.
const MOST_BLOCKS: usize = 4;

/// The shared memory of the buckets of places.
#[derive(Debug)]
pub(super) struct GradBlockPool {
    block_bytes: usize,
    blocks: Mutex<PoolBlocks>,
}

#[derive(Debug, Default)]
struct PoolBlocks {
    free: Vec<Arc<GradBlock>>,
    assigned: HashMap<usize, Arc<GradBlock>>,
    made: usize,
}

impl GradBlockPool {
    pub(super) fn new(block_bytes: usize) -> Self {
        Self { block_bytes, blocks: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, PoolBlocks> {
        lock(&self.blocks)
    }

    /// Returns the memory of a bucket, and assigns a block if it has none. Returns `None` if the
    /// caller should wait for another bucket; never with `at_once`.
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

    /// Ends the assignment of a bucket's memory to places, because the bucket is sent.
    pub(super) fn send(&self, bucket: usize) {
        self.lock().assigned.remove(&bucket);
    }

    /// Takes the memory of a reduced bucket back.
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
