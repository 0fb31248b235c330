//! The two-level device back end: a device back end inside each host, and a host back end between
//! hosts, through host memory. The group's host back end carries the messages, detects dead ranks
//! and owns the failure state.
//!
//! The host thread waits for the device. An operation begins when the device has completed the work
//! that was in the caller's stream at the time of the call. It ends when the whole result is in
//! device memory. The steps run in streams of the library.

use super::host::TwoLevelGroup;
use super::inner_group::{CreateInnerBackend, InnerGroupSetup, TwoLevelOptions};
use super::scratch::Scratch;
use super::spec::TwoLevelSpec;
use crate::backend::device_factory::{
    DeviceBackendOrReason, DeviceBackendSetup, check_not_capturing, device_context,
};
use crate::backend::{
    BackendMemory, DeviceBackend, GroupFailureState as _, Operation, SupportQuery,
};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::gpu::{EnqueueRequest, GpuTarget, StreamMarker};
use crate::base::ids::Rank;
use crate::device::stream::DEFAULT_STREAM;
use crate::device::{CudaContext, CudaEvent};
use crate::wait::poll_backoff::PollBackoff;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// The maximum pause between two polls of the device.
const MAX_POLL_INTERVAL: Duration = Duration::from_micros(200);

/// The two-level device back end of a group.
#[derive(Debug)]
struct TwoLevelDevice {
    group: TwoLevelGroup,
    context: Arc<CudaContext>,
    rank: Rank,
}

/// Creates the two-level device back end of this rank. All ranks must call this function, because
/// it waits for all ranks. `create` creates the back end of an inner group from the name of a
/// device map.
///
/// # Errors
/// The error of the device; any error of a bootstrap.
pub(in crate::backend) fn create_device(
    spec: &TwoLevelSpec,
    options: &TwoLevelOptions,
    setup: &DeviceBackendSetup<'_>,
    create: &CreateInnerBackend,
) -> Result<DeviceBackendOrReason> {
    let context = device_context(setup.context)?;
    let setup = InnerGroupSetup {
        spec,
        options,
        context: setup.context,
        exchange: setup.exchange,
        host: setup.host.as_ref(),
        failure_state: setup.failure_state.as_ref(),
        device: Some(context.device()),
        create,
    };
    let group = TwoLevelGroup::create(&setup, Scratch::new(Some(&context)))?;
    Ok(Ok(Box::new(TwoLevelDevice { group, rank: setup.context.rank, context })))
}

impl TwoLevelDevice {
    /// Waits until the device has completed the work that was in the caller's stream at the time of
    /// the call.
    fn await_stream(&self, operation: &Operation<'_>, ready: &dyn StreamMarker) -> Result<()> {
        let (deadline, mut backoff) = (operation.deadline(), PollBackoff::new(MAX_POLL_INTERVAL));
        while !ready.is_complete()? {
            if let Some(failure) = self.group.failures.failure() {
                return Err(failure);
            }
            if deadline.has_passed() {
                let message = format!(
                    "{}: device {} did not complete the earlier work of the stream within {} ms",
                    operation.descriptor,
                    self.device(),
                    deadline.elapsed().as_millis()
                );
                return Err(Error::new(ErrorKind::Timeout, message).with_culprit(self.rank));
            }
            backoff.wait_before_retry(deadline);
        }
        Ok(())
    }
}

impl DeviceBackend for TwoLevelDevice {
    fn name(&self) -> &'static str {
        self.group.name
    }

    fn device(&self) -> usize {
        self.context.device()
    }

    fn supports(&self, query: &SupportQuery) -> Result<()> {
        self.group.supports(query)
    }

    fn run(&self, operation: &Operation<'_>, request: &EnqueueRequest<'_>) -> Result<()> {
        let wait = |ready| self.await_stream(operation, ready);
        request
            .buffers_ready
            .map_or(Ok(()), wait)
            .map_err(|error| self.group.failures.fail_with(error))?;
        self.group.run(operation, Some(self.device()))
    }

    fn is_stream_ordered(&self) -> bool {
        false
    }

    fn check_stream(&self, gpu: GpuTarget) -> Result<()> {
        check_not_capturing(&self.context, gpu, self.name())
    }

    fn record_stream_event(&self, gpu: GpuTarget) -> Result<Option<Arc<dyn StreamMarker>>> {
        let event = CudaEvent::new(&self.context)?;
        event.record(gpu.stream.unwrap_or(DEFAULT_STREAM))?;
        Ok(Some(Arc::new(event)))
    }

    fn allocate(&self, device: usize, bytes: usize) -> Result<Box<dyn BackendMemory>> {
        self.group.groups.inside.backend.allocate_on(device, bytes)
    }

    fn on_group_failure(&self) {
        let devices = self.group.groups.groups().filter_map(|group| group.backend.device());
        devices.for_each(DeviceBackend::on_group_failure);
    }

    fn describe(&self) -> Value {
        self.group.describe()
    }
}
