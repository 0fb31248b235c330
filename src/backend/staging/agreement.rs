//! The agreement of a group's ranks on staging: each rank publishes whether it has a device, and
//! its chunk size.

use super::options::StagingOptions;
use crate::backend::device_backend::device_context;
use crate::backend::peer_info::{self, PeerInfoFields, check_device_maps};
use crate::backend::{BootstrapExchange, GroupContext, GroupFailureState};
use crate::base::error::{Error, ErrorKind, Result};
use crate::device;
use serde_json::json;
use std::sync::Arc;

/// The minimum part of a chunk in bytes per rank: an element of any type, on its own cache line.
pub(super) const CHUNK_ALIGN_BYTES: usize = 64;

/// The request for a staging back end.
#[derive(Clone, Debug)]
pub(in crate::backend) struct StagingRequest<'a> {
    /// The device map, which must be the same on all ranks.
    pub(in crate::backend) map: &'a str,
    /// True if the group continues without staging when a rank has no device.
    pub(in crate::backend) is_optional: bool,
    pub(in crate::backend) options: StagingOptions,
    /// The reason why NCCL is not used, if it was requested first.
    pub(in crate::backend) nccl_missing: Option<String>,
}

/// The result of the agreement.
pub(super) struct StagingAgreement {
    pub(super) context: Arc<device::CudaContext>,
    /// The bytes that one round copies, on all ranks.
    pub(super) chunk: usize,
}

/// The peer info of one rank for staging.
#[derive(Debug)]
struct StagingPeerInfo {
    map: String,
    /// The reason why the rank cannot use a device, if it cannot.
    missing_reason: Option<String>,
    chunk: usize,
}

impl StagingPeerInfo {
    fn from_fields(fields: &PeerInfoFields) -> Option<Self> {
        let (map, lacks) = (fields.text("map")?, fields.text("lacks"));
        Some(Self { map, missing_reason: lacks, chunk: fields.integer("chunk")? })
    }
}

/// Agrees on staging with all ranks. If staging is optional and a rank has no device, it returns
/// the reason instead.
pub(super) fn agree_on_staging(
    context: &GroupContext<'_>,
    exchange: &dyn BootstrapExchange,
    failure_state: &Arc<dyn GroupFailureState>,
    request: &StagingRequest<'_>,
) -> Result<std::result::Result<StagingAgreement, String>> {
    let own_device = device_context(context);
    let missing_reason = own_device.as_ref().err().map(Error::message);
    let own_info = json!({ "map": request.map, "lacks": missing_reason, "chunk": request.options.chunk_bytes });
    let check_cancelled = || failure_state.failure();
    let infos = peer_info::exchange_peer_info(
        exchange,
        "staging",
        &own_info,
        &check_cancelled,
        StagingPeerInfo::from_fields,
    )?;
    check_device_maps(infos.iter().map(|info| info.map.as_str()))?;
    let missing = infos
        .iter()
        .enumerate()
        .find_map(|(rank, info)| Some((rank, info.missing_reason.as_ref()?)));
    if let Some((rank, reason)) = missing {
        let reason = format!("rank {rank} has no device: {reason}");
        if request.is_optional {
            return Ok(Err(reason));
        }
        // The error of this rank keeps its own kind.
        let kind = own_device.as_ref().err().map_or(ErrorKind::Unsupported, Error::kind);
        return Err(Error::new(kind, reason).with_culprit(rank));
    }
    let chunk = infos.iter().map(|info| info.chunk).min();
    let chunk = chunk.ok_or_else(|| Error::internal("no rank sent a chunk size"))?;
    let chunk = chunk.max(CHUNK_ALIGN_BYTES * context.size).next_multiple_of(CHUNK_ALIGN_BYTES);
    Ok(Ok(StagingAgreement { context: own_device?, chunk }))
}
