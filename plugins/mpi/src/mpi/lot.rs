//! So many elements of a type, for functions of MPI whose counts are ints.

use super::{constant, mpi, sys};
use crate::failure::Result;
use std::ffi::c_int;

/// What stands for some elements: a count and a type, which spans all of them where there are more
/// than a count can say.
#[derive(Debug)]
pub(crate) struct Lot {
    pub(crate) count: c_int,
    pub(crate) datatype: sys::MPI_Datatype,
    made: bool,
}

impl Lot {
    /// `count` elements of `size` bytes each. `largest` is the largest count that MPI is given.
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

    /// So many bytes.
    pub(crate) fn bytes(bytes: usize, largest: c_int) -> Result<Self> {
        Self::new(constant!(RSMPI_UINT8_T), 1, bytes, largest)
    }
}

impl Drop for Lot {
    fn drop(&mut self) {
        if self.made {
            // Operations that use it go on.
            mpi!(MPI_Type_free(&raw mut self.datatype)).ok();
        }
    }
}

/// A type of many elements: of blocks that are as long as a count can say, and a rest.
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
