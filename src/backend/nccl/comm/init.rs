//! The initialization of a communicator. The ranks first initialize a non-blocking communicator, so
//! that a rank can cancel the initialization. If all ranks allow blocking calls, they then split
//! off a blocking communicator and destroy the first one.

use super::{MAX_POLL_INTERVAL, NcclComm};
use crate::backend::GroupFailureState;
use crate::backend::nccl::functions::{CommHandle, IN_PROGRESS, NcclConfig, NcclUniqueId};
use crate::backend::nccl::library::NcclLibrary;
use crate::backend::nccl::quiescence;
use crate::backend::nccl::types::is_success;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{Rank, WorldSize};
use crate::device::context::CudaContext;
use crate::wait::doorbell::Doorbell;
use crate::wait::poll_backoff::PollBackoff;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The interval at which a rank checks, during the initialization, whether another rank has failed.
/// Each check is a request to the store.
const FAILURE_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The maximum wait for quiescence ([`quiescence`]) before the non-blocking communicator is
/// destroyed.
const DESTROY_WAIT: Duration = Duration::from_secs(1);

/// The parameters for the initialization of a communicator. All ranks have the same `id`, `size`
/// and `may_block`.
#[derive(Clone, Copy)]
pub(in crate::backend::nccl) struct CommInitParams<'a> {
    pub(in crate::backend::nccl) id: NcclUniqueId,
    pub(in crate::backend::nccl) rank: Rank,
    pub(in crate::backend::nccl) size: WorldSize,
    pub(in crate::backend::nccl) deadline: &'a Deadline,
    /// True if all ranks allow blocking calls.
    pub(in crate::backend::nccl) may_block: bool,
    /// A function that returns the failure of another rank, which cancels the initialization.
    pub(in crate::backend::nccl) check_cancelled: &'a dyn Fn() -> Option<Error>,
}

fn to_c_int(value: usize) -> Result<c_int> {
    c_int::try_from(value)
        .map_err(|_| Error::invalid(format!("{value} exceeds the maximum of NCCL")))
}

/// Creates the unique id by which the ranks of a communicator find each other. Only one rank calls
/// this function.
pub(in crate::backend::nccl) fn create_unique_id(
    library: &NcclLibrary,
    context: &CudaContext,
) -> Result<NcclUniqueId> {
    let _current = context.make_current()?;
    let mut id = NcclUniqueId([0; NcclUniqueId::BYTES]);
    // SAFETY: `id` has space for an id.
    let code = unsafe { (library.functions.get_unique_id)(&raw mut id) };
    library.check("ncclGetUniqueId", code, 0)?;
    Ok(id)
}

impl NcclComm {
    /// Initializes the communicator of this rank. All ranks must call this function, because it
    /// waits for all ranks.
    pub(in crate::backend::nccl) fn init_rank(
        library: &'static NcclLibrary,
        context: &Arc<CudaContext>,
        failure_state: Arc<dyn GroupFailureState>,
        params: &CommInitParams<'_>,
    ) -> Result<Self> {
        let current = context.make_current()?;
        let mut config = NcclConfig::new(library.version(), false);
        let mut handle: CommHandle = 0;
        let (size, rank) = (to_c_int(params.size)?, to_c_int(params.rank)?);
        let init = library.functions.comm_init;
        // SAFETY: `handle` has space for a handle; the configuration is initialised and outlives
        // the call.
        let code = unsafe { init(&raw mut handle, size, params.id, rank, &raw mut config) };
        if !is_success(code) || handle == 0 {
            library.check("ncclCommInitRankConfig", code, 0)?;
            return Err(Error::internal("ncclCommInitRankConfig returned no communicator"));
        }
        let comm = Self {
            library,
            context: Arc::clone(context),
            handle: AtomicUsize::new(handle),
            is_blocking: false,
            is_busy: AtomicBool::new(false),
            blocking_call: Mutex::default(),
            doorbell: Doorbell::default(),
            failure_state,
            registrations: Mutex::default(),
        };
        drop(current);
        // If the wait fails, the drop of `comm` aborts the communicator.
        comm.await_ranks("ncclCommInitRankConfig", params)?;
        if params.may_block { comm.split_blocking(params) } else { Ok(comm) }
    }

    /// Replaces this communicator by a communicator with the same ranks whose calls may block.
    fn split_blocking(mut self, params: &CommInitParams<'_>) -> Result<Self> {
        let Some(split) = self.library.functions.comm_split else {
            let which = self.library.version_and_file();
            let message = format!(
                "nccl.blocking=1 (TORCH_NCCL_USE_COMM_NONBLOCKING=0) needs ncclCommSplit of NCCL \
                 2.18 or newer ({which})"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        let current = self.context.make_current()?;
        let mut config = NcclConfig::new(self.library.version(), true);
        // NCCL writes the handle when all ranks have called the function. This may be after this
        // rank has returned with an error; in that case the box is leaked.
        let child: *mut CommHandle = Box::into_raw(Box::default());
        let rank = to_c_int(params.rank)?;
        // SAFETY: the communicator is alive; the configuration is initialised, and NCCL reads it
        // during the call; the box for the handle stays allocated.
        let code = unsafe { split(self.handle(), 0, rank, child, &raw mut config) };
        if !is_success(code) {
            self.library.check("ncclCommSplit", code, self.handle())?;
        }
        self.await_ranks("ncclCommSplit", params)?;
        // SAFETY: NCCL wrote the handle and writes no more; the pointer is from the box above.
        let child = *unsafe { Box::from_raw(child) };
        if child == 0 {
            return Err(Error::internal("ncclCommSplit returned no communicator"));
        }
        drop(current);
        let finalized = self.finalize(params.deadline);
        let parent = self.handle.swap(child, Ordering::AcqRel);
        self.is_blocking = true;
        let limit = Deadline::after(DESTROY_WAIT);
        let _destroy_guard = quiescence::acquire_destroy(|| limit.has_passed());
        let functions = &self.library.functions;
        let end = if finalized.is_ok() { functions.comm_destroy } else { functions.comm_abort };
        // SAFETY: the handle was taken out of `self`, and no other thread has ever had it.
        let code = unsafe { end(parent) };
        finalized.and_then(|()| self.library.check("ncclCommDestroy", code, 0))?;
        Ok(self)
    }

    fn await_ranks(&self, function: &str, params: &CommInitParams<'_>) -> Result<()> {
        let (mut poller, mut next_check) =
            (PollBackoff::new(MAX_POLL_INTERVAL), Deadline::after(FAILURE_POLL_INTERVAL));
        loop {
            match self.async_state()? {
                IN_PROGRESS => {}
                code => return self.library.check(function, code, self.handle()),
            }
            if params.deadline.has_passed() {
                let message = format!(
                    "the communicator was not complete within {} ms; NCCL does not report which \
                     rank is missing (NCCL_DEBUG=INFO logs more); check that every rank can reach \
                     the other ranks over NCCL_SOCKET_IFNAME ({})",
                    params.deadline.elapsed().as_millis(),
                    self.library.version_and_file()
                );
                return Err(Error::new(ErrorKind::Timeout, message));
            }
            if next_check.has_passed() {
                if let Some(reason) = self.failure_state.failure().or_else(params.check_cancelled) {
                    return Err(reason);
                }
                next_check = Deadline::after(FAILURE_POLL_INTERVAL);
            }
            poller.wait_before_retry(params.deadline);
        }
    }
}
