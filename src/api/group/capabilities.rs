//! The query whether a group's back end supports a kind of call, without making the call.
//!
//! This module does not depend on concrete back ends.

use crate::api::group::process_group::Group;
use crate::backend::SupportQuery;
use crate::base::dtype::DataType;
use crate::base::error::{Error, Result};
use crate::base::op::ReduceOp;
use crate::transport::OpKind;

/// The C number of a send. The C number of a collective is its index in [`OpKind::ALL`].
pub const SEND_KIND: i32 = 64;
/// The C number of a receive.
pub const RECV_KIND: i32 = 65;
/// The device index that means host memory.
pub const HOST_DEVICE: i32 = -1;

impl Group {
    /// Checks that the back end supports calls of this kind with this type and operator on buffers
    /// in the memory of `device`. All arguments are C numbers. The type and the operator are
    /// ignored for kinds without a type or an operator.
    ///
    /// # Errors
    /// `Unsupported`, which names the call and the back end; `InvalidArgument` for an invalid
    /// number.
    pub fn supports(&self, kind: i32, dtype: i32, op: i32, device: i32) -> Result<()> {
        let (kind, name) = match kind {
            SEND_KIND => (None, "send"),
            RECV_KIND => (None, "recv"),
            _ => {
                let kind = collective_kind(kind)?;
                (Some(kind), kind.name())
            }
        };
        let has_elements = kind != Some(OpKind::Barrier);
        let dtype = has_elements.then(|| DataType::from_number(dtype)).transpose()?;
        let reduces = kind.is_some_and(OpKind::is_reduction);
        let op = reduces.then(|| ReduceOp::from_number(op)).transpose()?;
        let gpu = match device {
            HOST_DEVICE => None,
            _ => Some(usize::try_from(device).map_err(|_| {
                let message = format!(
                    "device {device} is invalid: pass -1 for host memory, or the index of a GPU"
                );
                Error::invalid(message)
            })?),
        };
        self.backend.supports(&SupportQuery { name, kind, dtype, op, gpu })
    }
}

/// Returns whether this is the C number of a reduction.
pub fn is_reduction(number: i32) -> bool {
    collective_kind(number).is_ok_and(OpKind::is_reduction)
}

/// Returns the collective with this C number.
pub(in crate::api) fn collective_kind(number: i32) -> Result<OpKind> {
    let kind = usize::try_from(number).ok().and_then(|i| OpKind::ALL.get(i)).copied();
    kind.ok_or_else(|| {
        let last = OpKind::ALL.len() - 1;
        Error::invalid(format!(
            "{number} is not the number of an operation: pass 0 to {last}, {SEND_KIND} for send or \
             {RECV_KIND} for recv"
        ))
    })
}
