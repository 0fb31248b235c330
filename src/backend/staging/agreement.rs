//! How the ranks of a group agree to stage: each says whether it has a device, and how much it
//! would copy at once.

use super::options::StagingOptions;
use crate::backend::device_backend::device_context;
use crate::backend::peer_info::{self, PeerInfoFields, check_device_maps};
use crate::backend::{BootstrapExchange, GroupContext, GroupFailureState};
use crate::base::error::{Error, ErrorKind, Result};
use crate::device;
use serde_json::json;
use std::sync::Arc;

/// A rank has that much of a chunk at least, however many there are: an element of any type, on
/// cache lines of its own.
pub(super) const CHUNK_ALIGN_BYTES: usize = 64;

/// What is asked for.
#[derive(Clone, Debug)]
pub(in crate::backend) struct StagingRequest<'a> {
    /// The map of devices, which must be the same on all ranks.
    pub(in crate::backend) map: &'a str,
    /// Where a rank has no device, the group does without.
    pub(in crate::backend) is_optional: bool,
    pub(in crate::backend) options: StagingOptions,
    /// Why it is not NCCL, where that was asked for first.
    pub(in crate::backend) nccl_missing: Option<String>,
}

/// What the ranks have agreed on.
pub(super) struct StagingAgreement {
    pub(super) context: Arc<device::CudaContext>,
    /// The bytes that are carried at once, on all ranks.
    pub(super) chunk: usize,
}

/// What one rank says.
#[derive(Debug)]
struct StagingPeerInfo {
    map: String,
    /// Why there is no device for it.
    missing_reason: Option<String>,
    chunk: usize,
}

impl StagingPeerInfo {
    fn from_fields(fields: &PeerInfoFields) -> Option<Self> {
        let (map, lacks) = (fields.text("map")?, fields.text("lacks"));
        Some(Self { map, missing_reason: lacks, chunk: fields.integer("chunk")? })
    }
}

/// What the ranks agree on; or why there is nothing, where some rank has no device and none is
/// needed.
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
    check_device_maps(infos.iter().map(|card| card.map.as_str()))?;
    let missing = infos
        .iter()
        .enumerate()
        .find_map(|(rank, card)| Some((rank, card.missing_reason.as_ref()?)));
    if let Some((rank, reason)) = missing {
        let reason = format!("rank {rank} has no device: {reason}");
        if request.is_optional {
            return Ok(Err(reason));
        }
        // This rank's own reason has its own kind.
        let kind = own_device.as_ref().err().map_or(ErrorKind::Unsupported, Error::kind);
        return Err(Error::new(kind, reason).with_culprit(rank));
    }
    let chunk = infos.iter().map(|card| card.chunk).min();
    let chunk = chunk.ok_or_else(|| Error::internal("no rank has named a chunk"))?;
    let chunk = chunk.max(CHUNK_ALIGN_BYTES * context.size).next_multiple_of(CHUNK_ALIGN_BYTES);
    Ok(Ok(StagingAgreement { context: own_device?, chunk }))
}
