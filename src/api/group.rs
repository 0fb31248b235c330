//! A group of ranks: how it comes to be, what is known of it, how it fails and how it ends.

use super::abort_propagation::AbortPropagator;
use super::activity;
use super::callbacks;
use super::error_file;
use super::fast_path::FastPathCache;
use super::group_keys;
use super::group_observer::GroupObserver;
use super::monitored_barrier::MonitoredBarrierState;
use super::queue::RunQueue;
use super::recorder;
use super::rendezvous::{Rendezvous, StoreExchange};
use super::subgroup::{ControlChannel, NameLease};
use super::trace;
use crate::backend::{self, Backend, GroupContext, RankLocation};
use crate::base::config;
use crate::base::deadline::Deadline;
use crate::base::debug;
use crate::base::error::{Culprit, Error, ErrorContext as _, ErrorKind, Result};
use crate::base::ids::{GroupId, MAX_WORLD_SIZE, Rank, WorldSize};
use crate::process::this_process;
use crate::store::Store;
use crate::transport::survivor_rendezvous::SurvivorEndpoint;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// The default deadline of an operation: half an hour, as in c10d.
pub const DEFAULT_TIMEOUT_MS: u64 = 1_800_000;

/// The default deadline of starting a group: five minutes.
pub const DEFAULT_CONNECT_TIMEOUT_MS: u64 = 300_000;

pub(super) const MAX_NAME_BYTES: usize = 200;

/// What a group is made from.
#[derive(Debug)]
pub struct GroupOptions {
    /// Where its ranks meet.
    pub store: Arc<dyn Store>,
    /// This process's rank.
    pub rank: Rank,
    /// The number of ranks.
    pub size: WorldSize,
    /// The back end by name; `None` for the native one.
    pub backend: Option<String>,
    /// What is asked of the back end, "key=value;key=value"; may be empty.
    pub backend_options: String,
    /// The GPU of this rank; `None` for none.
    pub device: Option<usize>,
    /// The group's name; ranks of one group use the same.
    pub name: String,
    /// The deadline of operations in milliseconds; 0 for the default.
    pub timeout_ms: u64,
    /// The deadline of starting in milliseconds; 0 for the default.
    pub connect_timeout_ms: u64,
    /// Which ranks of something larger its ranks are, in order; `None` where it is the outermost.
    pub global_ranks: Option<Vec<Rank>>,
}

/// Where a group comes from, and what those made from it take over.
#[derive(Debug)]
pub(super) struct GroupOrigin {
    /// Which ranks of the outermost group its ranks are.
    pub(super) global_ranks: Vec<Rank>,
    /// The name of the group that it was made from.
    pub(super) parent: Option<String>,
    /// As the back end was asked for.
    pub(super) backend: String,
    pub(super) backend_options: String,
    /// The GPU of this rank.
    pub(super) device: Option<usize>,
    /// Host and port of the store that the outermost group met in.
    pub(super) store_address: Option<(String, u16)>,
    /// That store, while somebody has it.
    pub(super) rendezvous_store: Weak<dyn Store>,
    /// How often a group was replaced by what was left of it, to come to this one.
    pub(super) epoch: u32,
    /// Where late ranks of those groups are told so.
    pub(super) former_endpoints: Vec<Arc<SurvivorEndpoint>>,
    /// Of its name, where its members alone gave it.
    pub(super) _name_lease: Option<NameLease>,
}

/// What a group made from another is, beside its origin and its back end.
#[derive(Debug)]
pub(super) struct GroupIdentity {
    pub(super) id: GroupId,
    pub(super) name: String,
    pub(super) rank: Rank,
    pub(super) timeout_ms: u64,
}

/// A group.
#[derive(Debug)]
pub struct Group {
    /// First, so that it ends before the back end goes.
    _recorder_membership: recorder::RecorderMembership,
    id: GroupId,
    name: String,
    rank: Rank,
    size: WorldSize,
    timeout_ms: AtomicU64,
    pub(super) backend: Arc<dyn Backend>,
    /// Shared with the works that wait in it and with its worker, which must not keep the group.
    pub(super) queue: Arc<RunQueue>,
    /// Messages have numbers of their own.
    pub(super) messages_issued: AtomicU64,
    pub(super) origin: GroupOrigin,
    pub(super) abort_propagator: Arc<AbortPropagator>,
    /// Where those write who make a group from this one.
    pub(super) control_channel: OnceLock<Arc<ControlChannel>>,
    pub(super) monitored_barrier: MonitoredBarrierState,
    pub(super) observer: GroupObserver,
    /// The device that it serves beside host memory: where buffers lie is looked at then.
    pub(super) device: Option<usize>,
    /// All ranks come together before each collective.
    pub(super) has_arrival_check: bool,
    /// The back end is asked before a call takes its place.
    pub(super) has_partial_support: bool,
    /// Small calls may have a shorter way.
    pub(super) has_fast_path: bool,
    /// Those that have been there.
    pub(super) fast_path_cache: FastPathCache,
}

impl Drop for Group {
    fn drop(&mut self) {
        self.log_release();
    }
}

impl Group {
    /// Makes a group together with its other ranks.
    ///
    /// # Errors
    /// `InvalidArgument` for impossible ranks, sizes and names; `NotFound` for an unknown back end;
    /// and whatever keeps the ranks from meeting before the deadline.
    pub fn create(options: GroupOptions) -> Result<Self> {
        callbacks::reject_blocking_in_callback("making a group")?;
        config::refuse_former_names()?;
        check_options(&options)?;
        recorder::read_dump_environment()?;
        debug::read_environment()?;
        this_process::mark_used()?;
        let GroupOptions { store, rank, size, name, .. } = options;
        let timeout_ms =
            resolve_timeout_ms(options.timeout_ms, config::TIMEOUT_MS, DEFAULT_TIMEOUT_MS)?;
        let deadline = connect_deadline(options.connect_timeout_ms)?;
        let who = format!("pid {}, host {}", this_process::pid(), this_process::host_name());
        let nonce = this_process::random_nonce()?;
        let address = store.address();
        let weak_store = Arc::downgrade(&store);
        let rendezvous =
            Rendezvous { store, name: &name, rank, size, nonce, process: who, deadline: &deadline };
        // A rank alone needs nobody to agree with.
        let id = if size == 1 { nonce } else { rendezvous.meet()? };
        let keys = group_keys::open_group_keys(&weak_store, id);
        let context = GroupContext {
            group: id,
            name: &name,
            timeout_ms,
            epoch: 0,
            rank,
            size,
            store_address: address.as_ref().map(|(host, port)| (host.as_str(), *port)),
            group_keys: keys.as_ref(),
            options: &options.backend_options,
            device: options.device,
            parent: None,
            activity: Some(activity::describe_other_activity),
            deadline: &deadline,
        };
        let exchange = StoreExchange { rendezvous: &rendezvous, id };
        let backend_name = match options.device {
            None => options.backend.as_deref().unwrap_or("native"),
            Some(_) => options.backend.as_deref().unwrap_or(backend::device_map::DEFAULT_NAME),
        };
        let backend = backend::create(backend_name, &context, &exchange)?;
        let origin = GroupOrigin {
            global_ranks: options.global_ranks.unwrap_or_else(|| (0..size).collect()),
            parent: None,
            backend: backend_name.to_owned(),
            backend_options: options.backend_options,
            device: backend.device().or(options.device),
            store_address: address,
            rendezvous_store: weak_store,
            epoch: 0,
            former_endpoints: Vec::new(),
            _name_lease: None,
        };
        let group = Self::assemble(GroupIdentity { id, name, rank, timeout_ms }, origin, backend);
        group.log_creation(deadline.elapsed());
        Ok(group)
    }

    /// A group whose ranks have met.
    pub(super) fn assemble(
        identity: GroupIdentity,
        origin: GroupOrigin,
        backend: Arc<dyn Backend>,
    ) -> Self {
        let GroupIdentity { id, name, rank, timeout_ms } = identity;
        trace::start_from_environment(origin.global_ranks.get(rank).copied().unwrap_or(rank));
        let observer = GroupObserver::new(id, &name, rank, &origin.global_ranks, &backend);
        let membership = recorder::RecorderMembership::register(&recorder::NewGroup {
            id,
            name: &name,
            rank,
            global_ranks: &origin.global_ranks,
            parent: origin.parent.as_deref(),
            backend: &backend,
        });
        let abort_propagator = AbortPropagator::new(&name, backend.as_ref());
        Self {
            _recorder_membership: membership,
            id,
            name,
            rank,
            size: origin.global_ranks.len(),
            timeout_ms: AtomicU64::new(timeout_ms),
            device: backend.device(),
            has_arrival_check: backend.has_arrival_check(),
            has_partial_support: backend.can_refuse_calls(),
            has_fast_path: backend.has_fast_path(),
            fast_path_cache: FastPathCache::default(),
            backend,
            queue: Arc::default(),
            messages_issued: AtomicU64::new(0),
            origin,
            abort_propagator,
            control_channel: OnceLock::new(),
            monitored_barrier: MonitoredBarrierState::default(),
            observer,
        }
    }

    /// Rank 0 of a group over a back end that is there already.
    #[cfg(test)]
    pub(super) fn with_backend(name: &str, backend: Arc<dyn Backend>) -> Self {
        let id = this_process::random_nonce().unwrap();
        let identity = GroupIdentity { id, name: name.to_owned(), rank: 0, timeout_ms: 60_000 };
        let origin = GroupOrigin {
            global_ranks: (0..backend.rank_locations().len()).collect(),
            parent: None,
            backend: "native".into(),
            backend_options: String::new(),
            device: None,
            store_address: None,
            rendezvous_store: Weak::<crate::store::HashStore>::new(),
            epoch: 0,
            former_endpoints: Vec::new(),
            _name_lease: None,
        };
        Self::assemble(identity, origin, backend)
    }

    /// Its id, different for every group that was ever made.
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// This process's rank in it.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The number of its ranks.
    pub fn size(&self) -> WorldSize {
        self.size
    }

    /// Which ranks of the outermost group that it descends from its ranks are, in order.
    pub fn global_ranks(&self) -> &[Rank] {
        &self.origin.global_ranks
    }

    /// The back end's name.
    pub fn backend_name(&self) -> &'static str {
        self.backend.name()
    }

    /// The deadline of operations that name none.
    pub fn timeout_ms(&self) -> u64 {
        self.timeout_ms.load(Ordering::Relaxed)
    }

    /// Changes that deadline for operations issued from now on; 0 for the default, as in
    /// [`Self::create`].
    ///
    /// # Errors
    /// `InvalidArgument` for the environment's default, where that is none.
    pub fn set_timeout_ms(&self, timeout_ms: u64) -> Result<()> {
        let ms = resolve_timeout_ms(timeout_ms, config::TIMEOUT_MS, DEFAULT_TIMEOUT_MS)?;
        self.timeout_ms.store(ms, Ordering::Relaxed);
        Ok(())
    }

    /// Where this rank is.
    pub fn rank_location(&self) -> &RankLocation {
        &self.backend.rank_locations()[self.rank]
    }

    /// The number of ranks on this rank's host.
    pub fn local_size(&self) -> usize {
        let host = self.rank_location().host_index;
        self.backend.rank_locations().iter().filter(|place| place.host_index == host).count()
    }

    /// The number of hosts.
    pub fn host_count(&self) -> usize {
        self.backend.rank_locations().iter().map(|place| place.host_index + 1).max().unwrap_or(1)
    }

    /// Why the group has failed, if it has.
    pub fn failure(&self) -> Option<Error> {
        self.backend.failure()
    }

    /// Fails the group on all its ranks and ends every wait in it, and in the groups that were made
    /// from it. The first reason stays.
    pub fn abort(&self, reason: &str) {
        let reason = if reason.is_empty() { "no reason was given" } else { reason };
        let message = format!("rank {} aborted group {}: {reason}", self.rank, self.name);
        self.fail(&Error::new(ErrorKind::Aborted, message).with_culprit(self.rank));
        recorder::dump_failures_and_wait();
    }

    pub(super) fn fail(&self, error: &Error) {
        self.backend.abort(error);
        // The first reason, which may be another.
        self.queue.fail_waiting_jobs(&self.failure().unwrap_or_else(|| error.clone()));
        self.abort_propagator.propagate_abort();
    }

    /// Fails the group because of an error on this rank, for which the other ranks may wait, and
    /// returns the error.
    ///
    /// An error that names a rank keeps it. A failed peer that has no name stays without one: this
    /// rank would blame itself for the peer's failure, and the group that goes on would exclude it.
    pub(super) fn fail_with_local_blame(&self, error: Error) -> Error {
        let is_own = error.culprit().is_none() && error.kind() != ErrorKind::PeerFailed;
        let error = if is_own { error.with_culprit(self.rank) } else { error };
        self.fail(&error);
        error
    }

    /// A blocking call is about to hand an error to its caller, who may end the process: what is to
    /// be left on disk goes there.
    pub(super) fn report_to_caller(&self, error: &Error) {
        recorder::dump_failures_and_wait();
        self.write_error_file(error);
    }

    /// Notes an error of the group for the launcher, if it is fatal; to be called when it is handed
    /// to a caller.
    pub(super) fn write_error_file(&self, error: &Error) {
        error_file::write_first_fatal_error(error, self.blamed_global_rank(error));
    }

    /// Which rank of the outermost group an error blames, if that is another than this one.
    pub(super) fn blamed_global_rank(&self, error: &Error) -> Option<Rank> {
        let culprit = error.culprit().filter(|&rank| rank != self.rank)?;
        self.global_ranks().get(culprit).copied()
    }

    /// An error with the process of the rank that it names.
    pub(super) fn with_culprit_process(&self, error: Error) -> Error {
        match error.culprit().and_then(|rank| self.backend.rank_locations().get(rank)) {
            Some(RankLocation { name, .. }) => error.with_process(name.pid, Arc::clone(&name.host)),
            None => error,
        }
    }

    /// The rank that has failed the group, if it has failed and somebody is named.
    pub fn culprit(&self) -> Option<Culprit> {
        self.with_culprit_process(self.failure()?).culprit_details()
    }

    /// How many collectives have been issued on this rank.
    pub fn collectives_issued(&self) -> u64 {
        self.queue.issued()
    }

    /// How many operations have been issued on this rank, messages among them.
    pub(super) fn operations_issued(&self) -> u64 {
        self.collectives_issued() + self.messages_issued.load(Ordering::Relaxed)
    }

    /// The number of asynchronous operations that have been issued and have not ended.
    pub fn outstanding_works(&self) -> u64 {
        self.queue.outstanding_works()
    }

    /// Waits until all asynchronous operations have ended; false where the limit came first.
    pub fn wait_for_works(&self, limit: &Deadline) -> bool {
        self.queue.wait_for_works(limit)
    }

    /// The group and this rank of it, for messages.
    pub(super) fn describe_rank(&self) -> String {
        format!("group {}, rank {}", self.name, self.rank)
    }

    /// Who is where, over what, with which algorithms.
    pub fn describe(&self) -> Value {
        let member = |place: &RankLocation| {
            json!({
                "rank": place.name.rank,
                "host": *place.name.host,
                "host_index": place.host_index,
                "local_rank": place.local_rank,
                "pid": place.name.pid,
            })
        };
        let members: Vec<Value> = self.backend.rank_locations().iter().map(member).collect();
        let (skew, straggler) = self.observer.describe();
        let backend_key = match (self.device, self.backend_name()) {
            (Some(_), _) => "map",
            (None, "native") => "native",
            (None, _) => "plugin",
        };
        json!({
            "name": self.name,
            "id": self.id.to_string(),
            "rank": self.rank,
            "size": self.size,
            "ranks": self.origin.global_ranks,
            "parent": self.origin.parent,
            "backend": self.backend.name(),
            "timeout_ms": self.timeout_ms(),
            "operations_issued": self.queue.issued(),
            "error": self.failure().map(|error| error.message().to_owned()),
            "members": members,
            backend_key: self.backend.describe(),
            "skew": skew,
            "straggler": straggler,
            "trace": trace::describe(),
        })
    }

    /// What the flight recorder knows of the group.
    pub fn flight_record(&self) -> Value {
        recorder::dump(Some(self.id), recorder::DumpReason::Request)
    }
}

fn check_options(options: &GroupOptions) -> Result<()> {
    let GroupOptions { rank, size, name, global_ranks, .. } = options;
    if *size == 0 || *size > MAX_WORLD_SIZE {
        return Err(Error::invalid(format!(
            "a world size of {size}: 1 to {MAX_WORLD_SIZE} is possible"
        )));
    }
    if rank >= size {
        return Err(Error::invalid(format!("rank {rank} does not exist in a group of {size}")));
    }
    check_name(name)?;
    if let Some(ranks) = global_ranks {
        if ranks.len() != *size {
            let message = format!("global_ranks has {} ranks, and the group {size}", ranks.len());
            return Err(Error::invalid(message));
        }
        check_distinct(ranks).context(|| "global_ranks")?;
    }
    options.backend.as_deref().map_or(Ok(()), backend::check_name)
}

/// Whether a group can have a name.
pub(super) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains('/') {
        let message =
            format!("\"{name}\" is no group name: 1 to {MAX_NAME_BYTES} bytes without \"/\"");
        return Err(Error::invalid(message));
    }
    Ok(())
}

/// Whether no rank is in a list twice.
pub(super) fn check_distinct(ranks: &[Rank]) -> Result<()> {
    let mut known = HashSet::with_capacity(ranks.len());
    match ranks.iter().find(|&&rank| !known.insert(rank)) {
        Some(rank) => Err(Error::invalid(format!("rank {rank} is in the list twice"))),
        None => Ok(()),
    }
}

/// When a group that begins to form must have formed; 0 for the environment's time, or the default.
pub(super) fn connect_deadline(option_ms: u64) -> Result<Deadline> {
    let default_ms = DEFAULT_CONNECT_TIMEOUT_MS;
    Ok(Deadline::after_ms(resolve_timeout_ms(option_ms, config::CONNECT_TIMEOUT_MS, default_ms)?))
}

/// A time-out from the options, else from the environment, else the default.
fn resolve_timeout_ms(
    option_ms: u64,
    variable: config::EnvVariable,
    default_ms: u64,
) -> Result<u64> {
    if option_ms != 0 {
        return Ok(option_ms);
    }
    config::read_timeout_ms(variable, default_ms)
}
