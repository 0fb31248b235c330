//! A debug check that searches buffers for unwanted values: NaN, and on request also infinity.
//!
//! A rank checks its input before it enters the operation. If the rank finds an unwanted value, it
//! aborts the group, because other ranks may already be in the operation and would wait for this
//! rank. The rank also aborts the group for an unwanted value in a result, because later
//! computations would use the result.

use crate::api::group::process_group::Group;
use crate::base::buffer::Src;
use crate::base::debug::NanCheck;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::kernel;

impl Group {
    /// Checks the buffers. `title` returns the name of the buffer with a given index, for the
    /// error.
    ///
    /// # Errors
    /// `Aborted`, with the rank, the buffer and the index of the first unwanted element. The group
    /// has then failed.
    pub(in crate::api) fn check_for_nan<'b>(
        &self,
        dtype: DataType,
        nan_check: NanCheck,
        buffers: impl Iterator<Item = Src<'b>>,
        title: impl Fn(usize) -> String,
    ) -> Result<()> {
        let value_kind = match nan_check {
            NanCheck::Off => return Ok(()),
            NanCheck::RejectNan => "NaN",
            NanCheck::RejectNonFinite => "NaN or infinite",
        };
        let unwanted = |(position, buffer)| {
            Some((position, kernel::find_rejected_element(dtype, nan_check, buffer)?))
        };
        let Some((position, index)) = buffers.enumerate().find_map(unwanted) else { return Ok(()) };
        let message = format!(
            "{} aborted group {}: {}: element {index} is {value_kind}",
            self.rank_location().name,
            self.name(),
            title(position)
        );
        Err(self.fail_with(Error::new(ErrorKind::Aborted, message).with_culprit(self.rank())))
    }
}
