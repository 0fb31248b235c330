//! The state of one group on this rank. It has three communicators, created from the ranks of the
//! group.
//!
//! MPI_Comm_create_group involves only the members, so the ranks of a subgroup create it alone.
//! Collectives and the messages that compose them use the first communicator. The messages of
//! callers and those of the library use one communicator each, so that their tags cannot be
//! confused.
//!
//! Ranks publish an abort in the group's store, because MPI has no such notification.

use crate::collective::{self, Collective};
use crate::failure::{Failure, Result};
use crate::family;
use crate::host::{self, Host, read_i32};
use crate::interface::*;
use crate::messages::{Channel, FIRST_OWN_TAG};
use crate::mpi::{self, Handle, constant, mpi, sys};
use crate::process::{self, LiveGroupGuard, Process};
use crate::processors::{self, Processors};
use crate::request::Request;
use std::ffi::{CStr, c_int};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The key of the abort reason in the store.
const ABORTED: &CStr = c"aborted";

/// The minimum interval between two queries of this key.
const ABORT_QUERY_INTERVAL: Duration = Duration::from_millis(100);

/// The state of one group on this rank.
#[derive(Debug)]
pub(crate) struct MpiGroup {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) host: Host,
    comm: Handle<sys::MPI_Comm>,
    /// The channel of callers' messages, and that of the library's messages.
    channels: [Channel; 2],
    /// True if the ranks on this host outnumber their processors.
    pub(crate) is_oversubscribed: bool,
    pub(crate) options: BackendOptions,
    /// True if messages and composed operations may use device memory, on all ranks.
    pub(crate) serves_device: bool,
    /// The number of requests that MPI could not cancel.
    requests_in_use: AtomicUsize,
    has_failed: AtomicBool,
    last_query: Mutex<Option<Instant>>,
    _live_group_guard: LiveGroupGuard,
}

/// The caller's options of the back end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackendOptions {
    /// The maximum count for MPI. Only tests set it below the maximum of an int.
    pub(crate) max_count: c_int,
    /// True if the caller guarantees that all ranks are in place in the same calls. Then
    /// MPI_IN_PLACE is allowed where MPI requires it on all ranks.
    pub(crate) in_place_agreed: bool,
    /// True if MPI gets device memory, if it supports that.
    device_memory: bool,
}

impl BackendOptions {
    fn parse(text: &str) -> Result<Self> {
        let mut options =
            Self { max_count: c_int::MAX, in_place_agreed: false, device_memory: true };
        for item in text.split(';').filter(|item| !item.trim().is_empty()) {
            let (key, value) = item.split_once('=').unwrap_or((item, ""));
            match (key.trim(), value.trim()) {
                ("largest_count", value) => {
                    let max_count = value.parse().ok().filter(|&max_count| max_count > 0);
                    options.max_count = max_count.ok_or_else(|| invalid_option(item))?;
                }
                ("in_place", "agreed") => options.in_place_agreed = true,
                ("in_place", "any") => options.in_place_agreed = false,
                ("device_memory", "direct") => options.device_memory = true,
                ("device_memory", "staged") => options.device_memory = false,
                _ => return Err(invalid_option(item)),
            }
        }
        Ok(options)
    }
}

fn invalid_option(item: &str) -> Failure {
    let text = format!(
        "the MPI back end has no option \"{item}\": use in_place=agreed, in_place=any, \
         device_memory=direct, device_memory=staged or largest_count=N"
    );
    Failure::new(DIST_ERR_INVALID_ARGUMENT, text)
}

/// The peer info that a rank exchanges at create.
#[derive(Clone, Copy, Debug)]
struct MpiPeerInfo {
    world_rank: i32,
    world_size: i32,
    /// A hash of the host's name.
    host: [i32; 2],
    options: i32,
    /// 1 if this rank's MPI may get the memory of its device, else 0.
    serves_device: i32,
    /// The processors that the rank may use: launchers bind each rank to its own.
    processors: Processors,
}

impl MpiPeerInfo {
    fn of(process: &Process, options: BackendOptions, has_device: bool) -> Result<Self> {
        const NAME_BYTES: usize = sys::MPI_MAX_PROCESSOR_NAME as usize + 1;
        let mut name = [0; NAME_BYTES];
        let mut len = 0;
        mpi!(MPI_Get_processor_name((&raw mut name).cast(), &raw mut len))?;
        let mut hasher = DefaultHasher::new();
        mpi::to_text(&name).hash(&mut hasher);
        let hash = hasher.finish().to_le_bytes();
        Ok(Self {
            world_rank: process.world_rank,
            world_size: process.world_size,
            host: [read_i32(&hash, 0)?, read_i32(&hash, 4)?],
            options: if options.in_place_agreed { -options.max_count } else { options.max_count },
            serves_device: i32::from(has_device && options.device_memory && mpi::supports_cuda()),
            processors: processors::current(),
        })
    }

    fn bytes(self) -> Vec<u8> {
        let Self { world_rank, world_size, host, options, serves_device, .. } = self;
        let words = [world_rank, world_size, host[0], host[1], options, serves_device];
        let words = words.iter().flat_map(|word| word.to_le_bytes());
        words.chain(self.processors.iter().flat_map(|word| word.to_le_bytes())).collect()
    }

    fn read(bytes: &[u8]) -> Result<Self> {
        Ok(Self {
            world_rank: read_i32(bytes, 0)?,
            world_size: read_i32(bytes, 4)?,
            host: [read_i32(bytes, 8)?, read_i32(bytes, 12)?],
            options: read_i32(bytes, 16)?,
            serves_device: read_i32(bytes, 20)?,
            processors: processors::decode(bytes.get(24..).unwrap_or_default()),
        })
    }
}

impl MpiGroup {
    pub(crate) fn create(setup: &dist_backend_setup_t) -> Result<Self> {
        // SAFETY: the library's text, valid during the call.
        let id = unsafe { host::text(setup.group_id) };
        // SAFETY: the library's text, valid during the call.
        let options_text = unsafe { host::text(setup.options) };
        let options = BackendOptions::parse(&options_text)?;
        let process = process::get_or_initialise()?;
        let (rank, size) = (index(setup.rank)?, index(setup.size)?);
        let own = {
            let _access = process::acquire()?;
            MpiPeerInfo::of(process, options, setup.device >= 0)?
        };
        let infos = host::exchange(setup, c"mpi", &own.bytes())?;
        let infos: Vec<MpiPeerInfo> =
            infos.iter().map(|bytes| MpiPeerInfo::read(bytes)).collect::<Result<_>>()?;
        check_infos(&infos, size)?;
        let host_processors: Vec<Processors> =
            infos.iter().filter(|info| info.host == own.host).map(|info| info.processors).collect();
        let _access = process::acquire()?;
        let comm = create_communicator(&infos, &id, process)?;
        let channels = [
            Channel::new(duplicate(comm)?, 0, process),
            Channel::new(duplicate(comm)?, FIRST_OWN_TAG, process),
        ];
        Ok(Self {
            rank,
            size,
            host: Host::new(setup)?,
            comm: Handle(comm),
            channels,
            is_oversubscribed: processors::are_oversubscribed(&host_processors),
            options,
            serves_device: size > 1 && infos.iter().all(|info| info.serves_device == 1),
            requests_in_use: AtomicUsize::new(0),
            has_failed: AtomicBool::new(false),
            last_query: Mutex::new(None),
            _live_group_guard: LiveGroupGuard::new(),
        })
    }

    pub(crate) fn comm(&self) -> sys::MPI_Comm {
        self.comm.0
    }

    /// Returns the channel of this tag. DIST_ANY_TAG selects the channel of callers.
    pub(crate) fn channel(&self, tag: i64) -> &Channel {
        &self.channels[usize::from(tag >= FIRST_OWN_TAG)]
    }

    /// Begins an operation; `None` if it is complete.
    pub(crate) fn submit(
        &self,
        operation: &dist_backend_operation_t,
        outcome: *mut dist_backend_outcome_t,
    ) -> Result<Option<Request>> {
        match operation.kind {
            DIST_KIND_SEND => {
                let _access = process::acquire()?;
                let mut sending = self.channel(operation.tag).send(self, operation)?;
                // Most sends are complete at once.
                Ok(if sending.poll()? { None } else { Some(Request::Send(sending)) })
            }
            DIST_KIND_RECV => {
                let _access = process::acquire()?;
                let mut receive = self.channel(operation.tag).receive(operation)?;
                let is_complete = receive.poll(self, outcome)?;
                Ok(if is_complete { None } else { Some(Request::Receive(receive)) })
            }
            _ if self.size == 1 => collective::alone::run(operation).map(|()| None),
            _ => {
                let _access = process::acquire()?;
                let mut collective = Collective::default();
                collective.begin(self, operation)?;
                Ok(Some(Request::Collective(collective)))
            }
        }
    }

    /// Runs a collective for at most the limit. If it is not complete, it returns the request.
    pub(crate) fn run(
        &self,
        operation: &dist_backend_operation_t,
        limit: Duration,
        outcome: *mut dist_backend_outcome_t,
    ) -> Result<Option<Request>> {
        if self.size == 1 {
            return collective::alone::run(operation).map(|()| None);
        }
        let mut request = Request::Collective(Collective::default());
        if let Request::Collective(collective) = &mut request {
            let _access = process::acquire()?;
            collective.begin(self, operation)?;
        }
        match request.run(self, operation, limit, outcome) {
            Ok(DIST_OK) => Ok(None),
            Ok(_) => Ok(Some(request)),
            Err(failure) => {
                // MPI may still use the request's memory, so release it.
                request.release(self).ok();
                Err(failure)
            }
        }
    }

    /// Records that MPI still uses memory of a request.
    pub(crate) fn record_request_in_use(&self) {
        self.requests_in_use.fetch_add(1, Ordering::Relaxed);
        process::record_failure();
    }

    /// Publishes the failure in the group's store, where the other ranks find it.
    pub(crate) fn abort(&self, status: dist_status_t, reason: &str, culprit: i32) {
        self.has_failed.store(true, Ordering::Relaxed);
        process::record_failure();
        let head = [status.to_le_bytes(), culprit.to_le_bytes()].concat();
        self.host.publish(ABORTED, &[&head, reason.as_bytes()].concat());
    }

    /// Returns the reason for which another rank has aborted the group, if one has. It queries the
    /// store at most once per interval.
    pub(crate) fn failure(&self) -> Option<Failure> {
        {
            let mut last_query = self.last_query.lock().unwrap_or_else(PoisonError::into_inner);
            if last_query.is_some_and(|time| time.elapsed() < ABORT_QUERY_INTERVAL) {
                return None;
            }
            *last_query = Some(Instant::now());
        }
        let published = self.host.published(ABORTED)?;
        process::record_failure();
        // All ranks of a deadlock get the same error, no matter which of them finds it first.
        let status = read_i32(&published, 0).ok().filter(|&status| status == DIST_ERR_DEADLOCK);
        let culprit = read_i32(&published, 4).unwrap_or(-1);
        let reason = String::from_utf8_lossy(published.get(8..).unwrap_or_default()).into_owned();
        Some(Failure::new(status.unwrap_or(DIST_ERR_ABORTED), reason).with_culprit(culprit))
    }

    pub(crate) fn describe(&self) -> String {
        let Some(process) = process::get() else { return "{}".to_owned() };
        let escaped: String = process
            .version
            .chars()
            .filter(|c| !c.is_control() && !['"', '\\'].contains(c))
            .collect();
        format!(
            "{{\"mpi\": \"{}\", \"version\": \"{}\", \"thread_level\": \"{}\", \"initialised_by\": \"{}\", \
             \"world_rank\": {}, \"world_size\": {}, \"largest_tag\": {}, \"yields\": {}, \"takes_device\": {}}}",
            mpi::own_family().name(),
            escaped.trim(),
            process.level_name(),
            if process.is_own { "libdist" } else { "the program" },
            process.world_rank,
            process.world_size,
            process.tag_limit,
            self.is_oversubscribed,
            self.serves_device
        )
    }
}

impl Drop for MpiGroup {
    /// Frees the communicators if no operation uses them. Otherwise MPI keeps them until it is
    /// finalised.
    fn drop(&mut self) {
        let is_used = self.has_failed.load(Ordering::Relaxed)
            || self.requests_in_use.load(Ordering::Relaxed) > 0
            || self.channels.iter().any(|channel| !channel.is_idle());
        if is_used || process::is_finalised().unwrap_or(true) {
            return;
        }
        let Ok(_access) = process::acquire() else { return };
        for mut comm in [self.comm.0, self.channels[0].comm(), self.channels[1].comm()] {
            if let Err(failure) = mpi!(MPI_Comm_free(&raw mut comm)) {
                self.host.log(DIST_LOG_WARN, &failure.text);
            }
        }
    }
}

fn index(number: i32) -> Result<usize> {
    usize::try_from(number).map_err(|_| Failure::internal("a rank or size is negative"))
}

/// Checks that the members are different ranks of one MPI_COMM_WORLD, with equal options.
fn check_infos(infos: &[MpiPeerInfo], size: usize) -> Result<()> {
    if infos.len() != size {
        return Err(Failure::internal("not all ranks sent their peer info"));
    }
    if size > 1 && infos.iter().any(|info| info.world_size == 1) {
        let variable = |name: &str| std::env::var(name).ok();
        let text = family::single_rank_error(mpi::own_family(), size, &variable);
        return Err(Failure::new(DIST_ERR_UNSUPPORTED, text));
    }
    let mut seen: Vec<i32> = infos.iter().map(|info| info.world_rank).collect();
    seen.sort_unstable();
    if seen.windows(2).any(|pair| pair[0] == pair[1]) {
        let text = "two ranks of the group are the same rank of MPI_COMM_WORLD: a process can be \
                    in a group of this back end only once, and all processes must be of one MPI \
                    job";
        return Err(Failure::new(DIST_ERR_UNSUPPORTED, text));
    }
    if infos.iter().any(|info| info.options != infos[0].options) {
        let text = "the ranks pass different options to the MPI back end";
        return Err(Failure::new(DIST_ERR_MISMATCH, text));
    }
    Ok(())
}

/// Creates a communicator of these ranks, in the order of the group.
fn create_communicator(
    infos: &[MpiPeerInfo],
    id: &str,
    process: &Process,
) -> Result<sys::MPI_Comm> {
    let ranks: Vec<c_int> = infos.iter().map(|info| info.world_rank).collect();
    let count = c_int::try_from(ranks.len()).unwrap_or(c_int::MAX);
    let world = constant!(RSMPI_COMM_WORLD);
    let (mut world_group, mut mpi_group) =
        (constant!(RSMPI_GROUP_NULL), constant!(RSMPI_GROUP_NULL));
    mpi!(MPI_Comm_group(world, &raw mut world_group))?;
    mpi!(MPI_Group_incl(world_group, count, ranks.as_ptr(), &raw mut mpi_group))?;
    // Groups that other threads create at the same time have another tag, with high probability.
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    let span = u64::from(process.tag_limit.unsigned_abs().min(32_767)) + 1;
    let tag = c_int::try_from(hasher.finish() % span).unwrap_or(0);
    let mut comm = constant!(RSMPI_COMM_NULL);
    mpi!(MPI_Comm_create_group(world, mpi_group, tag, &raw mut comm))?;
    mpi!(MPI_Group_free(&raw mut mpi_group))?;
    mpi!(MPI_Group_free(&raw mut world_group))?;
    mpi!(MPI_Comm_set_errhandler(comm, constant!(RSMPI_ERRORS_RETURN)))?;
    Ok(comm)
}

fn duplicate(comm: sys::MPI_Comm) -> Result<sys::MPI_Comm> {
    let mut copy = constant!(RSMPI_COMM_NULL);
    mpi!(MPI_Comm_dup(comm, &raw mut copy))?;
    mpi!(MPI_Comm_set_errhandler(copy, constant!(RSMPI_ERRORS_RETURN)))?;
    Ok(copy)
}
