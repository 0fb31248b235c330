//! The description of a kind of call, with which a caller asks a back end whether it supports the
//! call.

use crate::base::dtype::DataType;
use crate::base::error::Result;
use crate::base::op::ReduceOp;
use crate::transport::OpKind;
use std::fmt;

/// A kind of call: the operation, its element type and operator, and the memory of its buffers.
#[derive(Clone, Copy, Debug)]
pub struct SupportQuery {
    /// The name of the operation.
    pub name: &'static str,
    /// The kind of collective; `None` for point-to-point messages.
    pub kind: Option<OpKind>,
    /// The element type, if the call has elements.
    pub dtype: Option<DataType>,
    /// The operator, if the call is a reduction.
    pub op: Option<ReduceOp>,
    /// The GPU whose memory contains the buffers; `None` for host memory.
    pub gpu: Option<usize>,
}

impl SupportQuery {
    /// Returns an error if the operator is not defined for the element type or for the operation.
    ///
    /// # Errors
    /// `Unsupported`.
    pub(super) fn check_operator<'a>(
        &self,
        op: ReduceOp,
        dtype: DataType,
        backend: impl FnOnce() -> &'a str,
    ) -> Result<()> {
        op.check_defined_for(dtype, backend)?;
        self.kind.map_or(Ok(()), |kind| kind.check_op(op))
    }
}

impl fmt::Display for SupportQuery {
    /// Formats the query, for example `all_reduce (f32, SUM)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        match (self.dtype, self.op) {
            (Some(dtype), Some(op)) => write!(f, " ({dtype}, {op})"),
            (Some(dtype), None) => write!(f, " ({dtype})"),
            (None, _) => Ok(()),
        }
    }
}
