//! Streams of our own, with copies in them, and events, by which is seen how far a stream has come.

use super::context::CudaContext;
use super::driver::{CudaHandle, DeviceAddress, NOT_READY};
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::base::gpu::StreamMarker;
use crate::base::log::LogLevel;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

/// It does not wait for what is on the default stream, nor that for it.
const NON_BLOCKING: c_uint = 1;
/// The event does not take the time, which makes it cheaper.
const DISABLE_TIMING: c_uint = 2;

/// The default stream of a context.
pub const DEFAULT_STREAM: CudaHandle = 0;

/// A stream.
#[derive(Debug)]
pub struct CudaStream {
    context: Arc<CudaContext>,
    handle: CudaHandle,
}

/// A mark in a stream.
#[derive(Debug)]
pub struct CudaEvent {
    context: Arc<CudaContext>,
    handle: CudaHandle,
}

/// What cannot be told any more where a thing ends: only the log hears of it.
pub(super) fn log_failure(outcome: Result<()>) {
    if let Err(error) = outcome {
        crate::log!(LogLevel::Warn, "{error}");
    }
}

impl CudaStream {
    /// A new one, which the device prefers to others or not.
    ///
    /// # Errors
    /// `Backend`, `OutOfMemory`.
    pub fn new(context: &Arc<CudaContext>, high_priority: bool) -> Result<Self> {
        let _current = context.make_current()?;
        let driver = context.driver();
        let (mut least, mut greatest): (c_int, c_int) = (0, 0);
        // SAFETY: there is room for two numbers; the context is current.
        let code = unsafe { (driver.functions.priority_range)(&raw mut least, &raw mut greatest) };
        driver.check("cuCtxGetStreamPriorityRange", code)?;
        // 0 is what streams have that name none; where the device knows no priorities it is the
        // only one.
        let priority = if high_priority { greatest } else { 0 };
        let mut handle = 0;
        // SAFETY: there is room for a handle; the context is current.
        let code =
            unsafe { (driver.functions.stream_create)(&raw mut handle, NON_BLOCKING, priority) };
        driver.check("cuStreamCreateWithPriority", code)?;
        Ok(Self { context: Arc::clone(context), handle })
    }

    /// What the driver calls it.
    pub fn handle(&self) -> CudaHandle {
        self.handle
    }

    /// Leaves a copy from the device's memory to pinned memory to the device.
    ///
    /// # Safety
    /// Both must stay as long as they are until the stream has come past, as an event behind it
    /// tells, and nobody else may write them before.
    ///
    /// # Errors
    /// `Backend`.
    pub unsafe fn copy_to_host(&self, from: Src<'_>, into: Dst<'_>) -> Result<()> {
        let _current = self.context.make_current()?;
        let driver = self.context.driver();
        let (to, from) = (into.as_mut_ptr().cast(), from.as_ptr().addr() as DeviceAddress);
        // SAFETY: two buffers of this length, which the caller promises stay; the stream is ours.
        let code = unsafe { (driver.functions.copy_to_host)(to, from, into.len(), self.handle) };
        driver.check("cuMemcpyDtoHAsync", code)
    }

    /// Leaves a copy from pinned memory to the device's memory to the device.
    ///
    /// # Safety
    /// As [`CudaStream::copy_to_host`].
    ///
    /// # Errors
    /// `Backend`.
    pub unsafe fn copy_to_device(&self, from: Src<'_>, into: Dst<'_>) -> Result<()> {
        let _current = self.context.make_current()?;
        let driver = self.context.driver();
        let (to, from) = (into.as_mut_ptr().addr() as DeviceAddress, from.as_ptr().cast());
        // SAFETY: as above.
        let code = unsafe { (driver.functions.copy_to_device)(to, from, into.len(), self.handle) };
        driver.check("cuMemcpyHtoDAsync", code)
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        let destroy = || {
            let _current = self.context.make_current()?;
            let driver = self.context.driver();
            // SAFETY: a stream of our own, which nobody uses any more. What is in it is still
            // carried out.
            let code = unsafe { (driver.functions.stream_destroy)(self.handle) };
            driver.check("cuStreamDestroy", code)
        };
        log_failure(destroy());
    }
}

/// Leaves zeros for memory of the device to the device, in the order of a stream.
///
/// # Safety
/// The memory is the device's and stays until the stream has passed this.
///
/// # Errors
/// `Backend`.
pub unsafe fn fill_zero(context: &CudaContext, stream: CudaHandle, into: Dst<'_>) -> Result<()> {
    let _current = context.make_current()?;
    let driver = context.driver();
    let address = into.as_mut_ptr().addr() as DeviceAddress;
    // SAFETY: memory of this length, which the caller promises stays.
    let code = unsafe { (driver.functions.fill)(address, 0, into.len(), stream) };
    driver.check("cuMemsetD8Async", code)
}

/// Leaves a copy between two places in the device's memory to the device, in the order of a stream.
///
/// # Safety
/// As [`fill_zero`], for both; the two have one length and nothing in common.
///
/// # Errors
/// `Backend`.
pub unsafe fn copy_on_device(
    context: &CudaContext,
    stream: CudaHandle,
    from: Src<'_>,
    into: Dst<'_>,
) -> Result<()> {
    let _current = context.make_current()?;
    let driver = context.driver();
    let (from, len) = (from.as_ptr().addr() as DeviceAddress, into.len());
    let into = into.as_mut_ptr().addr() as DeviceAddress;
    // SAFETY: two places of this length, which the caller promises stay.
    let code = unsafe { (driver.functions.copy_on_device)(into, from, len, stream) };
    driver.check("cuMemcpyDtoDAsync", code)
}

/// Whether a stream of the caller's records a graph instead of doing what it is given. The context
/// must be current.
///
/// # Errors
/// `Backend`, also for what is no stream.
pub fn is_capturing(context: &CudaContext, stream: CudaHandle) -> Result<bool> {
    let driver = context.driver();
    let Some(function) = driver.functions.stream_is_capturing else { return Ok(false) };
    let mut status: c_int = 0;
    // SAFETY: the caller lends the stream; there is room for a number.
    driver.check("cuStreamIsCapturing", unsafe { function(stream, &raw mut status) })?;
    Ok(status != 0)
}

impl CudaEvent {
    /// A new one, which has not been recorded.
    ///
    /// # Errors
    /// `Backend`, `OutOfMemory`.
    pub fn new(context: &Arc<CudaContext>) -> Result<Self> {
        let _current = context.make_current()?;
        let driver = context.driver();
        let mut handle = 0;
        // SAFETY: there is room for a handle; the context is current.
        let code = unsafe { (driver.functions.event_create)(&raw mut handle, DISABLE_TIMING) };
        driver.check("cuEventCreate", code)?;
        Ok(Self { context: Arc::clone(context), handle })
    }

    /// Marks what is in a stream by now.
    ///
    /// # Errors
    /// `Backend`.
    pub fn record(&self, stream: CudaHandle) -> Result<()> {
        let _current = self.context.make_current()?;
        let driver = self.context.driver();
        // SAFETY: our event, and a stream of ours or one that the caller lends.
        let code = unsafe { (driver.functions.event_record)(self.handle, stream) };
        driver.check("cuEventRecord", code)
    }

    /// Has a stream wait for the mark, without anybody waiting here.
    ///
    /// # Errors
    /// `Backend`.
    pub fn make_stream_wait(&self, stream: CudaHandle) -> Result<()> {
        let _current = self.context.make_current()?;
        let driver = self.context.driver();
        // SAFETY: as above.
        let code = unsafe { (driver.functions.stream_wait_event)(stream, self.handle, 0) };
        driver.check("cuStreamWaitEvent", code)
    }

    /// Whether the device has come to the mark.
    ///
    /// # Errors
    /// `Backend`, also for what went wrong on the device before it.
    pub fn is_over(&self) -> Result<bool> {
        let _current = self.context.make_current()?;
        let driver = self.context.driver();
        // SAFETY: our event.
        match unsafe { (driver.functions.event_query)(self.handle) } {
            NOT_READY => Ok(false),
            code => driver.check("cuEventQuery", code).map(|()| true),
        }
    }
}

impl StreamMarker for CudaEvent {
    fn is_complete(&self) -> Result<bool> {
        Self::is_over(self)
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        let destroy = || {
            let _current = self.context.make_current()?;
            let driver = self.context.driver();
            // SAFETY: our event; the driver keeps what is still needed of it.
            let code = unsafe { (driver.functions.event_destroy)(self.handle) };
            driver.check("cuEventDestroy", code)
        };
        log_failure(destroy());
    }
}
