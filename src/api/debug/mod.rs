//! What debugging adds to operations: whether all ranks are there ([`arrival_check`]), what is in
//! the buffers ([`nan_check`]), whether they are lent already ([`in_flight_buffers`]), and what is
//! told of groups ([`group_log`]).
//!
//! None of it is there where it was not asked for, but for a look at what is set. Whatever one rank
//! finds that the others could not know fails the group, with the reason: nobody waits for a rank
//! that does not go on.

mod arrival_check;
mod group_log;
pub(super) mod in_flight_buffers;
mod nan_check;

use super::group::Group;
use crate::algo::Operation;
use crate::base::debug::{self, NanCheck};
use crate::base::error::{Error, Result};

impl Group {
    /// Has the back end carry out an operation in its turn, with what is checked before and after.
    pub(super) fn carry_out(&self, operation: &Operation<'_>, values: NanCheck) -> Result<()> {
        let values = values.max(debug::nan_check());
        if values == NanCheck::Off && !self.has_arrival_check {
            return self.backend.run(operation);
        }
        self.carry_out_with_checks(operation, values)
    }

    #[cold]
    fn carry_out_with_checks(&self, operation: &Operation<'_>, values: NanCheck) -> Result<()> {
        let Operation { descriptor, send, recv, sends, recvs, .. } = *operation;
        self.await_all_arrivals(&descriptor, operation.deadline())?;
        let operation = &Operation { has_new_deadline: false, ..*operation };
        let title = |index: usize, role: &str| match index {
            0 => format!("{descriptor}: its {role}"),
            block => format!("{descriptor}: block {} of its {role}", block - 1),
        };
        let inputs = [send].into_iter().chain(sends.into_iter().flatten().copied());
        if operation.enqueue_request.is_some() {
            // Nobody here can look into it.
            return self.backend.run(operation);
        }
        self.check_for_nan(operation.dtype(), values, inputs, |index| title(index, "input"))?;
        self.backend.run(operation)?;
        let blocks = recvs.into_iter().flatten();
        let results = [recv].into_iter().chain(blocks.copied()).map(|block| block.as_src());
        self.check_for_nan(operation.dtype(), values, results, |index| title(index, "result"))
    }

    /// Fails the group; the reason is the first one that anybody has given.
    fn fail_with(&self, error: Error) -> Error {
        self.fail(&error);
        self.failure().unwrap_or(error)
    }
}
