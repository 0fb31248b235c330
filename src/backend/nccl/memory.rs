//! Device memory from NCCL's allocator. If the library supports it, the memory is registered with
//! the group's communicator, which makes transfers faster. With the option `nccl.windows=1`, all
//! ranks allocate together, and the memory becomes a window (memory that all ranks have registered
//! together).

use super::comm::{CommGuard, CommRegistration};
use super::library::NcclLibrary;
use super::watchdog::NcclWatchdog;
use crate::backend::BackendMemory;
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::base::log::LogLevel;
use crate::device::CudaContext;
use crate::device::memory::DeviceMemory;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The maximum time for which a registration of memory waits for the communicator. Memory without a
/// registration is usable, but slower.
const REGISTER_WAIT: Duration = Duration::from_secs(1);

/// Memory that NCCL has allocated.
#[derive(Debug)]
struct NcclMemory {
    library: &'static NcclLibrary,
    context: Arc<CudaContext>,
    start: usize,
    len: usize,
    /// The registration, and the group to which it belongs. It is valid while the group exists.
    registration: Option<(Weak<NcclWatchdog>, CommRegistration)>,
}

impl BackendMemory for NcclMemory {
    fn as_mut_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.start)
    }

    fn len(&self) -> usize {
        self.len
    }
}

impl Drop for NcclMemory {
    fn drop(&mut self) {
        if let Some((watchdog, registration)) = self.registration.take()
            && let Some(watchdog) = watchdog.upgrade()
            && let Ok(comm) = watchdog.comm.acquire(None, &Deadline::after(REGISTER_WAIT))
        {
            comm.deregister(registration);
        }
        let free = || {
            let _current = self.context.make_current()?;
            let Some(function) = self.library.functions.mem_free else { return Ok(()) };
            // SAFETY: `allocate` got this address from NCCL, and the memory is freed once.
            let code = unsafe { function(std::ptr::with_exposed_provenance_mut(self.start)) };
            self.library.check("ncclMemFree", code, 0)
        };
        if let Err(error) = free() {
            crate::log!(LogLevel::Warn, "{error}");
        }
    }
}

/// Allocates `len` bytes on the group's device.
pub(super) fn allocate(watchdog: &Arc<NcclWatchdog>, len: usize) -> Result<Box<dyn BackendMemory>> {
    let (library, context) = (watchdog.comm.library(), watchdog.comm.context());
    let (Some(function), Some(_)) = (library.functions.mem_alloc, library.functions.mem_free)
    else {
        // NCCL before 2.19 has no allocator. The driver allocates the memory instead, and NCCL
        // cannot register it.
        return Ok(Box::new(DeviceMemory::new(context, len)?));
    };
    let current = context.make_current()?;
    let mut start = std::ptr::null_mut();
    // SAFETY: `start` has space for an address; the context is current.
    let code = unsafe { function(&raw mut start, len) };
    library.check("ncclMemAlloc", code, 0)?;
    drop(current);
    let start = start.expose_provenance();
    let context = Arc::clone(context);
    let mut memory = NcclMemory { library, context, start, len, registration: None };
    if watchdog.options.windows {
        let window = register_window(watchdog, &memory);
        // Other ranks may have registered the window, or may wait for this rank, so an error fails
        // the group.
        memory.registration = window.map_err(|error| watchdog.fail_with(error))?;
        return Ok(Box::new(memory));
    }
    let registered = watchdog
        .comm
        .acquire(None, &Deadline::after(REGISTER_WAIT))
        .and_then(|comm| register_buffer(watchdog, &comm, &memory));
    match registered {
        Ok(registration) => memory.registration = registration,
        // The memory is usable without registration.
        Err(error) => crate::log!(
            LogLevel::Warn,
            "the buffer is not registered with NCCL, and is used without registration: {error}"
        ),
    }
    Ok(Box::new(memory))
}

/// A registration and the group to which it belongs, or `None` if the memory is not registered.
type NcclMemoryRegistration = Option<(Weak<NcclWatchdog>, CommRegistration)>;

fn register_buffer(
    watchdog: &Arc<NcclWatchdog>,
    comm: &CommGuard<'_>,
    memory: &NcclMemory,
) -> Result<NcclMemoryRegistration> {
    let registration = comm.register(memory.start, memory.len)?;
    Ok(registration.map(|registration| (Arc::downgrade(watchdog), registration)))
}

/// Registers the memory as a window together with the other ranks. If windows are not supported,
/// registers the memory as a buffer of this rank.
fn register_window(
    watchdog: &Arc<NcclWatchdog>,
    memory: &NcclMemory,
) -> Result<NcclMemoryRegistration> {
    let deadline = Deadline::after(watchdog.timeout);
    let comm = watchdog.comm.acquire(Some("ncclCommWindowRegister"), &deadline)?;
    match comm.make_window(memory.start, memory.len, &deadline)? {
        Some(window) => Ok(Some((Arc::downgrade(watchdog), window))),
        None => register_buffer(watchdog, &comm, memory),
    }
}
