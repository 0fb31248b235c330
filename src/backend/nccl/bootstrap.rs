//! The bootstrap of a group's NCCL communicator:
//!
//! 1. Each rank publishes its [`NcclPeerInfo`], which describes its NCCL library and its device.
//! 2. Each rank checks the versions and devices of all ranks.
//! 3. Rank 0 creates the unique id of the communicator and publishes it.
//! 4. Each rank initializes its communicator and confirms that the communicator is ready.
//!
//! The device back end exists only after all ranks have confirmed.

use super::comm::{CommInitParams, NcclComm, create_unique_id};
use super::functions::NcclUniqueId;
use super::library::{self, NcclLibrary};
use super::options::{NcclOptions, may_share_gpus};
use super::watchdog::NcclWatchdog;
use crate::backend::device_factory::{DeviceBackendSetup, agree_on_device, device_context};
use crate::backend::peer_info::PeerInfoFields;
use crate::backend::{GroupContext, RankLocation};
use crate::base::config;
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::device;
use crate::sys::host;
use serde_json::{Value, json};
use std::sync::Arc;

/// The first NCCL version in which several ranks can use one GPU.
const MULTI_RANK_GPU_VERSION: i32 = 23_000;

/// The peer info of one rank for NCCL.
#[derive(Debug)]
struct NcclPeerInfo {
    version: i64,
    file: String,
    host_id: String,
    uuid: String,
    device: i64,
    can_share_gpu: bool,
    may_block: bool,
}

/// The NCCL library and the CUDA context of this rank.
struct LocalNccl {
    library: &'static NcclLibrary,
    context: Arc<device::CudaContext>,
}

fn detect_local(context: &GroupContext<'_>) -> Result<LocalNccl> {
    Ok(LocalNccl { library: library::get()?, context: device_context(context)? })
}

impl NcclPeerInfo {
    fn of_this_rank(local: &Result<LocalNccl>, options: NcclOptions) -> Result<Self> {
        let mut info = Self {
            version: 0,
            file: String::new(),
            host_id: host::identity(),
            uuid: String::new(),
            device: -1,
            can_share_gpu: may_share_gpus()?,
            may_block: options.may_block,
        };
        if let Ok(LocalNccl { library, context }) = local {
            info.version = library.version().into();
            info.file = library.file().to_owned();
            info.uuid = context.driver().uuid(context.device())?.to_string();
            info.device = i64::try_from(context.device()).unwrap_or(-1);
        }
        Ok(info)
    }

    fn to_json(&self) -> Value {
        json!({
            "version": self.version,
            "file": self.file,
            "host_id": self.host_id,
            "uuid": self.uuid,
            "device": self.device,
            "shares": self.can_share_gpu,
            "may_block": self.may_block,
        })
    }

    fn from_fields(fields: &PeerInfoFields) -> Option<Self> {
        Some(Self {
            version: fields.integer("version")?,
            file: fields.text("file")?,
            host_id: fields.text("host_id")?,
            uuid: fields.text("uuid")?,
            device: fields.integer("device")?,
            can_share_gpu: fields.flag("shares")?,
            may_block: fields.flag("may_block")?,
        })
    }
}

/// Creates the NCCL communicator of this rank, with its watchdog. All ranks must call this
/// function, because it waits for all ranks. If NCCL is optional and a rank cannot use it, the
/// function returns the reason.
pub(super) fn create(
    setup: &DeviceBackendSetup<'_>,
    options: NcclOptions,
) -> Result<std::result::Result<Arc<NcclWatchdog>, String>> {
    let DeviceBackendSetup { context, exchange, host, failure_state, .. } = *setup;
    let locations = host.rank_locations();
    let local_nccl = detect_local(context);
    let own_info = NcclPeerInfo::of_this_rank(&local_nccl, options)?.to_json();
    let describe_missing =
        |rank, reason: &str| format!("{} has no NCCL: {reason}", name_of(locations, rank));
    let agreed = agree_on_device(
        setup,
        "nccl",
        local_nccl,
        own_info,
        NcclPeerInfo::from_fields,
        describe_missing,
    )?;
    let (LocalNccl { library, context: device }, infos) = match agreed {
        Ok(agreed) => agreed,
        Err(reason) => return Ok(Err(reason)),
    };
    let check_cancelled = || failure_state.failure();
    check_versions(&infos)?;
    check_devices(&infos, locations)?;
    let mine =
        if context.rank == 0 { create_unique_id(library, &device)?.0.to_vec() } else { Vec::new() };
    let ids = exchange.all_gather("nccl-id", &mine, &check_cancelled)?;
    let id = ids.first().and_then(|id| id.as_slice().try_into().ok()).map(NcclUniqueId);
    let id = id.ok_or_else(|| Error::malformed_peer_data(0, "the NCCL unique id"))?;
    let (rank, size) = (context.rank, context.size);
    let init_params = CommInitParams {
        id,
        rank,
        size,
        deadline: context.deadline,
        check_cancelled: &|| exchange.peer_failure(),
        may_block: infos.iter().all(|info| info.may_block),
    };
    let comm = NcclComm::init_rank(library, &device, Arc::clone(failure_state), &init_params)
        .context(|| format!("back end nccl, rank {rank} of {size}, device {}", device.device()))?;
    exchange.all_gather("nccl-ready", &[], &check_cancelled)?;
    log_nccl_variables(context, library);
    NcclWatchdog::start_thread(comm, context, Arc::clone(failure_state), options).map(Ok)
}

/// Logs the version of NCCL and the variables of NCCL's own log.
fn log_nccl_variables(context: &GroupContext<'_>, library: &NcclLibrary) {
    let value = |variable| match config::read_text(variable) {
        Ok(text) => text.unwrap_or_else(|| "not set".to_owned()),
        Err(error) => error.to_string(),
    };
    crate::log!(
        LogLevel::Info,
        "group {}, rank {}: NCCL {}; {}: {}; {}: {}",
        context.name,
        context.rank,
        library.version_and_file(),
        config::NCCL_DEBUG.name,
        value(config::NCCL_DEBUG),
        config::NCCL_DEBUG_SUBSYS.name,
        value(config::NCCL_DEBUG_SUBSYS)
    );
}

/// Returns the name of a rank with its process and host.
fn name_of(locations: &[RankLocation], rank: Rank) -> String {
    locations.get(rank).map(|location| location.name.to_string()).unwrap_or_default()
}

fn check_versions(infos: &[NcclPeerInfo]) -> Result<()> {
    let first = &infos[0];
    let other = infos.iter().position(|info| info.version != first.version);
    let Some(rank) = other else { return Ok(()) };
    let text = |info: &NcclPeerInfo| {
        let v = info.version;
        format!("{}.{}.{} ({})", v / 10_000, v / 100 % 100, v % 100, info.file)
    };
    let message = format!(
        "ranks have different versions of NCCL: rank 0 has {}, rank {rank} has {}",
        text(first),
        text(&infos[rank])
    );
    Err(Error::new(ErrorKind::Mismatch, message).with_culprit(rank))
}

/// Checks that no two ranks use the same GPU. Shared GPUs are allowed only if the NCCL version of
/// all ranks supports this and the user has enabled it on all ranks.
fn check_devices(infos: &[NcclPeerInfo], locations: &[RankLocation]) -> Result<()> {
    let may_share = infos
        .iter()
        .all(|info| info.can_share_gpu && info.version >= i64::from(MULTI_RANK_GPU_VERSION));
    if may_share {
        return Ok(());
    }
    for (rank, info) in infos.iter().enumerate() {
        let same = |other: &&NcclPeerInfo| other.host_id == info.host_id && other.uuid == info.uuid;
        let Some(other) = infos[..rank].iter().position(|other| same(&other)) else { continue };
        let message = format!(
            "{} and {} use the same GPU (devices {} and {}, uuid {}): NCCL needs a different GPU \
             for each rank; give each rank its own by `device` or CUDA_VISIBLE_DEVICES, or set \
             NCCL_MULTI_RANK_GPU_ENABLE=1 on all ranks with NCCL 2.30 or newer",
            name_of(locations, other),
            name_of(locations, rank),
            infos[other].device,
            info.device,
            info.uuid
        );
        return Err(Error::invalid(message).with_culprit(rank));
    }
    Ok(())
}
