//! The UCC context of this process. All groups over UCC share it.
//!
//! A context has the endpoints to the other processes, and it makes progress for all its teams
//! together. It is created by the first group, and it is never destroyed: its destruction waits
//! for the other processes without a limit.
//!
//! One lock protects all calls of UCC on a context. UCC would need it anyway (the worker of UCX
//! has one), and with this lock libdist does not depend on the thread mode of UCC. No call under
//! the lock waits for another rank.
//!
//! If a group fails, UCC may still use its buffers and its endpoints, and nothing can be
//! cancelled. So the context is *retired*: later groups get a new context. The groups that exist
//! continue with the retired context.

use super::functions::{
    API_MAJOR, API_MINOR, CONTEXT_SHARED, CONTEXT_TYPE, ContextParameters, Handle,
    LIBRARY_COLL_TYPES, LIBRARY_THREAD_MODE, LibraryAttributes, LibraryParameters, MAX_TEAM_ID,
    MemoryMap, OobCollectives, THREAD_MULTIPLE, THREAD_SINGLE,
};
use super::library::{self, UccLibrary};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::log::LogLevel;
use crate::base::sync::{lock, try_lock};
use crate::sys::library::loaded_paths;
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// The start of the name of UCC's component for CUDA memory.
const CUDA_COMPONENT: &str = "libucc_mc_cuda.so";

/// The largest number of contexts in a process. Each failed group retires one, and no context is
/// ever destroyed.
const MAX_CONTEXTS: usize = 64;

/// The initialised library.
#[derive(Debug)]
struct InitialisedLibrary {
    library: &'static UccLibrary,
    handle: Handle,
    thread_mode: c_int,
    collectives: u64,
    has_cuda: bool,
}

static INITIALISED: OnceLock<Result<InitialisedLibrary>> = OnceLock::new();

/// The context for new groups, and the number of contexts that were created.
static CURRENT: Mutex<(Option<Arc<UccContext>>, usize)> = Mutex::new((None, 0));

/// A context, which all groups of the process share until it is retired.
#[derive(Debug)]
pub(super) struct UccContext {
    initialised: &'static InitialisedLibrary,
    pub(super) handle: Handle,
    /// The right to call UCC.
    access: Mutex<()>,
    /// The ids of the teams of this context.
    team_ids: Mutex<BTreeSet<u16>>,
    is_retired: AtomicBool,
}

/// The right to call UCC, released when dropped.
pub(super) type UccAccess<'a> = MutexGuard<'a, ()>;

impl InitialisedLibrary {
    fn create() -> Result<Self> {
        let library = library::get()?;
        let mut handle = 0;
        let mut config = 0;
        let functions = &library.functions;
        // SAFETY: no prefix and no file, and space for the result.
        let status = unsafe {
            (functions.lib_config_read)(std::ptr::null(), std::ptr::null(), &raw mut config)
        };
        library.check("ucc_lib_config_read", status)?;
        let parameters = LibraryParameters {
            mask: LIBRARY_THREAD_MODE,
            thread_mode: THREAD_MULTIPLE,
            coll_types: 0,
            reduction_types: 0,
            sync_type: 0,
        };
        // SAFETY: parameters that are valid during the call, and space for the result.
        let status = unsafe {
            (functions.init)(API_MAJOR, API_MINOR, &raw const parameters, config, &raw mut handle)
        };
        // SAFETY: the config was read above, and is released once.
        unsafe { (functions.lib_config_release)(config) };
        library.check("ucc_init", status)?;
        let mut attributes = LibraryAttributes {
            mask: LIBRARY_THREAD_MODE | LIBRARY_COLL_TYPES,
            thread_mode: THREAD_SINGLE,
            ..parameters
        };
        // SAFETY: an initialised library, and space for the result.
        let status = unsafe { (functions.lib_attributes)(handle, &raw mut attributes) };
        library.check("ucc_lib_get_attr", status)?;
        // UCC loads its components in `ucc_init`.
        let is_cuda_component = |path: &std::path::PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with(CUDA_COMPONENT))
        };
        Ok(Self {
            library,
            handle,
            thread_mode: attributes.thread_mode,
            collectives: attributes.coll_types,
            has_cuda: loaded_paths().iter().any(is_cuda_component),
        })
    }
}

impl UccContext {
    /// Returns the context for a new group. The first call creates it.
    ///
    /// # Errors
    /// The errors of the load; the error of UCC; `OutOfMemory` if too many contexts were retired.
    pub(super) fn current() -> Result<Arc<Self>> {
        let initialised = INITIALISED.get_or_init(InitialisedLibrary::create);
        let initialised = initialised.as_ref().map_err(Clone::clone)?;
        let mut current = lock(&CURRENT);
        let (context, created) = &mut *current;
        if let Some(context) = context.as_ref().filter(|context| !context.is_retired()) {
            return Ok(Arc::clone(context));
        }
        if *created == MAX_CONTEXTS {
            let message = format!(
                "{MAX_CONTEXTS} contexts of UCC are in use in this process, which is the maximum: \
                 each failed group keeps its context"
            );
            return Err(Error::new(ErrorKind::OutOfMemory, message));
        }
        let fresh = Arc::new(Self::create(initialised)?);
        *created += 1;
        // UCC keeps the former context, whose endpoints cannot be closed safely.
        *context = Some(Arc::clone(&fresh));
        Ok(fresh)
    }

    fn create(initialised: &'static InitialisedLibrary) -> Result<Self> {
        let library = initialised.library;
        let functions = &library.functions;
        let mut config = 0;
        // SAFETY: an initialised library, no file, and space for the result.
        let status = unsafe {
            (functions.context_config_read)(initialised.handle, std::ptr::null(), &raw mut config)
        };
        library.check("ucc_context_config_read", status)?;
        let parameters = ContextParameters {
            mask: CONTEXT_TYPE,
            context_type: CONTEXT_SHARED,
            sync_type: 0,
            oob: OobCollectives {
                all_gather: None,
                request_test: None,
                request_free: None,
                info: std::ptr::null_mut(),
                endpoints: 0,
                endpoint: 0,
            },
            context_id: 0,
            memory: MemoryMap { segments: std::ptr::null_mut(), n_segments: 0 },
        };
        let mut handle = 0;
        // SAFETY: the library, valid parameters, the config from above, and space for the result.
        let status = unsafe {
            (functions.context_create)(
                initialised.handle,
                &raw const parameters,
                config,
                &raw mut handle,
            )
        };
        // SAFETY: the config was read above, and is released once.
        unsafe { (functions.context_config_release)(config) };
        library.check("ucc_context_create", status)?;
        crate::log!(
            LogLevel::Info,
            "created a context of UCC {}, {}",
            library.version_text(),
            if initialised.thread_mode == THREAD_MULTIPLE {
                "UCC_THREAD_MULTIPLE"
            } else {
                "one thread at a time"
            }
        );
        Ok(Self {
            initialised,
            handle,
            access: Mutex::default(),
            team_ids: Mutex::default(),
            is_retired: AtomicBool::new(false),
        })
    }

    pub(super) fn library(&self) -> &'static UccLibrary {
        self.initialised.library
    }

    /// Returns true if UCC has its component for CUDA memory.
    pub(super) fn has_cuda(&self) -> bool {
        self.initialised.has_cuda
    }

    /// Returns true if UCC has this type of collective.
    pub(super) fn has_collective(&self, coll_type: c_int) -> bool {
        self.initialised.collectives & u64::from(coll_type.unsigned_abs()) != 0
    }

    /// Returns UCC's name of the thread mode.
    pub(super) fn thread_mode_name(&self) -> &'static str {
        match self.initialised.thread_mode {
            THREAD_MULTIPLE => "UCC_THREAD_MULTIPLE",
            THREAD_SINGLE => "UCC_THREAD_SINGLE",
            _ => "UCC_THREAD_FUNNELED",
        }
    }

    /// Waits for the right to call UCC. Other threads hold it for a short series of polls.
    pub(super) fn access(&self) -> UccAccess<'_> {
        lock(&self.access)
    }

    /// Returns the right to call UCC, unless another thread has it.
    #[inline]
    pub(super) fn try_access(&self) -> Option<UccAccess<'_>> {
        try_lock(&self.access)
    }

    /// Makes progress on all teams of the context.
    #[inline]
    pub(super) fn progress(&self, _access: &UccAccess<'_>) {
        // SAFETY: the context is never destroyed, and the caller has the right to call UCC. The
        // result is a state, or the error of an operation, which the status of its request has.
        unsafe { (self.initialised.library.functions.context_progress)(self.handle) };
    }

    /// Makes later groups use a new context.
    pub(super) fn retire(&self) {
        self.is_retired.store(true, Ordering::Release);
    }

    pub(super) fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Acquire)
    }

    /// Returns the ids of all teams, as bytes for the exchange with the other ranks.
    pub(super) fn used_team_ids(&self) -> Vec<u8> {
        lock(&self.team_ids).iter().flat_map(|id| id.to_le_bytes()).collect()
    }

    /// Reserves the id of a team; returns false if it is in use.
    pub(super) fn reserve_team_id(&self, id: u16) -> bool {
        lock(&self.team_ids).insert(id)
    }

    pub(super) fn release_team_id(&self, id: u16) {
        lock(&self.team_ids).remove(&id);
    }
}

/// Returns the lowest id of a team that no rank uses. `used` has the ids that each rank uses, as
/// [`UccContext::used_team_ids`] returns them.
pub(super) fn lowest_free_id(used: &[Vec<u8>]) -> Option<u16> {
    let of_rank = |bytes: &Vec<u8>| -> Vec<u16> {
        bytes.chunks_exact(2).map(|id| u16::from_le_bytes([id[0], id[1]])).collect()
    };
    let used: BTreeSet<u16> = used.iter().flat_map(of_rank).collect();
    (1..=MAX_TEAM_ID).find(|id| !used.contains(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn team_id_is_free_on_all_ranks() {
        let ids = |ids: &[u16]| ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>();
        assert_eq!(lowest_free_id(&[]), Some(1));
        assert_eq!(lowest_free_id(&[ids(&[1, 3]), ids(&[2])]), Some(4));
        assert_eq!(lowest_free_id(&[ids(&[2]), vec![1]]), Some(1));
        let all: Vec<u16> = (1..=MAX_TEAM_ID).collect();
        assert_eq!(lowest_free_id(&[ids(&all)]), None);
    }
}
