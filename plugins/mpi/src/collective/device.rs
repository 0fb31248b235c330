//! Collectives on device memory, for an MPI that accepts it.
//!
//! They consist of messages between two ranks, because every such MPI supports those. Open MPI's
//! nonblocking collectives do not support device memory, and its reductions copy to host memory
//! themselves. The library stages all other operations through host memory. This module must not
//! access the contents of a block. So the block that a rank sends to itself also goes through MPI.

use super::blocks::Block;
use super::{Call, Collective};
use crate::failure::{Failure, Result};
use crate::interface::*;

/// Returns true if MPI gets device memory for operations of this kind.
pub(crate) fn supports_device_memory(kind: i32) -> bool {
    matches!(
        kind,
        DIST_KIND_SEND
            | DIST_KIND_RECV
            | DIST_KIND_ALL_GATHER
            | DIST_KIND_GATHER
            | DIST_KIND_SCATTER
            | DIST_KIND_ALL_TO_ALL
            | DIST_KIND_ALL_GATHER_V
            | DIST_KIND_GATHER_V
            | DIST_KIND_SCATTER_V
            | DIST_KIND_ALL_TO_ALL_V
    )
}

impl Collective {
    /// Begins a collective on device memory.
    pub(super) fn post_on_device(&mut self, call: &Call<'_>) -> Result<()> {
        let block = call.operation.count;
        match call.operation.kind {
            DIST_KIND_ALL_TO_ALL => {
                self.exchange_blocks(call, &call.equal_sends(), &call.equal_recvs())
            }
            DIST_KIND_ALL_GATHER => {
                let send: Block = (call.send().cast_mut(), block);
                self.exchange_blocks(call, &vec![send; call.group.size], &call.equal_recvs())
            }
            DIST_KIND_ALL_GATHER_V => {
                let send: Block = (call.send().cast_mut(), call.operation.send_count);
                self.exchange_blocks(call, &vec![send; call.group.size], &call.recvs())
            }
            DIST_KIND_GATHER if !call.is_root() => {
                self.send_block(call, call.root(), (call.send().cast_mut(), block))
            }
            DIST_KIND_GATHER => {
                let sends = call.own_block_only((call.send().cast_mut(), block));
                self.exchange_as_root(call, &sends, &call.equal_recvs(), true)
            }
            DIST_KIND_SCATTER if !call.is_root() => {
                self.recv_block(call, call.root(), (call.recv(), block))
            }
            DIST_KIND_SCATTER => {
                let recvs = call.own_block_only((call.recv(), block));
                self.exchange_as_root(call, &call.equal_sends(), &recvs, false)
            }
            DIST_KIND_GATHER_V => self.gather_v(call),
            DIST_KIND_SCATTER_V => self.scatter_v(call),
            DIST_KIND_ALL_TO_ALL_V => self.all_to_all_v(call),
            other => {
                let text = format!("operation {other} is not supported in device memory");
                Err(Failure::new(DIST_ERR_UNSUPPORTED, text))
            }
        }
    }
}

impl Call<'_> {
    /// Returns one block of equal length per rank.
    fn equal_sends(&self) -> Vec<Block> {
        self.equal(self.send().cast_mut())
    }

    fn equal_recvs(&self) -> Vec<Block> {
        self.equal(self.recv())
    }

    fn equal(&self, base: *mut u8) -> Vec<Block> {
        let (count, bytes) = (self.operation.count, self.operation.count * self.element_bytes);
        (0..self.group.size).map(|rank| (base.wrapping_add(rank * bytes), count)).collect()
    }

    /// Returns a block for this rank, and empty blocks for the other ranks.
    fn own_block_only(&self, own: Block) -> Vec<Block> {
        let mut blocks = vec![(std::ptr::null_mut(), 0); self.group.size];
        blocks[self.group.rank] = own;
        blocks
    }
}
