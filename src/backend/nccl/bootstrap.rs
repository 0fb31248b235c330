//! The bootstrap of a group's NCCL communicator:
//!
//! 1. Each rank publishes its [`NcclPeerInfo`]: its NCCL library and its device.
//! 2. Each rank checks the versions and devices of all ranks.
//! 3. Rank 0 creates the unique id and publishes it.
//! 4. Each rank initializes its communicator and confirms that it is ready.
//!
//! The device back end exists only after all ranks confirmed.

use super::comm::{CommInitParams, NcclComm, create_unique_id};
use super::functions::NcclUniqueId;
use super::library::{self, NcclLibrary};
use super::options::{self, NcclOptions};
use super::watchdog::NcclWatchdog;
use crate::backend::device_backend::device_context;
use crate::backend::peer_info::{self, PeerInfoFields, check_device_maps};
use crate::backend::{BootstrapExchange, GroupContext, GroupFailureState, RankLocation};
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::device;
use crate::sys::host;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// The first NCCL version in which several ranks can use one GPU.
const MULTI_RANK_GPU_VERSION: i32 = 23_000;

/// The peer info of one rank for NCCL.
#[derive(Debug)]
struct NcclPeerInfo {
    /// The name of the requested device map.
    map: String,
    /// The reason why the rank cannot use NCCL, if it cannot.
    missing_reason: Option<String>,
    version: i64,
    file: String,
    host_id: String,
    uuid: String,
    device: i64,
    can_share_gpu: bool,
    may_block: bool,
}

/// The NCCL library and the device of this rank.
struct LocalNccl {
    library: &'static NcclLibrary,
    context: Arc<device::CudaContext>,
}

/// The request for an NCCL back end.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend) struct NcclRequest<'a> {
    /// The device map, which must be the same on all ranks.
    pub(in crate::backend) map: &'a str,
    /// True if the group continues without NCCL when a rank lacks it.
    pub(in crate::backend) is_optional: bool,
    pub(in crate::backend) options: NcclOptions,
}

fn detect_local(context: &GroupContext<'_>) -> Result<LocalNccl> {
    Ok(LocalNccl { library: library::get()?, context: device_context(context)? })
}

impl NcclPeerInfo {
    fn of_this_rank(local: &Result<LocalNccl>, request: &NcclRequest<'_>) -> Result<Self> {
        let mut info = Self {
            map: request.map.to_owned(),
            missing_reason: None,
            version: 0,
            file: String::new(),
            host_id: host::identity(),
            uuid: String::new(),
            device: -1,
            can_share_gpu: options::may_share_gpus()?,
            may_block: request.options.may_block,
        };
        match local {
            Ok(LocalNccl { library, context }) => {
                info.version = library.version().into();
                info.file = library.file().to_owned();
                info.uuid = context.driver().uuid(context.device())?.to_string();
                info.device = i64::try_from(context.device()).unwrap_or(-1);
            }
            Err(error) => info.missing_reason = Some(error.message().to_owned()),
        }
        Ok(info)
    }

    fn to_json(&self) -> Value {
        json!({
            "map": self.map,
            "lacks": self.missing_reason,
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
            map: fields.text("map")?,
            missing_reason: fields.text("lacks"),
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

/// The NCCL back end of this rank; or, if NCCL is optional, the reason why a rank lacks it.
pub(in crate::backend) type NcclOrReason<T> = std::result::Result<T, String>;

/// Creates the NCCL communicator of this rank. All ranks call it together.
pub(super) fn create(
    context: &GroupContext<'_>,
    exchange: &dyn BootstrapExchange,
    (failure_state, locations): (&Arc<dyn GroupFailureState>, &[RankLocation]),
    request: &NcclRequest<'_>,
) -> Result<NcclOrReason<Arc<NcclWatchdog>>> {
    let local_nccl = detect_local(context);
    let own_info = NcclPeerInfo::of_this_rank(&local_nccl, request)?;
    let check_cancelled = || failure_state.failure();
    let infos = peer_info::exchange_peer_info(
        exchange,
        "nccl",
        &own_info.to_json(),
        &check_cancelled,
        NcclPeerInfo::from_fields,
    )?;
    check_device_maps(infos.iter().map(|info| info.map.as_str()))?;
    if let Some((rank, reason)) = first_missing(&infos, locations) {
        if request.is_optional {
            return Ok(Err(reason));
        }
        // The error of this rank keeps its own kind.
        let kind = match &local_nccl {
            Err(error) => error.kind(),
            Ok(_) => ErrorKind::Unsupported,
        };
        return Err(Error::new(kind, reason).with_culprit(rank));
    }
    let LocalNccl { library, context: device } = local_nccl?;
    check_versions(&infos)?;
    check_devices(&infos, locations)?;
    let mine =
        if context.rank == 0 { create_unique_id(library, &device)?.0.to_vec() } else { Vec::new() };
    let ids = exchange.all_gather("nccl-id", &mine, &check_cancelled)?;
    let id = ids.first().and_then(|id| id.as_slice().try_into().ok()).map(NcclUniqueId);
    let id = id.ok_or_else(|| Error::internal("rank 0 sent no NCCL unique id"))?;
    let peer_failure_check = || exchange.peer_failure();
    let (rank, size, deadline) = (context.rank, context.size, context.deadline);
    let may_block = infos.iter().all(|info| info.may_block);
    let init_params = CommInitParams {
        id,
        rank,
        size,
        deadline,
        check_cancelled: &peer_failure_check,
        may_block,
    };
    let comm = NcclComm::init_rank(library, &device, Arc::clone(failure_state), &init_params)
        .context(|| format!("back end nccl, rank {rank} of {size}, device {}", device.device()))?;
    exchange.all_gather("nccl-ready", &[], &check_cancelled)?;
    let timeout = Duration::from_millis(context.timeout_ms);
    NcclWatchdog::start_thread(
        comm,
        (context.group, timeout),
        Arc::clone(failure_state),
        request.options,
    )
    .map(Ok)
}

/// Returns the first rank without NCCL and its reason.
fn first_missing(infos: &[NcclPeerInfo], locations: &[RankLocation]) -> Option<(usize, String)> {
    let (rank, reason) = infos
        .iter()
        .enumerate()
        .find_map(|(rank, info)| Some((rank, info.missing_reason.as_ref()?)))?;
    let name = locations.get(rank).map(|location| location.name.to_string()).unwrap_or_default();
    Some((rank, format!("{name} has no NCCL: {reason}")))
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

/// Checks that no two ranks use the same GPU, unless this NCCL supports it and the user enabled it.
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
        let name_of = |rank: usize| locations.get(rank).map(|location| location.name.to_string());
        let message = format!(
            "{} and {} use the same GPU (devices {} and {}, uuid {}): NCCL needs a different GPU \
             for each rank; give each rank its own by `device` or CUDA_VISIBLE_DEVICES, or set \
             NCCL_MULTI_RANK_GPU_ENABLE=1 on all ranks with NCCL 2.30 or newer",
            name_of(other).unwrap_or_default(),
            name_of(rank).unwrap_or_default(),
            infos[other].device,
            info.device,
            info.uuid
        );
        return Err(Error::invalid(message).with_culprit(rank));
    }
    Ok(())
}
