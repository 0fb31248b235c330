//! What carries out operations: one trait, and a registry by name.
//!
//! `native` is shared memory inside a host and TCP between hosts, and `solo` stands for it in
//! groups of one rank. `plugin` is what others have written (MPI among it), which registers beside
//! them. `device_map` is a group for host memory and the memory of a GPU, of which `nccl` serves
//! the latter, or `staging`, which has the part for the former carry it.
//!
//! Must not know: stores (ranks exchange what they need through [`BootstrapExchange`], and plug-ins
//! keep what they need in [`GroupKeyStore`]), the C ABI.

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
pub use crate::algo::shared::sequencer::fast_path::FastPathOutcome;
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
use crate::base::deadline::{Deadline, LazyDeadline};
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

/// How the ranks of a group tell each other what they need to meet.
pub trait BootstrapExchange {
    /// Every rank contributes some bytes under the name of a phase and gets those of all ranks, in
    /// rank order. All ranks call it with the same phases in the same order. `check_cancelled` is
    /// asked now and then whether there is a reason not to wait any longer.
    ///
    /// # Errors
    /// That reason, or the one for which another rank gave up; `Timeout` naming the ranks that did
    /// not come, `Connection`.
    fn all_gather(
        &self,
        phase: &str,
        contribution: &[u8],
        check_cancelled: &dyn Fn() -> Option<Error>,
    ) -> Result<Vec<Vec<u8>>>;

    /// Tells the other ranks that this one will not come, and why; the first reason stays. A rank
    /// that may be serving the store waits a moment until the others have read what they need.
    fn publish_failure(&self, reason: &Error);

    /// Why another rank gave up, if one did.
    fn peer_failure(&self) -> Option<Error>;
}

/// Keys and values that the ranks of one group share for as long as it lasts, apart from everybody
/// else's. Any thread may use them; one that waits does not hold up the others.
pub trait GroupKeyStore: Send + Sync + Debug {
    /// Stores a value, whatever was there before.
    ///
    /// # Errors
    /// `Timeout`, `Connection`.
    fn set(&self, key: &str, value: &[u8], deadline: &Deadline) -> Result<()>;

    /// The value of a key; waits until there is one.
    ///
    /// # Errors
    /// `Timeout` naming the key, `Connection`.
    fn get(&self, key: &str, deadline: &Deadline) -> Result<Vec<u8>>;

    /// Adds to a counter, which is 0 where there is none, and returns the sum.
    ///
    /// # Errors
    /// `NotANumber`, `Timeout`, `Connection`.
    fn add(&self, key: &str, amount: i64, deadline: &Deadline) -> Result<i64>;

    /// Whether there is such a key.
    ///
    /// # Errors
    /// `Timeout`, `Connection`.
    fn contains_key(&self, key: &str, deadline: &Deadline) -> Result<bool>;

    /// Removes a key; true where it existed.
    ///
    /// # Errors
    /// `Timeout`, `Connection`.
    fn delete(&self, key: &str, deadline: &Deadline) -> Result<bool>;
}

/// What a group takes over from the one that it is made from, which all its ranks know already.
#[derive(Clone, Copy, Debug)]
pub struct ParentGroup<'a> {
    /// Who asked for which algorithm.
    pub algorithm_overrides: &'a [AlgorithmRule],
    /// The group has no options of its own.
    pub inherits_options: bool,
}

/// What a back end is told about the group that it is to serve.
#[derive(Clone, Copy, Debug)]
pub struct GroupContext<'a> {
    /// This incarnation of the group.
    pub group: GroupId,
    /// Its name.
    pub name: &'a str,
    /// The deadline of operations that name none, in milliseconds.
    pub timeout_ms: u64,
    /// How often a group of ranks that have failed was replaced by one of what was left, to come to
    /// this one.
    pub epoch: u32,
    /// This process's rank.
    pub rank: Rank,
    /// The number of ranks.
    pub size: WorldSize,
    /// The host and port of the store that the ranks meet in, where it has any: a hint which
    /// network joins them.
    pub store_address: Option<(&'a str, u16)>,
    /// What its ranks may keep in that store, while somebody has it.
    pub group_keys: Option<&'a Arc<dyn GroupKeyStore>>,
    /// What the caller asked of the back end: "key=value;key=value".
    pub options: &'a str,
    /// The GPU of this rank, where one was named.
    pub device: Option<usize>,
    /// The group that it is made from, if any.
    pub parent: Option<ParentGroup<'a>>,
    /// Says what this process does beside the collectives of a group, for those that wait for it.
    pub activity: Option<ActivityFn>,
    /// When the group must be ready.
    pub deadline: &'a Deadline,
}

/// What a back end can be asked whether it does.
#[derive(Clone, Copy, Debug)]
pub struct SupportQuery {
    /// The name of the operation.
    pub name: &'static str,
    /// Which collective; `None` for messages between two ranks.
    pub kind: Option<OpKind>,
    /// The element type, where there are elements.
    pub dtype: Option<DataType>,
    /// The operator, for reductions.
    pub op: Option<ReduceOp>,
    /// The GPU that has the buffers; `None` for host memory.
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
    /// For instance `all_reduce (f32, SUM)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        match (self.dtype, self.op) {
            (Some(dtype), Some(op)) => write!(f, " ({dtype}, {op})"),
            (Some(dtype), None) => write!(f, " ({dtype})"),
            (None, _) => Ok(()),
        }
    }
}

/// Where a rank is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankLocation {
    /// Who it is.
    pub name: PeerName,
    /// Which of the group's hosts it is on, from 0, in order of their lowest ranks.
    pub host_index: usize,
    /// Its position among the ranks of its host.
    pub local_rank: usize,
}

/// A group's back end.
///
/// Obligations: `run` is called by one thread at a time and in the same order on all ranks; it
/// returns at the operation's deadline at the latest; after the first error other than a refused
/// argument every later `run` fails with the same cause. `abort` and `failure` may be called from
/// any thread.
pub trait Backend: Send + Sync + Debug {
    /// Its name in the registry.
    fn name(&self) -> &'static str;

    /// Whether there is an algorithm that does what is wanted. Asked before the call takes its
    /// place in the order, so that a refusal leaves the group as it was.
    ///
    /// # Errors
    /// `InvalidArgument`, listing those there are.
    fn check_algorithm_request(
        &self,
        kind: OpKind,
        bytes: usize,
        request: AlgorithmRequest<'_>,
    ) -> Result<()>;

    /// Whether it does a kind of call at all.
    ///
    /// # Errors
    /// `Unsupported`, naming the call and the back end.
    fn supports(&self, query: &SupportQuery) -> Result<()> {
        if let Some(gpu) = query.gpu {
            let message = format!(
                "{query} in memory of device {gpu}: the back end {} is for host memory",
                self.name()
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        match (query.op, query.dtype) {
            (Some(op), Some(dtype)) => query.check_operator(op, dtype, || self.name()),
            _ => Ok(()),
        }
    }

    /// Carries out one operation.
    ///
    /// # Errors
    /// Any; the message says who is to blame.
    fn run(&self, operation: &Operation<'_>) -> Result<()>;

    /// Whether small operations may have a shorter way ([`Backend::run_fast_path`]): not where it
    /// serves a device, or all ranks come together before each collective.
    fn has_fast_path(&self) -> bool {
        false
    }

    /// Prepares for calls like this one, of at most [`PROMPT_BYTES`], to take the shorter way from
    /// now on; false where they cannot. In the turn of such a call.
    fn prepare_fast_path(&self, fast_call: &CallArguments<'_>, key: FastCallKey) -> bool {
        let _ = (fast_call, key);
        false
    }

    /// Does what can be done at once of a call that was rehearsed, with this sequence number and
    /// until that deadline; the rest is for [`Backend::run`] ([`Operation::is_published`]), or for
    /// [`Backend::wake_pending_waiters`]. `on_begin` is told the words of the descriptor, once the
    /// others have what they wait for of this rank, or as soon as that is left to somebody else. In
    /// its turn.
    ///
    /// # Errors
    /// As [`Backend::run`].
    fn run_fast_path(
        &self,
        fast_call: (&CallArguments<'_>, FastCallKey),
        sequence_and_deadline: (u64, &LazyDeadline),
        on_begin: &mut dyn FnMut(&[u64; 3]),
    ) -> Result<FastPathOutcome> {
        let _ = (fast_call, sequence_and_deadline, on_begin);
        Ok(FastPathOutcome::NotStarted)
    }

    /// Wakes whoever waits for what was [`FastPathOutcome::Unheard`], after a fence.
    fn wake_pending_waiters(&self) {}

    /// Sends and receives between two ranks, which never wait behind `run`; `None` where the back
    /// end has none.
    fn point_to_point(&self) -> Option<&dyn PointToPoint> {
        None
    }

    /// The device whose memory it serves beside the host's, or would if it could: then it is asked
    /// where buffers lie.
    fn device(&self) -> Option<usize> {
        None
    }

    /// The device that has an address; `None` for host memory. Asked where there is a
    /// [`Backend::device`].
    ///
    /// # Errors
    /// `Backend`.
    fn device_of(&self, address: usize) -> Result<Option<usize>> {
        let _ = address;
        Ok(None)
    }

    /// Whether a call can be put into a stream of the caller's.
    ///
    /// # Errors
    /// `Unsupported`; `Backend`, also for what is no stream.
    fn check_stream(&self, gpu: GpuTarget) -> Result<()> {
        let _ = gpu;
        Ok(())
    }

    /// Whether operations on its device end once they are enqueued, and take place later; else they
    /// have taken place when they end. Asked where there is a [`Backend::device`].
    fn is_stream_ordered(&self) -> bool {
        false
    }

    /// Notes what is in a stream as a call is issued, for back ends that have to wait for it by
    /// themselves.
    ///
    /// # Errors
    /// `Backend`.
    fn record_stream_event(&self, gpu: GpuTarget) -> Result<Option<Arc<dyn StreamMarker>>> {
        let _ = gpu;
        Ok(None)
    }

    /// Messages in a device's memory, where they are carried one by one; `None` where they are
    /// enqueued together.
    fn device_point_to_point(&self) -> Option<&dyn DevicePointToPoint> {
        None
    }

    /// Where operations of several groups can be enqueued on their devices as one
    /// ([`enqueue_batches`]): what takes this group's. Else `None`.
    fn enqueuer(&self) -> Option<NcclEnqueuer<'_>> {
        None
    }

    /// Memory for buffers on a device.
    ///
    /// # Errors
    /// `Unsupported`, `OutOfMemory`, `Backend`.
    fn allocate_on(&self, device: usize, bytes: usize) -> Result<Box<dyn BackendMemory>> {
        let message = format!(
            "back end {} has no memory on device {device} for {bytes} bytes: it serves host memory (DIST_DEVICE_HOST)",
            self.name()
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// Memory of this process for buffers, of the kind that other ranks can be given direct access
    /// to where there is such a kind. `as_src` is not 0.
    ///
    /// # Errors
    /// `Unsupported` where the back end has none; `OutOfMemory`, `System`.
    fn allocate(&self, bytes: usize) -> Result<Box<dyn BackendMemory>> {
        let message = format!("back end {} has no memory for {bytes} bytes", self.name());
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// Fails the group on all its ranks; the first reason stays.
    fn abort(&self, reason: &Error);

    /// Why the group has failed, if it has.
    fn failure(&self) -> Option<Error>;

    /// The group's failure, for groups that share its fate; `None` where none can.
    fn failure_state(&self) -> Option<Arc<dyn GroupFailureState>> {
        None
    }

    /// Where the other ranks find this one once the group has failed; `None` where there is no such
    /// place.
    fn survivor_endpoint(&self) -> Option<&Arc<SurvivorEndpoint>> {
        None
    }

    /// Whether a rank is known to have left the group in order.
    fn has_left(&self, _rank: Rank) -> bool {
        false
    }

    /// Where every rank is.
    fn rank_locations(&self) -> &[RankLocation];

    /// What a rank was last seen doing, for messages; `None` where nobody knows.
    fn last_activity(&self, rank: Rank) -> Option<String> {
        let _ = rank;
        None
    }

    /// Whether the ranks have agreed that all come together before each collective.
    fn has_arrival_check(&self) -> bool {
        false
    }

    /// Overrides of the choice among algorithms that the ranks have agreed on, for groups made from
    /// this one.
    fn algorithm_overrides(&self) -> &[AlgorithmRule] {
        &[]
    }

    /// Whether it may refuse calls that others do, so that it is asked ([`Backend::supports`])
    /// before a call takes its place in the order.
    fn can_refuse_calls(&self) -> bool {
        false
    }

    /// What would run, as JSON, for `dist_group_describe`.
    fn describe(&self) -> Value;
}

/// The failure of a group, apart from the group: holding it does not keep the group.
pub trait GroupFailureState: Send + Sync + Debug {
    /// As [`Backend::failure`].
    fn failure(&self) -> Option<Error>;

    /// As [`Backend::abort`].
    fn fail(&self, reason: &Error);

    /// Adds somebody to call when another rank may have failed the group, and also otherwise; it is
    /// forgotten when it is gone.
    fn add_listener(&self, listener: Weak<dyn DoorbellListener>);
}

/// Memory that a back end has allocated. Dropping it frees it.
pub trait BackendMemory: Send + Debug {
    /// The address of the first byte.
    fn as_mut_ptr(&self) -> *mut u8;

    /// How many bytes were asked for.
    fn len(&self) -> usize;

    /// True where that was none.
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

/// Host memory of the library's own, for back ends that have none.
fn allocate_host_memory(bytes: usize) -> Result<Box<dyn BackendMemory>> {
    Ok(Box::new(arena::allocate(bytes)?))
}

/// Makes the back end called `name`, which may be a map of devices ([`device_map`]); NULL in the C
/// API is [`device_map::DEFAULT_NAME`], and another name of "native" is "gloo".
///
/// # Errors
/// `NotFound` for an unknown name (the message lists those there are), and whatever keeps the ranks
/// from meeting.
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

/// Makes one that is no map.
fn create_single_backend(
    name: &str,
    context: &GroupContext<'_>,
    exchange: &dyn BootstrapExchange,
) -> Result<Arc<dyn Backend>> {
    if let Some(factory) = registry::find_factory(name) {
        return factory.create(context, exchange);
    }
    if context.size == 1 {
        // What would be wrong with more ranks is so with one.
        native::peer_info::check_options(context)?;
        return Ok(Arc::new(solo::SingleRankBackend::new()));
    }
    Ok(Arc::new(native::bootstrap::create(context, exchange)?))
}

/// Enqueues what several groups have, each on its device, as one operation: none waits for another
/// one of them. Says for each how that went; an error has failed the group. In the order of the
/// bundles, which is to be the same on all ranks and in all threads.
pub fn enqueue_batches(batches: &[DeviceBatch<'_>]) -> Vec<Result<()>> {
    nccl::enqueue_batches(batches)
}

/// Whether [`create`] knows a name, for callers that must not wait for other ranks to find out.
///
/// # Errors
/// `NotFound`; the message lists the names there are. What keeps NCCL from being loaded, for a name
/// that needs it.
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
        "there is no back end \"{name}\"; there are: {names}, nccl, and maps such as \"cpu:native,cuda:nccl\""
    );
    Err(Error::new(ErrorKind::NotFound, message))
}

/// What a name that [`create`] knows stands for: two of them may mean the same.
pub fn canonical_name(name: &str) -> String {
    match device_map::parse(name) {
        Ok(Some(devices)) => devices.to_string(),
        _ => registry::canonical_name(name).unwrap_or("native").to_owned(),
    }
}

/// The back end for host memory that a name stands for: its own, or one of a map, whether it is
/// known or not.
pub fn host_backend_name(name: &str) -> String {
    match device_map::parse(name) {
        Ok(Some(devices)) => devices.host_backend().to_owned(),
        _ => name.to_owned(),
    }
}

/// True for a name that [`create`] knows, in any case.
pub fn is_available(name: &str) -> bool {
    check_name(name).is_ok()
}
