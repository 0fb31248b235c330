//! The back end of a group over UCC. It has two parts:
//!
//! - A native group of all ranks. It detects dead and silent ranks, carries aborts and messages,
//!   and owns the failure state. UCC has none of these: it waits without a limit.
//! - A team of UCC, which runs the collectives ([`super::communicator`]), in the frame for
//!   plug-ins ([`crate::backend::plugin`]): deadlines, and prefix reductions made of all_gather.
//!
//! Each rank publishes its operation in the memory of the native group, so that the error about a
//! dead or late rank says what the rank was in.

use super::communicator::UccCommunicator;
use super::liveness::Liveness;
use super::team::UccTeam;
use super::types::check_support;
use crate::backend::host_factory::BackendFactory;
use crate::backend::linked_failures::{LinkedFailures, LinkedGroup, uncombinable_error};
use crate::backend::plugin::{self, CreatedCommunicator, Plugin, PluginFailureState, PluginGroup};
use crate::backend::{
    AlgorithmRequest, Backend, BackendMemory, BackendProperties, BootstrapExchange, CallArguments,
    Descriptor, FastPath, FastPathKind, FastProgress, GroupContext, GroupFailureState, OpKind,
    Operation, PeerMonitor, PointToPoint, RankLocation, SupportQuery,
};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::nodes::NodeMap;
use crate::sys::host;
use serde_json::{Value, json};
use std::sync::Arc;

/// The name of the back end.
pub(in crate::backend) const NAME: &str = "ucc";

/// Creates the native back end of a group.
type CreateNative = fn(&GroupContext<'_>, &dyn BootstrapExchange) -> Result<Arc<dyn Backend>>;

/// The factory of the back end.
#[derive(Debug)]
pub(in crate::backend) struct UccFactory {
    pub(in crate::backend) create_native: CreateNative,
}

impl BackendFactory for UccFactory {
    fn check(&self) -> Result<()> {
        super::library::get().map(drop)
    }

    fn create(
        &self,
        context: &GroupContext<'_>,
        exchange: &dyn BootstrapExchange,
    ) -> Result<Arc<dyn Backend>> {
        // The native group has no use for the device, which UCC serves.
        let for_host = GroupContext { device: None, ..*context };
        let host = (self.create_native)(&for_host, exchange)?;
        if context.size == 1 {
            // The library must exist, as for more ranks.
            self.check()?;
            return Ok(Arc::new(UccBackend { team: None, host }));
        }
        let host_state = host.failure_state().ok_or_else(|| uncombinable_error(host.name()))?;
        let team = create_team(context, exchange, &host, &host_state);
        let team = team.inspect_err(|error| {
            exchange.publish_failure(error);
            host_state.fail(error);
        })?;
        Ok(Arc::new(UccBackend { team: Some(team), host }))
    }
}

fn create_team(
    context: &GroupContext<'_>,
    exchange: &dyn BootstrapExchange,
    host: &Arc<dyn Backend>,
    host_state: &Arc<dyn GroupFailureState>,
) -> Result<TeamGroup> {
    let maker = TeamMaker { host: Arc::clone(host), host_state: Arc::clone(host_state) };
    let group = plugin::create_group(NAME, &maker, context, exchange)?;
    let ranks = (0..context.size).collect();
    let failures =
        LinkedFailures::link(Arc::clone(host_state), vec![LinkedGroup::new(&group, ranks)?])?;
    Ok(TeamGroup { group, failures })
}

/// Creates the team of UCC for a group.
#[derive(Debug)]
struct TeamMaker {
    host: Arc<dyn Backend>,
    host_state: Arc<dyn GroupFailureState>,
}

impl Plugin for TeamMaker {
    fn create(
        &self,
        context: &GroupContext<'_>,
        exchange: &dyn BootstrapExchange,
        state: &Arc<PluginFailureState>,
    ) -> Result<CreatedCommunicator> {
        let locations = self.host.rank_locations();
        refuse_shared_processes(locations)?;
        let hosts: Vec<usize> = locations.iter().map(|location| location.host_index).collect();
        let hosts = NodeMap::by_label(&hosts);
        let own_host = hosts.members(hosts.node_of(context.rank)).len();
        let is_oversubscribed = own_host > host::cores();
        let check_cancelled = || self.host_state.failure();
        let liveness = Liveness::follow(Arc::clone(&self.host_state), is_oversubscribed);
        let team = UccTeam::create(context, exchange, &liveness, &check_cancelled)?;
        let communicator = UccCommunicator::new(team, state, &self.host, is_oversubscribed);
        Ok(CreatedCommunicator {
            kinds: communicator.kinds()?,
            serves_device: context.device.is_some() && communicator.serves_device(),
            communicator: Arc::new(communicator),
        })
    }
}

/// Refuses a group with two ranks in one process: they would share a context, in which UCC cannot
/// distinguish them.
fn refuse_shared_processes(locations: &[RankLocation]) -> Result<()> {
    let process = |location: &RankLocation| (location.host_index, location.name.pid);
    for (rank, location) in locations.iter().enumerate() {
        let first = locations[..rank].iter().position(|it| process(it) == process(location));
        if let Some(first) = first {
            let message = format!(
                "ranks {first} and {rank} are in one process: the back end ucc needs a process \
                 for each rank"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
    }
    Ok(())
}

/// The group that runs collectives over UCC.
#[derive(Debug)]
struct TeamGroup {
    /// The group must be dropped before the link of the failures.
    group: PluginGroup,
    failures: Arc<LinkedFailures>,
}

/// The back end of a group.
#[derive(Debug)]
struct UccBackend {
    /// The team of UCC; `None` for a group of one rank. It is dropped before `host`.
    team: Option<TeamGroup>,
    /// The native group of all ranks.
    host: Arc<dyn Backend>,
}

impl UccBackend {
    fn record_entry(&self, descriptor: &Descriptor) {
        if let Some(monitor) = self.host.peer_monitor() {
            monitor.enter_foreign_operation(descriptor);
        }
    }

    fn record_end(&self, descriptor: &Descriptor) {
        if let Some(monitor) = self.host.peer_monitor() {
            monitor.finish_foreign_operation(descriptor);
        }
    }

    /// Fails the group with an error of the team, unless the error is a refusal. Returns the first
    /// failure of the group.
    #[cold]
    fn fail(team: &TeamGroup, error: Error) -> Error {
        if matches!(error.kind(), ErrorKind::InvalidArgument | ErrorKind::Unsupported) {
            return error;
        }
        team.failures.fail_with(error)
    }
}

impl FastPath for UccBackend {
    #[inline]
    fn run_fast_call(
        &self,
        arguments: &CallArguments<'_>,
        sequence: u64,
        deadline: &Deadline,
    ) -> Result<FastProgress> {
        let Some(team) = &self.team else { return Ok(FastProgress::NotStarted) };
        let descriptor = arguments.descriptor(sequence);
        self.record_entry(&descriptor);
        match team.group.run_fast_call(arguments, sequence, deadline) {
            Ok(done @ (FastProgress::Done { .. } | FastProgress::DoneAfterWait)) => {
                self.record_end(&descriptor);
                Ok(done)
            }
            Ok(progress) => Ok(progress),
            Err(error) => Err(Self::fail(team, error)),
        }
    }

    fn finish_fast_call(&self, operation: &Operation<'_>) -> Result<()> {
        let Some(team) = &self.team else { return self.host.run(operation) };
        let outcome = team.group.finish_fast_call(operation);
        self.end(team, outcome, &operation.descriptor)
    }
}

impl UccBackend {
    fn end(&self, team: &TeamGroup, outcome: Result<()>, descriptor: &Descriptor) -> Result<()> {
        match outcome {
            Ok(()) => {
                self.record_end(descriptor);
                Ok(())
            }
            Err(error) => Err(Self::fail(team, error)),
        }
    }
}

impl Backend for UccBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn properties(&self) -> BackendProperties<'_> {
        let host = self.host.properties();
        let team = self.team.as_ref().map(|team| team.group.properties().fast_path);
        BackendProperties {
            fast_path: match team {
                Some(fast_path) if !host.has_arrival_check => fast_path,
                _ => FastPathKind::None,
            },
            can_refuse_calls: true,
            is_releasable_at_exit: false,
            ..host
        }
    }

    fn rank_locations(&self) -> &[RankLocation] {
        self.host.rank_locations()
    }

    fn check_algorithm_request(
        &self,
        kind: OpKind,
        _: usize,
        wanted: AlgorithmRequest<'_>,
    ) -> Result<()> {
        let what = match wanted.name {
            Some(name) => format!("algorithm \"{name}\""),
            None if wanted.canonical => "DIST_CALL_CANONICAL".to_owned(),
            None => return Ok(()),
        };
        let message = format!(
            "{what} for {}: the back end ucc lets UCC select its algorithms (UCC_TL_UCP_TUNE)",
            kind.name()
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    fn supports(&self, query: &SupportQuery) -> Result<()> {
        // Messages in host memory are those of the native group.
        if query.kind.is_none() {
            return self.host.supports(query);
        }
        match &self.team {
            Some(team) => team.group.supports(query),
            None => {
                self.host.supports(query)?;
                check_support(query)
            }
        }
    }

    fn run(&self, operation: &Operation<'_>) -> Result<()> {
        let Some(team) = &self.team else { return self.host.run(operation) };
        if let Some(failure) = self.host.failure() {
            return Err(failure);
        }
        let descriptor = &operation.descriptor;
        self.record_entry(descriptor);
        self.end(team, team.group.run(operation), descriptor)
    }

    fn allocate(&self, bytes: usize) -> Result<Box<dyn BackendMemory>> {
        self.host.allocate(bytes)
    }

    fn abort(&self, reason: &Error) {
        match &self.team {
            Some(team) => team.failures.fail(reason),
            None => self.host.abort(reason),
        }
    }

    fn failure(&self) -> Option<Error> {
        self.host.failure()
    }

    fn failure_state(&self) -> Option<Arc<dyn GroupFailureState>> {
        self.host.failure_state()
    }

    fn point_to_point(&self) -> Option<&dyn PointToPoint> {
        self.host.point_to_point()
    }

    fn peer_monitor(&self) -> Option<&dyn PeerMonitor> {
        self.host.peer_monitor()
    }

    fn describe(&self) -> Value {
        let mut description = match &self.team {
            Some(team) => team.group.describe(),
            None => json!({ "details": { "version": library_version() } }),
        };
        description["transport"] = NAME.into();
        description["host"] =
            json!({ "backend": self.host.name(), "details": self.host.describe() });
        description
    }
}

fn library_version() -> Value {
    super::library::get().map_or(Value::Null, |library| library.version_text().into())
}
