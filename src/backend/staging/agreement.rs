//! The agreement of a group's ranks on staging: each rank publishes whether it has a device, and
//! its chunk size.

use super::options::StagingOptions;
use crate::backend::device_factory::{DeviceBackendSetup, agree_on_device, device_context};
use crate::base::error::{Error, Result};
use crate::device::CudaContext;
use serde_json::json;
use std::sync::Arc;

/// The minimum part of a chunk in bytes per rank: an element of any type, on its own cache line.
pub(super) const CHUNK_ALIGN_BYTES: usize = 64;

/// The result of the agreement.
pub(super) struct StagingAgreement {
    pub(super) context: Arc<CudaContext>,
    /// The bytes that one round copies, on all ranks.
    pub(super) chunk: usize,
}

/// Agrees on staging with all ranks. If staging is optional and a rank has no device, it returns
/// the reason instead.
pub(super) fn agree_on_staging(
    setup: &DeviceBackendSetup<'_>,
    options: StagingOptions,
) -> Result<std::result::Result<StagingAgreement, String>> {
    let agreed = agree_on_device(
        setup,
        "staging",
        device_context(setup.context),
        json!({ "chunk": options.chunk_bytes }),
        |fields| fields.integer::<usize>("chunk"),
        |rank, reason| format!("rank {rank} has no device: {reason}"),
    )?;
    let (context, chunks) = match agreed {
        Ok(agreed) => agreed,
        Err(reason) => return Ok(Err(reason)),
    };
    let chunk = chunks.into_iter().min();
    let chunk = chunk.ok_or_else(|| Error::internal("no rank sent a chunk size"))?;
    let min_chunk = CHUNK_ALIGN_BYTES * setup.context.size;
    let chunk = chunk.max(min_chunk).next_multiple_of(CHUNK_ALIGN_BYTES);
    Ok(Ok(StagingAgreement { context, chunk }))
}
