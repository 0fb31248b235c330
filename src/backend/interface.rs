//! The interface of a back end: the trait [`Backend`] with its optional parts.
//!
//! The core of the trait runs operations and reports failures. An accessor returns each rarely used
//! ability, and `None` if the back end lacks it: messages, the device, the other ranks' processes.
//! [`FastPath`] is a supertrait, so that a call of the fast path needs no accessor.

use super::device_backend::DeviceBackend;
use super::memory::{BackendMemory, allocate_host_memory};
use super::support_query::SupportQuery;
use crate::algo::call_arguments::{CallArguments, FastCallKey};
use crate::algo::fast_path::{FastCall, FastProgress};
use crate::algo::rules::AlgorithmRule;
use crate::algo::{AlgorithmRequest, Operation};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::transport::survivor_rendezvous::SurvivorEndpoint;
use crate::transport::{DoorbellListener, OpKind, PeerName, PointToPoint};
use serde_json::Value;
use std::fmt::Debug;
use std::sync::{Arc, Weak};

/// The location of a rank: its process, its host, and its position on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankLocation {
    /// The rank, the process id and the host name.
    pub name: PeerName,
    /// The index of the host among the group's hosts, from 0, in order of their lowest ranks.
    pub host_index: usize,
    /// The position of the rank among the ranks of its host.
    pub local_rank: usize,
}

/// How a back end runs small calls that repeat an earlier call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FastPathKind {
    /// Only [`Backend::run`] runs calls.
    #[default]
    None,
    /// [`FastPath::start_fast_call`] starts a call.
    Started,
    /// [`FastPath::run_fast_call`] runs a call as a whole.
    Delegated,
}

/// The properties of a back end that do not change.
#[derive(Clone, Copy, Debug, Default)]
pub struct BackendProperties<'a> {
    /// The kind of fast path for small operations. A back end has none if it serves a device, or
    /// if the group has an arrival check before each collective.
    pub fast_path: FastPathKind,
    /// True if the back end may refuse calls that other back ends support. Then the caller asks
    /// [`Backend::supports`] before a call takes its ticket.
    pub can_refuse_calls: bool,
    /// True if the ranks agreed on an arrival check before each collective.
    pub has_arrival_check: bool,
    /// The algorithm overrides that the ranks agreed on, for child groups of this group.
    pub algorithm_overrides: &'a [AlgorithmRule],
}

/// The back end of a group: runs its operations.
///
/// Obligations:
///
/// - One thread at a time calls `run`, in the same order on all ranks.
/// - `run` returns at the latest at the deadline of the operation.
/// - After the first error other than a refused argument, every later `run` fails with the same
///   cause.
/// - Any thread may call `abort` and `failure` at any time.
pub trait Backend: FastPath + Send + Sync + Debug {
    /// Returns the name of the back end in the registry.
    fn name(&self) -> &'static str;

    /// Returns the properties of the back end.
    fn properties(&self) -> BackendProperties<'_> {
        BackendProperties::default()
    }

    /// Returns the locations of all ranks, in rank order.
    fn rank_locations(&self) -> &[RankLocation];

    /// Checks that an algorithm satisfies the request. The caller checks before the call takes its
    /// ticket, so a refusal does not change the group.
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
    /// directly, it allocates this kind. The address is not 0.
    ///
    /// # Errors
    /// `OutOfMemory`, `System`.
    fn allocate(&self, bytes: usize) -> Result<Box<dyn BackendMemory>> {
        allocate_host_memory(bytes)
    }

    /// Fails the group on all its ranks; the first reason stays.
    fn abort(&self, reason: &Error);

    /// Returns the reason why the group failed, if it failed.
    fn failure(&self) -> Option<Error>;

    /// Returns the failure state of the group, for groups that share it; `None` if it cannot be
    /// shared.
    fn failure_state(&self) -> Option<Arc<dyn GroupFailureState>> {
        None
    }

    /// Returns the interface for point-to-point messages, which never wait for `run`; `None` if the
    /// back end has none.
    fn point_to_point(&self) -> Option<&dyn PointToPoint> {
        None
    }

    /// Returns the device part of the back end, if the group has a device. It serves the memory of
    /// the device in addition to host memory, or reports why it cannot. If there is a device,
    /// callers ask the driver for the location of each buffer.
    fn device(&self) -> Option<&dyn DeviceBackend> {
        None
    }

    /// Returns the monitor of the other ranks; `None` if the back end has none.
    fn peer_monitor(&self) -> Option<&dyn PeerMonitor> {
        None
    }

    /// Returns the details for `dist_group_describe` as JSON.
    fn describe(&self) -> Value;
}

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

/// The fast path of small operations. Callers use only the part that the back end has
/// ([`BackendProperties::fast_path`]).
pub trait FastPath {
    /// Starts a call of at most [`super::PROMPT_BYTES`] with this sequence number, for
    /// [`FastPathKind::Started`]. Returns `None` if [`Backend::run`] must run it. The caller holds
    /// the turn of the call.
    fn start_fast_call(
        &self,
        arguments: &CallArguments<'_>,
        key: FastCallKey,
        sequence: u64,
    ) -> Option<FastCall<'_>> {
        let _ = (arguments, key, sequence);
        None
    }

    /// Runs a call of at most [`super::PROMPT_BYTES`] with this sequence number, as far as it
    /// completes without a long wait, for [`FastPathKind::Delegated`]. The caller holds the turn of
    /// the call.
    ///
    /// # Errors
    /// The errors of [`Backend::run`].
    fn run_fast_call(
        &self,
        arguments: &CallArguments<'_>,
        sequence: u64,
        deadline: &Deadline,
    ) -> Result<FastProgress<'static>> {
        let _ = (arguments, sequence, deadline);
        Ok(FastProgress::NotStarted)
    }

    /// Completes a call that [`FastPath::run_fast_call`] left with [`FastProgress::Accepted`].
    ///
    /// # Errors
    /// The errors of [`Backend::run`]; `Internal` if the back end never accepts a call.
    fn finish_fast_call(&self, operation: &Operation<'_>) -> Result<()> {
        let kind = operation.descriptor.kind.name();
        Err(Error::new(ErrorKind::Internal, format!("{kind}: the back end has not accepted it")))
    }
}

/// Observes the processes of the other ranks, and reaches them after the group failed.
pub trait PeerMonitor {
    /// Returns the endpoint at which other ranks reach this rank after the group failed.
    fn survivor_endpoint(&self) -> &Arc<SurvivorEndpoint>;

    /// Returns true if a rank is known to have left the group in order.
    fn has_left(&self, rank: Rank) -> bool;

    /// Returns the last known activity of a rank, for error messages; `None` if it is unknown.
    fn last_activity(&self, rank: Rank) -> Option<String>;
}

/// The failure state of a group. Holding it does not keep the group alive.
pub trait GroupFailureState: Send + Sync + Debug {
    /// See [`Backend::failure`].
    fn failure(&self) -> Option<Error>;

    /// See [`Backend::abort`].
    fn fail(&self, reason: &Error);

    /// Returns the failure of the group as an error, if it failed.
    ///
    /// # Errors
    /// The failure of the group.
    fn check_failure(&self) -> Result<()> {
        self.failure().map_or(Ok(()), Err)
    }

    /// Fails the group. Returns the first failure, because `error` may be its consequence.
    fn fail_with(&self, error: Error) -> Error {
        self.fail(&error);
        self.failure().unwrap_or(error)
    }

    /// Registers a listener that is called when another rank may have failed the group. Spurious
    /// calls are possible. A dropped listener is removed.
    fn add_listener(&self, listener: Weak<dyn DoorbellListener>);
}
