//! Which ranks belong to a group: rendezvous, subgroups, and the shrink after a failure.

mod bootstrap;
mod derived_group;
pub mod rendezvous;
pub mod shrink;
pub mod subgroup;
mod wire;
