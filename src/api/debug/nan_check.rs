//! Whether buffers have elements in them that nobody wants: NaN, and on request infinity.
//!
//! A rank that finds one in its input has not entered the operation, which the others may be in
//! already, or have left; so it aborts the group. In a result it does the same, since what comes
//! next would be computed from it.

use crate::api::group::Group;
use crate::base::buffer::Src;
use crate::base::debug::NanCheck;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::kernel;

impl Group {
    /// Looks at buffers, each of which `title` names by its place.
    ///
    /// # Errors
    /// `Aborted`, with the rank, the buffer and the index of its first unwanted element; the group
    /// has failed.
    pub(in crate::api) fn check_for_nan<'b>(
        &self,
        dtype: DataType,
        values: NanCheck,
        buffers: impl Iterator<Item = Src<'b>>,
        title: impl Fn(usize) -> String,
    ) -> Result<()> {
        let value_kind = match values {
            NanCheck::Off => return Ok(()),
            NanCheck::RejectNan => "NaN",
            NanCheck::RejectNonFinite => "NaN or infinite",
        };
        let unwanted = |(position, buffer)| {
            Some((position, kernel::find_rejected_element(dtype, values, buffer)?))
        };
        let Some((position, index)) = buffers.enumerate().find_map(unwanted) else { return Ok(()) };
        let message = format!(
            "{} aborted group {}: {}: element {index} of it is {value_kind}",
            self.rank_location().name,
            self.name(),
            title(position)
        );
        Err(self.fail_with(Error::new(ErrorKind::Aborted, message).with_culprit(self.rank())))
    }
}
