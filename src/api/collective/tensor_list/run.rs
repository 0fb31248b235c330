//! Runs a list call in its turn: the comparison, then the parts of the plan.

use super::ListCall;
use super::plan::{HostStep, bucket_dtype};
use crate::api::collective::call::{Call, CallOptions};
use crate::api::group::process_group::Group;
use crate::backend::buffer_pool::PooledBuffer;
use crate::backend::{DeviceBackend, DeviceBatch, Operation, enqueue_batches};
use crate::base::buffer::Dst;
use crate::base::deadline::LazyDeadline;
use crate::base::debug::{self, NanCheck};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::gpu::{EnqueueRequest, EnqueuedOperationSlot, GpuTarget, StreamMarker};
use crate::base::ids::{Rank, WorldSize};
use crate::kernel;
use crate::transport::{CountSpec, Descriptor, OpKind};
use std::ops::Range;

/// The maximum number of operations that are enqueued on a device as one batch.
const MAX_DEVICE_BATCH: usize = 1024;

/// A list call that has the turn of its group's queue.
pub(in crate::api::collective) struct ListTurn<'t, 'a> {
    pub(in crate::api::collective) group: &'t Group,
    pub(in crate::api::collective) call: &'t ListCall<'a>,
    pub(in crate::api::collective) options: &'t CallOptions,
    /// The descriptor of the call, without a part number.
    pub(in crate::api::collective) first: &'t Descriptor,
    pub(in crate::api::collective) deadline: &'t LazyDeadline,
    /// The event on the caller's device stream after which the buffers are ready.
    pub(in crate::api::collective) ready_event: Option<&'t dyn StreamMarker>,
    /// The slot for the last operation that is enqueued on the device.
    pub(in crate::api::collective) completion: &'t EnqueuedOperationSlot,
    /// The number of the part that has run last; 0 before the first part.
    pub(in crate::api::collective) part: u16,
}

/// The device of a call, with the slot for a batch of operations.
#[derive(Clone, Copy)]
struct DeviceTarget<'d> {
    backend: &'d dyn DeviceBackend,
    request: EnqueueRequest<'d>,
}

impl ListTurn<'_, '_> {
    /// Runs the call.
    pub(in crate::api::collective) fn run(mut self) -> Result<()> {
        self.group.await_all_arrivals(self.first, self.deadline.get_or_start())?;
        self.compare_lists()?;
        let nan_check = self.options.nan_check.max(debug::nan_check());
        self.check_for_nan(nan_check, "input")?;
        if let Some(gpu) = self.call.gpu {
            self.run_on_device(gpu)?;
        }
        self.run_on_host()?;
        self.check_for_nan(nan_check, "result")
    }

    fn rank(&self) -> Rank {
        self.group.rank()
    }

    fn size(&self) -> WorldSize {
        self.group.size()
    }

    /// Returns the descriptor of the next part, which uses `part_count` part numbers. `count_spec`
    /// replaces the count that the ranks compare.
    fn next_descriptor(
        &mut self,
        call: &Call<'_>,
        count_spec: Option<CountSpec>,
        part_count: u16,
    ) -> Result<Descriptor> {
        let of_call = call.descriptor(self.first.sequence, self.first.label);
        let part = self.part + 1;
        self.part = self.part.checked_add(part_count).ok_or_else(|| {
            // The check of the call has counted the parts.
            let error = Error::internal("a list has more parts than there are part numbers");
            self.group.fail_with_local_blame(error)
        })?;
        let count_spec = count_spec.unwrap_or(of_call.count_spec);
        Ok(Descriptor { part, count_spec, ..of_call })
    }

    /// Runs a collective in host memory as the next part.
    pub(super) fn run_part(
        &mut self,
        call: &Call<'_>,
        count_spec: Option<CountSpec>,
    ) -> Result<()> {
        let descriptor = self.next_descriptor(call, count_spec, 1)?;
        self.group.run_part_with(call, descriptor, self.options, self.deadline)
    }

    /// Runs an operation on each tensor in device memory. A back end that enqueues operations gets
    /// them in batches.
    fn run_on_device(&mut self, gpu: GpuTarget) -> Result<()> {
        let group = self.group;
        let Some(backend) = group.backend.device() else {
            return Err(Error::internal("a list in device memory in a group without a device"));
        };
        let (kind, (rank, size)) = (self.call.kind, (self.rank(), self.size()));
        let mut operations = Vec::with_capacity(self.call.plan.on_device.len());
        for &index in &self.call.plan.on_device {
            let tensor = &self.call.tensors[index];
            let call = self.call.call_in_place(tensor.data, tensor.dtype, rank, size)?;
            let part_count = backend.part_count(kind, call.bytes());
            operations.push((self.next_descriptor(&call, None, part_count)?, call));
        }
        let batches: Vec<_> = operations.chunks(MAX_DEVICE_BATCH).collect();
        for (index, batch) in batches.iter().enumerate() {
            // Operations on one stream end in order. So the last batch represents all batches.
            let earlier_slot = EnqueuedOperationSlot::new();
            let is_last = index + 1 == batches.len();
            let operation_slot = if is_last { self.completion } else { &earlier_slot };
            let buffers_ready = self.ready_event;
            let request = EnqueueRequest { gpu, operation_slot, buffers_ready };
            self.run_device_batch(DeviceTarget { backend, request }, batch)?;
        }
        Ok(())
    }

    fn run_device_batch(
        &self,
        DeviceTarget { backend, request }: DeviceTarget<'_>,
        batch: &[(Descriptor, Call<'_>)],
    ) -> Result<()> {
        let mut operations: Vec<Operation<'_>> = Vec::with_capacity(batch.len());
        let (options, group, deadline) = (self.options, self.group, self.deadline);
        for (descriptor, call) in batch {
            let mut operation =
                call.operation(*descriptor, options, group.name(), deadline, &group.observer);
            operation.enqueue_request = Some(request);
            operations.push(operation);
        }
        let Some(enqueuer) = backend.enqueuer() else {
            return operations.iter().try_for_each(|operation| group.backend.run(operation));
        };
        let deadline = deadline.get_or_start();
        let batch = DeviceBatch { enqueuer, operations: &operations, messages: &[], deadline };
        enqueue_batches(&[batch])
            .into_iter()
            .try_for_each(|outcome| outcome.inspect_err(|error| group.fail(error)))
    }

    /// Runs the operations in host memory. All buckets use the same scratch memory.
    fn run_on_host(&mut self) -> Result<()> {
        let bytes = self.call.plan.longest_bucket(&self.call.tensors);
        let scratch = PooledBuffer::try_new(bytes).ok_or_else(|| {
            let message = format!("cannot allocate {bytes} bytes for small tensors of a list");
            let error = Error::new(ErrorKind::OutOfMemory, message);
            self.group.fail_with_local_blame(error)
        })?;
        let call = self.call;
        for step in &call.plan.on_host {
            match step {
                HostStep::Tensor(index) => {
                    let tensor = &call.tensors[*index];
                    self.run_in_place(tensor.data, tensor.dtype)?;
                }
                HostStep::Bucket(tensors) => self.run_bucket(tensors, scratch.as_dst())?,
            }
        }
        Ok(())
    }

    fn run_in_place(&mut self, data: Dst<'_>, dtype: DataType) -> Result<()> {
        let call = self.call.call_in_place(data, dtype, self.rank(), self.size())?;
        self.run_part(&call, None)
    }

    /// Copies the tensors of a bucket together, runs one operation, and copies the result back.
    fn run_bucket(&mut self, tensors: &[usize], scratch: Dst<'_>) -> Result<()> {
        let layout = BucketBlocks::new(self.call, tensors, self.size());
        let bucket = scratch.slice(0, layout.bytes());
        let dtype = bucket_dtype(self.call.kind, self.call.tensors[tensors[0]].dtype);
        let (rank, is_root) = (self.rank(), self.call.root == Some(self.rank()));
        let own = rank..rank + 1;
        let (packed, unpacked) = match self.call.kind {
            // The root only sends, and the other ranks only receive.
            OpKind::Broadcast if is_root => (0..1, 0..0),
            OpKind::Broadcast => (0..0, 0..1),
            OpKind::AllGather => (own, 0..self.size()),
            OpKind::ReduceScatter => (0..self.size(), own),
            _ => (0..1, 0..1),
        };
        layout.visit(packed, |bucket_at, tensor, at, len| {
            kernel::copy(bucket.slice(bucket_at, len), tensor.as_src().slice(at, len));
        });
        self.run_in_place(bucket, dtype)?;
        layout.visit(unpacked, |bucket_at, tensor, at, len| {
            kernel::copy(tensor.slice(at, len), bucket.as_src().slice(bucket_at, len));
        });
        Ok(())
    }

    /// Checks the tensors in host memory for NaN.
    fn check_for_nan(&self, nan_check: NanCheck, role: &str) -> Result<()> {
        if nan_check == NanCheck::Off {
            return Ok(());
        }
        let (rank, blocks) = (self.rank(), self.call.blocks(self.size()));
        for (index, tensor) in self.call.tensors.iter().enumerate() {
            if tensor.device.is_some() {
                continue;
            }
            let block = tensor.data.len() / blocks;
            let is_input = role == "input";
            let checked = match self.call.kind {
                OpKind::Broadcast if is_input && self.call.root != Some(rank) => continue,
                OpKind::AllGather if is_input => tensor.data.slice(rank * block, block),
                OpKind::ReduceScatter if !is_input => tensor.data.slice(rank * block, block),
                _ => tensor.data,
            };
            let buffers = [checked.as_src()].into_iter();
            self.group.check_for_nan(tensor.dtype, nan_check, buffers, |_| {
                let title = self.call.title(self.first);
                format!("{title}: {role}: tensor {index} {:?}", tensor.name)
            })?;
        }
        Ok(())
    }
}

/// The layout of a bucket. Each tensor consists of one or several blocks. The bucket first has
/// block 0 of all tensors, then block 1 of all tensors, and so on. For example, tensors `a` and `b`
/// in a group of 3 ranks, if there is one block for each rank:
///
/// ```text
/// | a0 b0 | a1 b1 | a2 b2 |
/// ```
///
/// So the part for each rank is contiguous, as the operation needs it.
struct BucketBlocks<'b, 'a> {
    call: &'b ListCall<'a>,
    tensors: &'b [usize],
    blocks: usize,
    /// The length in bytes of one block of all tensors.
    stride: usize,
}

impl<'b, 'a> BucketBlocks<'b, 'a> {
    fn new(call: &'b ListCall<'a>, tensors: &'b [usize], size: WorldSize) -> Self {
        let blocks = call.blocks(size);
        let stride = tensors.iter().map(|&index| call.tensors[index].data.len() / blocks).sum();
        Self { call, tensors, blocks, stride }
    }

    fn bytes(&self) -> usize {
        self.blocks * self.stride
    }

    /// Calls `visit` for each tensor and each of these blocks, with the offset in the bucket, the
    /// tensor, the offset in the tensor, and the length.
    fn visit(&self, blocks: Range<usize>, mut visit: impl FnMut(usize, Dst<'a>, usize, usize)) {
        for block in blocks {
            let mut bucket_at = block * self.stride;
            for &index in self.tensors {
                let data = self.call.tensors[index].data;
                let len = data.len() / self.blocks;
                visit(bucket_at, data, block * len, len);
                bucket_at += len;
            }
        }
    }
}
