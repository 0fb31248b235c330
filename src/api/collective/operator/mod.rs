//! Operators that the caller defines, and the collectives that reduce with them.
//!
//! Back ends cannot run these operators. Therefore a call consists of several collectives on bytes,
//! which are called its parts ([`Descriptor::part`]). All parts run in one turn of the group's
//! queue, under one sequence number:
//! 1. The ranks exchange and compare their signatures: the operator and the arguments of the call
//!    ([`signature`]).
//! 2. Collectives on bytes transfer the vectors, or a slice of each vector, to private memory of
//!    each rank that reduces.
//! 3. Each of these ranks reduces the vectors in its memory, in the order of the ranks
//!    ([`reduction`]).
//!
//! So every back end for host memory supports these calls, and elements may have any size up to
//! [`LARGEST_ELEMENT`]. The caller's function never accesses memory that another process writes.
//! Each element of the result is computed by a single rank, or by several ranks that reduce in the
//! same order, so all ranks get the same result.
//!
//! This module does not depend on C types or on the numbers that operators have in the C interface.
//!
//! [`Descriptor::part`]: crate::transport::Descriptor::part

mod call;
mod reduction;
mod run;
mod signature;

pub use call::OperatorCall;

use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, Result};

/// The maximum length of an operator's name in bytes. The limit exists because each call sends the
/// whole name.
pub const LONGEST_NAME: usize = 48;

/// The maximum size of an element in bytes.
pub const LARGEST_ELEMENT: usize = 1 << 20;

/// The function of an operator.
///
/// Obligations of the function:
/// * Its result depends only on the two vectors.
/// * It is associative.
/// * It does not call the library.
pub trait Combine: Send + Sync {
    /// Reduces `count` elements: `inout[i]` becomes `lower[i]` op `inout[i]`.
    fn combine(&self, lower: Src<'_>, inout: Dst<'_>, count: usize);
}

crate::base::trait_object_debug::impl_debug_of_objects!(Combine);

/// An operator that the caller defines.
#[derive(Debug)]
pub struct Operator {
    name: String,
    element_bytes: usize,
    is_commutative: bool,
    function: Box<dyn Combine>,
}

impl Operator {
    /// Creates an operator on elements of `element_bytes` bytes. Each call compares the name on all
    /// ranks, so all ranks must pass the same name.
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
