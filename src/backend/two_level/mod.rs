//! Two-level groups: one back end inside a host and another between hosts, as one group. The name
//! `inside=NAME,between=NAME` selects them ([`spec`]).
//!
//! A two-level group has a host back end over all ranks. Each rank is also in one or two *inner
//! groups* ([`inner_group`]): one of the ranks of this host, and one of ranks of different hosts.
//! An operation is composed of operations of the inner groups, its *steps* ([`steps`],
//! [`operations`]).
//!
//! | memory | file | inside the host | between hosts |
//! |---|---|---|---|
//! | host | [`host`] | a host back end | a host back end |
//! | device | [`device`] | a device back end | a host back end, through host memory |
//!
//! The host back end carries the messages, detects dead ranks, and owns the failure state. If an
//! inner group fails, the two-level group and the other inner group fail too, and the reverse
//! ([`super::linked_failures`]).
//!
//! Only some operations have steps. The ranks agree on the supported calls when the group is
//! created ([`support`]).

mod average;
mod call;
mod copies;
mod device;
mod host;
mod inner_group;
mod member_exchange;
mod operations;
mod reductions;
mod scratch;
mod spec;
mod steps;
mod support;

pub(super) use device::create_device;
pub(super) use host::create_host;
pub(super) use inner_group::TwoLevelOptions;
pub(super) use spec::{TwoLevelSpec, split_slots};
