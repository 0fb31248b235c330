//! Collectives on the memory of devices, by MPIs that take it.
//!
//! They are messages between two ranks, since that is what every such MPI takes: Open MPI's
//! nonblocking collectives do not, and its reductions copy to host memory themselves. What is not
//! here the library carries by way of host memory. Nothing here may touch what is in a block; also
//! what a rank has for itself goes through MPI.

use super::blocks::Block;
use super::{Call, Collective};
use crate::failure::{Failure, Result};
use crate::interface::*;

/// Whether MPI is given the memory of devices for operations of this kind.
pub(crate) fn takes_from_device(kind: i32) -> bool {
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
    /// Begins one of them.
    pub(super) fn post_on_device(&mut self, call: &Call<'_>) -> Result<()> {
        let block = call.what.count;
        match call.what.kind {
            DIST_KIND_ALL_TO_ALL => self.trade(call, &call.equal_sends(), &call.equal_recvs()),
            DIST_KIND_ALL_GATHER => {
                let send: Block = (call.send().cast_mut(), block);
                self.trade(call, &vec![send; call.part.size], &call.equal_recvs())
            }
            DIST_KIND_ALL_GATHER_V => {
                let send: Block = (call.send().cast_mut(), call.what.send_count);
                self.trade(call, &vec![send; call.part.size], &call.recvs())
            }
            DIST_KIND_GATHER if !call.is_root() => {
                self.block_to(call, call.root(), (call.send().cast_mut(), block))
            }
            DIST_KIND_GATHER => {
                let sends = call.only_own((call.send().cast_mut(), block));
                self.root_trade(call, &sends, &call.equal_recvs(), true)
            }
            DIST_KIND_SCATTER if !call.is_root() => {
                self.block_from(call, call.root(), (call.recv(), block))
            }
            DIST_KIND_SCATTER => {
                let recvs = call.only_own((call.recv(), block));
                self.root_trade(call, &call.equal_sends(), &recvs, false)
            }
            DIST_KIND_GATHER_V => self.gather_v(call),
            DIST_KIND_SCATTER_V => self.scatter_v(call),
            DIST_KIND_ALL_TO_ALL_V => self.all_to_all_v(call),
            other => {
                let text = format!("operation {other} on the memory of a device");
                Err(Failure::new(DIST_ERR_UNSUPPORTED, text))
            }
        }
    }
}

impl Call<'_> {
    /// A block of one length for each rank.
    fn equal_sends(&self) -> Vec<Block> {
        self.equal(self.send().cast_mut())
    }

    fn equal_recvs(&self) -> Vec<Block> {
        self.equal(self.recv())
    }

    fn equal(&self, base: *mut u8) -> Vec<Block> {
        let (count, bytes) = (self.what.count, self.what.count * self.width);
        (0..self.part.size).map(|rank| (base.wrapping_add(rank * bytes), count)).collect()
    }

    /// A block for this rank, and nothing for others.
    fn only_own(&self, own: Block) -> Vec<Block> {
        let mut blocks = vec![(std::ptr::null_mut(), 0); self.part.size];
        blocks[self.part.rank] = own;
        blocks
    }
}
