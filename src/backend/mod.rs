//! Back ends: the [`Backend`] trait that runs a group's operations, and the creation of a back end
//! by name.
//!
//! - [`native`] uses shared memory within a host and TCP between hosts.
//! - [`solo`] replaces it in groups of one rank.
//! - [`plugin`] adapts back ends of other libraries (MPI among them) that register at run time.
//! - [`device_map`] combines a back end for host memory with one for GPU memory. The latter is
//!   [`nccl`], or `staging`, which sends device memory through the host back end.
//!
//! This module does not depend on stores or on the C ABI. Ranks exchange bootstrap data through
//! [`BootstrapExchange`], and plug-ins store keys in [`GroupKeyStore`].

pub(crate) mod buffer_pool;
mod device_backend;
pub mod device_map;
pub mod native;
pub mod nccl;
mod peer_info;
pub mod plugin;
pub mod registry;
pub mod solo;
mod staging;

pub use crate::algo::EAGER_BYTES as PROMPT_BYTES;
pub use crate::algo::call_arguments::{CallArguments, FastCallKey};
pub use crate::algo::fast_path::{FastCall, FastProgress, PendingWakeup};
pub use crate::algo::{AlgorithmRequest, Operation};
pub use crate::transport::{
    Completion, CountSpec, Delivery, Descriptor, DoorbellListener, DoorbellListeners, LARGEST_TAG,
    OpKind, PeerName, PointToPoint, ProbeRequest, ProbedMessage, ReceiveBuffer, ReceiveRequest,
    SendRequest,
};
pub use device_backend::{
    DeviceBatch, DeviceMessage, DevicePointToPoint, DeviceTransfer as DeviceWay,
};
pub use nccl::NcclEnqueuer;

use crate::algo::rules::AlgorithmRule;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::gpu::{GpuTarget, StreamMarker};
use crate::base::ids::{GroupId, Rank, WorldSize};
use crate::base::op::ReduceOp;
use crate::transport::arena;
use crate::transport::heartbeat::ActivityFn;
use crate::transport::survivor_rendezvous::SurvivorEndpoint;
use serde_json::Value;
use std::fmt::{self, Debug};
use std::sync::{Arc, Weak};

/// The exchange of bootstrap data between the ranks of a group that is being created.
pub trait BootstrapExchange {
    /// Gathers the contributions of all ranks in rank order. All ranks call it with the same phases
    /// in the same order. `check_cancelled` is polled periodically; returning an error cancels the
    /// wait.
    ///
    /// # Errors
    /// The error of `check_cancelled`; the failure that another rank published; `Timeout` with the
    /// missing ranks; `Connection`.
    fn all_gather(
        &self,
        phase: &str,
        contribution: &[u8],
        check_cancelled: &dyn Fn() -> Option<Error>,
    ) -> Result<Vec<Vec<u8>>>;

    /// Publishes that this rank fails to join, and why. The first published reason stays. If this
    /// rank may be serving the store, it waits briefly until the other ranks have read their data.
    fn publish_failure(&self, reason: &Error);

    /// Returns the failure that another rank published, if any.
    fn peer_failure(&self) -> Option<Error>;
}

/// Keys and values that the ranks of one group share while the group exists. No other group sees
/// them. Any thread may use them; a waiting thread does not block the other threads.
pub trait GroupKeyStore: Send + Sync + Debug {
    /// Stores a value and replaces the previous value of the key.
    ///
    /// # Errors
    /// `Timeout`, `Connection`.
    fn set(&self, key: &str, value: &[u8], deadline: &Deadline) -> Result<()>;

    /// Returns the value of a key; waits until the key exists.
    ///
    /// # Errors
    /// `Timeout` naming the key, `Connection`.
    fn get(&self, key: &str, deadline: &Deadline) -> Result<Vec<u8>>;

    /// Adds to a counter and returns the sum. A missing counter starts at 0.
    ///
    /// # Errors
    /// `NotANumber`, `Timeout`, `Connection`.
    fn add(&self, key: &str, amount: i64, deadline: &Deadline) -> Result<i64>;

    /// Returns true if the key exists.
    ///
    /// # Errors
    /// `Timeout`, `Connection`.
    fn contains_key(&self, key: &str, deadline: &Deadline) -> Result<bool>;

    /// Removes a key; returns true if it existed.
    ///
    /// # Errors
    /// `Timeout`, `Connection`.
    fn delete(&self, key: &str, deadline: &Deadline) -> Result<bool>;
}

/// The properties of a parent group that its child group inherits. All ranks of the child know
/// them.
#[derive(Clone, Copy, Debug)]
pub struct ParentGroup<'a> {
    /// The algorithm overrides of the parent.
    pub algorithm_overrides: &'a [AlgorithmRule],
    /// True if the child has no options of its own and inherits those of the parent.
    pub inherits_options: bool,
}

/// The description of a group for the back end that is created for it.
#[derive(Clone, Copy, Debug)]
pub struct GroupContext<'a> {
    /// The identifier of this incarnation of the group.
    pub group: GroupId,
    /// The name of the group.
    pub name: &'a str,
    /// The timeout in milliseconds of operations that name none.
    pub timeout_ms: u64,
    /// The number of times that the group was shrunk to its surviving ranks.
    pub epoch: u32,
    /// The rank of this process.
    pub rank: Rank,
    /// The number of ranks.
    pub size: WorldSize,
    /// The host and port of the store where the ranks bootstrap, if there is one. Back ends use it
    /// as a hint to select the network interface.
    pub store_address: Option<(&'a str, u16)>,
    /// The keys of the group in this store, if there is one. They work while a rank serves the
    /// store.
    pub group_keys: Option<&'a Arc<dyn GroupKeyStore>>,
    /// The options of the caller for the back end: "key=value;key=value".
    pub options: &'a str,
    /// The GPU of this rank, if the options name one.
    pub device: Option<usize>,
    /// The parent group, if any.
    pub parent: Option<ParentGroup<'a>>,
    /// Describes the activity of this process outside the group's collectives, for error messages
    /// of ranks that wait for it.
    pub activity: Option<ActivityFn>,
    /// The deadline for the creation of the group.
    pub deadline: &'a Deadline,
}

/// A kind of call, for the query whether a back end supports it.
#[derive(Clone, Copy, Debug)]
pub struct SupportQuery {
    /// The name of the operation.
    pub name: &'static str,
    /// The kind of collective; `None` for point-to-point messages.
    pub kind: Option<OpKind>,
    /// The element type, if the call has elements.
    pub dtype: Option<DataType>,
    /// The operator, for reductions.
    pub op: Option<ReduceOp>,
    /// The GPU whose memory contains the buffers; `None` for host memory.
    pub gpu: Option<usize>,
}

impl SupportQuery {
    /// Refuses an operator that is not defined for the element type or for the operation.
    ///
    /// # Errors
    /// `Unsupported`.
    fn check_operator<'a>(
        &self,
        op: ReduceOp,
        dtype: DataType,
        backend: impl FnOnce() -> &'a str,
    ) -> Result<()> {
        op.check_defined_for(dtype, backend)?;
        self.kind.map_or(Ok(()), |kind| kind.check_op(op))
    }
}

impl fmt::Display for SupportQuery {
    /// Formats the query, for example `all_reduce (f32, SUM)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        match (self.dtype, self.op) {
            (Some(dtype), Some(op)) => write!(f, " ({dtype}, {op})"),
            (Some(dtype), None) => write!(f, " ({dtype})"),
            (None, _) => Ok(()),
        }
    }
}

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastPathKind {
    /// Only [`Backend::run`] runs calls.
    None,
    /// [`Backend::start_fast_call`] starts a call.
    Started,
    /// [`Backend::run_fast_call`] runs a call as a whole.
    Delegated,
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
pub trait Backend: Send + Sync + Debug {
    /// Returns the name of the back end in the registry.
    fn name(&self) -> &'static str;

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

    /// Returns the kind of fast path for small operations. A back end has none if it serves a
    /// device, or if the group has an arrival check before each collective.
    fn fast_path(&self) -> FastPathKind {
        FastPathKind::None
    }

    /// Starts a call of at most [`PROMPT_BYTES`] with this sequence number, for
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

    /// Runs a call of at most [`PROMPT_BYTES`] with this sequence number, as far as it completes
    /// without a long wait, for [`FastPathKind::Delegated`]. The caller holds the turn of the call.
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

    /// Completes a call that [`Backend::run_fast_call`] left with [`FastProgress::Accepted`].
    ///
    /// # Errors
    /// The errors of [`Backend::run`].
    fn finish_fast_call(&self, operation: &Operation<'_>) -> Result<()> {
        self.run(operation)
    }

    /// Returns the interface for point-to-point messages, which never wait for `run`; `None` if the
    /// back end has none.
    fn point_to_point(&self) -> Option<&dyn PointToPoint> {
        None
    }

    /// Returns the device of the group: the back end serves its memory in addition to host memory,
    /// or reports why it cannot. If there is a device, callers ask [`Backend::device_of`] for the
    /// location of each buffer.
    fn device(&self) -> Option<usize> {
        None
    }

    /// Returns the device that owns an address; `None` for host memory. Callers ask only if
    /// [`Backend::device`] returns a device.
    ///
    /// # Errors
    /// `Backend`.
    fn device_of(&self, address: usize) -> Result<Option<usize>> {
        let _ = address;
        Ok(None)
    }

    /// Checks whether a call can be enqueued in the caller's stream.
    ///
    /// # Errors
    /// `Unsupported`; `Backend`, also if the handle is not a stream.
    fn check_stream(&self, gpu: GpuTarget) -> Result<()> {
        let _ = gpu;
        Ok(())
    }

    /// Returns true if operations on the device end when they are enqueued, before their data is
    /// complete. Otherwise their data is complete when they end. Callers ask only if there is a
    /// [`Backend::device`].
    fn is_stream_ordered(&self) -> bool {
        false
    }

    /// Records an event for the work that is in a stream when a call is issued. Only back ends that
    /// wait for this work themselves return one.
    ///
    /// # Errors
    /// `Backend`.
    fn record_stream_event(&self, gpu: GpuTarget) -> Result<Option<Arc<dyn StreamMarker>>> {
        let _ = gpu;
        Ok(None)
    }

    /// Returns the interface for messages in device memory if the host transfers them one by one;
    /// `None` if the back end enqueues them together.
    fn device_point_to_point(&self) -> Option<&dyn DevicePointToPoint> {
        None
    }

    /// Returns the enqueuer of this group if operations of several groups can be enqueued on their
    /// devices as one batch ([`enqueue_batches`]); otherwise `None`.
    fn enqueuer(&self) -> Option<NcclEnqueuer<'_>> {
        None
    }

    /// Allocates memory for buffers on a device.
    ///
    /// # Errors
    /// `Unsupported`, `OutOfMemory`, `Backend`.
    fn allocate_on(&self, device: usize, bytes: usize) -> Result<Box<dyn BackendMemory>> {
        let message = format!(
            "back end {} cannot allocate memory on device {device} for {bytes} bytes: it supports \
             host memory only (DIST_DEVICE_HOST)",
            self.name()
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// Allocates host memory for buffers. If the back end has memory that peers can access
    /// directly, it allocates this kind. The address is not 0.
    ///
    /// # Errors
    /// `Unsupported` if the back end has no memory; `OutOfMemory`, `System`.
    fn allocate(&self, bytes: usize) -> Result<Box<dyn BackendMemory>> {
        let message = format!("back end {} has no memory for {bytes} bytes", self.name());
        Err(Error::new(ErrorKind::Unsupported, message))
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

    /// Returns the endpoint at which other ranks reach this rank after the group failed; `None` if
    /// there is none.
    fn survivor_endpoint(&self) -> Option<&Arc<SurvivorEndpoint>> {
        None
    }

    /// Returns true if a rank is known to have left the group in order.
    fn has_left(&self, _rank: Rank) -> bool {
        false
    }

    /// Returns the locations of all ranks, in rank order.
    fn rank_locations(&self) -> &[RankLocation];

    /// Returns the last known activity of a rank, for error messages; `None` if it is unknown.
    fn last_activity(&self, rank: Rank) -> Option<String> {
        let _ = rank;
        None
    }

    /// Returns true if the ranks agreed on an arrival check before each collective.
    fn has_arrival_check(&self) -> bool {
        false
    }

    /// Returns the algorithm overrides that the ranks agreed on, for child groups of this group.
    fn algorithm_overrides(&self) -> &[AlgorithmRule] {
        &[]
    }

    /// Returns true if the back end may refuse calls that other back ends support. Then the caller
    /// asks [`Backend::supports`] before a call takes its ticket.
    fn can_refuse_calls(&self) -> bool {
        false
    }

    /// Returns the details for `dist_group_describe` as JSON.
    fn describe(&self) -> Value;
}

/// The failure state of a group. Holding it does not keep the group alive.
pub trait GroupFailureState: Send + Sync + Debug {
    /// See [`Backend::failure`].
    fn failure(&self) -> Option<Error>;

    /// See [`Backend::abort`].
    fn fail(&self, reason: &Error);

    /// Registers a listener that is called when another rank may have failed the group. Spurious
    /// calls are possible. A dropped listener is removed.
    fn add_listener(&self, listener: Weak<dyn DoorbellListener>);
}

/// Memory that a back end allocated. Dropping it frees it.
pub trait BackendMemory: Send + Debug {
    /// Returns the address of the first byte.
    fn as_mut_ptr(&self) -> *mut u8;

    /// Returns the requested number of bytes.
    fn len(&self) -> usize;

    /// Returns true if the caller requested 0 bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl BackendMemory for arena::ArenaBlock {
    fn as_mut_ptr(&self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn len(&self) -> usize {
        self.len()
    }
}

/// Allocates host memory of the library, for back ends without an allocator.
fn allocate_host_memory(bytes: usize) -> Result<Box<dyn BackendMemory>> {
    Ok(Box::new(arena::allocate(bytes)?))
}

/// Creates the back end called `name`, which may be the name of a device map ([`device_map`]). The
/// C API replaces NULL by [`device_map::DEFAULT_NAME`]; "gloo" is an alias of "native".
///
/// # Errors
/// `NotFound` for an unknown name (the message lists the known names); the errors of the bootstrap.
pub fn create(
    name: &str,
    context: &GroupContext<'_>,
    exchange: &dyn BootstrapExchange,
) -> Result<Arc<dyn Backend>> {
    check_name(name)?;
    let devices = match (device_map::parse(name)?, context.device) {
        (None, Some(_)) => device_map::map_for_device(name),
        (devices, _) => devices,
    };
    match devices {
        Some(devices) => device_map::create(&devices, context, exchange),
        None => create_single_backend(name, context, exchange),
    }
}

/// Creates a back end whose name is not a device map.
fn create_single_backend(
    name: &str,
    context: &GroupContext<'_>,
    exchange: &dyn BootstrapExchange,
) -> Result<Arc<dyn Backend>> {
    if let Some(factory) = registry::find_factory(name) {
        return factory.create(context, exchange);
    }
    if context.size == 1 {
        // Options that are invalid for several ranks are also invalid for one rank.
        native::peer_info::check_options(context)?;
        return Ok(Arc::new(solo::SingleRankBackend::new()));
    }
    Ok(Arc::new(native::bootstrap::create(context, exchange)?))
}

/// Enqueues the operations of several groups, each on its device, as one operation, so that no
/// group waits for another. Returns one result per batch; an error has failed the group of this
/// batch. The batches must have the same order on all ranks and in all threads.
pub fn enqueue_batches(batches: &[DeviceBatch<'_>]) -> Vec<Result<()>> {
    nccl::enqueue_batches(batches)
}

/// Checks whether [`create`] knows a name, for callers that must not wait for other ranks to find
/// out.
///
/// # Errors
/// `NotFound` with the list of the known names. If the name needs NCCL, the error that prevents
/// loading it.
pub fn check_name(name: &str) -> Result<()> {
    match device_map::parse(name)? {
        Some(devices) => devices.check(),
        None => check_single_name(name),
    }
}

fn check_single_name(name: &str) -> Result<()> {
    if registry::canonical_name(name).is_some() {
        return Ok(());
    }
    let names = registry::names().join(", ");
    let message = format!(
        "there is no back end \"{name}\": the available back ends are {names}, nccl, and maps \
         such as \"cpu:native,cuda:nccl\""
    );
    Err(Error::new(ErrorKind::NotFound, message))
}

/// Returns the canonical form of a name that [`create`] knows. Names with the same meaning have the
/// same form.
pub fn canonical_name(name: &str) -> String {
    match device_map::parse(name) {
        Ok(Some(devices)) => devices.to_string(),
        _ => registry::canonical_name(name).unwrap_or("native").to_owned(),
    }
}

/// Returns the name of the back end for host memory that `name` selects: `name` itself, or the one
/// in the map. It does not check that this back end exists.
pub fn host_backend_name(name: &str) -> String {
    match device_map::parse(name) {
        Ok(Some(devices)) => devices.host_backend().to_owned(),
        _ => name.to_owned(),
    }
}

/// Returns true if [`create`] knows the name, in upper or lower case.
pub fn is_available(name: &str) -> bool {
    check_name(name).is_ok()
}
