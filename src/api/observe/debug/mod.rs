//! Debug checks of operations: arrival of all ranks ([`arrival_check`]), NaN in buffers
//! ([`nan_check`]), conflicting buffer uses ([`in_flight_buffers`]), and log lines about groups
//! ([`group_log`]).
//!
//! If the checks are off, an operation pays only for reading the settings. A finding that the other
//! ranks cannot detect fails the group with the reason, so that no rank waits for a rank that has
//! stopped.

mod arrival_check;
mod group_log;
pub(in crate::api) mod in_flight_buffers;
mod nan_check;

use crate::algo::Operation;
use crate::api::group::process_group::Group;
use crate::base::debug::{self, NanCheck};
use crate::base::error::{Error, Result};

impl Group {
    /// Runs an operation on the back end in its turn, with the checks before and after it.
    pub(in crate::api) fn carry_out(
        &self,
        operation: &Operation<'_>,
        nan_check: NanCheck,
    ) -> Result<()> {
        let nan_check = nan_check.max(debug::nan_check());
        if nan_check == NanCheck::Off && !self.has_arrival_check {
            return self.backend.run(operation);
        }
        self.carry_out_with_checks(operation, nan_check)
    }

    #[cold]
    fn carry_out_with_checks(&self, operation: &Operation<'_>, nan_check: NanCheck) -> Result<()> {
        let Operation { descriptor, send, recv, sends, recvs, .. } = *operation;
        self.await_all_arrivals(&descriptor, operation.deadline())?;
        let operation = &Operation { has_new_deadline: false, ..*operation };
        let title = |index: usize, role: &str| match index {
            0 => format!("{descriptor}: {role}"),
            block => format!("{descriptor}: block {} of the {role}", block - 1),
        };
        let inputs = [send].into_iter().chain(sends.into_iter().flatten().copied());
        if operation.enqueue_request.is_some() {
            // The buffers are in device memory, which the CPU cannot check here.
            return self.backend.run(operation);
        }
        self.check_for_nan(operation.dtype(), nan_check, inputs, |index| title(index, "input"))?;
        self.backend.run(operation)?;
        let blocks = recvs.into_iter().flatten();
        let results = [recv].into_iter().chain(blocks.copied()).map(|block| block.as_src());
        self.check_for_nan(operation.dtype(), nan_check, results, |index| title(index, "result"))
    }

    /// Fails the group and returns the first failure that any rank reported.
    fn fail_with(&self, error: Error) -> Error {
        self.fail(&error);
        self.failure().unwrap_or(error)
    }
}
