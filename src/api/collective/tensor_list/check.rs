//! The checks of a list call that this rank can do without the other ranks, and its entry points.

use super::plan::ListPlan;
use super::run::ListTurn;
use super::{ListCall, ListTensor, MAX_LIST_TENSORS, MAX_TENSOR_DIMS, MAX_TENSOR_NAME_BYTES};
use crate::api::collective::call::{BufferLocation, CallOptions};
use crate::api::group::process_group::Group;
use crate::api::observe::debug::in_flight_buffers;
use crate::api::observe::recorder::OperationRecord;
use crate::api::work::callbacks;
use crate::backend::SupportQuery;
use crate::base::deadline::LazyDeadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::base::gpu::{EnqueuedOperationSlot, GpuTarget};
use crate::transport::{Descriptor, OpKind};

/// The maximum number of part numbers for the comparison.
const COMPARISON_PARTS: usize = 1;

impl Group {
    /// Runs a collective on a list of tensors on the calling thread.
    ///
    /// # Errors
    /// `InvalidArgument` and `Unsupported`, before the call has had any effect. `Mismatch` if the
    /// lists of the ranks differ; then no tensor has changed, and the group continues. All other
    /// errors fail the group: the errors of [`Group::run`], and `OutOfMemory`.
    pub fn run_list(&self, mut call: ListCall<'_>, options: &CallOptions) -> Result<()> {
        callbacks::reject_blocking_in_callback("a blocking call")?;
        self.check_list(&mut call, options)?;
        let ready_event = self.record_ready_event(call.gpu)?;
        in_flight_buffers::check_blocking_call(self, &format!("{}_list", call.kind.name()), |it| {
            call.visit_buffers(it);
        });
        let completion = EnqueuedOperationSlot::new();
        let describe = |sequence| call.descriptor(sequence, options.label);
        let title = |first: &Descriptor| call.title(first);
        let run = |first: &Descriptor, deadline: &LazyDeadline, record: &OperationRecord| {
            let turn = ListTurn {
                group: self,
                call: &call,
                options,
                first,
                deadline,
                ready_event: ready_event.as_deref(),
                completion: &completion,
                part: 0,
            };
            let outcome = turn.run();
            record.device_time_record().listen(&completion);
            outcome
        };
        self.run_in_turn(1, options, describe, &call.sizes(self), title, run)?;
        match call.gpu {
            // The caller cannot wait for a stream of the library. Therefore this call waits.
            Some(gpu) if gpu.stream.is_none() => {
                self.wait_for_device(&completion, &self.deadline(options))
            }
            _ => Ok(()),
        }
    }

    /// Checks a list call, and makes its plan.
    pub(in crate::api::collective) fn check_list(
        &self,
        call: &mut ListCall<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        let name = call.kind.name();
        self.check_list_arguments(call, options).context(|| format!("{name}_list"))
    }

    fn check_list_arguments(&self, call: &mut ListCall<'_>, options: &CallOptions) -> Result<()> {
        if let Some(name) = &options.algorithm {
            let message =
                format!("algorithm \"{name}\": calls on lists have no choice of algorithms");
            return Err(Error::invalid(message));
        }
        if options.location != BufferLocation::Unspecified {
            let message = "the options have a location (DIST_CALL_DEVICE): each tensor of a list \
                           has its own";
            return Err(Error::invalid(message));
        }
        if call.tensors.len() > MAX_LIST_TENSORS {
            let message = format!(
                "the list has {} tensors: pass {MAX_LIST_TENSORS} at most",
                call.tensors.len()
            );
            return Err(Error::invalid(message));
        }
        if let Some(root) = call.root.filter(|&root| root >= self.size()) {
            let message = format!("root {root} does not exist in a group of {}", self.size());
            return Err(Error::invalid(message));
        }
        for index in 0..call.tensors.len() {
            let gpu = self.check_tensor(call, index, options).map_err(|error| {
                error.context(format_args!("tensor {index} {:?}", call.tensors[index].name))
            })?;
            call.gpu = call.gpu.or(gpu);
        }
        let has_device = call.tensors.iter().any(|tensor| tensor.device.is_some());
        if options.stream.is_some() && !has_device {
            return Err(Error::invalid("a stream was given for a list in host memory"));
        }
        call.check_overlaps()?;
        self.check_comparison_support()?;
        call.plan = ListPlan::new(call.kind, self.size(), &call.tensors);
        self.check_part_count(call)
    }

    /// Checks one tensor. Returns its GPU and stream if it is in device memory and not empty.
    fn check_tensor(
        &self,
        call: &ListCall<'_>,
        index: usize,
        options: &CallOptions,
    ) -> Result<Option<GpuTarget>> {
        let tensor = &call.tensors[index];
        tensor.check_description()?;
        let blocks = call.blocks(self.size());
        let elements = tensor.dtype.elements_in(tensor.data.len());
        if !elements.is_multiple_of(blocks) {
            let message = format!(
                "{elements} elements cannot be divided into one block for each of {blocks} ranks"
            );
            return Err(Error::invalid(message));
        }
        let location = tensor.device.map_or(BufferLocation::Unspecified, BufferLocation::Device);
        let stream = options.stream.filter(|_| tensor.device.is_some());
        let own_options = CallOptions { location, stream, ..options.clone() };
        let (rank, size) = (self.rank(), self.size());
        let mut own_call = call.call_in_place(tensor.data, tensor.dtype, rank, size)?;
        self.check_call(&mut own_call, &own_options)?;
        match (tensor.device, own_call.gpu) {
            (None, Some(gpu)) => {
                let message = format!(
                    "the tensor is in memory of device {}, but its description has no device",
                    gpu.device
                );
                Err(Error::invalid(message))
            }
            (_, gpu) => Ok(gpu),
        }
    }

    /// Checks that the back end supports the collectives with which the ranks compare their lists.
    fn check_comparison_support(&self) -> Result<()> {
        // In a group with a device, the host back end always has these collectives, even if the
        // group refuses collectives of the caller in host memory.
        if !self.has_partial_support || self.device.is_some() {
            return Ok(());
        }
        [OpKind::AllGather, OpKind::Broadcast].into_iter().try_for_each(|kind| {
            let (name, dtype) = (kind.name(), Some(DataType::U8));
            let query = SupportQuery { name, kind: Some(kind), dtype, op: None, gpu: None };
            self.backend.supports(&query)
        })
    }

    /// Checks that there are enough part numbers for the call.
    fn check_part_count(&self, call: &ListCall<'_>) -> Result<()> {
        let blocks = call.blocks(self.size());
        let on_device = call.plan.on_device.iter().map(|&index| {
            let bytes = call.tensors[index].data.len() / blocks;
            let backend = self.backend.device();
            backend.map_or(1, |device| usize::from(device.part_count(call.kind, bytes)))
        });
        let parts = COMPARISON_PARTS + call.plan.on_host.len() + on_device.sum::<usize>();
        if parts <= usize::from(u16::MAX) {
            return Ok(());
        }
        let message = format!(
            "the list needs {parts} parts, and a call has {} at most: divide the list",
            u16::MAX
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}

impl ListTensor<'_> {
    fn check_description(&self) -> Result<()> {
        if self.name.len() > MAX_TENSOR_NAME_BYTES {
            let message = format!(
                "the name has {} bytes: pass {MAX_TENSOR_NAME_BYTES} at most, because the ranks \
                 compare the names",
                self.name.len()
            );
            return Err(Error::invalid(message));
        }
        if self.shape.len() > MAX_TENSOR_DIMS {
            let message = format!(
                "the tensor has {} dimensions: pass {MAX_TENSOR_DIMS} at most",
                self.shape.len()
            );
            return Err(Error::invalid(message));
        }
        Ok(())
    }
}

impl ListCall<'_> {
    /// Checks that no two tensors overlap. The call writes all of them.
    fn check_overlaps(&self) -> Result<()> {
        let span = |(index, tensor): (usize, &ListTensor<'_>)| {
            let start = tensor.data.as_mut_ptr().addr();
            (start, start + tensor.data.len(), index)
        };
        let mut spans: Vec<_> = self.tensors.iter().enumerate().map(span).collect();
        spans.retain(|&(start, end, _)| start < end);
        spans.sort_unstable();
        let Some(pair) = spans.windows(2).find(|pair| pair[0].1 > pair[1].0) else {
            return Ok(());
        };
        let (one, other) = (pair[0].2.min(pair[1].2), pair[0].2.max(pair[1].2));
        Err(Error::invalid(format!(
            "tensor {one} {:?} and tensor {other} {:?} overlap: the call writes both",
            self.tensors[one].name, self.tensors[other].name
        )))
    }
}
