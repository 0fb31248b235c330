//! Collectives that move blocks of equal length without arithmetic.

use super::{Address, Call, Collective, untyped};
use crate::failure::Result;
use crate::mpi::large_count::LargeCount;
use crate::mpi::{in_place, mpi};
use std::ffi::c_void;

impl Call<'_> {
    /// Returns the MPI count and datatype for `count` elements.
    pub(super) fn large_count(&self, count: usize) -> Result<LargeCount> {
        LargeCount::new(self.datatype, self.element_bytes, count, self.group.options.max_count)
    }

    /// Returns the bytes of `count` elements of the call.
    fn block(&self) -> usize {
        self.operation.count * self.element_bytes
    }
}

impl Collective {
    pub(super) fn barrier(&mut self, call: &Call<'_>) -> Result<()> {
        self.issue(None, |request| mpi!(MPI_Ibarrier(call.group.comm(), request)))
    }

    pub(super) fn broadcast(&mut self, call: &Call<'_>) -> Result<()> {
        let large_count = call.large_count(call.operation.count)?;
        // On the root MPI only reads the buffer.
        let buffer: *mut c_void =
            if call.is_root() { call.operation.send.cast_mut() } else { call.operation.recv };
        let (root, comm) = (call.operation.root, call.group.comm());
        self.issue(None, |request| {
            mpi!(MPI_Ibcast(buffer, large_count.count, large_count.datatype, root, comm, request))
        })
    }

    pub(super) fn all_gather(&mut self, call: &Call<'_>) -> Result<()> {
        let large_count = call.large_count(call.operation.count)?;
        // MPI requires MPI_IN_PLACE on all ranks or on none, and this rank does not know the other
        // ranks' buffers.
        let send = match call.is_in_place() {
            true if call.group.options.in_place_agreed => in_place().cast_const(),
            true => untyped(self.scratch_copy(call.send(), call.block())?),
            false => call.operation.send,
        };
        let (recv, comm) = (call.operation.recv, call.group.comm());
        let (count, datatype) = (large_count.count, large_count.datatype);
        self.issue(None, |request| {
            mpi!(MPI_Iallgather(send, count, datatype, recv, count, datatype, comm, request))
        })
    }

    pub(super) fn gather(&mut self, call: &Call<'_>) -> Result<()> {
        let large_count = call.large_count(call.operation.count)?;
        let in_place_here = call.is_root() && call.is_in_place();
        let send = if in_place_here { in_place().cast_const() } else { call.operation.send };
        let (recv, comm, root) = (call.operation.recv, call.group.comm(), call.operation.root);
        let (count, datatype) = (large_count.count, large_count.datatype);
        self.issue(None, |request| {
            mpi!(MPI_Igather(send, count, datatype, recv, count, datatype, root, comm, request))
        })
    }

    pub(super) fn scatter(&mut self, call: &Call<'_>) -> Result<()> {
        let large_count = call.large_count(call.operation.count)?;
        let in_place_here = call.is_root() && call.is_in_place();
        let recv = if in_place_here { in_place() } else { call.operation.recv };
        let (send, comm, root) = (call.operation.send, call.group.comm(), call.operation.root);
        let (count, datatype) = (large_count.count, large_count.datatype);
        self.issue(None, |request| {
            mpi!(MPI_Iscatter(send, count, datatype, recv, count, datatype, root, comm, request))
        })
    }

    pub(super) fn all_to_all(&mut self, call: &Call<'_>) -> Result<()> {
        let large_count = call.large_count(call.operation.count)?;
        let (send, recv, comm) = (call.operation.send, call.operation.recv, call.group.comm());
        let (count, datatype) = (large_count.count, large_count.datatype);
        self.issue(None, |request| {
            mpi!(MPI_Ialltoall(send, count, datatype, recv, count, datatype, comm, request))
        })
    }

    /// Returns scratch memory for a result, which is copied to `to` at the end.
    pub(super) fn scratch_result(&mut self, to: *mut u8, bytes: usize) -> Result<*mut u8> {
        let from = self.scratch(bytes)?;
        self.final_work.copies.push((Address(from), Address(to), bytes));
        Ok(from)
    }
}
