//! Maps one libdist operation to NCCL calls. All calls run between ncclGroupStart and ncclGroupEnd
//! ([`super::launch`]), so no call waits.
//!
//! Operations that NCCL does not have are composed of other calls:
//!
//! - gather, scatter and all_to_all: one send or receive for each block;
//! - all_gather_v: one broadcast from each rank;
//! - reduce_scatter_v: one reduction to each rank.
//!
//! The sender and the receiver both skip a block without elements.

use super::comm::CommGuard;
use super::functions::SCALAR_HOST_IMMEDIATE;
use super::types::{self, NcclElements, NcclOperator};
use crate::backend::{DeviceTransfer, OpKind, Operation};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::op::ReduceOp;
use crate::device::driver::CudaHandle;
use std::ffi::c_int;
use std::ops::Range;

/// The arguments that all NCCL calls of one operation have in common. The calling thread holds the
/// communicator.
pub(super) struct NcclCaller<'a> {
    pub(super) comm: &'a CommGuard<'a>,
    pub(super) stream: CudaHandle,
    pub(super) deadline: &'a Deadline,
    pub(super) rank: Rank,
    pub(super) size: usize,
}

/// The NCCL operator and the NCCL element type of one reduction.
pub(super) struct NcclReduceOp {
    elements: NcclElements,
    op: c_int,
    is_custom: bool,
}

impl NcclCaller<'_> {
    /// Issues the calls of a collective, with the operator from [`NcclCaller::create_reduce_op`].
    pub(super) fn issue_collective(
        &self,
        operation: &Operation<'_>,
        reduce_op: Option<&NcclReduceOp>,
    ) -> Result<()> {
        let kind = operation.descriptor.kind;
        match kind {
            OpKind::AllReduce | OpKind::Reduce | OpKind::ReduceScatter | OpKind::ReduceScatterV => {
                let missing = || Error::internal("the reduction has no operator");
                self.issue_reduction(operation, reduce_op.ok_or_else(missing)?)
            }
            OpKind::Broadcast => self.issue_broadcast(operation),
            OpKind::AllGather => {
                let count = self.copy_type(operation.dtype(), operation.send.len());
                let (send, recv) = (operation.send, operation.recv);
                let function = self.comm.library().functions.all_gather;
                // SAFETY: the arguments are device buffers of these lengths, which stay valid until
                // the stream has run the call.
                let code = unsafe {
                    function(
                        send.as_ptr().cast(),
                        recv.as_mut_ptr().cast(),
                        count.1,
                        count.0,
                        self.comm.handle(),
                        self.stream,
                    )
                };
                self.comm.check_added("ncclAllGather", code)
            }
            OpKind::AllGatherV => self.issue_all_gather_v(operation),
            OpKind::Gather | OpKind::GatherV => {
                let root = operation.root()?;
                self.issue_block(operation, root, DeviceTransfer::Send(operation.send))?;
                self.ranks_if(root == self.rank).try_for_each(|rank| {
                    let block = operation.recv_block(rank);
                    self.issue_block(operation, rank, DeviceTransfer::Recv(block))
                })
            }
            OpKind::Scatter | OpKind::ScatterV => {
                let root = operation.root()?;
                self.ranks_if(root == self.rank).try_for_each(|rank| {
                    let block = operation.send_block(rank);
                    self.issue_block(operation, rank, DeviceTransfer::Send(block))
                })?;
                self.issue_block(operation, root, DeviceTransfer::Recv(operation.recv))
            }
            OpKind::AllToAll | OpKind::AllToAllV => self.ranks_if(true).try_for_each(|rank| {
                let (send, recv) = (operation.send_block(rank), operation.recv_block(rank));
                self.issue_block(operation, rank, DeviceTransfer::Send(send))?;
                self.issue_block(operation, rank, DeviceTransfer::Recv(recv))
            }),
            OpKind::Barrier => Err(Error::internal("a barrier has no device memory")),
            OpKind::Scan | OpKind::Exscan => Err(types::unsupported_prefix(kind)),
        }
    }

    /// Returns the range of all ranks if the condition holds, otherwise an empty range.
    fn ranks_if(&self, condition: bool) -> Range<Rank> {
        0..if condition { self.size } else { 0 }
    }

    /// Issues the send or receive of a block, unless the block is empty.
    fn issue_block(
        &self,
        operation: &Operation<'_>,
        peer: Rank,
        transfer: DeviceTransfer<'_>,
    ) -> Result<()> {
        let is_empty = match transfer {
            DeviceTransfer::Send(bytes) => bytes.is_empty(),
            DeviceTransfer::Recv(bytes) => bytes.is_empty(),
        };
        if is_empty { Ok(()) } else { self.issue_message(operation.dtype(), peer, transfer) }
    }

    /// Issues the call of a point-to-point message.
    pub(super) fn issue_message(
        &self,
        dtype: DataType,
        peer: Rank,
        transfer: DeviceTransfer<'_>,
    ) -> Result<()> {
        let (peer, functions) = (to_c_int(peer)?, &self.comm.library().functions);
        let comm = self.comm.handle();
        match transfer {
            DeviceTransfer::Send(bytes) => {
                let (number, count) = self.copy_type(dtype, bytes.len());
                let from = bytes.as_ptr().cast();
                // SAFETY: a device buffer of this length, lent until the stream has run the call.
                let code =
                    unsafe { (functions.send)(from, count, number, peer, comm, self.stream) };
                self.comm.check_added("ncclSend", code)
            }
            DeviceTransfer::Recv(bytes) => {
                let (number, count) = self.copy_type(dtype, bytes.len());
                let into = bytes.as_mut_ptr().cast();
                // SAFETY: a device buffer of this length, lent until the stream has run the call.
                let code =
                    unsafe { (functions.recv)(into, count, number, peer, comm, self.stream) };
                self.comm.check_added("ncclRecv", code)
            }
        }
    }

    fn issue_broadcast(&self, operation: &Operation<'_>) -> Result<()> {
        let root = operation.root()?;
        // Each rank passes one buffer for both arguments, so the broadcast is in place and does not
        // modify the send buffer of the root.
        let into = if root == self.rank {
            operation.send.as_ptr().cast_mut()
        } else {
            operation.recv.as_mut_ptr()
        };
        let bytes = operation.send.len().max(operation.recv.len());
        self.issue_broadcast_from(root, operation.dtype(), into, into, bytes)
    }

    fn issue_broadcast_from(
        &self,
        root: Rank,
        dtype: DataType,
        from: *const u8,
        into: *mut u8,
        bytes: usize,
    ) -> Result<()> {
        let (number, count) = self.copy_type(dtype, bytes);
        let (root, comm) = (to_c_int(root)?, self.comm.handle());
        let function = self.comm.library().functions.broadcast;
        // SAFETY: device buffers of this length, lent until the stream has run the call. NCCL reads
        // `from` only on the root.
        let code =
            unsafe { function(from.cast(), into.cast(), count, number, root, comm, self.stream) };
        self.comm.check_added("ncclBroadcast", code)
    }

    fn issue_all_gather_v(&self, operation: &Operation<'_>) -> Result<()> {
        for root in 0..self.size {
            let block = operation.recv_block(root);
            let own = if root == self.rank { operation.send } else { block.as_src() };
            if !block.is_empty() {
                let (from, into) = (own.as_ptr(), block.as_mut_ptr());
                self.issue_broadcast_from(root, operation.dtype(), from, into, block.len())?;
            }
        }
        Ok(())
    }

    /// Returns the operator of a reduction, or `None` for an operation without an operator. For
    /// `PREMUL_SUM`, the function creates an NCCL operator with the factor of this rank. This is
    /// not allowed between ncclGroupStart and ncclGroupEnd.
    pub(super) fn create_reduce_op(
        &self,
        operation: &Operation<'_>,
    ) -> Result<Option<NcclReduceOp>> {
        let Some(op) = operation.descriptor.op else { return Ok(None) };
        let dtype = operation.dtype();
        let library = self.comm.library();
        let (elements, operator) = types::reduce_elements(dtype, op, library.version(), self.size)?;
        if let NcclOperator::Builtin(op) = operator {
            return Ok(Some(NcclReduceOp { elements, op, is_custom: false }));
        }
        let Some(create) = library.functions.create_premul_sum else {
            return Err(missing_premul_sum(library.version_and_file(), op));
        };
        let mut factor = types::encode_factor(dtype, operation.factor);
        let (mut created, comm) = (0, self.comm.handle());
        let scalar = factor.as_mut_ptr().cast();
        // SAFETY: the scalar is an element of the type that NCCL reads during the call, and
        // `created` has space for the number of the operator.
        let code = unsafe {
            create(&raw mut created, scalar, elements.dtype, SCALAR_HOST_IMMEDIATE, comm)
        };
        self.comm.await_completion("ncclRedOpCreatePreMulSum", code, self.deadline)?;
        Ok(Some(NcclReduceOp { elements, op: created, is_custom: true }))
    }

    /// Destroys an operator that [`NcclCaller::create_reduce_op`] has created. The caller calls
    /// this after the launch of the calls that use the operator.
    pub(super) fn destroy_reduce_op(&self, reduce_op: &NcclReduceOp) {
        let library = self.comm.library();
        let Some(destroy) = library.functions.destroy_op.filter(|_| reduce_op.is_custom) else {
            return;
        };
        // SAFETY: the operator was created for this communicator. The calls that use it have been
        // enqueued, or will never be enqueued.
        let code = unsafe { destroy(reduce_op.op, self.comm.handle()) };
        if let Err(error) = library.check("ncclRedOpDestroy", code, 0) {
            crate::log!(crate::base::log::LogLevel::Warn, "{error}");
        }
    }

    fn issue_reduction(&self, operation: &Operation<'_>, reduce_op: &NcclReduceOp) -> Result<()> {
        let functions = &self.comm.library().functions;
        let (comm, stream) = (self.comm.handle(), self.stream);
        let NcclReduceOp { elements: NcclElements { dtype, per_element }, op, .. } = *reduce_op;
        let count = |bytes: usize| bytes / operation.element_bytes() * per_element;
        let (send, recv) = (operation.send, operation.recv);
        let (from, into) = (send.as_ptr().cast(), recv.as_mut_ptr().cast());
        match operation.descriptor.kind {
            OpKind::AllReduce => {
                let function = functions.all_reduce;
                // SAFETY: device buffers of these lengths, lent until the stream has run the call.
                let code =
                    unsafe { function(from, into, count(send.len()), dtype, op, comm, stream) };
                self.comm.check_added("ncclAllReduce", code)
            }
            OpKind::Reduce => {
                let count = count(send.len());
                self.issue_reduce_to(operation.root()?, reduce_op, send, recv, count)
            }
            OpKind::ReduceScatter => {
                let function = functions.reduce_scatter;
                // SAFETY: device buffers of these lengths, lent until the stream has run the call.
                let code =
                    unsafe { function(from, into, count(recv.len()), dtype, op, comm, stream) };
                self.comm.check_added("ncclReduceScatter", code)
            }
            _ => {
                for root in 0..self.size {
                    let block = operation.send_block(root);
                    let into = if root == self.rank { recv } else { Dst::empty() };
                    if !block.is_empty() {
                        self.issue_reduce_to(root, reduce_op, block, into, count(block.len()))?;
                    }
                }
                Ok(())
            }
        }
    }

    fn issue_reduce_to(
        &self,
        root: Rank,
        reduce_op: &NcclReduceOp,
        send: Src<'_>,
        recv: Dst<'_>,
        count: usize,
    ) -> Result<()> {
        let function = self.comm.library().functions.reduce;
        let NcclReduceOp { elements: NcclElements { dtype, .. }, op, .. } = *reduce_op;
        // NCCL writes only to the buffer of the root.
        let into = if recv.is_empty() { std::ptr::null_mut() } else { recv.as_mut_ptr().cast() };
        let (root, comm, from) = (to_c_int(root)?, self.comm.handle(), send.as_ptr().cast());
        // SAFETY: device buffers of these lengths, lent until the stream has run the call.
        let code = unsafe { function(from, into, count, dtype, op, root, comm, self.stream) };
        self.comm.check_added("ncclReduce", code)
    }

    /// Returns the number of the NCCL type with which elements of `dtype` are copied, and the
    /// number of NCCL elements in `bytes` bytes.
    fn copy_type(&self, dtype: DataType, bytes: usize) -> (c_int, usize) {
        let elements = types::copy_elements(dtype, self.comm.library().version());
        (elements.dtype, bytes / dtype.size() * elements.per_element)
    }
}

fn to_c_int(rank: Rank) -> Result<c_int> {
    c_int::try_from(rank).map_err(|_| Error::internal(format!("rank {rank} does not fit an int")))
}

/// Returns the error for an NCCL version that does not support `PREMUL_SUM`. `which` is the version
/// and the file.
pub(super) fn missing_premul_sum(which: String, op: ReduceOp) -> Error {
    let message = format!(
        "{op}: this NCCL has no ncclRedOpCreatePreMulSum; NCCL 2.11 or newer is needed ({which})"
    );
    Error::new(ErrorKind::Unsupported, message)
}
