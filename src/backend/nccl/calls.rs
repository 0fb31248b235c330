//! One operation of ours as calls of NCCL's, all made between ncclGroupStart and ncclGroupEnd
//! ([`super::launch`]), so that none of them waits.
//!
//! What NCCL has not is made of what it has: gather, scatter and all_to_all of messages,
//! all_gather_v of a broadcast from each rank, reduce_scatter_v of a reduction to each. Blocks
//! without elements are left out, on both sides.

use super::comm::Entry;
use super::functions::{Code, SCALAR_AT_ONCE};
use super::types::{self, Elements, Operator};
use crate::backend::device_part::Way;
use crate::backend::{OpKind, Operation};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::op::ReduceOp;
use crate::device::driver::Handle;
use std::ffi::c_int;

/// Somebody who makes calls, inside a communicator.
pub(super) struct Caller<'a> {
    pub(super) entry: &'a Entry<'a>,
    pub(super) stream: Handle,
    pub(super) deadline: &'a Deadline,
    pub(super) rank: Rank,
    pub(super) size: usize,
}

/// The operator of one call.
pub(super) struct Folding {
    elements: Elements,
    op: c_int,
    is_made: bool,
}

impl Caller<'_> {
    /// Makes the calls of a collective, with what [`Caller::folding`] has found for it.
    pub(super) fn collective(
        &self,
        operation: &Operation<'_>,
        folding: Option<&Folding>,
    ) -> Result<()> {
        let kind = operation.descriptor.kind;
        match kind {
            OpKind::AllReduce | OpKind::Reduce | OpKind::ReduceScatter | OpKind::ReduceScatterV => {
                let missing = || Error::internal("a reduction without an operator");
                self.fold(operation, folding.ok_or_else(missing)?)
            }
            OpKind::Broadcast => self.broadcast(operation),
            OpKind::AllGather => {
                let count = self.moved(operation.dtype(), operation.send.len());
                let (send, recv) = (operation.send, operation.recv);
                let function = self.entry.library().functions.all_gather;
                // SAFETY: buffers of these lengths on the device, lent until the stream has come
                // past.
                let code = unsafe {
                    function(
                        send.as_ptr().cast(),
                        recv.as_mut_ptr().cast(),
                        count.1,
                        count.0,
                        self.entry.handle(),
                        self.stream,
                    )
                };
                self.entry.added("ncclAllGather", code)
            }
            OpKind::AllGatherV => self.all_gather_v(operation),
            OpKind::Gather | OpKind::GatherV => {
                let (root, send) = (operation.root()?, operation.send);
                let blocks = (root == self.rank).then_some(operation);
                self.exchange(operation.dtype(), |add| {
                    add(root, Way::Out(send))?;
                    let Some(all) = blocks else { return Ok(()) };
                    (0..self.size).try_for_each(|rank| add(rank, Way::In(all.recv_block(rank))))
                })
            }
            OpKind::Scatter | OpKind::ScatterV => {
                let (root, recv) = (operation.root()?, operation.recv);
                let blocks = (root == self.rank).then_some(operation);
                self.exchange(operation.dtype(), |add| {
                    if let Some(all) = blocks {
                        (0..self.size)
                            .try_for_each(|rank| add(rank, Way::Out(all.send_block(rank))))?;
                    }
                    add(root, Way::In(recv))
                })
            }
            OpKind::AllToAll | OpKind::AllToAllV => self.exchange(operation.dtype(), |add| {
                (0..self.size).try_for_each(|rank| {
                    add(rank, Way::Out(operation.send_block(rank)))?;
                    add(rank, Way::In(operation.recv_block(rank)))
                })
            }),
            OpKind::Barrier => Err(Error::internal("a barrier has no memory on a device")),
            OpKind::Scan | OpKind::Exscan => Err(types::no_prefix(kind)),
        }
    }

    fn exchange(
        &self,
        dtype: DataType,
        fill: impl FnOnce(&dyn Fn(Rank, Way<'_>) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        fill(&|peer, way| {
            let is_empty = match way {
                Way::Out(bytes) => bytes.is_empty(),
                Way::In(bytes) => bytes.is_empty(),
            };
            if is_empty { Ok(()) } else { self.message(dtype, peer, way) }
        })
    }

    /// Makes the call of a message.
    pub(super) fn message(&self, dtype: DataType, peer: Rank, way: Way<'_>) -> Result<()> {
        let (peer, functions) = (number(peer)?, &self.entry.library().functions);
        let comm = self.entry.handle();
        match way {
            Way::Out(bytes) => {
                let (number, count) = self.moved(dtype, bytes.len());
                let from = bytes.as_ptr().cast();
                // SAFETY: a buffer of this length on the device, lent until the stream has come
                // past.
                let code =
                    unsafe { (functions.send)(from, count, number, peer, comm, self.stream) };
                self.entry.added("ncclSend", code)
            }
            Way::In(bytes) => {
                let (number, count) = self.moved(dtype, bytes.len());
                let into = bytes.as_mut_ptr().cast();
                // SAFETY: as above.
                let code =
                    unsafe { (functions.recv)(into, count, number, peer, comm, self.stream) };
                self.entry.added("ncclRecv", code)
            }
        }
    }

    fn broadcast(&self, operation: &Operation<'_>) -> Result<()> {
        let root = operation.root()?;
        // The root's buffer is both.
        let into = if root == self.rank {
            operation.send.as_ptr().cast_mut()
        } else {
            operation.recv.as_mut_ptr()
        };
        let bytes = operation.send.len().max(operation.recv.len());
        let code =
            self.broadcast_from(root, operation.dtype(), (into.cast_const(), into), bytes)?;
        self.entry.added("ncclBroadcast", code)
    }

    fn broadcast_from(
        &self,
        root: Rank,
        dtype: DataType,
        (from, into): (*const u8, *mut u8),
        bytes: usize,
    ) -> Result<Code> {
        let (number_of_type, count) = self.moved(dtype, bytes);
        let (root, comm) = (number(root)?, self.entry.handle());
        let function = self.entry.library().functions.broadcast;
        let (from, into) = (from.cast(), into.cast());
        // SAFETY: buffers of this length on the device, lent until the stream has come past; `from`
        // counts on the root.
        Ok(unsafe { function(from, into, count, number_of_type, root, comm, self.stream) })
    }

    fn all_gather_v(&self, operation: &Operation<'_>) -> Result<()> {
        for root in 0..self.size {
            let block = operation.recv_block(root);
            let mine = if root == self.rank { operation.send } else { block.as_src() };
            if !block.is_empty() {
                let buffers = (mine.as_ptr(), block.as_mut_ptr());
                let code = self.broadcast_from(root, operation.dtype(), buffers, block.len())?;
                self.entry.added("ncclBroadcast", code)?;
            }
        }
        Ok(())
    }

    /// Which operator, for what has one; made for the call where it is this rank's own. Not between
    /// start and end.
    pub(super) fn folding(&self, operation: &Operation<'_>) -> Result<Option<Folding>> {
        let Some(op) = operation.descriptor.op else { return Ok(None) };
        let dtype = operation.dtype();
        let library = self.entry.library();
        let (elements, operator) = types::folded(dtype, op, (library.version(), self.size))?;
        let Operator::Own(op) = operator else {
            let Some(create) = library.functions.create_premul_sum else {
                return Err(lacks(library.signature(), op));
            };
            let mut factor = types::factor(dtype, operation.factor);
            let (mut made, comm) = (0, self.entry.handle());
            let scalar = factor.as_mut_ptr().cast();
            // SAFETY: the scalar is an element of the type, read during the call; there is room for
            // a number.
            let code =
                unsafe { create(&raw mut made, scalar, elements.dtype, SCALAR_AT_ONCE, comm) };
            self.entry.settle("ncclRedOpCreatePreMulSum", code, self.deadline)?;
            return Ok(Some(Folding { elements, op: made, is_made: true }));
        };
        Ok(Some(Folding { elements, op, is_made: false }))
    }

    /// Takes an operator back that was made, once what uses it has been launched.
    pub(super) fn forget(&self, folding: &Folding) {
        let library = self.entry.library();
        let Some(destroy) = library.functions.destroy_op.filter(|_| folding.is_made) else {
            return;
        };
        // SAFETY: made for this communicator, and what uses it has been enqueued, or never will be.
        let code = unsafe { destroy(folding.op, self.entry.handle()) };
        if let Err(error) = library.check("ncclRedOpDestroy", code, 0) {
            crate::log!(crate::base::log::Level::Warn, "{error}");
        }
    }

    fn fold(&self, operation: &Operation<'_>, folding: &Folding) -> Result<()> {
        let functions = &self.entry.library().functions;
        let (comm, stream) = (self.entry.handle(), self.stream);
        let Folding { elements: Elements { dtype, per_element }, op, .. } = *folding;
        let count = |bytes: usize| bytes / operation.element() * per_element;
        let (send, recv) = (operation.send, operation.recv);
        let (from, into) = (send.as_ptr().cast(), recv.as_mut_ptr().cast());
        match operation.descriptor.kind {
            OpKind::AllReduce => {
                let function = functions.all_reduce;
                // SAFETY: buffers of these lengths on the device, lent until the stream has come
                // past.
                let code =
                    unsafe { function(from, into, count(send.len()), dtype, op, comm, stream) };
                self.entry.added("ncclAllReduce", code)
            }
            OpKind::Reduce => {
                let code =
                    self.reduce_to(operation.root()?, folding, (send, recv), count(send.len()))?;
                self.entry.added("ncclReduce", code)
            }
            OpKind::ReduceScatter => {
                let function = functions.reduce_scatter;
                // SAFETY: as above.
                let code =
                    unsafe { function(from, into, count(recv.len()), dtype, op, comm, stream) };
                self.entry.added("ncclReduceScatter", code)
            }
            _ => {
                for root in 0..self.size {
                    let block = operation.send_block(root);
                    let into = if root == self.rank { recv } else { Dst::empty() };
                    if !block.is_empty() {
                        let buffers = (block, into);
                        let code = self.reduce_to(root, folding, buffers, count(block.len()))?;
                        self.entry.added("ncclReduce", code)?;
                    }
                }
                Ok(())
            }
        }
    }

    fn reduce_to(
        &self,
        root: Rank,
        folding: &Folding,
        (send, recv): (Src<'_>, Dst<'_>),
        count: usize,
    ) -> Result<Code> {
        let function = self.entry.library().functions.reduce;
        let Folding { elements: Elements { dtype, .. }, op, .. } = *folding;
        // Only the root's is used.
        let into = if recv.is_empty() { std::ptr::null_mut() } else { recv.as_mut_ptr().cast() };
        let (root, comm, from) = (number(root)?, self.entry.handle(), send.as_ptr().cast());
        // SAFETY: buffers of these lengths on the device, lent until the stream has come past.
        Ok(unsafe { function(from, into, count, dtype, op, root, comm, self.stream) })
    }

    /// NCCL's number of a type that is moved, and how many elements that many bytes are.
    fn moved(&self, dtype: DataType, bytes: usize) -> (c_int, usize) {
        let elements = types::moved(dtype, self.entry.library().version());
        (elements.dtype, bytes / dtype.size() * elements.per_element)
    }
}

fn number(rank: Rank) -> Result<c_int> {
    c_int::try_from(rank).map_err(|_| Error::internal(format!("rank {rank} is no int")))
}

/// The library is too old for an operator.
pub(super) fn lacks(which: String, op: ReduceOp) -> Error {
    let message =
        format!("{op}: this NCCL has no ncclRedOpCreatePreMulSum, which came with 2.11 ({which})");
    Error::new(ErrorKind::Unsupported, message)
}
