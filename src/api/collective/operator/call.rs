//! The arguments of a collective that reduces with an operator of the caller.

use super::Operator;
use crate::api::collective::call::Call;
use crate::api::observe::operation_details::CallSizes;
use crate::base::buffer::Src;
use crate::base::dtype::DataType;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::base::label::{Label, LabelSuffix};
use crate::transport::{CountSpec, Descriptor, OpKind};
use std::sync::Arc;

/// The arguments of a collective that reduces with an operator of the caller.
#[derive(Clone, Debug)]
pub struct OperatorCall<'a> {
    /// The same call with elements of one byte, so that its counts are in bytes. It is never passed
    /// to a back end.
    pub(in crate::api::collective) bytes_call: Call<'a>,
    pub(super) operator: Arc<Operator>,
    /// The element type; `None` for elements that only the operator can interpret.
    pub(super) dtype: Option<DataType>,
}

impl<'a> OperatorCall<'a> {
    /// Creates the call. `call` is the same reduction on elements of type [`DataType::U8`]. Its
    /// operator is ignored.
    ///
    /// # Errors
    /// `InvalidArgument` if the size of the type differs from the size of the operator's elements.
    pub fn new(call: Call<'a>, operator: Arc<Operator>, dtype: Option<DataType>) -> Result<Self> {
        if let Some(dtype) = dtype
            && dtype.size() != operator.element_bytes()
        {
            let message = format!(
                "operator \"{}\" is for elements of {} bytes, but {dtype} has {}",
                operator.name(),
                operator.element_bytes(),
                dtype.size()
            );
            return Err(Error::invalid(message));
        }
        Ok(Self { bytes_call: call.without_operator(), operator, dtype })
    }

    pub(in crate::api) fn kind(&self) -> OpKind {
        self.bytes_call.kind()
    }

    /// Returns the count argument in elements, for operations that have a single count.
    pub(super) fn count(&self) -> usize {
        self.bytes_call.count / self.operator.element_bytes()
    }

    /// Returns the count or the counts in elements.
    pub(super) fn extent(&self) -> CountSpec {
        match self.bytes_call.sends() {
            Some(blocks) => {
                let count = |block: &Src<'_>| block.len() / self.operator.element_bytes();
                CountSpec::of_counts(blocks.iter().map(count))
            }
            None => CountSpec::Count(self.count() as u64),
        }
    }

    /// Returns the input block that this rank sends to a rank, in reductions with a block for each
    /// rank.
    pub(super) fn send_block_for(&self, rank: Rank) -> Src<'a> {
        match self.bytes_call.sends() {
            Some(blocks) => blocks[rank],
            None => self.bytes_call.send.slice(rank * self.bytes_call.count, self.bytes_call.count),
        }
    }

    /// Returns the descriptor for the flight recorder.
    pub(in crate::api::collective) fn descriptor(&self, sequence: u64, label: Label) -> Descriptor {
        let (dtype, extent) = (self.dtype, self.extent());
        Descriptor { dtype, count_spec: extent, ..self.bytes_call.descriptor(sequence, label) }
    }

    /// Returns the sizes of the buffers, if the descriptor does not have them.
    pub(in crate::api::collective) fn recorded_sizes(&self) -> CallSizes {
        self.bytes_call.sizes_in_elements(self.operator.element_bytes())
    }

    pub(in crate::api::collective) fn title(&self, first: &Descriptor) -> String {
        let Descriptor { sequence, label, .. } = first;
        let (kind, operator) = (self.kind().name(), self.operator.name());
        format!("{kind} #{sequence}{} (operator \"{operator}\")", LabelSuffix(*label))
    }
}
