//! The layer below the C interface: the state of the process, the rendezvous, groups, the checks of
//! arguments, and the order of calls.
//!
//! This layer does not depend on concrete back ends or transports (only on the registry in
//! `backend`), on system calls, or on C types.

pub mod collective;
pub mod environment;
pub mod group;
mod init_options;
pub mod leave_at_exit;
pub mod membership;
pub mod observe;
pub mod p2p;
pub mod reducer;
pub mod runtime;
pub mod spawn;
pub mod store;
pub mod work;
mod world_store;

#[cfg(test)]
mod tests;

pub use collective::bytes::{BytesCall, BytesHandler};
pub use collective::call::{Call, CallOptions};
pub use collective::operator::{Operator, OperatorCall};
pub use collective::tensor_list::{ListCall, ListTensor};
pub use group::create::GroupOptions;
pub use group::process_group::Group;
pub use init_options::InitOptions;
pub use membership::shrink::ShrinkOptions;
pub use membership::subgroup::SubgroupOptions;
pub use store::StoreHandle;
pub use work::handle::Work;
pub use work::progress::WorkProgress;
