//! An MPI count and datatype for any number of elements; MPI's counts are ints.

use super::{constant, mpi, sys};
use crate::failure::Result;
use std::ffi::c_int;

/// The arguments for a number of elements: a count and a datatype. If the number exceeds the
/// maximum count, the datatype spans all elements.
#[derive(Debug)]
pub(crate) struct Lot {
    pub(crate) count: c_int,
    pub(crate) datatype: sys::MPI_Datatype,
    made: bool,
}

impl Lot {
    /// Returns the arguments for `count` elements of `size` bytes each. `largest` is the maximum
    /// count for MPI.
    pub(crate) fn new(
        datatype: sys::MPI_Datatype,
        size: usize,
        count: usize,
        largest: c_int,
    ) -> Result<Self> {
        match c_int::try_from(count) {
            Ok(count) if count <= largest => Ok(Self { count, datatype, made: false }),
            _ => Ok(Self {
                count: 1,
                datatype: spanning(datatype, size, count, largest)?,
                made: true,
            }),
        }
    }

    /// Returns the arguments for this number of bytes.
    pub(crate) fn bytes(bytes: usize, largest: c_int) -> Result<Self> {
        Self::new(constant!(RSMPI_UINT8_T), 1, bytes, largest)
    }
}

impl Drop for Lot {
    fn drop(&mut self) {
        if self.made {
            // MPI keeps the type while pending operations use it.
            mpi!(MPI_Type_free(&raw mut self.datatype)).ok();
        }
    }
}

/// Creates a datatype of many elements: blocks of the maximum count, and a remainder.
fn spanning(
    element: sys::MPI_Datatype,
    size: usize,
    count: usize,
    largest: c_int,
) -> Result<sys::MPI_Datatype> {
    let block = usize::try_from(largest).unwrap_or(1).max(1);
    let as_count = |count: usize| c_int::try_from(count).unwrap_or(c_int::MAX);
    let as_place = |place: usize| sys::MPI_Aint::try_from(place).unwrap_or(sys::MPI_Aint::MAX);
    let mut one = constant!(RSMPI_DATATYPE_NULL);
    mpi!(MPI_Type_contiguous(largest, element, &raw mut one))?;
    let (blocks, rest) = (count / block, count % block);
    let lengths = [as_count(blocks), as_count(rest)];
    let places = [0, as_place(blocks * block * size)];
    let types = [one, element];
    let mut all = constant!(RSMPI_DATATYPE_NULL);
    let made = mpi!(MPI_Type_create_struct(
        2,
        lengths.as_ptr(),
        places.as_ptr(),
        types.as_ptr(),
        &raw mut all
    ));
    mpi!(MPI_Type_free(&raw mut one))?;
    made?;
    mpi!(MPI_Type_commit(&raw mut all))?;
    Ok(all)
}
