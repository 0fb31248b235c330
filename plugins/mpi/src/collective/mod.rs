//! Collectives: each consists of one or more nonblocking operations of MPI, and of final work on
//! this rank when they have ended.
//!
//! The choice of MPI operations depends only on arguments that all ranks know, because all ranks
//! must call MPI identically. Scratch memory of this plug-in hides the differences between ranks
//! (the displacements of blocks, in-place buffers).

pub(crate) mod alone;
mod blocks;
mod device;
mod integer_average;
mod moves;
mod reductions;

use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::op::ReduceOp;
use crate::failure::{Failure, Result};
use crate::group::MpiGroup;
use crate::interface::*;
use crate::kernel;
use crate::mpi::{self, Handle, bytes_of, mpi, sys};
use crate::operators;
use crate::request::CancelOutcome;
use crate::types;
use std::ffi::{c_int, c_void};

pub(crate) use device::supports_device_memory;
use integer_average::{IntegerSums, is_integer_average};

/// A collective that has not ended.
#[derive(Debug, Default)]
pub(crate) struct Collective {
    pending: PendingOperations,
    final_work: FinalWork,
    /// Scratch memory that MPI uses.
    scratch: Vec<ScratchMemory>,
    /// Lists that MPI reads.
    lists: Vec<Vec<c_int>>,
}

/// One operation of MPI.
#[derive(Debug)]
struct PendingOperation {
    request: Handle<sys::MPI_Request>,
    /// For a received block: the sender and the required length in bytes.
    expected: Option<(i32, usize)>,
}

/// The operations that have not ended, the last one first. Most calls have one, which needs no
/// allocation.
#[derive(Debug, Default)]
struct PendingOperations {
    last: Option<PendingOperation>,
    before: Vec<PendingOperation>,
}

impl PendingOperations {
    fn push(&mut self, pending_operation: PendingOperation) {
        if let Some(before) = self.last.replace(pending_operation) {
            self.before.push(before);
        }
    }

    fn pop(&mut self) {
        self.last = self.before.pop();
    }
}

/// The work that follows when all pending operations have ended.
#[derive(Debug, Default)]
struct FinalWork {
    /// Copies: source, destination, bytes.
    copies: Vec<(Address, Address, usize)>,
    /// The sums of an average of integers.
    integer_sums: Option<IntegerSums>,
    /// The result of a prefix reduction that is the vector of one rank, on which no operator ran.
    single: Option<(DataType, ReduceOp, Address, usize)>,
    /// True if an operator of this plug-in was used.
    uses_own_operator: bool,
}

/// An address in lent memory, or in the request's scratch memory.
#[derive(Clone, Copy, Debug)]
struct Address(*mut u8);

// SAFETY: the memory is lent to the request, on any thread.
unsafe impl Send for Address {}

/// Scratch memory of the request, aligned for every type.
#[derive(Debug)]
struct ScratchMemory(Vec<u128>);

impl ScratchMemory {
    fn new(bytes: usize) -> Result<Self> {
        let mut words = Vec::new();
        words.try_reserve_exact(bytes.div_ceil(size_of::<u128>())).map_err(|_| {
            Failure::new(
                DIST_ERR_OUT_OF_MEMORY,
                format!("no memory for {bytes} bytes of scratch space of a collective"),
            )
        })?;
        // It is written before it is read, but a vector must be initialised.
        words.resize(bytes.div_ceil(size_of::<u128>()), 0);
        Ok(Self(words))
    }

    fn address(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

/// Copies bytes between buffers that may overlap.
fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    if bytes > 0 {
        // SAFETY: both buffers are lent to the operation, or its scratch memory, and have this
        // length.
        unsafe { to.copy_from(from, bytes) };
    }
}

/// Returns a view of lent memory.
fn src_view<'a>(from: *const u8, bytes: usize) -> Src<'a> {
    // SAFETY: lent to the operation, or its scratch memory, with this length.
    unsafe { Src::new(from, bytes) }
}

fn dst_view<'a>(to: *mut u8, bytes: usize) -> Dst<'a> {
    // SAFETY: lent to the operation, or its scratch memory, with this length.
    unsafe { Dst::new(to, bytes) }
}

/// A call with values derived from its arguments.
struct Call<'a> {
    operation: &'a dist_backend_operation_t,
    group: &'a MpiGroup,
    dtype: DataType,
    datatype: sys::MPI_Datatype,
    /// The bytes of an element.
    element_bytes: usize,
}

impl Call<'_> {
    fn send(&self) -> *const u8 {
        self.operation.send.cast()
    }

    fn recv(&self) -> *mut u8 {
        self.operation.recv.cast()
    }

    fn is_in_place(&self) -> bool {
        self.operation.flags & u64::from(DIST_BACKEND_IN_PLACE.cast_unsigned()) != 0
    }

    /// Returns true if the buffers are in device memory, which only MPI can access.
    fn is_on_device(&self) -> bool {
        self.operation.device != DIST_DEVICE_HOST
    }

    fn is_root(&self) -> bool {
        usize::try_from(self.operation.root) == Ok(self.group.rank)
    }

    /// Returns a list of counts or displacements, one per rank; empty for a null list.
    fn list<'b>(&self, list: *const usize) -> &'b [usize] {
        if list.is_null() {
            return &[];
        }
        // SAFETY: the list has one entry per rank; valid during submit.
        unsafe { std::slice::from_raw_parts(list, self.group.size) }
    }
}

impl Collective {
    /// Begins a call. The collective is already at its final address: moving it costs as much as
    /// the rest of this function.
    pub(crate) fn begin(
        &mut self,
        group: &MpiGroup,
        operation: &dist_backend_operation_t,
    ) -> Result<()> {
        let dtype = if operation.kind == DIST_KIND_BARRIER {
            DataType::U8
        } else {
            types::dtype(operation.dtype)?
        };
        let call = Call {
            operation,
            group,
            dtype,
            datatype: types::datatype(dtype),
            element_bytes: dtype.size(),
        };
        self.post(&call).inspect_err(|_| {
            if self.pending.last.is_some() {
                // MPI continues these operations and uses their memory.
                group.record_request_in_use();
                std::mem::forget(std::mem::take(self));
            }
        })
    }

    fn post(&mut self, call: &Call<'_>) -> Result<()> {
        if call.is_on_device() {
            return self.post_on_device(call);
        }
        if is_integer_average(call) {
            return self.integer_average(call);
        }
        match call.operation.kind {
            DIST_KIND_ALL_REDUCE => self.all_reduce(call),
            DIST_KIND_REDUCE => self.reduce(call),
            DIST_KIND_REDUCE_SCATTER => self.reduce_scatter(call),
            DIST_KIND_REDUCE_SCATTER_V => self.reduce_scatter_v(call),
            DIST_KIND_SCAN => self.scan(call, false),
            DIST_KIND_EXSCAN => self.scan(call, true),
            DIST_KIND_BROADCAST => self.broadcast(call),
            DIST_KIND_ALL_GATHER => self.all_gather(call),
            DIST_KIND_GATHER => self.gather(call),
            DIST_KIND_SCATTER => self.scatter(call),
            DIST_KIND_ALL_TO_ALL => self.all_to_all(call),
            DIST_KIND_BARRIER => self.barrier(call),
            DIST_KIND_ALL_GATHER_V => self.all_gather_v(call),
            DIST_KIND_GATHER_V => self.gather_v(call),
            DIST_KIND_SCATTER_V => self.scatter_v(call),
            DIST_KIND_ALL_TO_ALL_V => self.all_to_all_v(call),
            other => Err(Failure::new(DIST_ERR_UNSUPPORTED, format!("unknown operation {other}"))),
        }
    }

    /// Starts an operation of MPI and adds it to the pending ones; `begin` gets the address for its
    /// request.
    fn issue(
        &mut self,
        expected: Option<(i32, usize)>,
        begin: impl FnOnce(*mut sys::MPI_Request) -> Result<()>,
    ) -> Result<()> {
        let mut request = mpi::no_request();
        begin(&raw mut request)?;
        self.pending.push(PendingOperation { request: Handle(request), expected });
        Ok(())
    }

    /// Allocates scratch memory.
    fn scratch(&mut self, bytes: usize) -> Result<*mut u8> {
        let mut scratch = ScratchMemory::new(bytes)?;
        let address = scratch.address();
        // The memory does not move when the outer vector grows.
        self.scratch.push(scratch);
        Ok(address)
    }

    /// Returns a copy of lent memory.
    fn scratch_copy(&mut self, from: *const u8, bytes: usize) -> Result<*mut u8> {
        let to = self.scratch(bytes)?;
        copy(from, to, bytes);
        Ok(to)
    }

    /// Polls; returns true if the collective has ended.
    #[inline]
    pub(crate) fn poll(&mut self, group: &MpiGroup) -> Result<bool> {
        while let Some(pending_operation) = &mut self.pending.last {
            let mut flag = 0;
            match pending_operation.expected {
                None => {
                    let none = mpi::constant!(RSMPI_STATUS_IGNORE);
                    mpi!(MPI_Test(&raw mut pending_operation.request.0, &raw mut flag, none))?;
                }
                Some((from, bytes)) => {
                    let mut status = mpi::status();
                    let tested = mpi!(MPI_Test(
                        &raw mut pending_operation.request.0,
                        &raw mut flag,
                        &raw mut status
                    ));
                    tested.map_err(|failure| failure.with_culprit(from))?;
                    if flag != 0 {
                        check_length(from, bytes, bytes_of(&status)?)?;
                    }
                }
            }
            if flag == 0 {
                return Ok(false);
            }
            self.pending.pop();
        }
        self.run_final_work(group)?;
        Ok(true)
    }

    fn run_final_work(&mut self, group: &MpiGroup) -> Result<()> {
        if self.final_work.uses_own_operator {
            operators::check_panics()?;
        }
        for (from, to, bytes) in self.final_work.copies.drain(..) {
            copy(from.0, to.0, bytes);
        }
        if let Some((dtype, op, address, bytes)) = self.final_work.single.take() {
            // Like a reduction of one vector: bools become 0 or 1, and a NaN becomes the canonical
            // one.
            let vector = dst_view(address.0, bytes);
            kernel::fold(dtype, op, vector, &[vector.as_src()]);
        }
        if let Some(sums) = self.final_work.integer_sums.take() {
            sums.finish(group.size);
        }
        Ok(())
    }

    /// Cancels the pending operations. MPI can only cancel receives of messages that have not begun
    /// to arrive.
    pub(crate) fn cancel(&mut self) -> Result<CancelOutcome> {
        while let Some(pending_operation) = &mut self.pending.last {
            let mut flag = 0;
            let none = mpi::constant!(RSMPI_STATUS_IGNORE);
            if pending_operation.request.0 == mpi::no_request() {
                self.pending.pop();
                continue;
            }
            mpi!(MPI_Test(&raw mut pending_operation.request.0, &raw mut flag, none))?;
            if flag == 0 && pending_operation.expected.is_none() {
                return Ok(CancelOutcome::InUse(
                    "MPI cannot cancel a collective that was started, nor a message that is being \
                     sent",
                ));
            }
            if flag == 0 {
                mpi!(MPI_Cancel(&raw mut pending_operation.request.0))?;
                // A cancelled receive ends at once, whether or not the cancellation succeeded.
                mpi!(MPI_Wait(&raw mut pending_operation.request.0, none))?;
            }
            self.pending.pop();
        }
        Ok(CancelOutcome::Released)
    }
}

fn check_length(from: i32, expected: usize, received: usize) -> Result<()> {
    if expected == received {
        return Ok(());
    }
    let text = format!("rank {from} sends {received} bytes, and this rank expects {expected}");
    Err(Failure::new(DIST_ERR_MISMATCH, text).with_culprit(from))
}

/// Casts an address for functions of MPI.
fn untyped(address: *const u8) -> *const c_void {
    address.cast()
}

/// Copies bytes to lent memory of the same length.
pub(crate) fn copy_bytes(from: &[u8], to: *mut c_void) {
    copy(from.as_ptr(), to.cast(), from.len());
}
