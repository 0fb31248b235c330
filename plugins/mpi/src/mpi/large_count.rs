//! An MPI count and datatype for any number of elements; MPI's counts are ints.

use super::{constant, mpi, sys};
use crate::failure::Result;
use std::ffi::c_int;

/// The arguments for a number of elements: a count and a datatype. If the number exceeds the
/// maximum count, the datatype spans all elements.
#[derive(Debug)]
pub(crate) struct LargeCount {
    pub(crate) count: c_int,
    pub(crate) datatype: sys::MPI_Datatype,
    is_derived: bool,
}

impl LargeCount {
    /// Returns the arguments for `count` elements of `size` bytes each. `max_count` is the maximum
    /// count for MPI.
    pub(crate) fn new(
        datatype: sys::MPI_Datatype,
        size: usize,
        count: usize,
        max_count: c_int,
    ) -> Result<Self> {
        match c_int::try_from(count) {
            Ok(count) if count <= max_count => Ok(Self { count, datatype, is_derived: false }),
            _ => Ok(Self {
                count: 1,
                datatype: create_spanning_type(datatype, size, count, max_count)?,
                is_derived: true,
            }),
        }
    }

    /// Returns the arguments for this number of bytes.
    pub(crate) fn bytes(bytes: usize, max_count: c_int) -> Result<Self> {
        Self::new(constant!(RSMPI_UINT8_T), 1, bytes, max_count)
    }
}

impl Drop for LargeCount {
    fn drop(&mut self) {
        if self.is_derived {
            // MPI keeps the type while pending operations use it.
            mpi!(MPI_Type_free(&raw mut self.datatype)).ok();
        }
    }
}

/// Creates a datatype of many elements: blocks of the maximum count, and a remainder.
fn create_spanning_type(
    element: sys::MPI_Datatype,
    size: usize,
    count: usize,
    max_count: c_int,
) -> Result<sys::MPI_Datatype> {
    let block = usize::try_from(max_count).unwrap_or(1).max(1);
    let to_count = |count: usize| c_int::try_from(count).unwrap_or(c_int::MAX);
    let to_offset = |offset: usize| sys::MPI_Aint::try_from(offset).unwrap_or(sys::MPI_Aint::MAX);
    let mut block_type = constant!(RSMPI_DATATYPE_NULL);
    mpi!(MPI_Type_contiguous(max_count, element, &raw mut block_type))?;
    let (blocks, remainder) = (count / block, count % block);
    let lengths = [to_count(blocks), to_count(remainder)];
    let offsets = [0, to_offset(blocks * block * size)];
    let types = [block_type, element];
    let mut spanning_type = constant!(RSMPI_DATATYPE_NULL);
    let created = mpi!(MPI_Type_create_struct(
        2,
        lengths.as_ptr(),
        offsets.as_ptr(),
        types.as_ptr(),
        &raw mut spanning_type
    ));
    mpi!(MPI_Type_free(&raw mut block_type))?;
    created?;
    mpi!(MPI_Type_commit(&raw mut spanning_type))?;
    Ok(spanning_type)
}
