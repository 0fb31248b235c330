//! Buckets of sparse gradients: the rows of a rank, their exchange, and the reduced rows.

#![allow(unsafe_code, reason = "views of a message that the handler of its call owns")]

use super::launch::CallerMark;
use super::param::Param;
use super::reducer_state::Reducer;
use super::send::StepSender;
use super::sparse::{SparseInput, SparseMessage, SparseResult, SparseSum, row_bytes};
use super::step::ReducerStep;
use super::step_log::StepLog;
use crate::api::collective::bytes::{BytesCall, BytesHandler};
use crate::api::collective::call::CallOptions;
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, ErrorContext as _, Result};
use std::sync::Arc;

impl Reducer {
    /// Marks a sparse gradient as ready. The rows and their values must not change until the step
    /// has ended. The values of rows that occur several times are added. `values` gets the size of
    /// a row in bytes and returns the values.
    ///
    /// # Errors
    /// The errors of [`Self::ready`], and `InvalidArgument` for a dense gradient and for rows that
    /// do not exist.
    pub fn ready_rows(
        &self,
        param: usize,
        rows: Src<'static>,
        values: impl FnOnce(usize) -> Result<Src<'static>>,
    ) -> Result<()> {
        let known = self.sparse_param(param, "mark it with dist_reducer_ready")?;
        let input = SparseInput::new(known, rows, values(row_bytes(known))?)?;
        self.mark(&[param], CallerMark::ReadyRows(input))
    }

    /// Returns the parameter with this index, which must have a sparse gradient. `advice` ends the
    /// error text for a dense gradient.
    fn sparse_param(&self, param: usize, advice: &str) -> Result<&Param> {
        let known = self.trained(param)?;
        if known.is_sparse {
            return Ok(known);
        }
        let name = &known.name;
        let message = format!("the gradient of parameter \"{name}\" is dense: {advice}");
        Err(Error::invalid(message))
    }

    /// Returns the reduced rows of a sparse gradient, in ascending order, and their values. Both
    /// are empty before the first step.
    ///
    /// # Errors
    /// `InvalidArgument` for a parameter that does not exist or has a dense gradient.
    pub fn rows(&self, param: usize) -> Result<(Src<'static>, Dst<'static>)> {
        self.sparse_param(param, "read it with dist_reducer_result")?;
        let state = self.settled();
        let Some(result) = state.sparse.get(&param) else {
            return Ok((Src::empty(), Dst::empty()));
        };
        let (rows, len) = (result.rows.as_ptr().cast(), size_of_val(&*result.rows));
        // SAFETY: the list is not changed. It stays allocated until the next step ends, as the
        // interface documents.
        Ok((unsafe { Src::new(rows, len) }, result.values.view()))
    }
}

impl StepSender<'_> {
    /// Sends the next bucket, which is a sparse gradient.
    ///
    /// # Errors
    /// The errors of operations that are issued.
    pub(super) fn send_sparse_bucket(&self, step: &mut ReducerStep) -> Result<()> {
        let Self { reducer, state, group } = *self;
        let index = state.memory.layout.buckets[step.sent].params[0];
        let param = &reducer.params[index];
        let sum = SparseSum::new(param, reducer.options.divide, state.initial_ranks);
        let input = step.sparse.get(&index).filter(|_| !step.is_joined);
        let message = SparseMessage::new(step.weights(), input);
        let message: Arc<[u8]> = message.encode().into();
        // SAFETY: the bytes are not changed, and the handler below holds them until the operation
        // has ended.
        let bytes = unsafe { Src::new(message.as_ptr(), message.len()) };
        let (log, weak) = (Arc::clone(&step.log), Arc::downgrade(group));
        let deliver = BytesHandler::new(move |messages| {
            let held = message;
            let group = weak
                .upgrade()
                .ok_or_else(|| Error::internal("the group of a sparse gradient was released"))?;
            record_result(&log, index, sum.of(&messages, &group)?, held.len());
            Ok(())
        });
        let options =
            CallOptions { timeout_ms: reducer.options.timeout_ms, ..CallOptions::DEFAULT };
        let call = group.prepare_bytes(BytesCall::all_gather(bytes), options, deliver)?;
        let work = Arc::clone(call.work());
        self.call_back_bucket(step, &work)?;
        call.issue().context(|| format!("the gradient of parameter \"{}\"", param.name))?;
        step.works.push(work);
        step.sent += 1;
        Ok(())
    }
}

fn record_result(log: &StepLog, param: usize, result: SparseResult, sent: usize) {
    let mut notes = log.lock();
    notes.bytes_reduced += sent as u64;
    notes.bytes_sent += sent as u64;
    notes.bytes_copied += sent as u64;
    notes.sparse.push((param, result));
}
