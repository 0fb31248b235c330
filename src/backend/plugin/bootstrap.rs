//! The bootstrap of a plug-in's group: the ranks exchange peer infos, the plug-in creates its
//! communicator, and the ranks confirm that all of them have one.

use super::super::peer_info::{self, PeerInfoFields};
use super::super::{BootstrapExchange, GroupContext, PeerName, RankLocation};
use super::group::PluginGroup;
use super::{Plugin, PluginFailureState, device_current};
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::base::nodes::NodeMap;
use crate::device;
use crate::sys::host;
use serde_json::{Value, json};
use std::sync::Arc;

/// The peer info of one rank for a plug-in.
struct PluginPeerInfo {
    backend: String,
    host_id: String,
    host_name: String,
    pid: u32,
}

impl PluginPeerInfo {
    fn of_this_rank(backend: &str) -> Value {
        json!({
            "backend": backend,
            "host_id": host::identity(),
            "host_name": host::name(),
            "pid": host::pid(),
        })
    }

    fn from_fields(fields: &PeerInfoFields) -> Option<Self> {
        Some(Self {
            backend: fields.text("backend")?,
            host_id: fields.text("host_id")?,
            host_name: fields.text("host_name")?,
            pid: fields.integer("pid")?,
        })
    }
}

/// Creates a group over a plug-in. All ranks call it together.
pub(super) fn create(
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
    // Ignore an unusable device here: a plug-in or call that needs the device reports the error.
    let device = context.device.and_then(|device| device::CudaContext::primary(device).ok());
    let created = {
        let _current = device.as_ref().map(|device| device.make_current()).transpose()?;
        plugin.create(context, exchange, &state)
    };
    let created = created
        .context(|| format!("back end {name}, rank {} of {}", context.rank, context.size))?;
    let created = match device {
        Some(device) if created.serves_device => {
            device_current::with_current_device(created, device)
        }
        _ => created,
    };
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
        "group {}: {} ranks over back end {name}",
        context.group,
        context.size
    );
    Ok(PluginGroup::new(name, context.rank, rank_locations(infos), created, state))
}

fn rank_locations(infos: Vec<PluginPeerInfo>) -> Vec<RankLocation> {
    let labels: Vec<&str> = infos.iter().map(|info| info.host_id.as_str()).collect();
    let nodes = NodeMap::by_label(&labels);
    let location = |(rank, info): (usize, &PluginPeerInfo)| RankLocation {
        name: PeerName { rank, pid: info.pid, host: info.host_name.as_str().into() },
        host_index: nodes.node_of(rank),
        local_rank: nodes.local_rank(rank),
    };
    infos.iter().enumerate().map(location).collect()
}
