//! The calls of a plug-in that may use device memory. If the plug-in accepts device memory, the
//! CUDA context of the device is current on the calling thread during each of these calls, because
//! libraries that use device memory expect this.

use super::communicator::{Communicator, ReleaseReport};
use super::task::{PluginMessageStatus, PluginRequest, PluginTask, RunOutcome, SubmitOutcome};
use crate::base::error::Result;
use crate::device::CudaContext;
use crate::device::context::CurrentContext;
use std::sync::Arc;
use std::time::Duration;

/// A plug-in's communicator, and the device whose context must be current in its calls.
#[derive(Clone, Debug)]
pub(super) struct BoundCommunicator {
    /// The communicator. Callers access it directly for calls that use no device memory. It must be
    /// the first field, so that it is dropped before the device.
    pub(super) communicator: Arc<dyn Communicator>,
    /// The device, or `None` if the plug-in does not accept device memory.
    pub(super) device: Option<Arc<CudaContext>>,
}

impl BoundCommunicator {
    fn make_current(&self) -> Result<Option<CurrentContext<'_>>> {
        self.device.as_ref().map(|device| device.make_current()).transpose()
    }

    pub(super) fn submit(&self, task: &PluginTask<'_>) -> Result<SubmitOutcome> {
        let _current = self.make_current()?;
        self.communicator.submit(task)
    }

    pub(super) fn run(&self, task: &PluginTask<'_>, limit: Duration) -> Option<Result<RunOutcome>> {
        match self.make_current() {
            Ok(_current) => self.communicator.run(task, limit),
            Err(error) => Some(Err(error)),
        }
    }

    pub(super) fn test(&self, request: PluginRequest) -> Result<Option<PluginMessageStatus>> {
        let _current = self.make_current()?;
        self.communicator.test(request)
    }

    pub(super) fn wait(
        &self,
        request: PluginRequest,
        limit: Duration,
    ) -> Result<Option<PluginMessageStatus>> {
        let _current = self.make_current()?;
        self.communicator.wait(request, limit)
    }

    pub(super) fn release(&self, request: PluginRequest) -> Result<ReleaseReport> {
        let _current = self.make_current()?;
        self.communicator.release(request)
    }
}
