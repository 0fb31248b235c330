//! How ranks agree on the members of a group: the rendezvous of a new group, subgroups, and the
//! shrink of a group after a failure.

mod bootstrap;
mod derived_group;
pub mod rendezvous;
pub mod shrink;
pub mod subgroup;
mod wire;
