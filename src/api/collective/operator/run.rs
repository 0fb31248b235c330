//! Checks and runs a collective that reduces with an operator of the caller.

use super::call::OperatorCall;
use super::reduction::OperatorReduction;
use crate::api::collective::call::CallOptions;
use crate::api::group::capabilities::{HOST_DEVICE, collective_kind};
use crate::api::group::process_group::Group;
use crate::api::observe::debug::in_flight_buffers;
use crate::api::observe::recorder::OperationRecord;
use crate::api::work::callbacks;
use crate::backend::SupportQuery;
use crate::base::deadline::LazyDeadline;
use crate::base::debug::{self, NanCheck};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::transport::{Descriptor, OpKind};

impl OperatorCall<'_> {
    /// Runs the call. The caller has the turn of the group's queue.
    pub(in crate::api::collective) fn run(
        &self,
        group: &Group,
        descriptor: &Descriptor,
        deadline: &LazyDeadline,
        nan_check: NanCheck,
    ) -> Result<()> {
        group.await_all_arrivals(descriptor, deadline.get_or_start())?;
        let nan_check = nan_check.max(debug::nan_check());
        self.check_for_nan(group, descriptor, nan_check, false)?;
        OperatorReduction::new(group, self, descriptor, deadline).run_all_parts()?;
        self.check_for_nan(group, descriptor, nan_check, true)
    }

    /// Checks the inputs, or the result if `is_result` is true, for NaN.
    fn check_for_nan(
        &self,
        group: &Group,
        descriptor: &Descriptor,
        nan_check: NanCheck,
        is_result: bool,
    ) -> Result<()> {
        let Some(dtype) = self.dtype.filter(|_| nan_check != NanCheck::Off) else { return Ok(()) };
        let buffers = match is_result {
            true => vec![self.bytes_call.recv.as_src()],
            false => {
                [&[self.bytes_call.send], self.bytes_call.sends().unwrap_or_default()].concat()
            }
        };
        let name = if is_result { "result" } else { "input" };
        group.check_for_nan(dtype, nan_check, buffers.into_iter(), |_| {
            format!("{}: {name}", self.title(descriptor))
        })
    }
}

/// Returns the collectives on bytes that a reduction of this kind uses.
fn required_operations(kind: OpKind) -> &'static [OpKind] {
    match kind {
        OpKind::Reduce => &[OpKind::AllGather, OpKind::Gather, OpKind::AllToAllV, OpKind::GatherV],
        OpKind::AllReduce => &[OpKind::AllGather, OpKind::AllToAllV, OpKind::AllGatherV],
        _ => &[OpKind::AllGather, OpKind::AllToAllV],
    }
}

impl Group {
    /// Runs a collective that reduces with an operator of the caller, on the calling thread.
    ///
    /// # Errors
    /// The errors of [`Group::run`]; `OutOfMemory`, which fails the group.
    pub fn run_operator(&self, mut call: OperatorCall<'_>, options: &CallOptions) -> Result<()> {
        callbacks::reject_blocking_in_callback("a blocking call")?;
        self.check_operator(&mut call, options)?;
        in_flight_buffers::check_blocking_call(self, &call.kind().name(), |visit| {
            call.bytes_call.visit_buffers(visit)
        });
        let describe = |sequence| call.descriptor(sequence, options.label);
        let title = |first: &Descriptor| call.title(first);
        let run = |first: &Descriptor, deadline: &LazyDeadline, _: &OperationRecord| {
            call.run(self, first, deadline, options.nan_check)
        };
        self.run_in_turn(1, options, describe, &call.recorded_sizes(), title, run)
    }

    /// Checks a collective that reduces with an operator of the caller.
    pub(in crate::api::collective) fn check_operator(
        &self,
        call: &mut OperatorCall<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        let title = format!("{} (operator \"{}\")", call.kind().name(), call.operator.name());
        self.check_operator_call(call, options).context(|| title)
    }

    fn check_operator_call(
        &self,
        call: &mut OperatorCall<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        if self.device.is_some() || options.is_for_device() {
            self.locate_buffers(&mut call.bytes_call, options)?;
        }
        if let Some(gpu) = call.bytes_call.gpu {
            let message = format!(
                "the buffers are in the memory of device {}: a caller's operator reduces host \
                 memory only (back end {})",
                gpu.device,
                self.backend_name()
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        call.bytes_call.check(options, self.rank(), self.size())?;
        if let Some(name) = &options.algorithm {
            let message = format!(
                "algorithm \"{name}\": calls with a caller's operator have no choice of algorithms"
            );
            return Err(Error::invalid(message));
        }
        self.check_required_operations(call.kind())
    }

    /// Checks that the reduction with this C number supports operators of the caller on buffers in
    /// the memory of `device`.
    ///
    /// # Errors
    /// `Unsupported`; `InvalidArgument` if `kind` is not the number of a collective.
    pub fn supports_operator(&self, kind: i32, device: i32) -> Result<()> {
        let kind = collective_kind(kind)?;
        if device == HOST_DEVICE {
            return self.check_required_operations(kind);
        }
        let message = format!(
            "{} with a caller's operator: device {device}: such operators reduce host memory only",
            kind.name()
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// Checks that the back end supports all collectives on bytes that a reduction with an operator
    /// of the caller uses.
    ///
    /// # Errors
    /// `Unsupported`, which names the operation and the back end.
    fn check_required_operations(&self, kind: OpKind) -> Result<()> {
        if !self.has_partial_support {
            return Ok(());
        }
        let query = |&kind: &OpKind| {
            let (name, dtype) = (kind.name(), Some(DataType::U8));
            let query = SupportQuery { name, kind: Some(kind), dtype, op: None, gpu: None };
            self.backend.supports(&query)
        };
        required_operations(kind).iter().try_for_each(query)
    }
}
