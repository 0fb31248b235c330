//! CUDA streams of the library, the copies that they execute, and events, which report the progress
//! of a stream.

use super::context::CudaContext;
use super::driver::{CudaHandle, DeviceAddress, NOT_READY, log_failure};
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::base::gpu::StreamMarker;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::time::Duration;

/// The flag of a stream that does not synchronise with the default stream.
const NON_BLOCKING: c_uint = 1;
/// The flag of an event that records no time, which makes the event cheaper.
const DISABLE_TIMING: c_uint = 2;

/// The default stream of a context.
pub const DEFAULT_STREAM: CudaHandle = 0;

/// A stream of the library.
#[derive(Debug)]
pub struct CudaStream {
    context: Arc<CudaContext>,
    handle: CudaHandle,
}

/// A CUDA event: it marks a position in a stream, and reports when the device has completed the
/// work before that position.
#[derive(Debug)]
pub struct CudaEvent {
    context: Arc<CudaContext>,
    handle: CudaHandle,
}

impl CudaStream {
    /// Creates a stream, with the highest priority of the device or with the default priority.
    ///
    /// # Errors
    /// `Backend`, `OutOfMemory`.
    pub fn new(context: &Arc<CudaContext>, high_priority: bool) -> Result<Self> {
        let _current = context.make_current()?;
        let driver = context.driver();
        let (mut least, mut greatest): (c_int, c_int) = (0, 0);
        // SAFETY: the pointers refer to two numbers; the context is current.
        let code = unsafe { (driver.functions.priority_range)(&raw mut least, &raw mut greatest) };
        driver.check("cuCtxGetStreamPriorityRange", code)?;
        // 0 is the default priority. If the device does not support priorities, 0 is the only
        // priority.
        let priority = if high_priority { greatest } else { 0 };
        let mut handle = 0;
        // SAFETY: the pointer refers to a handle; the context is current.
        let code =
            unsafe { (driver.functions.stream_create)(&raw mut handle, NON_BLOCKING, priority) };
        driver.check("cuStreamCreateWithPriority", code)?;
        Ok(Self { context: Arc::clone(context), handle })
    }

    /// Returns the driver's handle of the stream.
    pub fn handle(&self) -> CudaHandle {
        self.handle
    }

    /// Enqueues a copy from device memory to pinned memory.
    ///
    /// # Safety
    /// Both buffers have the same length. They must stay valid until the stream has executed the
    /// copy; an event that is recorded after the copy reports that. No other code may write to the
    /// buffers before that.
    ///
    /// # Errors
    /// `Backend`.
    pub unsafe fn copy_to_host(&self, from: Src<'_>, into: Dst<'_>) -> Result<()> {
        let _current = self.context.make_current()?;
        let driver = self.context.driver();
        let (to, from) = (into.as_mut_ptr().cast(), from.as_ptr().addr() as DeviceAddress);
        // SAFETY: the caller promises that both buffers have this length and stay valid. This
        // object owns the stream.
        let code = unsafe { (driver.functions.copy_to_host)(to, from, into.len(), self.handle) };
        driver.check("cuMemcpyDtoHAsync", code)
    }

    /// Enqueues a copy from pinned memory to device memory.
    ///
    /// # Safety
    /// As for [`CudaStream::copy_to_host`].
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
            // SAFETY: this object owns the stream, and no code uses it any more. The driver still
            // completes the work that the stream contains.
            let code = unsafe { (driver.functions.stream_destroy)(self.handle) };
            driver.check("cuStreamDestroy", code)
        };
        log_failure(destroy());
    }
}

/// Enqueues a fill of device memory with zeros into a stream.
///
/// # Safety
/// The memory belongs to the device, and stays valid until the stream has executed the fill.
///
/// # Errors
/// `Backend`.
pub unsafe fn fill_zero(context: &CudaContext, stream: CudaHandle, into: Dst<'_>) -> Result<()> {
    let _current = context.make_current()?;
    let driver = context.driver();
    let address = into.as_mut_ptr().addr() as DeviceAddress;
    // SAFETY: the caller promises that the memory has this length and stays valid.
    let code = unsafe { (driver.functions.fill)(address, 0, into.len(), stream) };
    driver.check("cuMemsetD8Async", code)
}

/// Enqueues a copy between two buffers of device memory into a stream.
///
/// # Safety
/// As for [`fill_zero`], for both buffers. They have the same length and do not overlap.
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
    // SAFETY: the caller promises that both buffers have this length and stay valid.
    let code = unsafe { (driver.functions.copy_on_device)(into, from, len, stream) };
    driver.check("cuMemcpyDtoDAsync", code)
}

/// Returns true if a stream of the caller captures its work into a graph instead of executing it.
/// The context must be current.
///
/// # Errors
/// `Backend`, also if the handle is not a stream.
pub fn is_capturing(context: &CudaContext, stream: CudaHandle) -> Result<bool> {
    let driver = context.driver();
    let Some(function) = driver.functions.stream_is_capturing else { return Ok(false) };
    let mut status: c_int = 0;
    // SAFETY: the caller owns the stream and lends it for this call. The pointer refers to a
    // number.
    driver.check("cuStreamIsCapturing", unsafe { function(stream, &raw mut status) })?;
    Ok(status != 0)
}

impl CudaEvent {
    /// Creates an event that is not recorded.
    ///
    /// # Errors
    /// `Backend`, `OutOfMemory`.
    pub fn new(context: &Arc<CudaContext>) -> Result<Self> {
        Self::with_flags(context, DISABLE_TIMING)
    }

    /// Creates an event that is not recorded and that keeps the time at which the device reaches
    /// it.
    ///
    /// # Errors
    /// `Backend`, `OutOfMemory`.
    pub fn with_time(context: &Arc<CudaContext>) -> Result<Self> {
        Self::with_flags(context, 0)
    }

    fn with_flags(context: &Arc<CudaContext>, flags: c_uint) -> Result<Self> {
        let _current = context.make_current()?;
        let driver = context.driver();
        let mut handle = 0;
        // SAFETY: the pointer refers to a handle; the context is current.
        let code = unsafe { (driver.functions.event_create)(&raw mut handle, flags) };
        driver.check("cuEventCreate", code)?;
        Ok(Self { context: Arc::clone(context), handle })
    }

    /// Returns the time between an earlier event and this event, on the clock of the device. The
    /// device has completed both events, which were created with [`CudaEvent::with_time`]. Returns
    /// `None` if the driver cannot measure times.
    ///
    /// # Errors
    /// `Backend`.
    pub fn time_since(&self, earlier: &Self) -> Result<Option<Duration>> {
        let _current = self.context.make_current()?;
        let driver = self.context.driver();
        let Some(function) = driver.functions.event_elapsed else { return Ok(None) };
        let mut ms = 0.0_f32;
        // SAFETY: the pointer refers to a number. This object and `earlier` own the events.
        let code = unsafe { function(&raw mut ms, earlier.handle, self.handle) };
        driver.check("cuEventElapsedTime", code)?;
        Ok(Duration::try_from_secs_f64(f64::from(ms) / 1000.0).ok())
    }

    /// Records the current end of a stream: the event is over when the device has completed the
    /// work that the stream contains now.
    ///
    /// # Errors
    /// `Backend`.
    pub fn record(&self, stream: CudaHandle) -> Result<()> {
        let _current = self.context.make_current()?;
        let driver = self.context.driver();
        // SAFETY: this object owns the event. The stream belongs to the library or is lent by the
        // caller.
        let code = unsafe { (driver.functions.event_record)(self.handle, stream) };
        driver.check("cuEventRecord", code)
    }

    /// Makes a stream wait for the event. The calling thread does not wait.
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

    /// Returns true if the device has completed the recorded work, or if no work was recorded.
    ///
    /// # Errors
    /// `Backend`, also if the device failed before it reached the event.
    pub fn is_over(&self) -> Result<bool> {
        let _current = self.context.make_current()?;
        let driver = self.context.driver();
        // SAFETY: this object owns the event.
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
            // SAFETY: this object owns the event. The driver keeps the parts that it still needs.
            let code = unsafe { (driver.functions.event_destroy)(self.handle) };
            driver.check("cuEventDestroy", code)
        };
        log_failure(destroy());
    }
}
