//! Places for gradients that few buckets share (ZeRO-2): a bucket has memory from the first request
//! for one of its places until its gradients are reduced.

use super::memory::GradBlock;
use crate::api::group::Group;
use crate::base::error::Result;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// So many buckets have memory at a time: one that is filled, one that is reduced, and some that
/// wait. If a caller fills more of them at a time, more have.
const MOST_BLOCKS: usize = 4;

/// The memory of the buckets of places.
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
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory of a bucket. `None` if the caller had better wait for another bucket; not with
    /// `at_once`.
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

    /// A bucket is sent: its memory is no longer for places.
    pub(super) fn send(&self, bucket: usize) {
        self.lock().assigned.remove(&bucket);
    }

    /// The memory of a bucket that was reduced.
    pub(super) fn give_back(&self, block: Arc<GradBlock>) {
        self.lock().free.push(block);
    }

    /// Forgets the memory of a step that was given up.
    pub(super) fn reset(&self) {
        *self.lock() = PoolBlocks::default();
    }

    /// The bytes of all memory.
    pub(super) fn bytes(&self) -> usize {
        self.lock().made * self.block_bytes
    }
}
