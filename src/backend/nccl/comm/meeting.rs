//! How a communicator comes to be: the ranks meet without blocking, and, where its calls may block,
//! split it off.

use super::{Comm, LONGEST_NAP};
use crate::backend::Fate;
use crate::backend::nccl::functions::{CommHandle, Config, IN_PROGRESS, UniqueId};
use crate::backend::nccl::library::Library;
use crate::backend::nccl::quiet;
use crate::backend::nccl::types::is_fine;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{Rank, WorldSize};
use crate::device::context::Context;
use crate::wait::asking::Asking;
use crate::wait::bell::Bell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often, while the ranks meet, one looks whether another has given up, which costs a question
/// to the store.
const LOOK_AROUND: Duration = Duration::from_millis(100);

/// How long a communicator that is not needed any more waits for a quiet moment.
const QUIET: Duration = Duration::from_secs(1);

/// What ranks agree on to make one.
#[derive(Clone, Copy)]
pub(in crate::backend::nccl) struct Meeting<'a> {
    pub(in crate::backend::nccl) id: UniqueId,
    pub(in crate::backend::nccl) rank: Rank,
    pub(in crate::backend::nccl) size: WorldSize,
    pub(in crate::backend::nccl) deadline: &'a Deadline,
    /// All ranks want that calls may block.
    pub(in crate::backend::nccl) may_block: bool,
    /// Why not to go on, as far as others say.
    pub(in crate::backend::nccl) over: &'a dyn Fn() -> Option<Error>,
}

fn number(value: usize) -> Result<c_int> {
    c_int::try_from(value).map_err(|_| Error::invalid(format!("{value} is too many for NCCL")))
}

/// What all ranks of a communicator find each other by; one of them makes it.
pub(in crate::backend::nccl) fn unique_id(
    library: &Library,
    context: &Context,
) -> Result<UniqueId> {
    let _current = context.enter()?;
    let mut id = UniqueId([0; UniqueId::BYTES]);
    // SAFETY: there is room for an id.
    let code = unsafe { (library.functions.get_unique_id)(&raw mut id) };
    library.check("ncclGetUniqueId", code, 0)?;
    Ok(id)
}

impl Comm {
    /// Makes this rank's, together with the other ranks.
    pub(in crate::backend::nccl) fn meet(
        library: &'static Library,
        context: &Arc<Context>,
        fate: Arc<dyn Fate>,
        meeting: &Meeting<'_>,
    ) -> Result<Self> {
        let current = context.enter()?;
        let mut config = Config::new(library.version(), false);
        let mut handle: CommHandle = 0;
        let (size, rank) = (number(meeting.size)?, number(meeting.rank)?);
        let init = library.functions.comm_init;
        // SAFETY: there is room for a handle; the configuration is initialised, and outlives the
        // call.
        let code = unsafe { init(&raw mut handle, size, meeting.id, rank, &raw mut config) };
        if !is_fine(code) || handle == 0 {
            library.check("ncclCommInitRankConfig", code, 0)?;
            return Err(Error::internal("ncclCommInitRankConfig gave no communicator"));
        }
        let comm = Self {
            library,
            context: Arc::clone(context),
            handle: AtomicUsize::new(handle),
            blocks: false,
            busy: AtomicBool::new(false),
            inside_for: Mutex::default(),
            bell: Bell::default(),
            fate,
            registrations: Mutex::default(),
        };
        drop(current);
        // What is dropped on failure is aborted.
        comm.await_ranks("ncclCommInitRankConfig", meeting)?;
        if meeting.may_block { comm.split_off(meeting) } else { Ok(comm) }
    }

    /// Another one with the same ranks, whose calls may block, in the place of this one.
    fn split_off(mut self, meeting: &Meeting<'_>) -> Result<Self> {
        let Some(split) = self.library.functions.comm_split else {
            let which = self.library.signature();
            let message = format!(
                "nccl.blocking=1 (TORCH_NCCL_USE_COMM_NONBLOCKING=0) needs ncclCommSplit, which came with 2.18 ({which})"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        let current = self.context.enter()?;
        let mut config = Config::new(self.library.version(), true);
        // NCCL writes it once all have come, which may be after this call has given up: then it
        // stays.
        let child: *mut CommHandle = Box::into_raw(Box::default());
        let rank = number(meeting.rank)?;
        // SAFETY: the communicator lives; the configuration is initialised, and read during the
        // call; the place for the handle stays.
        let code = unsafe { split(self.handle(), 0, rank, child, &raw mut config) };
        if !is_fine(code) {
            self.library.check("ncclCommSplit", code, self.handle())?;
        }
        self.await_ranks("ncclCommSplit", meeting)?;
        // SAFETY: NCCL has written it, and writes no more; it is from a box, above.
        let child = *unsafe { Box::from_raw(child) };
        if child == 0 {
            return Err(Error::internal("ncclCommSplit gave no communicator"));
        }
        drop(current);
        let finalized = self.finalize(meeting.deadline);
        let parent = self.handle.swap(child, Ordering::AcqRel);
        self.blocks = true;
        let limit = Deadline::after(QUIET);
        let _quiet = quiet::moment(|| limit.has_passed());
        let functions = &self.library.functions;
        let end = if finalized.is_ok() { functions.comm_destroy } else { functions.comm_abort };
        // SAFETY: the handle was taken away; nobody else has ever had it.
        let code = unsafe { end(parent) };
        finalized.and_then(|()| self.library.check("ncclCommDestroy", code, 0))?;
        Ok(self)
    }

    fn await_ranks(&self, function: &str, meeting: &Meeting<'_>) -> Result<()> {
        let (mut asking, mut next_look) = (Asking::new(LONGEST_NAP), Deadline::after(LOOK_AROUND));
        loop {
            match self.state()? {
                IN_PROGRESS => {}
                code => return self.library.check(function, code, self.handle()),
            }
            if meeting.deadline.has_passed() {
                let message = format!(
                    "the ranks of the communicator did not all meet within {} ms; NCCL does not say whom it waits for \
                     (NCCL_DEBUG=INFO tells more), and every rank needs to reach the others over NCCL_SOCKET_IFNAME \
                     ({})",
                    meeting.deadline.elapsed().as_millis(),
                    self.library.signature()
                );
                return Err(Error::new(ErrorKind::Timeout, message));
            }
            if next_look.has_passed() {
                if let Some(reason) = self.fate.failure().or_else(meeting.over) {
                    return Err(reason);
                }
                next_look = Deadline::after(LOOK_AROUND);
            }
            asking.again(meeting.deadline);
        }
    }
}
