//! Reduction loops.
#![allow(unsafe_code, reason = "tmp")]
use crate::base::buffer::{Dst, Src};
/// tmp
pub fn copy(dst: Dst<'_>, src: Src<'_>) {
    assert_eq!(dst.len(), src.len());
    // SAFETY: tmp
    unsafe { std::ptr::copy(src.as_ptr(), dst.as_mut_ptr(), src.len()) }
}
/// tmp
pub fn fold(
    dtype: crate::base::DataType,
    op: crate::base::ReduceOp,
    dst: Dst<'_>,
    sources: &[Src<'_>],
) {
    let _ = (dtype, op, dst, sources);
}
/// tmp
pub fn scale_copy(dtype: crate::base::DataType, f: f64, dst: Dst<'_>, source: Src<'_>) {
    let _ = (dtype, f, dst, source);
}
