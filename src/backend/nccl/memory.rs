//! Memory of NCCL's own kind on the group's device, registered with the group's communicator where
//! the library can do that. With `nccl.windows=1` all ranks allocate together, and the memory
//! becomes a window of theirs.

use super::comm::{Entry, Registration};
use super::library::Library;
use super::watchdog::Watched;
use crate::backend::Memory;
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::base::log::Level;
use crate::device::Context;
use crate::device::memory::DeviceMemory;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long one waits for the communicator to register memory, which is no more than faster.
const PATIENCE: Duration = Duration::from_secs(1);

/// Memory that NCCL has allocated.
#[derive(Debug)]
struct Allocated {
    library: &'static Library,
    context: Arc<Context>,
    start: usize,
    len: usize,
    /// What it is registered as, while the group is there.
    registered: Option<(Weak<Watched>, Registration)>,
}

impl Memory for Allocated {
    fn as_mut_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.start)
    }

    fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Allocated {
    fn drop(&mut self) {
        if let Some((watched, registration)) = self.registered.take()
            && let Some(watched) = watched.upgrade()
            && let Ok(entry) = watched.comm.enter(None, &Deadline::after(PATIENCE))
        {
            entry.deregister(registration);
        }
        let free = || {
            let _current = self.context.enter()?;
            let Some(function) = self.library.functions.mem_free else { return Ok(()) };
            // SAFETY: what `allocate` was given, freed once.
            let code = unsafe { function(std::ptr::with_exposed_provenance_mut(self.start)) };
            self.library.check("ncclMemFree", code, 0)
        };
        if let Err(error) = free() {
            crate::log!(Level::Warn, "{error}");
        }
    }
}

/// So many bytes on the group's device.
pub(super) fn allocate(watched: &Arc<Watched>, len: usize) -> Result<Box<dyn Memory>> {
    let (library, context) = (watched.comm.library(), watched.comm.context());
    let (Some(function), Some(_)) = (library.functions.mem_alloc, library.functions.mem_free)
    else {
        // Older than 2.19: the driver's own, which NCCL cannot register.
        return Ok(Box::new(DeviceMemory::new(context, len)?));
    };
    let current = context.enter()?;
    let mut start = std::ptr::null_mut();
    // SAFETY: there is room for an address; the context is current.
    let code = unsafe { function(&raw mut start, len) };
    library.check("ncclMemAlloc", code, 0)?;
    drop(current);
    let start = start.expose_provenance();
    let context = Arc::clone(context);
    let mut memory = Allocated { library, context, start, len, registered: None };
    if watched.options.windows {
        let window = window(watched, &memory);
        // Other ranks may have it, or wait for it. The first reason counts, of which this may be a
        // consequence.
        memory.registered = window.map_err(|error| {
            watched.fail(&error);
            watched.fate.failure().unwrap_or(error)
        })?;
        return Ok(Box::new(memory));
    }
    let registered = watched
        .comm
        .enter(None, &Deadline::after(PATIENCE))
        .and_then(|entry| registered(watched, &entry, &memory));
    match registered {
        Ok(registration) => memory.registered = registration,
        // It is memory all the same.
        Err(error) => crate::log!(Level::Warn, "memory for NCCL is not registered: {error}"),
    }
    Ok(Box::new(memory))
}

/// A registration, while the group is there.
type Registered = Option<(Weak<Watched>, Registration)>;

fn registered(watched: &Arc<Watched>, entry: &Entry<'_>, memory: &Allocated) -> Result<Registered> {
    let registration = entry.register(memory.start, memory.len)?;
    Ok(registration.map(|registration| (Arc::downgrade(watched), registration)))
}

/// Makes it a window together with the other ranks; where there is no such thing, only this rank's
/// registration.
fn window(watched: &Arc<Watched>, memory: &Allocated) -> Result<Registered> {
    let deadline = Deadline::after(watched.timeout);
    let entry = watched.comm.enter(Some("ncclCommWindowRegister"), &deadline)?;
    match entry.make_window(memory.start, memory.len, &deadline)? {
        Some(window) => Ok(Some((Arc::downgrade(watched), window))),
        None => registered(watched, &entry, memory),
    }
}
