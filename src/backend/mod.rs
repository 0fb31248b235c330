//! Back ends. A back end runs the operations of a group. This module contains the trait
//! [`Backend`], the back ends, and the creation of a back end by name ([`create`]).
//!
//! Each back end has a file or a folder of its own. [`registry`] finds a back end by its name.
//! [`device_map`] combines a back end for host memory with a back end for GPU memory, and
//! [`two_level`] combines a back end inside a host with another between hosts.
//!
//! This module does not depend on stores or on the C ABI. Ranks exchange bootstrap data through
//! [`BootstrapExchange`], and plug-ins store keys in [`GroupKeyStore`].

pub(crate) mod buffer_pool;
mod context;
mod creation;
mod device_backend;
mod device_factory;
pub mod device_map;
mod device_map_backend;
mod device_map_creation;
mod host_factory;
mod host_name;
mod interface;
mod linked_failures;
mod memory;
mod message_counter;
pub mod native;
pub mod nccl;
mod peer_info;
pub mod plugin;
pub mod registry;
pub mod solo;
mod staging;
mod support_query;
mod two_level;
pub mod ucc;

pub use crate::algo::EAGER_BYTES as PROMPT_BYTES;
pub use crate::algo::call_arguments::{CallArguments, FastCallKey};
pub use crate::algo::fast_path::{FastCall, FastPathState, FastProgress};
pub use crate::algo::{AlgorithmRequest, Operation};
pub use crate::transport::tcp::LinkHold;
pub use crate::transport::{
    Completion, CountSpec, Delivery, Descriptor, DoorbellListener, DoorbellListeners, LARGEST_TAG,
    MessageCounts, MessageTraffic, OpKind, PeerName, PointToPoint, ProbeRequest, ProbedMessage,
    ReceiveBuffer, ReceiveRequest, SendRequest, UnmatchedMessage,
};
pub use context::{BootstrapExchange, GroupContext, GroupKeyStore, ParentGroup};
pub use creation::{
    canonical_name, check_name, create, default_name, host_backend_names, is_available,
    requested_name,
};
pub use device_backend::{
    DeviceBackend, DeviceBatch, DeviceMessage, DevicePointToPoint, DeviceTransfer, JointEnqueuer,
    enqueue_batches,
};
pub use interface::{
    Backend, BackendProperties, FastPath, FastPathKind, GroupFailureState, PeerMonitor,
    RankLocation,
};
pub use memory::BackendMemory;
pub use native::open_domains::{has_open_domains, leave_all as leave_shared_memory};
pub use support_query::SupportQuery;
