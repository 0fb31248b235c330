//! The mappings of the arenas of this host's ranks in this process. Each arena is mapped once, for
//! all groups that use it.

use super::MemfdIdentity;
use crate::base::error::Result;
use crate::base::sync::lock;
use crate::sys::process_status;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

pub use crate::sys::peer_mapping::PeerMapping;

/// The mapped arenas, by process id and file identity.
static PEER_ARENAS: Mutex<BTreeMap<(u32, MemfdIdentity), Weak<PeerMapping>>> =
    Mutex::new(BTreeMap::new());

/// Returns the mapping of the arena with this identity in the process with this id. The process may
/// be this one.
///
/// # Errors
/// `Connection` if the file has another identity; `System`, `OutOfMemory`.
pub fn open_peer_arena(pid: u32, identity: MemfdIdentity) -> Result<Arc<PeerMapping>> {
    let mut windows = lock(&PEER_ARENAS);
    windows.retain(|_, window| window.strong_count() > 0);
    if let Some(window) = windows.get(&(pid, identity)).and_then(Weak::upgrade) {
        return Ok(window);
    }
    let window = Arc::new(PeerMapping::open(pid, identity)?);
    windows.insert((pid, identity), Arc::downgrade(&window));
    Ok(window)
}

/// Returns whether a process has certainly exited, so that it can no longer write.
pub fn has_process_ended(pid: u32) -> bool {
    process_status::is_gone(pid, None)
}

#[cfg(test)]
mod tests {
    use super::super::allocate;
    use super::*;

    #[test]
    fn peer_arena_is_mapped_once_for_all_holders() {
        let block = allocate(64).unwrap();
        let (pid, identity) = (std::process::id(), block.arena.identity);
        let one = open_peer_arena(pid, identity).unwrap();
        assert!(Arc::ptr_eq(&one, &open_peer_arena(pid, identity).unwrap()));
        let window = Arc::downgrade(&one);
        drop(one);
        assert!(window.upgrade().is_none() && !has_process_ended(pid));
        assert!(
            open_peer_arena(pid, MemfdIdentity { inode: identity.inode + 1, ..identity }).is_err()
        );
    }
}
