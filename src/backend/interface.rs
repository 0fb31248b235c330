//! The interface of a back end: the trait [`Backend`] with its optional parts.
//!
//! The core of the trait runs operations and reports failures. Each optional ability has an
//! accessor, which returns `None` if the back end does not have the ability: point-to-point
//! messages, the device, and the monitor of the other ranks. [`FastPath`] is a supertrait instead,
//! so that a call on the fast path needs no accessor.

use super::device_backend::DeviceBackend;
use super::memory::{BackendMemory, allocate_host_memory};
use super::support_query::SupportQuery;
use crate::algo::call_arguments::{CallArguments, FastCallKey};
use crate::algo::fast_path::{FastPathState, FastProgress};
use crate::algo::rules::AlgorithmRule;
use crate::algo::{AlgorithmRequest, Operation};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::transport::survivor_rendezvous::SurvivorEndpoint;
use crate::transport::{Descriptor, DoorbellListener, OpKind, PeerName, PointToPoint};
use serde_json::Value;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The location of a rank: its process, its host, and its position on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankLocation {
    /// The rank, the process id and the host name.
    pub name: PeerName,
    /// The index of the host among the hosts of the group, counted from 0. The hosts are in the
    /// order of their lowest ranks.
    pub host_index: usize,
    /// The position of the rank among the ranks of its host.
    pub local_rank: usize,
}

/// The kind of fast path of a back end. The fast path runs small calls that repeat an earlier call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FastPathKind {
    /// The back end has no fast path. Callers use [`Backend::run`].
    #[default]
    None,
    /// Callers run a call themselves, on the state that [`FastPath::fast_path_state`] returns.
    Started,
    /// Callers let the back end run the whole call with [`FastPath::run_fast_call`].
    Delegated,
}

/// The properties of a back end that do not change.
#[derive(Clone, Copy, Debug, Default)]
pub struct BackendProperties<'a> {
    /// The kind of fast path. A back end has no fast path if it serves a device, or if the group
    /// performs an arrival check before each collective.
    pub fast_path: FastPathKind,
    /// True if the back end may refuse calls that other back ends support. In that case the caller
    /// asks [`Backend::supports`] before a call takes its ticket (its position in the queue of the
    /// group).
    pub can_refuse_calls: bool,
    /// True if the ranks agreed on an arrival check before each collective.
    pub has_arrival_check: bool,
    /// The algorithm overrides that the ranks agreed on. Child groups of this group inherit them.
    pub algorithm_overrides: &'a [AlgorithmRule],
    /// True if a group can be released while the process ends. At that time, another library that
    /// the back end uses may be unusable.
    pub is_releasable_at_exit: bool,
}

/// The back end of a group. It runs the operations of the group.
///
/// Obligations:
///
/// - The caller calls `run` from one thread at a time, and in the same order on all ranks.
/// - The back end returns from `run` at the latest at the deadline of the operation.
/// - After the first error of `run`, every later `run` fails with the same cause. The exception is
///   an error about an invalid argument.
/// - The back end permits calls of `abort` and `failure` from any thread at any time.
pub trait Backend: FastPath + Send + Sync {
    /// Returns the name of the back end in the registry.
    fn name(&self) -> &'static str;

    /// Returns the properties of the back end.
    fn properties(&self) -> BackendProperties<'_> {
        BackendProperties::default()
    }

    /// Returns the locations of all ranks, in rank order.
    fn rank_locations(&self) -> &[RankLocation];

    /// Checks that an algorithm satisfies the request. The caller checks before the call takes its
    /// ticket, so an error does not change the state of the group.
    ///
    /// # Errors
    /// `InvalidArgument` with the list of the available algorithms.
    fn check_algorithm_request(
        &self,
        kind: OpKind,
        bytes: usize,
        request: AlgorithmRequest<'_>,
    ) -> Result<()>;

    /// Checks whether the back end supports a kind of call.
    ///
    /// # Errors
    /// `Unsupported`, naming the call and the back end.
    fn supports(&self, query: &SupportQuery) -> Result<()> {
        if let Some(gpu) = query.gpu {
            let message = format!(
                "{query} in memory of device {gpu}: the back end {} supports host memory only",
                self.name()
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        match (query.op, query.dtype) {
            (Some(op), Some(dtype)) => query.check_operator(op, dtype, || self.name()),
            _ => Ok(()),
        }
    }

    /// Runs one operation.
    ///
    /// # Errors
    /// Any error; its message names the culprit.
    fn run(&self, operation: &Operation<'_>) -> Result<()>;

    /// Allocates host memory for buffers. If the back end has memory that peers can access
    /// directly, it allocates that kind of memory. The address is not 0.
    ///
    /// # Errors
    /// `OutOfMemory`, `System`.
    fn allocate(&self, bytes: usize) -> Result<Box<dyn BackendMemory>> {
        allocate_host_memory(bytes)
    }

    /// Fails the group on all its ranks. If the group has already failed, the first reason is kept.
    fn abort(&self, reason: &Error);

    /// Returns the reason why the group failed, if it failed.
    fn failure(&self) -> Option<Error>;

    /// Called once for the back end of a group, and not for a back end that another back end uses
    /// as a part. From then on, the death of a rank need not fail the group: if the back end
    /// supports this, only operations that need the rank fail. If the process ends in order without
    /// releasing the group, it leaves the group.
    fn start_standalone(&self) {}

    /// Returns the error about the first rank that has died although the group has not failed.
    fn first_death(&self) -> Option<Error> {
        None
    }

    /// Returns the failure state of the group, which other groups of this rank can share to
    /// propagate failures. Returns `None` if the failure state cannot be shared.
    fn failure_state(&self) -> Option<Arc<dyn GroupFailureState>> {
        None
    }

    /// Returns the interface for point-to-point messages, or `None` if the back end has no such
    /// messages. Messages never wait for an operation that `run` executes.
    fn point_to_point(&self) -> Option<&dyn PointToPoint> {
        None
    }

    /// Returns the interface for buffers in device memory, or `None` if the group has no device.
    /// The interface may exist without a device back end; its functions then return an error with
    /// the reason. If the result is not `None`, callers ask the driver for the location of each
    /// buffer.
    fn device(&self) -> Option<&dyn DeviceBackend> {
        None
    }

    /// Returns the monitor of the other ranks, or `None` if the back end has no monitor.
    fn peer_monitor(&self) -> Option<&dyn PeerMonitor> {
        None
    }

    /// Returns the details for `dist_group_describe` as JSON.
    fn describe(&self) -> Value;
}

crate::base::trait_object_debug::impl_debug_of_objects!(Backend);

impl dyn Backend + '_ {
    /// Allocates memory for buffers on a device.
    ///
    /// # Errors
    /// `Unsupported`, `OutOfMemory`, `Backend`.
    pub fn allocate_on(&self, device: usize, bytes: usize) -> Result<Box<dyn BackendMemory>> {
        if let Some(backend) = self.device() {
            return backend.allocate(device, bytes);
        }
        let message = format!(
            "back end {} cannot allocate memory on device {device} for {bytes} bytes: it supports \
             host memory only (DIST_DEVICE_HOST)",
            self.name()
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}

/// The fast path for small calls that repeat an earlier call. [`BackendProperties::fast_path`]
/// tells callers which of the functions they may use.
pub trait FastPath {
    /// Returns the state on which a caller runs a call of at most [`super::PROMPT_BYTES`]. The
    /// caller must hold the turn of the call (the time in which the call holds the queue of the
    /// group). Back ends with [`FastPathKind::Started`] implement this function.
    fn fast_path_state(&self) -> Option<&FastPathState> {
        None
    }

    /// Prepares the fast path for calls with this key. `arguments` are the arguments of one such
    /// call. Returns false if [`Backend::run`] must run such calls, and `None` if an operation is
    /// running, so that the function could not prepare anything. Does not wait.
    fn prepare_fast_path(&self, arguments: &CallArguments<'_>, key: FastCallKey) -> Option<bool> {
        let _ = (arguments, key);
        Some(true)
    }

    /// Runs a call of at most [`super::PROMPT_BYTES`] with this sequence number, as far as possible
    /// without a long wait. The caller must hold the turn of the call. Back ends with
    /// [`FastPathKind::Delegated`] implement this function.
    ///
    /// # Errors
    /// The errors of [`Backend::run`].
    fn run_fast_call(
        &self,
        arguments: &CallArguments<'_>,
        sequence: u64,
        deadline: &Deadline,
    ) -> Result<FastProgress> {
        let _ = (arguments, sequence, deadline);
        Ok(FastProgress::NotStarted)
    }

    /// Completes a call for which [`FastPath::run_fast_call`] has returned
    /// [`FastProgress::Accepted`].
    ///
    /// # Errors
    /// The errors of [`Backend::run`]; `Internal` if the back end never accepts a call.
    fn finish_fast_call(&self, operation: &Operation<'_>) -> Result<()> {
        let kind = operation.descriptor.kind.name();
        Err(Error::new(ErrorKind::Internal, format!("{kind}: the back end has not accepted it")))
    }
}

/// The monitor of the other ranks: it observes their processes. It also has the endpoint through
/// which the ranks reach each other after the group failed.
pub trait PeerMonitor {
    /// Returns the endpoint at which other ranks reach this rank after the group failed.
    fn survivor_endpoint(&self) -> &Arc<SurvivorEndpoint>;

    /// Returns true if this rank knows that the given rank has left the group normally.
    fn has_left(&self, rank: Rank) -> bool;

    /// Returns the last known activity of a rank, for error messages; `None` if it is unknown.
    fn last_activity(&self, rank: Rank) -> Option<String>;

    /// Returns the heartbeat limit of the group; `None` if it has no limit.
    fn heartbeat_limit(&self) -> Option<Duration>;

    /// Publishes that this rank enters an operation that another back end runs for the group. The
    /// errors of other ranks about this rank then contain the operation.
    fn enter_foreign_operation(&self, descriptor: &Descriptor);

    /// Publishes that this rank has finished the operation.
    fn finish_foreign_operation(&self, descriptor: &Descriptor);

    /// Returns the first rank of this host that has entered neither the operation with this
    /// sequence number nor a later one.
    fn first_rank_before(&self, sequence: u64) -> Option<Rank>;
}

/// The failure state of a group. A reference to it does not keep the group alive.
pub trait GroupFailureState: Send + Sync {
    /// Returns the reason why the group failed, if it failed; see [`Backend::failure`].
    fn failure(&self) -> Option<Error>;

    /// Fails the group on all its ranks; see [`Backend::abort`].
    fn fail(&self, reason: &Error);

    /// Returns an error if the group has failed.
    ///
    /// # Errors
    /// The failure of the group.
    fn check_failure(&self) -> Result<()> {
        self.failure().map_or(Ok(()), Err)
    }

    /// Fails the group with `error`. Returns the first failure of the group, because `error` may be
    /// a consequence of that failure.
    fn fail_with(&self, error: Error) -> Error {
        self.fail(&error);
        self.failure().unwrap_or(error)
    }

    /// Registers a listener that is called when another rank may have failed the group. Spurious
    /// calls are possible. A dropped listener is removed.
    fn add_listener(&self, listener: Weak<dyn DoorbellListener>);
}

crate::base::trait_object_debug::impl_debug_of_objects!(GroupFailureState);
