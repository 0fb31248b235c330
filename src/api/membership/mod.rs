//! Which ranks belong to a group: rendezvous, subgroups, and the shrink after a failure.

pub mod rendezvous;
pub mod shrink;
pub mod subgroup;
