//! Zero fills and copies in device memory, in the order of the stream that computes the gradients.
//!
//! If the caller gave no stream, this is the device's default stream, with which the library's own
//! streams synchronise.

#![allow(unsafe_code, reason = "views of device memory, which only the device touches")]

use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::gpu::GpuTarget;
use crate::device::stream::{self, DEFAULT_STREAM};
use crate::device::{CudaContext, CudaEvent};
use crate::wait::pause;
use std::sync::Arc;
use std::time::Duration;

/// The pause between two polls of the device.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// A device and the stream of its gradients.
#[derive(Clone, Debug)]
pub(super) struct GradStream {
    context: Arc<CudaContext>,
    gpu: GpuTarget,
}

impl GradStream {
    /// # Errors
    /// `Backend` if there is no such device.
    pub(super) fn new(gpu: GpuTarget) -> Result<Self> {
        Ok(Self { context: CudaContext::primary(gpu.device)?, gpu })
    }

    pub(super) fn gpu(&self) -> GpuTarget {
        self.gpu
    }

    fn handle(&self) -> usize {
        self.gpu.stream.unwrap_or(DEFAULT_STREAM)
    }

    /// Enqueues in the stream that the device fills memory with zeros.
    ///
    /// # Errors
    /// `Backend`.
    pub(super) fn fill_zero(&self, into: Dst<'static>) -> Result<()> {
        if into.is_empty() {
            return Ok(());
        }
        // SAFETY: the memory is on this device: the caller of the reducer guarantees this for its
        // own memory, and the reducer for the memory that the reducer allocated. The memory stays
        // allocated until the step has ended, which is later in stream order.
        unsafe { stream::fill_zero(&self.context, self.handle(), into) }
    }

    /// Enqueues in the stream that the device copies memory.
    ///
    /// # Errors
    /// `Backend`.
    pub(super) fn copy(&self, from: Src<'static>, into: Dst<'static>) -> Result<()> {
        if into.is_empty() {
            return Ok(());
        }
        // SAFETY: the conditions of `fill_zero` hold for both ranges.
        unsafe { stream::copy_on_device(&self.context, self.handle(), from, into) }
    }

    /// Waits until the device has completed all work in the stream.
    ///
    /// # Errors
    /// `Backend`; `Timeout`.
    pub(super) fn drain(&self, limit: &Deadline) -> Result<()> {
        let event = CudaEvent::new(&self.context)?;
        event.record(self.handle())?;
        while !event.is_over()? {
            if limit.has_passed() {
                let message = format!(
                    "device {} did not copy the gradients within {} ms",
                    self.gpu.device,
                    limit.timeout().as_millis()
                );
                return Err(Error::new(ErrorKind::Timeout, message));
            }
            pause(POLL_INTERVAL, limit);
        }
        Ok(())
    }
}
