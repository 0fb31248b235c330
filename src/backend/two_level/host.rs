//! The two-level back end for host memory. It has a native group of all ranks, which carries the
//! messages, detects dead ranks and owns the failure state, and the inner groups, which run the
//! collectives.

use super::call::TwoLevelCall;
use super::inner_group::{InnerGroupSetup, InnerGroups, TwoLevelOptions};
use super::operations;
use super::scratch::Scratch;
use super::spec::TwoLevelSpec;
use super::steps::StepRunner;
use super::support::SupportTable;
use crate::backend::linked_failures::{LinkedFailures, uncombinable_error};
use crate::backend::peer_info::check_device_maps;
use crate::backend::registry::{self, DEFAULT_HOST_BACKEND};
use crate::backend::{
    AlgorithmRequest, Backend, BackendMemory, BackendProperties, BootstrapExchange, FastPath,
    FastPathKind, GroupContext, GroupFailureState, OpKind, Operation, PeerMonitor, PointToPoint,
    RankLocation, SupportQuery,
};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::plural::Plural;
use serde_json::{Value, json};
use std::sync::Arc;

/// The parts of a two-level group that host memory and device memory have in common.
#[derive(Debug)]
pub(super) struct TwoLevelGroup {
    /// The name of the back end.
    pub(super) name: &'static str,
    /// The inner groups. They are dropped before the host back end.
    pub(super) groups: InnerGroups,
    support: SupportTable,
    pub(super) scratch: Scratch,
    pub(super) failures: Arc<LinkedFailures>,
}

impl TwoLevelGroup {
    /// Creates the inner groups of this rank and agrees with all ranks on the supported calls.
    pub(super) fn create(setup: &InnerGroupSetup<'_>, scratch: Scratch) -> Result<Self> {
        let (spec, context) = (setup.spec, setup.context);
        let phase = if setup.device.is_some() { "two-level-device" } else { "two-level" };
        let name = spec.canonical();
        let check_cancelled = || setup.failure_state.failure();
        let names = setup.exchange.all_gather(phase, name.as_bytes(), &check_cancelled)?;
        let names: Vec<_> = names.iter().map(|name| String::from_utf8_lossy(name)).collect();
        check_device_maps(names.iter().map(AsRef::as_ref))?;
        let groups = InnerGroups::create(setup)?;
        let group_state = setup.host.failure_state();
        let group_state = group_state.ok_or_else(|| uncombinable_error(setup.host.name()))?;
        let failures = LinkedFailures::link(group_state, groups.links()?)?;
        let phase = format!("{phase}-supports");
        let support = SupportTable::agree(
            &groups,
            setup.device,
            &phase,
            setup.exchange,
            setup.failure_state,
        )?;
        crate::log!(
            crate::base::log::LogLevel::Info,
            "group {}: {} on {} over {name}",
            context.group,
            Plural(context.size, "rank"),
            Plural(groups.hosts.node_count(), "host")
        );
        Ok(Self { name: registry::intern_name(&name), groups, support, scratch, failures })
    }

    pub(super) fn supports(&self, query: &SupportQuery) -> Result<()> {
        self.support.check(&self.groups, query, self.name)
    }

    /// Runs an operation on host memory, or on memory of this device. After an error of a step, the
    /// group has failed, because other ranks may be in other steps.
    pub(super) fn run(&self, operation: &Operation<'_>, device: Option<usize>) -> Result<()> {
        if let Some(failure) = self.failures.failure() {
            return Err(failure);
        }
        operation.observer.record_start("two_level");
        let steps = StepRunner::new(&self.groups, operation, device);
        let call = TwoLevelCall { steps: &steps, scratch: &self.scratch };
        operations::run(&call).map_err(|error| {
            let failure = self.failures.fail_with(error);
            steps.drain();
            failure
        })
    }

    /// Returns the error for a call that requests an algorithm.
    pub(super) fn check_algorithm_request(
        &self,
        kind: OpKind,
        wanted: AlgorithmRequest<'_>,
    ) -> Result<()> {
        let what = match wanted.name {
            Some(name) => format!("algorithm \"{name}\""),
            None if wanted.canonical => "DIST_CALL_CANONICAL".to_owned(),
            None => return Ok(()),
        };
        let message = format!(
            "{what} for {}: the back end {} composes its operations itself: use a group with one \
             back end",
            kind.name(),
            self.name
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    pub(super) fn describe(&self) -> Value {
        let hosts = &self.groups.hosts;
        let levels = self.groups.groups().map(|group| {
            json!({
                "level": group.level.to_string(),
                "backend": group.backend.name(),
                "ranks": group.ranks,
                "details": group.backend.describe(),
            })
        });
        json!({
            "hosts": (0..hosts.node_count()).map(|host| hosts.members(host)).collect::<Vec<_>>(),
            "uses_all_ranks_between_hosts": self.groups.is_even,
            "levels": levels.collect::<Vec<_>>(),
        })
    }
}

/// The two-level back end of a group, for host memory.
#[derive(Debug)]
struct TwoLevelBackend {
    /// This must be the first field, so that the inner groups are dropped before `host`.
    group: TwoLevelGroup,
    /// The native group of all ranks.
    host: Arc<dyn Backend>,
}

/// Creates the two-level back end of a group for host memory. All ranks must call this function,
/// because it waits for all ranks.
///
/// # Errors
/// `InvalidArgument` for wrong options; any error of a bootstrap.
pub(in crate::backend) fn create_host(
    spec: &TwoLevelSpec,
    context: &GroupContext<'_>,
    exchange: &dyn BootstrapExchange,
) -> Result<Arc<dyn Backend>> {
    let options = TwoLevelOptions::split(context.options)?;
    let for_host = GroupContext { options: &options.general, device: None, ..*context };
    let host = registry::create_host_backend(DEFAULT_HOST_BACKEND, &for_host, exchange)?;
    let failure_state = host.failure_state();
    let failure_state = failure_state.ok_or_else(|| uncombinable_error(host.name()))?;
    let setup = InnerGroupSetup {
        spec,
        options: &options,
        context,
        exchange,
        host: host.as_ref(),
        failure_state: failure_state.as_ref(),
        device: None,
        create: &registry::create_host_backend,
    };
    let group = TwoLevelGroup::create(&setup, Scratch::new(None)).inspect_err(|error| {
        exchange.publish_failure(error);
        failure_state.fail(error);
    })?;
    Ok(Arc::new(TwoLevelBackend { group, host }))
}

impl FastPath for TwoLevelBackend {}

impl Backend for TwoLevelBackend {
    fn name(&self) -> &'static str {
        self.group.name
    }

    fn properties(&self) -> BackendProperties<'_> {
        let (fast_path, can_refuse_calls) = (FastPathKind::None, true);
        BackendProperties {
            fast_path,
            can_refuse_calls,
            is_releasable_at_exit: false,
            ..self.host.properties()
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
        self.group.check_algorithm_request(kind, wanted)
    }

    fn supports(&self, query: &SupportQuery) -> Result<()> {
        // Messages and calls on device memory are not operations of the inner groups.
        if query.kind.is_none() || query.gpu.is_some() {
            return self.host.supports(query);
        }
        self.group.supports(query)
    }

    fn run(&self, operation: &Operation<'_>) -> Result<()> {
        self.group.run(operation, None)
    }

    fn allocate(&self, bytes: usize) -> Result<Box<dyn BackendMemory>> {
        self.host.allocate(bytes)
    }

    fn abort(&self, reason: &Error) {
        self.group.failures.fail(reason);
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
        let mut description = self.group.describe();
        description["transport"] = "two-level".into();
        description["host"] =
            json!({ "backend": self.host.name(), "details": self.host.describe() });
        description
    }
}
