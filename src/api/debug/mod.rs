//! What debugging adds to operations: whether all ranks are there ([`presence`]), what is in the
//! buffers ([`values`]), whether they are lent already ([`loans`]), and what is told of groups
//! ([`account`]).
//!
//! None of it is there where it was not asked for, but for a look at what is set. Whatever one rank
//! finds that the others could not know fails the group, with the reason: nobody waits for a rank
//! that does not go on.

mod account;
pub(super) mod loans;
mod presence;
mod values;

use super::group::Group;
use crate::algo::Operation;
use crate::base::debug::{self, Values};
use crate::base::error::{Error, Result};

impl Group {
    /// Has the back end carry out an operation in its turn, with what is checked before and after.
    pub(super) fn carry_out(&self, operation: &Operation<'_>, values: Values) -> Result<()> {
        let values = values.max(debug::values());
        if values == Values::Any && !self.looks_who_is_there {
            return self.backend.run(operation);
        }
        self.carry_out_checked(operation, values)
    }

    #[cold]
    fn carry_out_checked(&self, operation: &Operation<'_>, values: Values) -> Result<()> {
        let Operation { descriptor, send, recv, sends, recvs, .. } = *operation;
        self.await_presence(&descriptor, operation.deadline())?;
        let operation = &Operation { is_fresh: false, ..*operation };
        let title = |index: usize, what: &str| match index {
            0 => format!("{descriptor}: its {what}"),
            block => format!("{descriptor}: block {} of its {what}", block - 1),
        };
        let inputs = [send].into_iter().chain(sends.into_iter().flatten().copied());
        if operation.launch.is_some() {
            // Nobody here can look into it.
            return self.backend.run(operation);
        }
        self.inspect(operation.dtype(), values, inputs, |index| title(index, "input"))?;
        self.backend.run(operation)?;
        let blocks = recvs.into_iter().flatten();
        let results = [recv].into_iter().chain(blocks.copied()).map(|block| block.as_src());
        self.inspect(operation.dtype(), values, results, |index| title(index, "result"))
    }

    /// Fails the group; the reason is the first one that anybody has given.
    fn fail_with(&self, error: Error) -> Error {
        self.fail(&error);
        self.failure().unwrap_or(error)
    }
}
