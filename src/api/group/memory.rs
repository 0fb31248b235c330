//! Memory for buffers: memory that the back end allocates for the caller (`dist_mem_alloc`), and
//! memory of the caller that the caller registers with a group.
//!
//! The process has a single table for all groups. The call that frees memory gets only an address,
//! and memory may outlive the group for which it was allocated.

use crate::api::group::process_group::Group;
use crate::backend::BackendMemory;
use crate::base::error::{Error, Result};
use crate::base::sync::lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The device index that means host memory.
pub const HOST_DEVICE: i32 = -1;

#[derive(Debug)]
struct MemoryTable {
    /// The allocations. The key is the address.
    allocated: BTreeMap<usize, Box<dyn BackendMemory>>,
    registered: Vec<MemoryRegistration>,
}

/// A memory range that is registered with a group. The registration ends at the latest when the
/// group ends.
#[derive(Debug)]
struct MemoryRegistration {
    group: Weak<Group>,
    start: usize,
    len: usize,
}

static TABLE: Mutex<MemoryTable> =
    Mutex::new(MemoryTable { allocated: BTreeMap::new(), registered: Vec::new() });

/// Allocates memory of the kind that the group's back end prefers, in host memory or on a device.
/// Returns the address, or `None` for 0 bytes.
///
/// # Errors
/// `Unsupported` for a device that the back end does not serve; `OutOfMemory`, `System`.
pub fn allocate(group: &Group, bytes: usize, device: i32) -> Result<Option<usize>> {
    if device < HOST_DEVICE {
        return Err(Error::invalid(format!(
            "device is {device}: pass an index of at least 0, or DIST_DEVICE_HOST"
        )));
    }
    let memory = match usize::try_from(device) {
        // This checks the device even for 0 bytes: the back end allocates 1 byte and frees it.
        Ok(device) if bytes == 0 => {
            group.backend.allocate_on(device, 1).map(drop).map(|()| None)?
        }
        Ok(device) => Some(group.backend.allocate_on(device, bytes)?),
        Err(_) if bytes == 0 => None,
        Err(_) => Some(group.backend.allocate(bytes)?),
    };
    let Some(memory) = memory else { return Ok(None) };
    let address = memory.as_mut_ptr().expose_provenance();
    lock_table().allocated.insert(address, memory);
    Ok(Some(address))
}

/// Frees memory that [`allocate`] has returned.
///
/// # Errors
/// `InvalidArgument` for any other address. This includes the address of freed memory.
pub fn free(address: usize) -> Result<()> {
    let mut table = lock_table();
    let Some(memory) = table.allocated.remove(&address) else {
        let before = table.allocated.range(..address).next_back();
        let enclosing = before.filter(|(start, memory)| address - *start < memory.len());
        let problem = match enclosing {
            Some((start, _)) => format!("lies inside the allocation that begins at {start:#x}"),
            None => "is not the address of an allocation of dist_mem_alloc, or was freed before"
                .to_owned(),
        };
        return Err(Error::invalid(format!("ptr {address:#x} {problem}")));
    };
    drop(table);
    drop(memory);
    Ok(())
}

/// Registers memory of the caller with a group.
///
/// # Errors
/// `InvalidArgument` if the range is empty, exceeds the address space, or overlaps another range
/// registered with the group.
pub fn register(group: &Arc<Group>, start: usize, len: usize) -> Result<()> {
    if len == 0 {
        return Err(Error::invalid("bytes is 0: there is nothing to register"));
    }
    let Some(end) = start.checked_add(len) else {
        let message = format!("{len} bytes at ptr {start:#x} exceed the address space");
        return Err(Error::invalid(message));
    };
    let mut table = lock_table();
    table.registered.retain(|known| known.group.strong_count() > 0);
    let overlapping = table
        .registered
        .iter()
        .find(|known| known.is_of(group) && known.start < end && start < known.start + known.len);
    if let Some(known) = overlapping {
        let message = format!(
            "{len} bytes at ptr {start:#x} overlap with {} bytes at {:#x}, which are already \
             registered with group {}",
            known.len,
            known.start,
            group.name()
        );
        return Err(Error::invalid(message));
    }
    table.registered.push(MemoryRegistration { group: Arc::downgrade(group), start, len });
    Ok(())
}

/// Removes a registration that [`register`] has made.
///
/// # Errors
/// `InvalidArgument` if no range that begins at `start` is registered with the group.
pub fn deregister(group: &Arc<Group>, start: usize) -> Result<()> {
    let mut table = lock_table();
    let found =
        table.registered.iter().position(|known| known.is_of(group) && known.start == start);
    let Some(index) = found else {
        let message = format!(
            "no memory that begins at ptr {start:#x} is registered with group {}",
            group.name()
        );
        return Err(Error::invalid(message));
    };
    table.registered.swap_remove(index);
    Ok(())
}

impl MemoryRegistration {
    fn is_of(&self, group: &Arc<Group>) -> bool {
        std::ptr::eq(self.group.as_ptr(), Arc::as_ptr(group))
    }
}

fn lock_table() -> MutexGuard<'static, MemoryTable> {
    lock(&TABLE)
}
