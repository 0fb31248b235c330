//! The GPU of a rank. It allocates device memory, and copies bytes between host and device memory.
#![allow(unsafe_code, reason = "device copies take raw pointers to host memory")]

use dist::base::buffer::{Dst, Src};
use dist::device::memory::DeviceMemory;
use dist::device::{CudaContext, CudaEvent, CudaStream, driver};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time limit of a copy.
const COPY_TIMEOUT: Duration = Duration::from_secs(60);

/// A GPU, and a stream for copies.
#[derive(Clone, Debug)]
pub(crate) struct RankGpu {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
}

/// Device memory, with a host copy for uploads and downloads.
#[derive(Debug)]
pub(super) struct GpuBuffer {
    gpu: RankGpu,
    memory: DeviceMemory,
    /// The copy in host memory. `upload` copies these bytes to the device, and `download` copies
    /// the bytes of the device here.
    pub(super) host_copy: Vec<u8>,
}

impl RankGpu {
    /// Returns the GPU of a rank. If there are more ranks than GPUs, several ranks share a GPU.
    ///
    /// # Errors
    /// The reason why the rank has no GPU.
    pub(crate) fn for_rank(rank: usize) -> Result<Self, String> {
        let device_count = driver::get_or_load().and_then(|driver| driver.device_count());
        let count = device_count.map_err(|error| error.to_string())?;
        if count == 0 {
            return Err("the CUDA driver has no device".to_owned());
        }
        let context = CudaContext::primary(rank % count).map_err(|error| error.to_string())?;
        let stream = CudaStream::new(&context, false).map_err(|error| error.to_string())?;
        Ok(Self { context, stream: Arc::new(stream) })
    }

    pub(crate) fn device(&self) -> usize {
        self.context.device()
    }

    /// Allocates device memory of this size.
    pub(super) fn allocate(&self, bytes: usize) -> Result<GpuBuffer, String> {
        let memory = DeviceMemory::new(&self.context, bytes).map_err(|error| error.to_string())?;
        Ok(GpuBuffer { gpu: self.clone(), memory, host_copy: vec![0; bytes] })
    }

    /// Waits until all copies on the stream have ended.
    fn synchronize(&self) -> Result<(), String> {
        let begun = Instant::now();
        let event = CudaEvent::new(&self.context).map_err(|error| error.to_string())?;
        event.record(self.stream.handle()).map_err(|error| error.to_string())?;
        while !event.is_over().map_err(|error| error.to_string())? {
            if begun.elapsed() > COPY_TIMEOUT {
                return Err(format!(
                    "a copy on the GPU did not complete within {} s",
                    COPY_TIMEOUT.as_secs()
                ));
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}

impl GpuBuffer {
    /// Returns the address on the device.
    pub(super) fn device_ptr(&self) -> *mut u8 {
        let address = usize::try_from(self.memory.address()).unwrap_or(0);
        std::ptr::with_exposed_provenance_mut(address)
    }

    /// Copies `host_copy` to the device.
    pub(super) fn upload(&mut self) -> Result<(), String> {
        let len = self.host_copy.len();
        // SAFETY: this is device memory of this length, and it exists until the copy has ended. No
        // code on the host dereferences the address.
        let into = unsafe { Dst::new(self.device_ptr(), len) };
        let from = Src::from(&self.host_copy[..]);
        // SAFETY: both exist until the copy has ended, because `synchronize` waits for it.
        let copied = unsafe { self.gpu.stream.copy_to_device(from, into) };
        copied.map_err(|error| error.to_string())?;
        self.gpu.synchronize()
    }

    /// Copies the device memory to `host_copy`.
    pub(super) fn download(&mut self) -> Result<(), String> {
        let (start, len) = (self.device_ptr(), self.host_copy.len());
        // SAFETY: this is device memory of this length, as in `upload`.
        let from = unsafe { Src::new(start, len) };
        let into = Dst::from(&mut self.host_copy[..]);
        // SAFETY: both exist until the copy has ended, because `synchronize` waits for it.
        let copied = unsafe { self.gpu.stream.copy_to_host(from, into) };
        copied.map_err(|error| error.to_string())?;
        self.gpu.synchronize()
    }
}
