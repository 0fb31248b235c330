//! A wrapper for plug-ins that accept device memory. It makes the device's context current on the
//! thread in each call, because libraries that use device memory expect that.

use super::{
    Communicator, CreatedCommunicator, PluginMessageStatus, PluginRequest, PluginTask,
    ReleaseReport, RunOutcome, SubmitOutcome,
};
use crate::backend::{BackendMemory, SupportQuery};
use crate::base::error::{Error, Result};
use crate::device;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// A plug-in's communicator with the device whose context it needs.
#[derive(Debug)]
struct DeviceCurrentCommunicator {
    /// The first field: it is dropped before the device.
    communicator: Arc<dyn Communicator>,
    device: Arc<device::CudaContext>,
}

/// Wraps a communicator so that its calls have the device's context.
pub(super) fn with_current_device(
    created: CreatedCommunicator,
    device: Arc<device::CudaContext>,
) -> CreatedCommunicator {
    let inner = created.communicator;
    CreatedCommunicator {
        communicator: Arc::new(DeviceCurrentCommunicator { communicator: inner, device }),
        ..created
    }
}

impl Communicator for DeviceCurrentCommunicator {
    fn submit(&self, task: &PluginTask<'_>) -> Result<SubmitOutcome> {
        let _current = self.device.make_current()?;
        self.communicator.submit(task)
    }

    fn has_fast_path(&self) -> bool {
        false
    }

    fn run(&self, task: &PluginTask<'_>, limit: Duration) -> Option<Result<RunOutcome>> {
        match self.device.make_current() {
            Ok(_current) => self.communicator.run(task, limit),
            Err(error) => Some(Err(error)),
        }
    }

    fn test(&self, request: PluginRequest) -> Result<Option<PluginMessageStatus>> {
        let _current = self.device.make_current()?;
        self.communicator.test(request)
    }

    fn wait(&self, request: PluginRequest, limit: Duration) -> Result<Option<PluginMessageStatus>> {
        let _current = self.device.make_current()?;
        self.communicator.wait(request, limit)
    }

    fn release(&self, request: PluginRequest) -> Result<ReleaseReport> {
        let _current = self.device.make_current()?;
        self.communicator.release(request)
    }

    fn abort(&self, reason: &Error) {
        self.communicator.abort(reason);
    }

    fn failure(&self) -> Option<Error> {
        self.communicator.failure()
    }

    fn supports(&self, query: &SupportQuery) -> Result<()> {
        self.communicator.supports(query)
    }

    fn allocate(&self, bytes: usize) -> Result<Option<Box<dyn BackendMemory>>> {
        self.communicator.allocate(bytes)
    }

    fn describe(&self) -> Value {
        self.communicator.describe()
    }
}
