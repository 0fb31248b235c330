//! A plug-in that takes the memory of a device: the device's context is current on the thread in
//! every call, as libraries which work with device memory expect.

use super::{Awaited, Communicator, Made, Ran, Received, Request, Submitted, Task};
use crate::backend::{Memory, Query};
use crate::base::error::{Error, Result};
use crate::device;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// A plug-in's functions, and the device whose context they want.
#[derive(Debug)]
struct WithDevice {
    /// First: it ends with the context in place.
    inner: Arc<dyn Communicator>,
    device: Arc<device::Context>,
}

/// The same part, whose calls have the device's context.
pub(super) fn with_device(made: Made, device: Arc<device::Context>) -> Made {
    let inner = made.communicator;
    Made { communicator: Arc::new(WithDevice { inner, device }), ..made }
}

impl Communicator for WithDevice {
    fn submit(&self, task: &Task<'_>) -> Result<Submitted> {
        let _current = self.device.enter()?;
        self.inner.submit(task)
    }

    fn is_prompt(&self) -> bool {
        false
    }

    fn run(&self, task: &Task<'_>, limit: Duration) -> Option<Result<Ran>> {
        match self.device.enter() {
            Ok(_current) => self.inner.run(task, limit),
            Err(error) => Some(Err(error)),
        }
    }

    fn test(&self, request: Request) -> Result<Option<Received>> {
        let _current = self.device.enter()?;
        self.inner.test(request)
    }

    fn wait(&self, request: Request, limit: Duration) -> Result<Option<Received>> {
        let _current = self.device.enter()?;
        self.inner.wait(request, limit)
    }

    fn release(&self, request: Request) -> Result<Awaited> {
        let _current = self.device.enter()?;
        self.inner.release(request)
    }

    fn abort(&self, reason: &Error) {
        self.inner.abort(reason);
    }

    fn failure(&self) -> Option<Error> {
        self.inner.failure()
    }

    fn supports(&self, query: &Query) -> Result<()> {
        self.inner.supports(query)
    }

    fn allocate(&self, bytes: usize) -> Result<Option<Box<dyn Memory>>> {
        self.inner.allocate(bytes)
    }

    fn describe(&self) -> Value {
        self.inner.describe()
    }
}
