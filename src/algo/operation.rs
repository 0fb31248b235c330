//! One collective call, as algorithms and back ends see it.

use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::base::op::ReduceOp;
use crate::transport::Descriptor;

/// The arguments of a call, checked, with buffers of the right sizes.
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a> {
    /// What all ranks agree on.
    pub descriptor: Descriptor,
    /// What this rank contributes; empty where it contributes nothing.
    pub send: Src<'a>,
    /// Where this rank's result goes; empty where it gets none.
    pub recv: Dst<'a>,
    /// This rank's own factor, for `PREMUL_SUM`.
    pub factor: f64,
    /// The algorithm asked for by name, if any.
    pub algorithm: Option<&'a str>,
    /// When the call must have ended.
    pub deadline: &'a Deadline,
}

impl Operation<'_> {
    /// The element type; a byte where the operation has none.
    pub fn dtype(&self) -> DataType {
        self.descriptor.dtype.unwrap_or(DataType::U8)
    }

    /// The size of one element.
    pub fn element(&self) -> usize {
        self.dtype().size()
    }

    /// The operator.
    ///
    /// # Errors
    /// `Internal` for an operation that has none.
    pub fn op(&self) -> Result<ReduceOp> {
        self.descriptor.op.ok_or_else(|| Error::internal("a reduction without an operator"))
    }

    /// The root.
    ///
    /// # Errors
    /// `Internal` for an operation that has none.
    pub fn root(&self) -> Result<Rank> {
        self.descriptor.root.ok_or_else(|| Error::internal("a rooted operation without a root"))
    }

    /// The count argument of the call, in elements.
    pub fn count(&self) -> usize {
        usize::try_from(self.descriptor.count).unwrap_or(usize::MAX)
    }

    /// The count argument of the call, in bytes. The buffers, which exist, are at least as long.
    pub fn bytes(&self) -> usize {
        self.count() * self.element()
    }
}
