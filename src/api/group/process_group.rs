//! A group of ranks: its parts, its properties and its release.
//!
//! The group owns its parts: the back end, the queue of collectives, the observer. The group does
//! not depend on the modules that use the parts. Higher modules add the operations in `impl Group`
//! blocks, and [`GroupExtensions`] keeps their state. [`Group::create`] and the creation of derived
//! groups call `Group::assemble`.

use crate::api::collective::checked_keys::CheckedKeys;
use crate::api::group::abort_propagation::AbortPropagator;
use crate::api::group::extensions::GroupExtensions;
use crate::api::group::group_observer::GroupObserver;
use crate::api::observe::recorder::{self, IssueCounter};
use crate::api::observe::{deadlock, trace};
use crate::api::work::callbacks;
use crate::api::work::queue::RunQueue;
use crate::backend::{self, Backend, DeviceBackend, FastPathKind, RankLocation};
use crate::base::config;
use crate::base::deadline::Deadline;
use crate::base::debug::{self, DebugLevel};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Rank, WorldSize};
use crate::base::log::{self, LogLevel};
use crate::base::plural::Plural;
use crate::security::LinkSecurity;
use crate::store::Store;
use crate::transport::PointToPoint;
use crate::transport::survivor_rendezvous::SurvivorEndpoint;
use serde_json::{Value, json};
use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The default deadline of an operation: 30 minutes, as in c10d.
const DEFAULT_TIMEOUT_MS: u64 = 1_800_000;

/// The maximum number of characters of the log line with the members of a group.
const MAX_MEMBERS_LINE: usize = 200;

/// How a group was created, and the properties that groups derived from it inherit.
#[derive(Debug)]
pub(in crate::api) struct GroupOrigin {
    /// The rank of each member in the outermost group.
    pub(in crate::api) global_ranks: Arc<[Rank]>,
    /// The name of the parent group; `None` for an outermost group.
    pub(in crate::api) parent: Option<String>,
    /// The back end that the caller requested.
    pub(in crate::api) backend: String,
    pub(in crate::api) backend_options: String,
    pub(in crate::api) device: Option<usize>,
    /// The host and port of the outermost group's rendezvous store.
    pub(in crate::api) store_address: Option<(String, u16)>,
    /// The protection of the connections between the ranks.
    pub(in crate::api) security: LinkSecurity,
    /// The rendezvous store, if another owner keeps it alive.
    pub(in crate::api) rendezvous_store: Weak<dyn Store>,
    /// The number of shrinks (removals of failed ranks) between the outermost group and this group.
    pub(in crate::api) epoch: u32,
    /// For a shrunk group: the endpoints at which survivors of its predecessors met. They stay open
    /// to inform ranks that come late that the shrink has finished.
    pub(in crate::api) former_endpoints: Vec<Arc<SurvivorEndpoint>>,
    /// The lease of the group's name. It is set if the members registered the name without the help
    /// of the parent's remaining ranks.
    pub(in crate::api) _name_lease: Option<Box<dyn Any + Send + Sync>>,
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
    /// This is the first field, so that it is dropped before the back end: its drop reads the back
    /// end's failure.
    _recorder_membership: recorder::RecorderMembership,
    id: GroupId,
    name: String,
    rank: Rank,
    size: WorldSize,
    timeout_ms: AtomicU64,
    pub(in crate::api) backend: Arc<dyn Backend>,
    /// The queue in which collectives wait for their turn. The waiting works and the queue's worker
    /// thread share the queue and must not hold a reference to the group.
    pub(in crate::api) queue: Arc<RunQueue>,
    /// The number of issued messages. Messages have sequence numbers that are independent of the
    /// sequence numbers of collectives.
    messages_issued: AtomicU64,
    pub(in crate::api) origin: GroupOrigin,
    pub(in crate::api) abort_propagator: Arc<AbortPropagator>,
    pub(in crate::api) extensions: GroupExtensions,
    pub(in crate::api) observer: GroupObserver,
    /// The device that the back end serves in addition to host memory. If it is set, each call
    /// finds out whether its buffers are in host or device memory.
    pub(in crate::api) device: Option<usize>,
    /// True if all ranks run an arrival check (a debug check that waits for all ranks) before each
    /// collective.
    pub(in crate::api) has_arrival_check: bool,
    /// True if the back end does not support every call. Then each call queries the back end before
    /// it takes a ticket, its place in the order of the group's collectives.
    pub(in crate::api) has_partial_support: bool,
    /// The kind of fast path (a shorter code path for small calls) that the back end has.
    pub(in crate::api) fast_path: FastPathKind,
    /// The keys of the calls that have passed all checks and may take the fast path.
    pub(in crate::api) checked_keys: CheckedKeys,
}

impl Drop for Group {
    fn drop(&mut self) {
        self.abort_propagator.propagate_before_release();
        self.log_release();
    }
}

impl Group {
    /// Assembles a group from its parts. The ranks have already agreed on the group's id and
    /// created the back end.
    pub(in crate::api) fn assemble(
        identity: GroupIdentity,
        origin: GroupOrigin,
        backend: Arc<dyn Backend>,
    ) -> Self {
        let GroupIdentity { id, name, rank, timeout_ms } = identity;
        let observer = GroupObserver::new(id, &name, rank, &origin.global_ranks, &backend);
        let queue = RunQueue::default();
        drop(queue.history.set(Arc::clone(&observer.history)));
        let queue = Arc::new(queue);
        let counter: Arc<dyn IssueCounter> = Arc::<RunQueue>::clone(&queue);
        let membership = recorder::RecorderMembership::register(&recorder::NewGroup {
            id,
            name: &name,
            rank,
            global_ranks: &origin.global_ranks,
            parent: origin.parent.as_deref(),
            backend: &backend,
            history: &observer.history,
            queue: Arc::downgrade(&counter),
            store: Weak::clone(&origin.rendezvous_store),
        });
        deadlock::start_watching();
        let abort_propagator = AbortPropagator::new(&name, backend.as_ref());
        backend.start_standalone();
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
            queue,
            messages_issued: AtomicU64::new(0),
            origin,
            abort_propagator,
            extensions: GroupExtensions::default(),
            observer,
        }
    }

    /// Returns a group on an existing back end, in which this process is rank 0.
    #[cfg(test)]
    pub(in crate::api) fn with_backend(name: &str, backend: Arc<dyn Backend>) -> Self {
        let id = crate::process::this_process::random_nonce().unwrap();
        let identity = GroupIdentity { id, name: name.to_owned(), rank: 0, timeout_ms: 60_000 };
        let origin = GroupOrigin {
            global_ranks: (0..backend.rank_locations().len()).collect(),
            parent: None,
            backend: "native".into(),
            backend_options: String::new(),
            device: None,
            store_address: None,
            security: LinkSecurity::None,
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

    /// Returns the name of the back end with the alias by which the creator of the group requested
    /// it, if any. c10d does the same.
    pub fn requested_backend_name(&self) -> String {
        backend::requested_name(&self.origin.backend, self.backend_name())
    }

    /// Returns the time limit in milliseconds of operations that set none.
    pub fn timeout_ms(&self) -> u64 {
        self.timeout_ms.load(Ordering::Relaxed)
    }

    /// Sets the time limit of operations that are issued after this call and set none. 0 selects
    /// the default, as in [`Self::create`].
    ///
    /// # Errors
    /// `InvalidArgument` if the default in the environment is not a valid time.
    pub fn set_timeout_ms(&self, timeout_ms: u64) -> Result<()> {
        self.timeout_ms.store(operation_timeout_ms(timeout_ms)?, Ordering::Relaxed);
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

    /// Returns the error that failed the group, or `None` if the group has not failed.
    pub fn failure(&self) -> Option<Error> {
        self.backend.failure()
    }

    /// Returns the failure of the group, or the death of a rank although the group has not failed.
    /// After such a death, calls that do not need the dead rank still succeed.
    pub fn failure_or_death(&self) -> Option<Error> {
        self.failure().or_else(|| self.backend.first_death())
    }

    /// Returns the number of collectives that this rank has issued.
    pub fn collectives_issued(&self) -> u64 {
        self.queue.issued()
    }

    /// Assigns the next sequence number to a message and returns it.
    #[inline]
    pub(in crate::api) fn next_message_number(&self) -> u64 {
        self.messages_issued.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the number of operations that this rank has issued, including messages.
    pub(in crate::api) fn operations_issued(&self) -> u64 {
        self.collectives_issued() + self.messages_issued.load(Ordering::Relaxed)
    }

    /// Returns the engine for messages between two ranks.
    ///
    /// # Errors
    /// `Unsupported` if the back end has none.
    pub(in crate::api) fn messaging_engine(&self) -> Result<&dyn PointToPoint> {
        self.backend.point_to_point().ok_or_else(|| self.no_messages_error())
    }

    #[cold]
    fn no_messages_error(&self) -> Error {
        let message = format!(
            "back end {} does not support messages between two ranks in this group of {}",
            self.backend_name(),
            self.size()
        );
        Error::new(ErrorKind::Unsupported, message)
    }

    /// Releases a reference to a group on a thread that may run the group's own engine. Such a
    /// thread cannot shut the engine down. Therefore, if this is the last reference, the callback
    /// thread drops the group.
    pub(in crate::api) fn release(group: Arc<Self>) {
        let Some(group) = Arc::into_inner(group) else { return };
        if let Err((error, group)) = callbacks::drop_on_callback_thread(Box::new(group)) {
            crate::log!(
                LogLevel::Warn,
                "group {} is released on a thread of its own engine: {error}",
                group.name()
            );
        }
    }

    /// Returns the number of asynchronous operations that were issued and have not ended.
    pub fn outstanding_works(&self) -> u64 {
        self.queue.outstanding_works()
    }

    /// Waits until all asynchronous operations have ended. Returns false if the limit passes before
    /// that.
    pub fn wait_for_works(&self, limit: &Deadline) -> bool {
        self.queue.wait_for_works(limit)
    }

    /// Returns the name of the group and the number of this rank, for log and error texts.
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
            (None, name) if name.starts_with("inside=") => "two_level",
            (None, _) => "plugin",
        };
        json!({
            "name": self.name,
            "id": self.id.to_string(),
            "rank": self.rank,
            "size": self.size,
            "ranks": *self.origin.global_ranks,
            "parent": self.origin.parent,
            "backend": self.backend.name(),
            "security": self.origin.security.setting().name(),
            "timeout_ms": self.timeout_ms(),
            "operations_issued": self.queue.issued(),
            "error": self.failure_or_death().map(|error| error.message().to_owned()),
            "members": members,
            backend_key: self.backend.describe(),
            "skew": skew,
            "straggler": straggler,
            "trace": trace::describe(),
        })
    }

    /// Logs the creation of the group.
    pub(in crate::api) fn log_creation(&self, took: Duration) {
        if !is_group_log_enabled() {
            return;
        }
        let native = self.backend.describe();
        let transport = native.get("transport").and_then(|name| name.as_str()).unwrap_or("unknown");
        crate::log!(
            LogLevel::Info,
            "{} of {} was created in {} ms (id {}): back end {}, transport {}, operation timeout \
             {} ms, arrival check {}",
            self.describe_rank(),
            self.size(),
            took.as_millis(),
            self.id(),
            self.backend_name(),
            transport,
            self.timeout_ms(),
            if self.has_arrival_check { "on" } else { "off" },
        );
        let members = format_members(self.describe_rank(), self.backend.rank_locations());
        crate::log!(LogLevel::Info, "{members}");
    }

    /// Logs the release of the group.
    fn log_release(&self) {
        if !is_group_log_enabled() {
            return;
        }
        let failure = self.failure_or_death().map(|error| format!("; it failed: {error}"));
        crate::log!(
            LogLevel::Info,
            "{} is released after {} and {}{}",
            self.describe_rank(),
            Plural(self.queue.issued(), "collective operation"),
            Plural(self.messages_issued.load(Ordering::Relaxed), "message"),
            failure.unwrap_or_default()
        );
    }

    /// Returns the entries of the flight recorder for this group.
    pub fn flight_record(&self) -> Value {
        recorder::dump(Some(self.id), recorder::DumpReason::Request)
    }
}

/// Returns the time limit of operations: the option if it is set, else the environment's value,
/// else the default.
pub(super) fn operation_timeout_ms(option_ms: u64) -> Result<u64> {
    match option_ms {
        0 => config::read_timeout_ms(config::TIMEOUT_MS, DEFAULT_TIMEOUT_MS),
        _ => Ok(option_ms),
    }
}

fn is_group_log_enabled() -> bool {
    debug::level() >= DebugLevel::Info && log::enabled(LogLevel::Info)
}

/// Lists the members that fit into one log line after `prefix`.
fn format_members(prefix: String, locations: &[RankLocation]) -> String {
    let (mut line, mut listed) = (prefix + " has the members:", 0);
    for location in locations {
        let member = format!(" {};", location.name);
        // The last member needs no room for the number of the others.
        if line.len() + member.len() + " and 1048576 more".len() > MAX_MEMBERS_LINE {
            break;
        }
        line.push_str(&member);
        listed += 1;
    }
    line.pop();
    match locations.len() - listed {
        0 => line,
        more => format!("{line} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_with_many_members_is_short() {
        let location = |rank| RankLocation {
            name: backend::PeerName::new(rank, 4711, "host-of-a-job".into()),
            host_index: 0,
            local_rank: rank,
        };
        let locations: Vec<RankLocation> = (0..500).map(location).collect();
        let line = format_members("group world, rank 3".to_owned(), &locations);
        assert!(
            line.starts_with("group world, rank 3 has the members: rank 0 (pid 4711, "),
            "{line}"
        );
        assert!(line.len() <= MAX_MEMBERS_LINE && line.ends_with(" more"), "{line}");
        let line = format_members("group a, rank 0".to_owned(), &locations[..2]);
        assert!(line.ends_with("; rank 1 (pid 4711, host host-of-a-job)"), "{line}");
    }
}
