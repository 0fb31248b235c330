//! A group of ranks: its creation, its properties, its failure and its release.
//!
//! [`Group::create`] runs the rendezvous in the store, creates the back end and assembles the
//! group. Derived groups (subgroups, shrunk groups) have a back end already and call
//! `Group::assemble`. [`Group::abort`] and failed operations fail the group; the failure propagates
//! to the derived groups.

use crate::api::collective::fast_path::CheckedKeys;
use crate::api::collective::monitored_barrier::MonitoredBarrierState;
use crate::api::group::abort_propagation::AbortPropagator;
use crate::api::group::group_observer::GroupObserver;
use crate::api::group::{activity, group_keys};
use crate::api::membership::rendezvous::{Rendezvous, StoreExchange};
use crate::api::membership::subgroup::{ControlChannel, NameLease};
use crate::api::observe::{error_file, recorder, trace};
use crate::api::work::callbacks;
use crate::api::work::queue::RunQueue;
use crate::backend;
use crate::backend::{Backend, DeviceBackend, FastPathKind, GroupContext, RankLocation};
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

/// The default deadline of an operation: 30 minutes, as in c10d.
pub const DEFAULT_TIMEOUT_MS: u64 = 1_800_000;

/// The default deadline of creating a group: 5 minutes.
pub const DEFAULT_CONNECT_TIMEOUT_MS: u64 = 300_000;

pub(in crate::api) const MAX_NAME_BYTES: usize = 200;

/// The arguments of [`Group::create`].
#[derive(Debug)]
pub struct GroupOptions {
    /// The rendezvous store.
    pub store: Arc<dyn Store>,
    /// The rank of this process.
    pub rank: Rank,
    /// The number of ranks.
    pub size: WorldSize,
    /// The name of the back end; `None` selects the native back end.
    pub backend: Option<String>,
    /// The options of the back end, as "key=value;key=value"; may be empty.
    pub backend_options: String,
    /// The GPU of this rank; `None` if the group has no GPU.
    pub device: Option<usize>,
    /// The group's name. All ranks of the group pass the same name.
    pub name: String,
    /// The deadline of operations in milliseconds; 0 selects the default.
    pub timeout_ms: u64,
    /// The deadline of creating the group in milliseconds; 0 selects the default.
    pub connect_timeout_ms: u64,
    /// The rank of each member in the outermost group, in the order of this group's ranks. `None`
    /// if this group is the outermost.
    pub global_ranks: Option<Vec<Rank>>,
}

/// The origin of a group, and the properties that derived groups inherit.
#[derive(Debug)]
pub(in crate::api) struct GroupOrigin {
    /// The rank of each member in the outermost group.
    pub(in crate::api) global_ranks: Vec<Rank>,
    /// The name of the parent group.
    pub(in crate::api) parent: Option<String>,
    /// The back end that the caller requested.
    pub(in crate::api) backend: String,
    pub(in crate::api) backend_options: String,
    pub(in crate::api) device: Option<usize>,
    /// Host and port of the rendezvous store of the outermost group.
    pub(in crate::api) store_address: Option<(String, u16)>,
    /// The rendezvous store, while another owner keeps it alive.
    pub(in crate::api) rendezvous_store: Weak<dyn Store>,
    /// The number of shrinks that led to this group.
    pub(in crate::api) epoch: u32,
    /// The reconnect endpoints of the predecessors of a shrunk group. They inform late ranks that
    /// the shrink has finished.
    pub(in crate::api) former_endpoints: Vec<Arc<SurvivorEndpoint>>,
    /// The lease of the group's name, if the members registered the name without the parent's other
    /// ranks.
    pub(in crate::api) _name_lease: Option<NameLease>,
}

/// The identity of a group, in addition to its origin and its back end.
#[derive(Debug)]
pub(in crate::api) struct GroupIdentity {
    pub(in crate::api) id: GroupId,
    pub(in crate::api) name: String,
    pub(in crate::api) rank: Rank,
    pub(in crate::api) timeout_ms: u64,
}

/// A group of ranks that communicate with each other.
#[derive(Debug)]
pub struct Group {
    /// The first field, so that it is dropped before the back end.
    _recorder_membership: recorder::RecorderMembership,
    id: GroupId,
    name: String,
    rank: Rank,
    size: WorldSize,
    timeout_ms: AtomicU64,
    pub(in crate::api) backend: Arc<dyn Backend>,
    /// Shared with the works that wait in it and with its worker thread. These must not hold a
    /// reference to the group.
    pub(in crate::api) queue: Arc<RunQueue>,
    /// The number of issued messages. Messages do not use the collectives' sequence numbers.
    pub(in crate::api) messages_issued: AtomicU64,
    pub(in crate::api) origin: GroupOrigin,
    pub(in crate::api) abort_propagator: Arc<AbortPropagator>,
    /// Receives the control messages of ranks that create a group derived from this one.
    pub(in crate::api) control_channel: OnceLock<Arc<ControlChannel>>,
    pub(in crate::api) monitored_barrier: MonitoredBarrierState,
    pub(in crate::api) observer: GroupObserver,
    /// The device that the back end serves in addition to host memory. If set, each call locates
    /// its buffers.
    pub(in crate::api) device: Option<usize>,
    /// True if all ranks run an arrival check before each collective.
    pub(in crate::api) has_arrival_check: bool,
    /// True if the back end can refuse a call. It is then asked before the call takes a ticket.
    pub(in crate::api) has_partial_support: bool,
    /// The kind of fast path that the back end has for small calls.
    pub(in crate::api) fast_path: FastPathKind,
    /// The keys of the calls that may take the fast path.
    pub(in crate::api) checked_keys: CheckedKeys,
}

impl Drop for Group {
    fn drop(&mut self) {
        self.log_release();
    }
}

impl Group {
    /// Creates a group together with its other ranks.
    ///
    /// # Errors
    /// `InvalidArgument` for impossible ranks, sizes and names; `NotFound` for an unknown back end;
    /// and any failure of the rendezvous or of the back end before the deadline.
    pub fn create(options: GroupOptions) -> Result<Self> {
        callbacks::reject_blocking_in_callback("creating a group")?;
        config::refuse_former_names()?;
        check_options(&options)?;
        recorder::read_dump_environment()?;
        debug::read_environment()?;
        this_process::mark_used()?;
        let GroupOptions { store, rank, size, name, .. } = options;
        let timeout_ms =
            resolve_timeout_ms(options.timeout_ms, config::TIMEOUT_MS, DEFAULT_TIMEOUT_MS)?;
        let deadline = connect_deadline(options.connect_timeout_ms)?;
        let process = format!("pid {}, host {}", this_process::pid(), this_process::host_name());
        let nonce = this_process::random_nonce()?;
        let address = store.address();
        let weak_store = Arc::downgrade(&store);
        let rendezvous =
            Rendezvous { store, name: &name, rank, size, nonce, process, deadline: &deadline };
        // A group of one rank needs no rendezvous.
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
        let default_name = backend::default_name(options.device);
        let backend_name = options.backend.as_deref().unwrap_or(default_name);
        let backend = backend::create(backend_name, &context, &exchange)?;
        let origin = GroupOrigin {
            global_ranks: options.global_ranks.unwrap_or_else(|| (0..size).collect()),
            parent: None,
            backend: backend_name.to_owned(),
            backend_options: options.backend_options,
            device: backend.device().map(DeviceBackend::device).or(options.device),
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

    /// Assembles a group after its ranks have agreed on its id and its back end exists.
    pub(in crate::api) fn assemble(
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
            device: backend.device().map(DeviceBackend::device),
            has_arrival_check: backend.properties().has_arrival_check,
            has_partial_support: backend.properties().can_refuse_calls,
            fast_path: backend.properties().fast_path,
            checked_keys: CheckedKeys::default(),
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

    /// Returns rank 0 of a group on an existing back end.
    #[cfg(test)]
    pub(in crate::api) fn with_backend(name: &str, backend: Arc<dyn Backend>) -> Self {
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

    /// Returns the group's id, which is unique among all groups ever created.
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// Returns the group's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the rank of this process in the group.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> WorldSize {
        self.size
    }

    /// Returns the rank of each member in the outermost group, in the order of this group's ranks.
    pub fn global_ranks(&self) -> &[Rank] {
        &self.origin.global_ranks
    }

    /// Returns the name of the back end.
    pub fn backend_name(&self) -> &'static str {
        self.backend.name()
    }

    /// Returns the deadline of operations that set none, in milliseconds.
    pub fn timeout_ms(&self) -> u64 {
        self.timeout_ms.load(Ordering::Relaxed)
    }

    /// Sets the deadline of operations issued from now on. 0 selects the default, as in
    /// [`Self::create`].
    ///
    /// # Errors
    /// `InvalidArgument` if the default in the environment is not a valid time.
    pub fn set_timeout_ms(&self, timeout_ms: u64) -> Result<()> {
        let ms = resolve_timeout_ms(timeout_ms, config::TIMEOUT_MS, DEFAULT_TIMEOUT_MS)?;
        self.timeout_ms.store(ms, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the location (host and process) of this rank.
    pub fn rank_location(&self) -> &RankLocation {
        &self.backend.rank_locations()[self.rank]
    }

    /// Returns the number of ranks on this rank's host.
    pub fn local_size(&self) -> usize {
        let host = self.rank_location().host_index;
        self.backend.rank_locations().iter().filter(|location| location.host_index == host).count()
    }

    /// Returns the number of hosts.
    pub fn host_count(&self) -> usize {
        self.backend
            .rank_locations()
            .iter()
            .map(|location| location.host_index + 1)
            .max()
            .unwrap_or(1)
    }

    /// Returns the error that failed the group, or `None` if the group works.
    pub fn failure(&self) -> Option<Error> {
        self.backend.failure()
    }

    /// Fails the group on all its ranks. Ends every wait in the group and in its derived groups.
    /// The first reason is kept.
    pub fn abort(&self, reason: &str) {
        let reason = if reason.is_empty() { "no reason was given" } else { reason };
        let message = format!("rank {} aborted group {}: {reason}", self.rank, self.name);
        self.fail(&Error::new(ErrorKind::Aborted, message).with_culprit(self.rank));
        recorder::dump_failures_and_wait();
    }

    pub(in crate::api) fn fail(&self, error: &Error) {
        self.backend.abort(error);
        // The group reports the first failure, which may differ from `error`.
        self.queue.fail_waiting_jobs(&self.failure().unwrap_or_else(|| error.clone()));
        self.abort_propagator.propagate_abort();
    }

    /// Fails the group because of an error on this rank, so that other ranks do not wait for this
    /// rank. Returns the error.
    ///
    /// If the error names a culprit, the culprit stays. A `PeerFailed` error without a culprit
    /// stays without one: otherwise this rank would blame itself for the peer's failure, and a
    /// shrink would exclude this rank.
    pub(in crate::api) fn fail_with_local_blame(&self, error: Error) -> Error {
        let is_own = error.culprit().is_none() && error.kind() != ErrorKind::PeerFailed;
        let error = if is_own { error.with_culprit(self.rank) } else { error };
        self.fail(&error);
        error
    }

    /// Writes the failure dump and the error file before a blocking call returns an error to its
    /// caller. The caller may end the process after that.
    pub(in crate::api) fn report_to_caller(&self, error: &Error) {
        recorder::dump_failures_and_wait();
        self.write_error_file(error);
    }

    /// Writes a fatal error of the group to the launcher's error file. Call it when the error is
    /// returned to a caller.
    pub(in crate::api) fn write_error_file(&self, error: &Error) {
        error_file::write_first_fatal_error(error, self.blamed_global_rank(error));
    }

    /// Returns the culprit of an error as a rank of the outermost group, or `None` if the error has
    /// no culprit or names this rank.
    pub(in crate::api) fn blamed_global_rank(&self, error: &Error) -> Option<Rank> {
        let culprit = error.culprit().filter(|&rank| rank != self.rank)?;
        self.global_ranks().get(culprit).copied()
    }

    /// Adds the process id and the host of the culprit to an error.
    pub(in crate::api) fn with_culprit_process(&self, error: Error) -> Error {
        match error.culprit().and_then(|rank| self.backend.rank_locations().get(rank)) {
            Some(RankLocation { name, .. }) => error.with_process(name.pid, Arc::clone(&name.host)),
            None => error,
        }
    }

    /// Returns the rank that failed the group, if the group has failed and the error names a
    /// culprit.
    pub fn culprit(&self) -> Option<Culprit> {
        self.with_culprit_process(self.failure()?).culprit_details()
    }

    /// Returns the number of collectives that this rank has issued.
    pub fn collectives_issued(&self) -> u64 {
        self.queue.issued()
    }

    /// Returns the number of operations that this rank has issued, including messages.
    pub(in crate::api) fn operations_issued(&self) -> u64 {
        self.collectives_issued() + self.messages_issued.load(Ordering::Relaxed)
    }

    /// Returns the number of asynchronous operations that were issued and have not ended.
    pub fn outstanding_works(&self) -> u64 {
        self.queue.outstanding_works()
    }

    /// Waits until all asynchronous operations have ended. Returns false if the limit passed first.
    pub fn wait_for_works(&self, limit: &Deadline) -> bool {
        self.queue.wait_for_works(limit)
    }

    /// Returns the names of the group and of this rank, for messages.
    pub(in crate::api) fn describe_rank(&self) -> String {
        format!("group {}, rank {}", self.name, self.rank)
    }

    /// Describes the group as JSON: members and their hosts, back end, algorithms, arrival skew,
    /// straggler and trace.
    pub fn describe(&self) -> Value {
        let member = |location: &RankLocation| {
            json!({
                "rank": location.name.rank,
                "host": *location.name.host,
                "host_index": location.host_index,
                "local_rank": location.local_rank,
                "pid": location.name.pid,
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

    /// Returns the entries of the flight recorder for this group.
    pub fn flight_record(&self) -> Value {
        recorder::dump(Some(self.id), recorder::DumpReason::Request)
    }
}

fn check_options(options: &GroupOptions) -> Result<()> {
    let GroupOptions { rank, size, name, global_ranks, .. } = options;
    if *size == 0 || *size > MAX_WORLD_SIZE {
        return Err(Error::invalid(format!(
            "world size {size} is out of range: pass 1 to {MAX_WORLD_SIZE}"
        )));
    }
    if rank >= size {
        return Err(Error::invalid(format!("rank {rank} does not exist in a group of {size}")));
    }
    check_name(name)?;
    if let Some(ranks) = global_ranks {
        if ranks.len() != *size {
            let message =
                format!("global_ranks has {} ranks, but the group has {size}", ranks.len());
            return Err(Error::invalid(message));
        }
        check_distinct(ranks).context(|| "global_ranks")?;
    }
    options.backend.as_deref().map_or(Ok(()), backend::check_name)
}

/// Checks that a group can have this name.
pub(in crate::api) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains('/') {
        let message = format!(
            "\"{name}\" is not a valid group name: pass 1 to {MAX_NAME_BYTES} bytes without \"/\""
        );
        return Err(Error::invalid(message));
    }
    Ok(())
}

/// Checks that no rank is in the list twice.
pub(in crate::api) fn check_distinct(ranks: &[Rank]) -> Result<()> {
    let mut known = HashSet::with_capacity(ranks.len());
    match ranks.iter().find(|&&rank| !known.insert(rank)) {
        Some(rank) => Err(Error::invalid(format!("rank {rank} is in the list twice"))),
        None => Ok(()),
    }
}

/// Returns the deadline of creating a group that starts now. 0 selects the value of the
/// environment, or else the default.
pub(in crate::api) fn connect_deadline(option_ms: u64) -> Result<Deadline> {
    let default_ms = DEFAULT_CONNECT_TIMEOUT_MS;
    Ok(Deadline::after_ms(resolve_timeout_ms(option_ms, config::CONNECT_TIMEOUT_MS, default_ms)?))
}

/// Returns a timeout: the option if set, else the environment's value, else the default.
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
