//! How the ranks of a group make its communicator: each says which NCCL and which device it has,
//! all see whether that goes together, one makes the id, and only when all have a communicator is
//! there a part.

use super::comm::{Comm, Meeting, unique_id};
use super::functions::UniqueId;
use super::library::{self, Library};
use super::options::{self, Options};
use super::watchdog::Watched;
use crate::backend::cards::{self, Fields, check_maps};
use crate::backend::device_part::context_of;
use crate::backend::{Context, Exchange, Fate, Place};
use crate::base::error::{Context as _, Error, ErrorKind, Result};
use crate::device;
use crate::sys::host;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// From which version on several ranks may have one GPU.
const SHARES_GPUS: i32 = 23_000;

/// What one rank says.
#[derive(Debug)]
struct Card {
    /// The back ends that were asked for.
    map: String,
    /// Why there is no NCCL for it.
    lacks: Option<String>,
    version: i64,
    file: String,
    host_id: String,
    uuid: String,
    device: i64,
    shares: bool,
    may_block: bool,
}

/// What this rank has.
struct Have {
    library: &'static Library,
    context: Arc<device::Context>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend) struct Wish<'a> {
    /// The map of devices, which must be the same on all ranks.
    pub(in crate::backend) map: &'a str,
    /// Where NCCL is missing on a rank, the group does without.
    pub(in crate::backend) is_optional: bool,
    pub(in crate::backend) options: Options,
}

fn look(context: &Context<'_>) -> Result<Have> {
    Ok(Have { library: library::get()?, context: context_of(context)? })
}

impl Card {
    fn of(have: &Result<Have>, wish: &Wish<'_>) -> Result<Self> {
        let mut card = Self {
            map: wish.map.to_owned(),
            lacks: None,
            version: 0,
            file: String::new(),
            host_id: host::identity(),
            uuid: String::new(),
            device: -1,
            shares: options::may_share_gpus()?,
            may_block: wish.options.may_block,
        };
        match have {
            Ok(Have { library, context }) => {
                card.version = library.version().into();
                card.file = library.file().to_owned();
                card.uuid = context.driver().uuid(context.device())?.to_string();
                card.device = i64::try_from(context.device()).unwrap_or(-1);
            }
            Err(error) => card.lacks = Some(error.message().to_owned()),
        }
        Ok(card)
    }

    fn say(&self) -> Value {
        json!({
            "map": self.map,
            "lacks": self.lacks,
            "version": self.version,
            "file": self.file,
            "host_id": self.host_id,
            "uuid": self.uuid,
            "device": self.device,
            "shares": self.shares,
            "may_block": self.may_block,
        })
    }

    fn read(fields: &Fields) -> Option<Self> {
        Some(Self {
            map: fields.text("map")?,
            lacks: fields.text("lacks"),
            version: fields.integer("version")?,
            file: fields.text("file")?,
            host_id: fields.text("host_id")?,
            uuid: fields.text("uuid")?,
            device: fields.integer("device")?,
            shares: fields.flag("shares")?,
            may_block: fields.flag("may_block")?,
        })
    }
}

/// This rank's part; or why there is none, where some rank has no NCCL and none is needed.
pub(in crate::backend) type Found<T> = std::result::Result<T, String>;

/// Makes this rank's part together with the other ranks.
pub(super) fn create(
    context: &Context<'_>,
    exchange: &dyn Exchange,
    (fate, places): (&Arc<dyn Fate>, &[Place]),
    wish: &Wish<'_>,
) -> Result<Found<Arc<Watched>>> {
    let have = look(context);
    let card = Card::of(&have, wish)?;
    let over = || fate.failure();
    let cards = cards::exchange(exchange, "nccl", &card.say(), &over, Card::read)?;
    check_maps(cards.iter().map(|card| card.map.as_str()))?;
    if let Some((rank, why)) = missing(&cards, places) {
        if wish.is_optional {
            return Ok(Err(why));
        }
        // This rank's own reason has its own kind.
        let kind = match &have {
            Err(error) => error.kind(),
            Ok(_) => ErrorKind::Unsupported,
        };
        return Err(Error::new(kind, why).with_culprit(rank));
    }
    let Have { library, context: device } = have?;
    check_versions(&cards)?;
    check_devices(&cards, places)?;
    let mine = if context.rank == 0 { unique_id(library, &device)?.0.to_vec() } else { Vec::new() };
    let ids = exchange.all("nccl-id", &mine, &over)?;
    let id = ids.first().and_then(|id| id.as_slice().try_into().ok()).map(UniqueId);
    let id = id.ok_or_else(|| Error::internal("rank 0 gave no id of a communicator"))?;
    let given_up = || exchange.given_up();
    let (rank, size, deadline) = (context.rank, context.size, context.deadline);
    let may_block = cards.iter().all(|card| card.may_block);
    let meeting = Meeting { id, rank, size, deadline, over: &given_up, may_block };
    let comm = Comm::meet(library, &device, Arc::clone(fate), &meeting)
        .context(|| format!("back end nccl, rank {rank} of {size}, device {}", device.device()))?;
    exchange.all("nccl-ready", &[], &over)?;
    let timeout = Duration::from_millis(context.timeout_ms);
    Watched::start(comm, (context.group, timeout), Arc::clone(fate), wish.options).map(Ok)
}

/// The first rank that has no NCCL, and why.
fn missing(cards: &[Card], places: &[Place]) -> Option<(usize, String)> {
    let (rank, why) =
        cards.iter().enumerate().find_map(|(rank, card)| Some((rank, card.lacks.as_ref()?)))?;
    let who = places.get(rank).map(|place| place.name.to_string()).unwrap_or_default();
    Some((rank, format!("{who} has no NCCL: {why}")))
}

fn check_versions(cards: &[Card]) -> Result<()> {
    let first = &cards[0];
    let other = cards.iter().position(|card| card.version != first.version);
    let Some(rank) = other else { return Ok(()) };
    let text = |card: &Card| {
        let v = card.version;
        format!("{}.{}.{} ({})", v / 10_000, v / 100 % 100, v % 100, card.file)
    };
    let message = format!(
        "ranks have different versions of NCCL: rank 0 has {}, rank {rank} {}",
        text(first),
        text(&cards[rank])
    );
    Err(Error::new(ErrorKind::Mismatch, message).with_culprit(rank))
}

/// No two ranks have one GPU, unless NCCL can do that and was told to.
fn check_devices(cards: &[Card], places: &[Place]) -> Result<()> {
    let may_share = cards.iter().all(|card| card.shares && card.version >= i64::from(SHARES_GPUS));
    if may_share {
        return Ok(());
    }
    for (rank, card) in cards.iter().enumerate() {
        let same = |other: &&Card| other.host_id == card.host_id && other.uuid == card.uuid;
        let Some(other) = cards[..rank].iter().position(|other| same(&other)) else { continue };
        let who = |rank: usize| places.get(rank).map(|place| place.name.to_string());
        let message = format!(
            "{} and {} have the same GPU (devices {} and {}, uuid {}): NCCL needs one for each rank; give each rank its own \
             by `device` or CUDA_VISIBLE_DEVICES, or set NCCL_MULTI_RANK_GPU_ENABLE=1 on all ranks with NCCL 2.30 or newer",
            who(other).unwrap_or_default(),
            who(rank).unwrap_or_default(),
            cards[other].device,
            card.device,
            card.uuid
        );
        return Err(Error::invalid(message).with_culprit(rank));
    }
    Ok(())
}
