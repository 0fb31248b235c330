//! This rank's part of one group. It has three communicators, created from the ranks of the group.
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
use crate::host::{self, Host, number};
use crate::interface::*;
use crate::messages::{Channel, FIRST_OWN_TAG};
use crate::mpi::{self, Handle, constant, mpi, sys};
use crate::process::{self, Counted, Process};
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
const QUESTION: Duration = Duration::from_millis(100);

/// This rank's part of one group.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) host: Host,
    comm: Handle<sys::MPI_Comm>,
    /// The channel of callers' messages, and that of the library's messages.
    channels: [Channel; 2],
    /// True if the ranks on this host outnumber their processors.
    pub(crate) is_crowded: bool,
    pub(crate) options: Options,
    /// True if messages and composed operations may use device memory, on all ranks.
    pub(crate) takes_device: bool,
    /// The number of requests that MPI could not cancel.
    lingering: AtomicUsize,
    has_failed: AtomicBool,
    asked: Mutex<Option<Instant>>,
    _counted: Counted,
}

/// The caller's options of the back end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// The maximum count for MPI. Only tests set it below the maximum of an int.
    pub(crate) largest: c_int,
    /// True if the caller guarantees that all ranks are in place in the same calls. Then
    /// MPI_IN_PLACE is allowed where MPI requires it on all ranks.
    pub(crate) in_place_agreed: bool,
    /// True if MPI gets device memory, if it supports that.
    device_memory: bool,
}

impl Options {
    fn parse(text: &str) -> Result<Self> {
        let mut options = Self { largest: c_int::MAX, in_place_agreed: false, device_memory: true };
        for item in text.split(';').filter(|item| !item.trim().is_empty()) {
            let (key, value) = item.split_once('=').unwrap_or((item, ""));
            match (key.trim(), value.trim()) {
                ("largest_count", value) => {
                    let number = value.parse().ok().filter(|&largest| largest > 0);
                    options.largest = number.ok_or_else(|| bad(item))?;
                }
                ("in_place", "agreed") => options.in_place_agreed = true,
                ("in_place", "any") => options.in_place_agreed = false,
                ("device_memory", "direct") => options.device_memory = true,
                ("device_memory", "staged") => options.device_memory = false,
                _ => return Err(bad(item)),
            }
        }
        Ok(options)
    }
}

fn bad(item: &str) -> Failure {
    let text = format!(
        "the MPI back end has no option \"{item}\": use in_place=agreed, in_place=any, \
         device_memory=direct, device_memory=staged or largest_count=N"
    );
    Failure::new(DIST_ERR_INVALID_ARGUMENT, text)
}

/// The peer info that a rank exchanges at create.
#[derive(Clone, Copy, Debug)]
struct Card {
    world_rank: i32,
    world_size: i32,
    /// A hash of the host's name.
    host: [i32; 2],
    options: i32,
    /// 1 if this rank's MPI may get the memory of its device, else 0.
    takes_device: i32,
    /// The processors that the rank may use: launchers bind each rank to its own.
    processors: Processors,
}

impl Card {
    fn of(process: &Process, options: Options, has_device: bool) -> Result<Self> {
        const ROOM: usize = sys::MPI_MAX_PROCESSOR_NAME as usize + 1;
        let mut name = [0; ROOM];
        let mut len = 0;
        mpi!(MPI_Get_processor_name((&raw mut name).cast(), &raw mut len))?;
        let mut hasher = DefaultHasher::new();
        mpi::words(&name).hash(&mut hasher);
        let hash = hasher.finish().to_le_bytes();
        Ok(Self {
            world_rank: process.world_rank,
            world_size: process.world_size,
            host: [number(&hash, 0)?, number(&hash, 4)?],
            options: if options.in_place_agreed { -options.largest } else { options.largest },
            takes_device: i32::from(has_device && options.device_memory && mpi::takes_cuda()),
            processors: processors::own(),
        })
    }

    fn bytes(self) -> Vec<u8> {
        let Self { world_rank, world_size, host, options, takes_device, .. } = self;
        let words = [world_rank, world_size, host[0], host[1], options, takes_device];
        let words = words.iter().flat_map(|word| word.to_le_bytes());
        words.chain(self.processors.iter().flat_map(|word| word.to_le_bytes())).collect()
    }

    fn read(bytes: &[u8]) -> Result<Self> {
        Ok(Self {
            world_rank: number(bytes, 0)?,
            world_size: number(bytes, 4)?,
            host: [number(bytes, 8)?, number(bytes, 12)?],
            options: number(bytes, 16)?,
            takes_device: number(bytes, 20)?,
            processors: processors::read(bytes.get(24..).unwrap_or_default()),
        })
    }
}

impl Part {
    pub(crate) fn create(setup: &dist_backend_setup_t) -> Result<Self> {
        // SAFETY: the library's text, valid during the call.
        let id = unsafe { host::text(setup.group_id) };
        // SAFETY: the library's text, valid during the call.
        let asked = unsafe { host::text(setup.options) };
        let options = Options::parse(&asked)?;
        let process = process::ready()?;
        let (rank, size) = (index(setup.rank)?, index(setup.size)?);
        let own = {
            let _entered = process::enter()?;
            Card::of(process, options, setup.device >= 0)?
        };
        let cards = host::exchange(setup, c"mpi", &own.bytes())?;
        let cards: Vec<Card> =
            cards.iter().map(|bytes| Card::read(bytes)).collect::<Result<_>>()?;
        check(&cards, size)?;
        let here: Vec<Processors> =
            cards.iter().filter(|card| card.host == own.host).map(|card| card.processors).collect();
        let _entered = process::enter()?;
        let comm = communicator(&cards, &id, process)?;
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
            is_crowded: processors::are_too_few(&here),
            options,
            takes_device: size > 1 && cards.iter().all(|card| card.takes_device == 1),
            lingering: AtomicUsize::new(0),
            has_failed: AtomicBool::new(false),
            asked: Mutex::new(None),
            _counted: Counted::new(),
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
                let _entered = process::enter()?;
                let mut sending = self.channel(operation.tag).send(self, operation)?;
                // Most sends are complete at once.
                Ok(if sending.look()? { None } else { Some(Request::Send(sending)) })
            }
            DIST_KIND_RECV => {
                let _entered = process::enter()?;
                let mut receive = self.channel(operation.tag).receive(operation)?;
                let is_over = receive.look(self, outcome)?;
                Ok(if is_over { None } else { Some(Request::Receive(receive)) })
            }
            _ if self.size == 1 => collective::alone::run(operation).map(|()| None),
            _ => {
                let _entered = process::enter()?;
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
        let mut begun = Request::Collective(Collective::default());
        if let Request::Collective(collective) = &mut begun {
            let _entered = process::enter()?;
            collective.begin(self, operation)?;
        }
        match begun.run(self, operation, limit, outcome) {
            Ok(DIST_OK) => Ok(None),
            Ok(_) => Ok(Some(begun)),
            Err(failure) => {
                // MPI may still use the request's memory, so release it.
                begun.release(self).ok();
                Err(failure)
            }
        }
    }

    /// Records that MPI still uses memory of a request.
    pub(crate) fn lingers(&self) {
        self.lingering.fetch_add(1, Ordering::Relaxed);
        process::has_failed();
    }

    /// Publishes the failure in the group's store, where the other ranks find it.
    pub(crate) fn abort(&self, status: dist_status_t, reason: &str, culprit: i32) {
        self.has_failed.store(true, Ordering::Relaxed);
        process::has_failed();
        let head = [status.to_le_bytes(), culprit.to_le_bytes()].concat();
        self.host.leave(ABORTED, &[&head, reason.as_bytes()].concat());
    }

    /// Returns the reason for which another rank has aborted the group, if one has. It queries the
    /// store at most once per interval.
    pub(crate) fn failure(&self) -> Option<Failure> {
        {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            if asked.is_some_and(|asked| asked.elapsed() < QUESTION) {
                return None;
            }
            *asked = Some(Instant::now());
        }
        let left = self.host.left(ABORTED)?;
        process::has_failed();
        let culprit = number(&left, 4).unwrap_or(-1);
        let reason = String::from_utf8_lossy(left.get(8..).unwrap_or_default()).into_owned();
        Some(Failure::new(DIST_ERR_ABORTED, reason).by(culprit))
    }

    pub(crate) fn describe(&self) -> String {
        let Some(process) = process::known() else { return "{}".to_owned() };
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
            self.is_crowded,
            self.takes_device
        )
    }
}

impl Drop for Part {
    /// Frees the communicators if no operation uses them. Otherwise MPI keeps them until it is
    /// finalised.
    fn drop(&mut self) {
        let is_used = self.has_failed.load(Ordering::Relaxed)
            || self.lingering.load(Ordering::Relaxed) > 0
            || self.channels.iter().any(|channel| !channel.is_idle());
        if is_used || process::is_finalised().unwrap_or(true) {
            return;
        }
        let Ok(_entered) = process::enter() else { return };
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
fn check(cards: &[Card], size: usize) -> Result<()> {
    if cards.len() != size {
        return Err(Failure::internal("not all ranks sent their peer info"));
    }
    if size > 1 && cards.iter().any(|card| card.world_size == 1) {
        let variable = |name: &str| std::env::var(name).ok();
        let text = family::alone(mpi::own_family(), size, &variable);
        return Err(Failure::new(DIST_ERR_UNSUPPORTED, text));
    }
    let mut seen: Vec<i32> = cards.iter().map(|card| card.world_rank).collect();
    seen.sort_unstable();
    if seen.windows(2).any(|pair| pair[0] == pair[1]) {
        let text = "two ranks of the group are the same rank of MPI_COMM_WORLD: a process can be \
                    in a group of this back end only once, and all processes must be of one MPI \
                    job";
        return Err(Failure::new(DIST_ERR_UNSUPPORTED, text));
    }
    if cards.iter().any(|card| card.options != cards[0].options) {
        let text = "the ranks pass different options to the MPI back end";
        return Err(Failure::new(DIST_ERR_MISMATCH, text));
    }
    Ok(())
}

/// Creates a communicator of these ranks, in the order of the group.
fn communicator(cards: &[Card], id: &str, process: &Process) -> Result<sys::MPI_Comm> {
    let ranks: Vec<c_int> = cards.iter().map(|card| card.world_rank).collect();
    let count = c_int::try_from(ranks.len()).unwrap_or(c_int::MAX);
    let world = constant!(RSMPI_COMM_WORLD);
    let (mut all, mut group) = (constant!(RSMPI_GROUP_NULL), constant!(RSMPI_GROUP_NULL));
    mpi!(MPI_Comm_group(world, &raw mut all))?;
    mpi!(MPI_Group_incl(all, count, ranks.as_ptr(), &raw mut group))?;
    // Groups that other threads create at the same time have another tag, with high probability.
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    let span = u64::from(process.tag_limit.unsigned_abs().min(32_767)) + 1;
    let tag = c_int::try_from(hasher.finish() % span).unwrap_or(0);
    let mut comm = constant!(RSMPI_COMM_NULL);
    mpi!(MPI_Comm_create_group(world, group, tag, &raw mut comm))?;
    mpi!(MPI_Group_free(&raw mut group))?;
    mpi!(MPI_Group_free(&raw mut all))?;
    mpi!(MPI_Comm_set_errhandler(comm, constant!(RSMPI_ERRORS_RETURN)))?;
    Ok(comm)
}

fn duplicate(comm: sys::MPI_Comm) -> Result<sys::MPI_Comm> {
    let mut twin = constant!(RSMPI_COMM_NULL);
    mpi!(MPI_Comm_dup(comm, &raw mut twin))?;
    mpi!(MPI_Comm_set_errhandler(twin, constant!(RSMPI_ERRORS_RETURN)))?;
    Ok(twin)
}
