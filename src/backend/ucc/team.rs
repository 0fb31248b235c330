//! The UCC team of one group: its creation, and the calls of UCC for its collectives.
//!
//! UCC cannot cancel a collective. If a call ends before its collective is complete, UCC may still
//! use its buffers, so the memory of the call is never freed ([`UccTeam::abandon`]).
//!
//! After a failure of the group, no function of UCC is called for this team any more, and the team
//! is not destroyed: UCC 1.2 may crash if it uses an endpoint of a dead process again.

use super::call::{self, CallMemory};
use super::context::{UccAccess, UccContext, lowest_free_id};
use super::exchange::TeamExchange;
use super::functions::{
    BARRIER, CollectiveArguments, EP_RANGE_CONTIGUOUS, EndpointMap, Handle, IN_PROGRESS, MemoryMap,
    OK, PeerConnections, TEAM_EP, TEAM_EP_RANGE, TEAM_ID, TEAM_OOB, TEAM_SIZE, TeamParameters,
    UccStatus,
};
use super::liveness::Liveness;
use crate::backend::plugin::PluginTask;
use crate::backend::{BootstrapExchange, GroupContext};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::base::ids::{Rank, WorldSize};
use crate::base::log::LogLevel;
use crate::wait::poll_backoff::PollBackoff;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::time::Duration;

/// The number of attempts to agree on an id of a team. An attempt fails if another thread of a
/// process creates a team at the same time.
const MAX_ID_ATTEMPTS: usize = 100;

/// The number of polls after which the liveness of the other ranks is checked.
const POLLS_PER_CHECK: u32 = 64;

/// The maximum duration of a sleep between two polls of a team that is being created.
const MAX_CREATION_SLEEP: Duration = Duration::from_millis(1);

/// The interval between two queries of the store for a failure of another rank.
const FAILURE_QUERY_INTERVAL: Duration = Duration::from_millis(200);

/// The time for which the end of a group waits for UCC to destroy its team.
const DESTROY_WAIT: Duration = Duration::from_secs(1);

/// The team of one group.
#[derive(Debug)]
pub(super) struct UccTeam {
    pub(super) context: Arc<UccContext>,
    handle: Handle,
    pub(super) id: u16,
    pub(super) rank: Rank,
    pub(super) size: WorldSize,
    liveness: Arc<Liveness>,
    /// The number of calls that were not complete when they ended.
    abandoned: AtomicUsize,
    /// UCC's access to the exchange, which lives as long as the team.
    exchange: Arc<TeamExchange>,
}

/// A collective that UCC has begun. Its fields end after the collective is finalised.
#[derive(Debug)]
pub(super) struct ActiveCall {
    handle: Handle,
    memory: CallMemory,
}

/// The reservation of an id for a team that is being created.
struct ReservedId<'a> {
    context: &'a UccContext,
    id: Option<u16>,
}

impl Drop for ReservedId<'_> {
    fn drop(&mut self) {
        self.id.iter().for_each(|&id| self.context.release_team_id(id));
    }
}

/// Agrees with the other ranks on an id that no team of these processes has.
fn agree_on_id<'a>(
    context: &'a UccContext,
    exchange: &dyn BootstrapExchange,
    check_cancelled: &dyn Fn() -> Option<Error>,
) -> Result<ReservedId<'a>> {
    for attempt in 0..MAX_ID_ATTEMPTS {
        let own = context.used_team_ids();
        let used = exchange.all_gather(&format!("ucc-ids-{attempt}"), &own, check_cancelled)?;
        let Some(id) = lowest_free_id(&used) else { break };
        let reserved =
            ReservedId { context, id: Some(id).filter(|&id| context.reserve_team_id(id)) };
        let success = [u8::from(reserved.id.is_some())];
        let phase = format!("ucc-id-{attempt}");
        let outcomes = exchange.all_gather(&phase, &success, check_cancelled)?;
        if outcomes.iter().all(|outcome| *outcome == [1]) {
            return Ok(reserved);
        }
    }
    let message = "the ranks found no id for a team of UCC that all their processes can use";
    Err(Error::new(ErrorKind::Backend, message))
}

impl UccTeam {
    /// Creates the team of a group. All ranks must call this function.
    ///
    /// # Errors
    /// The errors of the exchange; the error of UCC; `Timeout`.
    pub(super) fn create(
        context: &GroupContext<'_>,
        exchange: &dyn BootstrapExchange,
        liveness: &Arc<Liveness>,
        check_cancelled: &dyn Fn() -> Option<Error>,
    ) -> Result<Self> {
        let ucc = UccContext::current()?;
        let mut reserved = agree_on_id(&ucc, exchange, check_cancelled)?;
        let id = reserved.id.ok_or_else(|| Error::internal("no id was reserved"))?;
        let gathers = Arc::new(TeamExchange::default());
        let library = ucc.library();
        let parameters = team_parameters(context, id, &gathers);
        let (mut handle, mut contexts) = (0, ucc.handle);
        let status = {
            let _access = ucc.access();
            // SAFETY: one context, parameters that are valid during the call, functions of the
            // exchange that outlive the team, and space for the result.
            unsafe {
                (library.functions.team_create_post)(
                    &raw mut contexts,
                    1,
                    &raw const parameters,
                    &raw mut handle,
                )
            }
        };
        library.check("ucc_team_create_post", status)?;
        let created = complete_creation(&ucc, handle, &gathers, context, exchange, check_cancelled);
        if let Err(error) = created {
            // UCC cannot destroy a team that is not complete, and it may call the exchange later.
            ucc.retire();
            gathers.keep_forever();
            reserved.id = None;
            return Err(error);
        }
        gathers.close();
        reserved.id = None;
        Ok(Self {
            context: Arc::clone(&ucc),
            handle,
            id,
            rank: context.rank,
            size: context.size,
            liveness: Arc::clone(liveness),
            abandoned: AtomicUsize::new(0),
            exchange: gathers,
        })
    }

    /// Begins a collective. Returns `None` if it is complete without UCC.
    ///
    /// # Errors
    /// `Unsupported`, if UCC refuses the call before it has begun; the error of UCC.
    pub(super) fn begin(
        &self,
        access: &UccAccess<'_>,
        task: &PluginTask<'_>,
    ) -> Result<Option<ActiveCall>> {
        let mut arguments = CollectiveArguments::new(BARRIER);
        if !self.liveness.may_send() {
            return Err(Error::new(ErrorKind::Backend, "the group has failed"));
        }
        match call::prepare(task, (self.rank, self.size), self.context.library(), &mut arguments)? {
            None => Ok(None),
            Some(memory) => self.post(access, &mut arguments, memory).map(Some),
        }
    }

    #[inline]
    fn post(
        &self,
        _access: &UccAccess<'_>,
        arguments: &mut CollectiveArguments,
        memory: CallMemory,
    ) -> Result<ActiveCall> {
        let library = self.context.library();
        let mut handle = 0;
        let arguments = &raw mut *arguments;
        // SAFETY: a team that is complete and not destroyed, arguments that are valid during the
        // call, and space for the result. UCC copies the arguments. The buffers and lists in them
        // stay valid until the collective is finalised or abandoned.
        let status =
            unsafe { (library.functions.collective_init)(arguments, &raw mut handle, self.handle) };
        library.check("ucc_collective_init", status)?;
        // SAFETY: an initialised collective, which is posted once.
        let status = unsafe { (library.functions.collective_post)(handle) };
        let active = ActiveCall { handle, memory };
        if status >= OK {
            return Ok(active);
        }
        // The other ranks may have begun, so this is no refusal.
        self.abandon(active);
        let error = library.check("ucc_collective_post", status);
        Err(error.err().map_or_else(
            || Error::internal("UCC reported no error"),
            |error| Error::new(ErrorKind::Backend, error.message()),
        ))
    }

    /// Polls a collective for at most this number of times, and checks the liveness of the other
    /// ranks from time to time. Returns true if the collective is complete. After a failure of the
    /// group, returns false without a call of UCC.
    ///
    /// # Errors
    /// The error of the collective.
    #[inline]
    pub(super) fn poll(
        &self,
        access: &UccAccess<'_>,
        active: &ActiveCall,
        polls: u32,
    ) -> Result<bool> {
        for poll in 0..polls {
            match self.status_of(active) {
                IN_PROGRESS => {}
                status => return self.check_end(status),
            }
            let is_check_due = poll + 1 == polls || poll % POLLS_PER_CHECK == POLLS_PER_CHECK - 1;
            let may_send = if is_check_due { self.liveness.may_send() } else { !self.has_failed() };
            if !may_send {
                return Ok(false);
            }
            self.context.progress(access);
        }
        match self.status_of(active) {
            IN_PROGRESS => Ok(false),
            status => self.check_end(status),
        }
    }

    #[cold]
    fn end_error(&self, status: UccStatus) -> Error {
        let error = self.context.library().check("the collective", status);
        let text = error.err().map_or_else(String::new, |error| error.message().to_owned());
        Error::new(ErrorKind::Backend, text)
    }

    #[inline]
    fn check_end(&self, status: UccStatus) -> Result<bool> {
        if status == OK { Ok(true) } else { Err(self.end_error(status)) }
    }

    /// Returns the status of a collective, which is the first field of UCC's request.
    #[inline]
    fn status_of(&self, active: &ActiveCall) -> UccStatus {
        let status = std::ptr::with_exposed_provenance::<AtomicI32>(active.handle);
        // SAFETY: a request that is not finalised. UCC stores its status as an aligned int, also
        // while another thread makes progress.
        unsafe { &*status }.load(Ordering::Acquire)
    }

    /// Ends a collective that is complete or that has failed.
    ///
    /// # Errors
    /// The error of UCC.
    #[inline]
    pub(super) fn finish(&self, _access: &UccAccess<'_>, active: ActiveCall) -> Result<()> {
        let library = self.context.library();
        // SAFETY: a collective that is not in progress, which is finalised once.
        let status = unsafe { (library.functions.collective_finalize)(active.handle) };
        active.memory.copy_result();
        library.check("ucc_collective_finalize", status)
    }

    /// Keeps the memory of a collective that will not complete, because UCC may still use it.
    pub(super) fn abandon(&self, active: ActiveCall) {
        self.abandoned.fetch_add(1, Ordering::Relaxed);
        self.context.retire();
        // The memory is never freed.
        let _kept = ManuallyDrop::new(active);
    }

    /// Records that the group has failed. From now on, no function of UCC is called for this team.
    pub(super) fn fail(&self) {
        self.liveness.fail();
        self.context.retire();
    }

    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        self.liveness.has_failed()
    }
}

impl Drop for UccTeam {
    /// Destroys the team, if UCC no longer uses it.
    fn drop(&mut self) {
        if self.has_failed() || self.abandoned.load(Ordering::Relaxed) > 0 {
            // UCC may still call the exchange.
            self.exchange.keep_forever();
            return;
        }
        let (library, limit) = (self.context.library(), Deadline::after(DESTROY_WAIT));
        let mut backoff = PollBackoff::new(MAX_CREATION_SLEEP);
        loop {
            let status = {
                let access = self.context.access();
                self.context.progress(&access);
                // SAFETY: a complete team without collectives. If the result is "in progress", the
                // call must be repeated.
                unsafe { (library.functions.team_destroy)(self.handle) }
            };
            if status == OK {
                return self.context.release_team_id(self.id);
            }
            if status != IN_PROGRESS || limit.has_passed() {
                if let Err(error) = library.check("ucc_team_destroy", status) {
                    crate::log!(LogLevel::Warn, "a team of UCC was not destroyed: {error}");
                }
                self.exchange.keep_forever();
                return;
            }
            backoff.wait_before_retry(&limit);
        }
    }
}

fn team_parameters(
    context: &GroupContext<'_>,
    id: u16,
    gathers: &Arc<TeamExchange>,
) -> TeamParameters {
    TeamParameters {
        mask: TEAM_EP | TEAM_EP_RANGE | TEAM_SIZE | TEAM_OOB | TEAM_ID,
        flags: 0,
        ordering: 0,
        outstanding: 0,
        endpoint: context.rank as u64,
        endpoint_list: std::ptr::null_mut(),
        endpoint_range: EP_RANGE_CONTIGUOUS,
        size: context.size as u64,
        sync_type: 0,
        oob: gathers.collectives(context.rank, context.size),
        peer_connections: PeerConnections { functions: [0; 5] },
        memory: MemoryMap { segments: std::ptr::null_mut(), n_segments: 0 },
        endpoint_map: EndpointMap { map_type: 0, endpoints: 0, map: [0; 2] },
        id: u64::from(id),
    }
}

/// Polls a team until it is complete, and runs the gathers that UCC begins.
fn complete_creation(
    ucc: &UccContext,
    handle: Handle,
    gathers: &TeamExchange,
    context: &GroupContext<'_>,
    exchange: &dyn BootstrapExchange,
    check_cancelled: &dyn Fn() -> Option<Error>,
) -> Result<()> {
    let library = ucc.library();
    let mut backoff = PollBackoff::new(MAX_CREATION_SLEEP);
    let mut next_query = Deadline::after(FAILURE_QUERY_INTERVAL);
    loop {
        let status = {
            let access = ucc.access();
            ucc.progress(&access);
            // SAFETY: a team that is being created.
            unsafe { (library.functions.team_create_test)(handle) }
        };
        if status != IN_PROGRESS {
            return library
                .check("ucc_team_create_test", status)
                .context(|| "creation of a team of UCC");
        }
        if gathers.serve(exchange, check_cancelled)? {
            continue;
        }
        if let Some(error) = check_cancelled() {
            return Err(error);
        }
        if next_query.has_passed() {
            next_query = Deadline::after(FAILURE_QUERY_INTERVAL);
            if let Some(error) = exchange.peer_failure() {
                return Err(error);
            }
        }
        if context.deadline.has_passed() {
            let waited = context.deadline.elapsed().as_millis();
            let message = format!("UCC did not create its team within {waited} ms");
            return Err(Error::new(ErrorKind::Timeout, message));
        }
        backoff.wait_before_retry(context.deadline);
    }
}
