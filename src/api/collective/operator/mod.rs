//! Operators that the caller defines, and the collectives that reduce with them.
//!
//! Back ends do not know these operators. A call takes one turn of the group's queue and consists
//! of several parts ([`Descriptor::part`]):
//! 1. The ranks exchange records of their calls and compare them ([`signature`]).
//! 2. Byte collectives transfer the vectors, or a slice of each, into private memory of a rank.
//! 3. The rank reduces them there in rank order ([`reduction`]).
//!
//! Therefore every back end for host memory supports these calls, and elements may have any size.
//! The caller's function never accesses memory that another process writes. Each element is reduced
//! once by one rank, or by all ranks in the same order.
//!
//! This module does not depend on C types or on the numbering of operators.
//!
//! [`Descriptor::part`]: crate::transport::Descriptor::part

mod call;
mod reduction;
mod run;
mod signature;

pub use call::OperatorCall;

use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, Result};
use std::fmt::Debug;

/// The maximum length of an operator's name in bytes. The whole name is sent with each call.
pub const LONGEST_NAME: usize = 48;

/// The maximum size of an element in bytes.
pub const LARGEST_ELEMENT: usize = 1 << 20;

/// The function of an operator.
///
/// Obligations: it is a pure function of the two vectors, associative, and does not call the
/// library.
pub trait Combine: Send + Sync + Debug {
    /// Reduces `count` elements: `inout[i]` becomes `lower[i]` op `inout[i]`.
    fn combine(&self, lower: Src<'_>, inout: Dst<'_>, count: usize);
}

/// An operator that the caller defines.
#[derive(Debug)]
pub struct Operator {
    name: String,
    element_bytes: usize,
    is_commutative: bool,
    function: Box<dyn Combine>,
}

impl Operator {
    /// Creates an operator on elements of `element_bytes` bytes. The ranks compare its name.
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid name or size.
    pub fn new(
        name: &str,
        element_bytes: usize,
        is_commutative: bool,
        function: Box<dyn Combine>,
    ) -> Result<Self> {
        if name.is_empty() || name.len() > LONGEST_NAME {
            let message = format!(
                "the operator's name has {} bytes: pass 1 to {LONGEST_NAME} bytes, because each \
                 call sends the name",
                name.len()
            );
            return Err(Error::invalid(message));
        }
        if element_bytes == 0 || element_bytes > LARGEST_ELEMENT {
            let message = format!(
                "operator \"{name}\": elem_bytes is {element_bytes}: pass 1 to {LARGEST_ELEMENT}"
            );
            return Err(Error::invalid(message));
        }
        Ok(Self { name: name.to_owned(), element_bytes, is_commutative, function })
    }

    /// Returns the operator's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the size of an element in bytes.
    pub fn element_bytes(&self) -> usize {
        self.element_bytes
    }

    /// Returns the size in bytes of `blocks` times `count` elements.
    ///
    /// # Errors
    /// `InvalidArgument` if the size exceeds the address space.
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
