//! Operators that the caller defines, and the collectives that reduce with them.
//!
//! No back end knows these operators. A call is one turn of the group's queue and several parts
//! ([`Descriptor::part`]). First the ranks exchange records of their calls ([`signature`]). Then
//! collectives on bytes bring the vectors, or a slice of each, into private memory of a rank, which
//! folds them there in rank order ([`reduction`]). So every back end for host memory carries these
//! calls, and elements may have any size. The function never sees memory that another process
//! writes. Each element is folded once, by one rank, or by all ranks in the same order.
//!
//! Does not depend on C types, or on how operators are numbered.
//!
//! [`Descriptor::part`]: crate::transport::Descriptor::part

mod call;
mod reduction;
mod signature;

pub use call::OperatorCall;
pub(super) use call::OperatorTask;

use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, Result};
use std::fmt::Debug;

/// The longest name of an operator, in bytes: all of it travels with each call.
pub const LONGEST_NAME: usize = 48;

/// The largest element, in bytes.
pub const LARGEST_ELEMENT: usize = 1 << 20;

/// What an operator does.
///
/// Obligations: it is a pure function of the two vectors, associative, and does not call the
/// library.
pub trait Combine: Send + Sync + Debug {
    /// Folds `count` elements: `inout[i]` becomes `lower[i]` op `inout[i]`.
    fn combine(&self, lower: Src<'_>, inout: Dst<'_>, count: usize);
}

/// An operator.
#[derive(Debug)]
pub struct Operator {
    name: String,
    element_bytes: usize,
    is_commutative: bool,
    function: Box<dyn Combine>,
}

impl Operator {
    /// An operator on elements of `element_bytes` bytes, under a name that ranks compare.
    ///
    /// # Errors
    /// `InvalidArgument` for a name or a size that is not possible.
    pub fn new(
        name: &str,
        element_bytes: usize,
        is_commutative: bool,
        function: Box<dyn Combine>,
    ) -> Result<Self> {
        if name.is_empty() || name.len() > LONGEST_NAME {
            let message = format!(
                "the operator's name has {} bytes: it has 1 to {LONGEST_NAME}, since it travels with each call",
                name.len()
            );
            return Err(Error::invalid(message));
        }
        if element_bytes == 0 || element_bytes > LARGEST_ELEMENT {
            let message = format!(
                "operator \"{name}\": elem_bytes is {element_bytes}: an element has 1 to {LARGEST_ELEMENT} bytes"
            );
            return Err(Error::invalid(message));
        }
        Ok(Self { name: name.to_owned(), element_bytes, is_commutative, function })
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The size of an element in bytes.
    pub fn element_bytes(&self) -> usize {
        self.element_bytes
    }

    /// The bytes of `blocks` times `count` elements.
    ///
    /// # Errors
    /// `InvalidArgument` where no memory could hold them.
    pub fn buffer_bytes(&self, count: usize, blocks: usize) -> Result<usize> {
        let bytes =
            count.checked_mul(self.element_bytes).and_then(|bytes| bytes.checked_mul(blocks));
        bytes.filter(|&bytes| isize::try_from(bytes).is_ok()).ok_or_else(|| {
            Error::invalid(format!(
                "{blocks} x {count} elements of {} bytes do not fit the address space",
                self.element_bytes
            ))
        })
    }
}
