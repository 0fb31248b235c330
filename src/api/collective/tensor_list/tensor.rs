//! A tensor of a list: its size and its blocks.

use crate::api::collective::call::buffer_bytes;
use crate::base::buffer::Dst;
use crate::base::dtype::DataType;
use crate::base::error::{Error, Result};
use crate::base::ids::WorldSize;
use crate::transport::OpKind;

/// A tensor of a list. Its elements are contiguous.
#[derive(Clone, Debug)]
pub struct ListTensor<'a> {
    /// The name, which the ranks compare.
    pub name: String,
    /// The element type.
    pub dtype: DataType,
    /// The extent of each dimension.
    pub shape: Vec<usize>,
    /// The device whose memory has the elements; `None` for host memory.
    pub device: Option<usize>,
    /// The elements.
    pub data: Dst<'a>,
}

/// Returns the size in bytes of a tensor with this shape.
///
/// # Errors
/// `InvalidArgument` if the size exceeds the address space.
pub fn tensor_bytes(shape: &[usize], dtype: DataType) -> Result<usize> {
    // A tensor without elements may have any other extents.
    if shape.contains(&0) {
        return Ok(0);
    }
    let count = shape.iter().try_fold(1_usize, |count, &extent| count.checked_mul(extent));
    let count = count.ok_or_else(|| {
        Error::invalid(format!("a tensor with the shape {shape:?} does not fit the address space"))
    })?;
    buffer_bytes(count, dtype, 1)
}

/// Returns the number of blocks of each tensor of a call of this kind.
pub(super) fn blocks_of(kind: OpKind, size: WorldSize) -> usize {
    match kind {
        OpKind::AllGather | OpKind::ReduceScatter => size,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensor_bytes_are_the_product_of_the_extents() {
        assert_eq!(tensor_bytes(&[], DataType::F64), Ok(8));
        assert_eq!(tensor_bytes(&[3, 5], DataType::I16), Ok(30));
        assert_eq!(tensor_bytes(&[usize::MAX, 0, usize::MAX], DataType::I16), Ok(0));
        for shape in [&[usize::MAX, 2][..], &[1 << 40, 1 << 30], &[1 << 62]] {
            assert!(tensor_bytes(shape, DataType::F32).is_err(), "{shape:?}");
        }
    }
}
