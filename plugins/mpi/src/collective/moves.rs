//! Collectives that move blocks of equal length without arithmetic.

use super::{Address, Call, Collective, untyped};
use crate::failure::Result;
use crate::mpi::lot::Lot;
use crate::mpi::{in_place, mpi};
use std::ffi::c_void;

impl Call<'_> {
    /// Returns the MPI count and datatype for `count` elements.
    pub(super) fn lot(&self, count: usize) -> Result<Lot> {
        Lot::new(self.datatype, self.width, count, self.part.options.largest)
    }

    /// Returns the bytes of `count` elements of the call.
    fn block(&self) -> usize {
        self.what.count * self.width
    }
}

impl Collective {
    pub(super) fn barrier(&mut self, call: &Call<'_>) -> Result<()> {
        self.step(None, |request| mpi!(MPI_Ibarrier(call.part.comm(), request)))
    }

    pub(super) fn broadcast(&mut self, call: &Call<'_>) -> Result<()> {
        let lot = call.lot(call.what.count)?;
        // On the root MPI only reads the buffer.
        let place: *mut c_void =
            if call.is_root() { call.what.send.cast_mut() } else { call.what.recv };
        let (root, comm) = (call.what.root, call.part.comm());
        self.step(None, |request| {
            mpi!(MPI_Ibcast(place, lot.count, lot.datatype, root, comm, request))
        })
    }

    pub(super) fn all_gather(&mut self, call: &Call<'_>) -> Result<()> {
        let lot = call.lot(call.what.count)?;
        // MPI requires MPI_IN_PLACE on all ranks or on none, and this rank does not know the other
        // ranks' buffers.
        let send = match call.is_in_place() {
            true if call.part.options.in_place_agreed => in_place().cast_const(),
            true => untyped(self.copied(call.send(), call.block())?),
            false => call.what.send,
        };
        let (recv, comm) = (call.what.recv, call.part.comm());
        let (count, datatype) = (lot.count, lot.datatype);
        self.step(None, |request| {
            mpi!(MPI_Iallgather(send, count, datatype, recv, count, datatype, comm, request))
        })
    }

    pub(super) fn gather(&mut self, call: &Call<'_>) -> Result<()> {
        let lot = call.lot(call.what.count)?;
        let in_place_here = call.is_root() && call.is_in_place();
        let send = if in_place_here { in_place().cast_const() } else { call.what.send };
        let (recv, comm, root) = (call.what.recv, call.part.comm(), call.what.root);
        let (count, datatype) = (lot.count, lot.datatype);
        self.step(None, |request| {
            mpi!(MPI_Igather(send, count, datatype, recv, count, datatype, root, comm, request))
        })
    }

    pub(super) fn scatter(&mut self, call: &Call<'_>) -> Result<()> {
        let lot = call.lot(call.what.count)?;
        let in_place_here = call.is_root() && call.is_in_place();
        let recv = if in_place_here { in_place() } else { call.what.recv };
        let (send, comm, root) = (call.what.send, call.part.comm(), call.what.root);
        let (count, datatype) = (lot.count, lot.datatype);
        self.step(None, |request| {
            mpi!(MPI_Iscatter(send, count, datatype, recv, count, datatype, root, comm, request))
        })
    }

    pub(super) fn all_to_all(&mut self, call: &Call<'_>) -> Result<()> {
        let lot = call.lot(call.what.count)?;
        let (send, recv, comm) = (call.what.send, call.what.recv, call.part.comm());
        let (count, datatype) = (lot.count, lot.datatype);
        self.step(None, |request| {
            mpi!(MPI_Ialltoall(send, count, datatype, recv, count, datatype, comm, request))
        })
    }

    /// Returns scratch memory for a result, which is copied to `to` at the end.
    pub(super) fn aside(&mut self, to: *mut u8, bytes: usize) -> Result<*mut u8> {
        let from = self.scratch(bytes)?;
        self.finish.copies.push((Address(from), Address(to), bytes));
        Ok(from)
    }
}
