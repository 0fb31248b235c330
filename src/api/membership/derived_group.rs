//! Creation of the back end of a derived group: a group whose members are ranks of another group,
//! its parent.

use crate::api::group::activity;
use crate::api::group::group_keys;
use crate::api::group::process_group::{Group, GroupIdentity, GroupOrigin};
use crate::backend::{self, Backend, BootstrapExchange, GroupContext, ParentGroup};
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::base::ids::Rank;
use std::sync::Arc;

/// Returns the origin of a group that is derived from `parent`. `members` has the parent's ranks
/// that are members. The group inherits the parent's properties.
pub(super) fn derived_origin(parent: &Group, members: &[Rank]) -> GroupOrigin {
    let origin = &parent.origin;
    GroupOrigin {
        global_ranks: members.iter().map(|&member| origin.global_ranks[member]).collect(),
        parent: Some(parent.name().to_owned()),
        backend: origin.backend.clone(),
        backend_options: origin.backend_options.clone(),
        device: origin.device,
        store_address: origin.store_address.clone(),
        security: origin.security.clone(),
        rendezvous_store: origin.rendezvous_store.clone(),
        epoch: 0,
        former_endpoints: Vec::new(),
        _name_lease: None,
    }
}

/// Creates the back end of a derived group.
///
/// # Errors
/// Any error that prevents the bootstrap of the back end.
pub(super) fn create_backend(
    parent: &Group,
    identity: &GroupIdentity,
    origin: &GroupOrigin,
    inherits_options: bool,
    exchange: &dyn BootstrapExchange,
    deadline: &Deadline,
) -> Result<Arc<dyn Backend>> {
    let keys = group_keys::open_group_keys(&origin.rendezvous_store, identity.id);
    let context = GroupContext {
        group: identity.id,
        name: &identity.name,
        timeout_ms: identity.timeout_ms,
        epoch: origin.epoch,
        rank: identity.rank,
        size: origin.global_ranks.len(),
        shown_ranks: None,
        store_address: origin.store_address.as_ref().map(|(host, port)| (host.as_str(), *port)),
        security: &origin.security,
        group_keys: keys.as_ref(),
        options: &origin.backend_options,
        device: origin.device,
        parent: Some(ParentGroup {
            algorithm_overrides: parent.backend.properties().algorithm_overrides,
            inherits_options,
        }),
        activity: Some(activity::describe_other_activity),
        deadline,
    };
    backend::create(&origin.backend, &context, exchange)
}
