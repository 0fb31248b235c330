//! The bootstrap of the groups of a plug-in.
//! In the bootstrap, the ranks exchange peer infos, the plug-in creates its communicator on each
//! rank, and the ranks confirm that every rank has a communicator.

use super::communicator::CreatedCommunicator;
use super::device_current::BoundCommunicator;
use super::failure_state::PluginFailureState;
use super::group::{PluginGroup, PluginIdentity};
use crate::backend::peer_info::{self, PeerInfoFields};
use crate::backend::{BootstrapExchange, GroupContext};
use crate::base::debug::{self, DebugLevel};
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::base::nodes::NodeMap;
use crate::base::plural::Plural;
use crate::device;
use crate::sys::host;
use serde_json::{Value, json};
use std::sync::Arc;

/// A back end of another library.
pub trait Plugin: Send + Sync {
    /// Creates the communicator of this rank. All ranks of the group call this function at the same
    /// time. `state` is the failure state of the group, in which a later failure is recorded.
    ///
    /// # Errors
    /// Any error that prevents the creation.
    fn create(
        &self,
        context: &GroupContext<'_>,
        exchange: &dyn BootstrapExchange,
        state: &Arc<PluginFailureState>,
    ) -> Result<CreatedCommunicator>;
}

crate::base::trait_object_debug::impl_debug_of_objects!(Plugin);

/// The peer info of one rank for a plug-in.
struct PluginPeerInfo {
    backend: String,
    host_id: String,
    host_name: String,
    pid: u32,
    /// True if the debug level is DETAIL. The value of rank 0 decides whether the group runs an
    /// arrival check before each collective.
    has_detail_level: bool,
}

impl PluginPeerInfo {
    fn of_this_rank(backend: &str) -> Value {
        json!({
            "backend": backend,
            "host_id": host::identity(),
            "host_name": host::name(),
            "pid": host::pid(),
            "detail": debug::level() == DebugLevel::Detail,
        })
    }

    fn from_fields(fields: &PeerInfoFields) -> Option<Self> {
        Some(Self {
            backend: fields.text("backend")?,
            host_id: fields.text("host_id")?,
            host_name: fields.text("host_name")?,
            pid: fields.integer("pid")?,
            has_detail_level: fields.flag("detail")?,
        })
    }
}

/// Creates the back end of a group over a plug-in. All ranks must call this function, because it
/// waits for all ranks.
pub(in crate::backend) fn create_group(
    name: &'static str,
    plugin: &dyn Plugin,
    context: &GroupContext<'_>,
    exchange: &dyn BootstrapExchange,
) -> Result<PluginGroup> {
    let created = bootstrap_group(name, plugin, context, exchange);
    created.inspect_err(|error| exchange.publish_failure(error))
}

fn bootstrap_group(
    name: &'static str,
    plugin: &dyn Plugin,
    context: &GroupContext<'_>,
    exchange: &dyn BootstrapExchange,
) -> Result<PluginGroup> {
    let own_info = PluginPeerInfo::of_this_rank(name);
    let infos = peer_info::exchange_peer_info(
        exchange,
        "plugin",
        &own_info,
        &|| None,
        PluginPeerInfo::from_fields,
    )?;
    if let Some(rank) = infos.iter().position(|info| info.backend != name) {
        let other = &infos[rank].backend;
        let message =
            format!("rank {rank} requests the back end {other}, and this rank requests {name}");
        return Err(Error::new(ErrorKind::Mismatch, message).with_culprit(rank));
    }
    let state = Arc::new(PluginFailureState::default());
    // If the device cannot be used, the group is created without it. A plug-in that needs the
    // device fails in its `create`, and a later call with memory of the device fails.
    let device = context.device.and_then(|device| device::CudaContext::primary(device).ok());
    let created = {
        let _current = device.as_ref().map(|device| device.make_current()).transpose()?;
        plugin.create(context, exchange, &state)
    };
    let created = created
        .context(|| format!("back end {name}, rank {} of {}", context.rank, context.size))?;
    let device = device.filter(|_| created.serves_device);
    state.attach_communicator(&created.communicator);
    let check_cancelled = || created.communicator.failure();
    let mut own_kinds = created.kinds.bits().to_le_bytes().to_vec();
    own_kinds.push(u8::from(created.serves_device));
    let kinds = exchange.all_gather("plugin-ready", &own_kinds, &check_cancelled)?;
    if let Some(rank) = kinds.iter().position(|kinds| *kinds != own_kinds) {
        let message = format!(
            "rank {rank} and this rank support different operations of the back end {name}"
        );
        return Err(Error::new(ErrorKind::Mismatch, message).with_culprit(rank));
    }
    crate::log!(
        crate::base::log::LogLevel::Info,
        "group {}: {} over back end {name}",
        context.group,
        Plural(context.size, "rank")
    );
    let labels: Vec<&str> = infos.iter().map(|info| info.host_id.as_str()).collect();
    let hosts = NodeMap::by_label(&labels);
    let locations = peer_info::rank_locations(&hosts, context.shown_ranks, |rank| {
        (infos[rank].pid, infos[rank].host_name.as_str())
    });
    let bound = BoundCommunicator { communicator: created.communicator, device };
    let own =
        PluginIdentity { name, rank: context.rank, has_detail_level: infos[0].has_detail_level };
    Ok(PluginGroup::new(own, locations, bound, created.kinds, state))
}
