//! A collective with a caller's operator: its checks, its turn, and its task in the queue.

use super::Operator;
use super::reduction::OperatorReduction;
use crate::api::collective::call::{Call, CallOptions};
use crate::api::group::process_group::Group;
use crate::api::observe::debug::in_flight_buffers;
use crate::api::work::callbacks;
use crate::api::work::handle::{Work, WorkKind};
use crate::api::work::issue::{OperationTask, PreparedCall};
use crate::backend::SupportQuery;
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::{Deadline, LazyDeadline};
use crate::base::debug::{self, NanCheck};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::label::{Label, LabelSuffix};
use crate::transport::{CountSpec, Descriptor, OpKind};
use std::sync::Arc;

/// A collective that reduces with a caller's operator, before it has a sequence number.
#[derive(Clone, Debug)]
pub struct OperatorCall<'a> {
    /// The same call on bytes, so that its counts are bytes. It is never passed to a back end.
    call: Call<'a>,
    operator: Arc<Operator>,
    /// The element type; `None` for elements that only the operator can interpret.
    dtype: Option<DataType>,
}

impl<'a> OperatorCall<'a> {
    /// Creates the call. `call` is the reduction on elements of [`DataType::U8`] with any operator.
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
        Ok(Self { call: call.without_operator(), operator, dtype })
    }

    pub(super) fn operator(&self) -> &Operator {
        &self.operator
    }

    pub(super) fn dtype(&self) -> Option<DataType> {
        self.dtype
    }

    pub(in crate::api) fn kind(&self) -> OpKind {
        self.call.kind()
    }

    pub(super) fn root(&self) -> Option<Rank> {
        self.call.root()
    }

    /// Returns the count argument in elements, of forms that have one.
    pub(super) fn count(&self) -> usize {
        self.call.count() / self.operator.element_bytes()
    }

    /// Returns the count or the counts in elements.
    pub(super) fn extent(&self) -> CountSpec {
        match self.call.sends() {
            Some(blocks) => {
                let count = |block: &Src<'_>| block.len() / self.operator.element_bytes();
                CountSpec::of_counts(blocks.iter().map(count))
            }
            None => CountSpec::Count(self.count() as u64),
        }
    }

    pub(super) fn send(&self) -> Src<'a> {
        self.call.send()
    }

    pub(super) fn recv(&self) -> Dst<'a> {
        self.call.recv()
    }

    /// Returns this rank's input block for a rank, in reductions with a block for each rank.
    pub(super) fn send_block_for(&self, rank: Rank) -> Src<'a> {
        match self.call.sends() {
            Some(blocks) => blocks[rank],
            None => self.call.send().slice(rank * self.call.count(), self.call.count()),
        }
    }

    /// Calls `visit` for each buffer of the call, with true if the call writes it.
    pub(in crate::api) fn each_buffer(&self, visit: &mut dyn FnMut(Src<'_>, bool)) {
        self.call.visit_buffers(visit);
    }

    /// Returns the descriptor for the recorder.
    fn descriptor(&self, sequence: u64, label: Label) -> Descriptor {
        let (dtype, extent) = (self.dtype, self.extent());
        Descriptor { dtype, count_spec: extent, ..self.call.descriptor(sequence, label) }
    }

    fn title(&self, sequence: u64, label: Label) -> String {
        let (kind, label) = (self.kind().name(), LabelSuffix(label));
        format!("{kind} #{sequence}{label} (operator \"{}\")", self.operator.name())
    }

    fn run(
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

    /// Checks the inputs or the result for NaN.
    fn check_for_nan(
        &self,
        group: &Group,
        descriptor: &Descriptor,
        nan_check: NanCheck,
        is_result: bool,
    ) -> Result<()> {
        let Some(dtype) = self.dtype.filter(|_| nan_check != NanCheck::Off) else { return Ok(()) };
        let buffers = match is_result {
            true => vec![self.recv().as_src()],
            false => [&[self.send()], self.call.sends().unwrap_or_default()].concat(),
        };
        let name = if is_result { "result" } else { "input" };
        group.check_for_nan(dtype, nan_check, buffers.into_iter(), |_| {
            format!("{}: {name}", self.title(descriptor.sequence, descriptor.label))
        })
    }
}

/// Returns the byte collectives that a reduction uses.
fn required_operations(kind: OpKind) -> &'static [OpKind] {
    match kind {
        OpKind::Reduce => &[OpKind::AllGather, OpKind::Gather, OpKind::AllToAllV, OpKind::GatherV],
        OpKind::AllReduce => &[OpKind::AllGather, OpKind::AllToAllV, OpKind::AllGatherV],
        _ => &[OpKind::AllGather, OpKind::AllToAllV],
    }
}

impl Group {
    /// Runs a collective with a caller's operator on the calling thread.
    ///
    /// # Errors
    /// The errors of [`Group::run`], and `OutOfMemory`, which fails the group.
    pub fn run_operator(&self, mut call: OperatorCall<'_>, options: &CallOptions) -> Result<()> {
        callbacks::reject_blocking_in_callback("a blocking call")?;
        self.check_operator(&mut call, options)?;
        in_flight_buffers::check_blocking_call(self, &call.kind().name(), |visit| {
            call.each_buffer(visit)
        });
        let deadline = LazyDeadline::from(self.deadline(options));
        let ticket = self.queue.issue();
        let descriptor = call.descriptor(ticket.sequence(), options.label);
        let outcome = self.run_in_turn(&ticket, &descriptor, &deadline, || {
            call.run(self, &descriptor, &deadline, options.nan_check)
        });
        let title = || {
            format!(
                "{} on {}",
                call.title(descriptor.sequence, descriptor.label),
                self.describe_rank()
            )
        };
        outcome.context(title).inspect_err(|error| self.report_to_caller(error))
    }

    /// Checks a collective with a caller's operator that is issued later.
    ///
    /// # Errors
    /// `InvalidArgument`, `Unsupported`.
    pub fn prepare_operator(
        self: &Arc<Self>,
        mut call: OperatorCall<'static>,
        options: CallOptions,
    ) -> Result<PreparedCall> {
        self.check_operator(&mut call, &options)?;
        let work = Work::new(WorkKind::Collective(call.kind()), Arc::clone(&self.queue));
        Ok(PreparedCall::operator(Arc::clone(self), call, options, work))
    }

    fn check_operator(&self, call: &mut OperatorCall<'_>, options: &CallOptions) -> Result<()> {
        let title = format!("{} (operator \"{}\")", call.kind().name(), call.operator.name());
        self.check_operator_call(call, options).context(|| title)
    }

    fn check_operator_call(
        &self,
        call: &mut OperatorCall<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        if let Some(gpu) = self.operator_call_device(&mut call.call, options)? {
            let message = format!(
                "the buffers are in the memory of device {gpu}: a caller's operator reduces host \
                 memory only (back end {})",
                self.backend_name()
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        call.call.check(options, self.rank(), self.size())?;
        if let Some(name) = &options.algorithm {
            let message = format!(
                "algorithm \"{name}\": calls with a caller's operator have no choice of algorithms"
            );
            return Err(Error::invalid(message));
        }
        self.check_required_operations(call.kind())
    }

    /// Returns the device of the buffers, if they are in device memory.
    fn operator_call_device(
        &self,
        call: &mut Call<'_>,
        options: &CallOptions,
    ) -> Result<Option<usize>> {
        if self.device.is_some() || options.is_for_device() {
            self.locate_buffers(call, options)?;
        }
        Ok(call.gpu().map(|gpu| gpu.device))
    }

    /// Checks that the back end supports all byte collectives that a reduction with a caller's
    /// operator uses.
    ///
    /// # Errors
    /// `Unsupported`, naming the operation and the back end.
    pub(in crate::api) fn check_required_operations(&self, kind: OpKind) -> Result<()> {
        if !self.has_partial_support {
            return Ok(());
        }
        let query = |&kind: &OpKind| {
            let (name, dtype) = (kind.name(), Some(DataType::U8));
            self.backend.supports(&SupportQuery {
                name,
                kind: Some(kind),
                dtype,
                op: None,
                gpu: None,
            })
        };
        required_operations(kind).iter().try_for_each(query)
    }
}

/// A collective with a caller's operator in the queue.
#[derive(Debug)]
pub(in crate::api) struct OperatorTask {
    call: OperatorCall<'static>,
    nan_check: NanCheck,
    label: Label,
    works: [Arc<Work>; 1],
}

impl OperatorTask {
    pub(in crate::api) fn new(
        call: OperatorCall<'static>,
        options: &CallOptions,
        work: Arc<Work>,
    ) -> Self {
        let (nan_check, label) = (options.nan_check, options.label);
        Self { call, nan_check, label, works: [work] }
    }
}

impl OperationTask for OperatorTask {
    fn works(&self) -> &[Arc<Work>] {
        &self.works
    }

    fn descriptor(&self, sequence: u64) -> Descriptor {
        self.call.descriptor(sequence, self.label)
    }

    fn title(&self, descriptor: &Descriptor) -> String {
        self.call.title(descriptor.sequence, descriptor.label)
    }

    fn run(&mut self, group: &Group, first: Descriptor, deadline: &Deadline) -> Result<()> {
        self.call.run(group, &first, &(*deadline).into(), self.nan_check)
    }
}
