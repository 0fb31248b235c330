//! The scratch memory of the steps: memory of the host or of the device for partial results.
#![allow(unsafe_code, reason = "makes views of device memory that this module owns")]

use crate::base::buffer::Dst;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::sync::lock;
use crate::device::CudaContext;
use crate::device::memory::DeviceMemory;
use std::sync::{Arc, Mutex};

/// The size up to which scratch memory grows, unless one cache line for each rank needs more.
pub(super) const SCRATCH_BYTES: usize = 4 << 20;

/// The memory. It grows at the first operation that needs more.
#[derive(Debug)]
enum ScratchMemory {
    Host(Vec<u8>),
    Device(Arc<CudaContext>, Option<DeviceMemory>),
}

/// The scratch memory of one group.
#[derive(Debug)]
pub(super) struct Scratch {
    memory: Mutex<ScratchMemory>,
}

impl Scratch {
    /// Creates empty scratch memory in host memory, or on a device.
    pub(super) fn new(device: Option<&Arc<CudaContext>>) -> Self {
        let memory = match device {
            None => ScratchMemory::Host(Vec::new()),
            Some(context) => ScratchMemory::Device(Arc::clone(context), None),
        };
        Self { memory: Mutex::new(memory) }
    }

    /// Calls `run` with scratch memory of this size. Operations of a group run one at a time, so no
    /// other operation waits for the lock.
    ///
    /// # Errors
    /// `OutOfMemory`; the errors of `run`.
    pub(super) fn with(&self, bytes: usize, run: impl FnOnce(Dst<'_>) -> Result<()>) -> Result<()> {
        if bytes == 0 {
            return run(Dst::empty());
        }
        match &mut *lock(&self.memory) {
            ScratchMemory::Host(memory) => {
                if memory.len() < bytes {
                    *memory = Vec::new();
                    memory.try_reserve_exact(bytes).map_err(|_| {
                        Error::new(ErrorKind::OutOfMemory, format!("{bytes} bytes of scratch"))
                    })?;
                    memory.resize(bytes, 0);
                }
                run(Dst::from(&mut memory[..bytes]))
            }
            ScratchMemory::Device(context, memory) => {
                if memory.as_ref().is_none_or(|memory| memory.len() < bytes) {
                    *memory = None;
                    *memory = Some(DeviceMemory::new(context, bytes)?);
                }
                let address = memory.as_ref().map_or(0, DeviceMemory::address);
                let address = usize::try_from(address).unwrap_or(0);
                let address = std::ptr::with_exposed_provenance_mut(address);
                // SAFETY: the memory has at least this length and is not freed during `run`, and
                // only the device accesses it.
                run(unsafe { Dst::new(address, bytes) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_scratch_grows_and_is_reused() {
        let scratch = Scratch::new(None);
        let address = |bytes: usize| {
            let mut found = 0;
            let look = |memory: Dst<'_>| {
                assert_eq!(memory.len(), bytes);
                memory.fill_zero();
                found = memory.as_mut_ptr().addr();
                Ok(())
            };
            scratch.with(bytes, look).unwrap();
            found
        };
        let whole = address(4096);
        assert_eq!((address(64), address(4096)), (whole, whole));
        let look = |memory: Dst<'_>| {
            assert!(memory.is_empty());
            Ok(())
        };
        scratch.with(0, look).unwrap();
        address(1 << 20);
        assert_eq!(address(1 << 20), address(1));
    }
}
