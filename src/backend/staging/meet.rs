//! How the ranks of a group agree to stage: each says whether it has a device, and how much it would copy at once.

use super::options::Options;
use crate::backend::{Context, Exchange, Fate};
use crate::base::error::{Error, ErrorKind, Result};
use crate::device::{self, driver};
use serde_json::{Value, json};
use std::sync::Arc;

/// A rank has that much of a chunk at least, however many there are: an element of any type, on cache lines of its own.
pub(super) const GRAIN: usize = 64;

/// What is asked for.
#[derive(Clone, Debug)]
pub(in crate::backend) struct Wish<'a> {
    /// The map of devices, which must be the same on all ranks.
    pub(in crate::backend) map: &'a str,
    /// Where a rank has no device, the group does without.
    pub(in crate::backend) is_optional: bool,
    pub(in crate::backend) options: Options,
    /// Why it is not NCCL, where that was asked for first.
    pub(in crate::backend) instead: Option<String>,
}

/// What the ranks have agreed on.
pub(super) struct Agreed {
    pub(super) context: Arc<device::Context>,
    /// The bytes that are carried at once, on all ranks.
    pub(super) chunk: usize,
}

/// What one rank says.
#[derive(Debug)]
struct Card {
    map: String,
    /// Why there is no device for it.
    lacks: Option<String>,
    chunk: u64,
}

impl Card {
    fn encode(&self) -> Vec<u8> {
        let card = json!({ "map": self.map, "lacks": self.lacks, "chunk": self.chunk });
        card.to_string().into_bytes()
    }

    fn decode(rank: usize, bytes: &[u8]) -> Result<Self> {
        let read = || {
            let card: Value = serde_json::from_slice(bytes).ok()?;
            let text = |name: &str| card.get(name)?.as_str().map(str::to_owned);
            Some(Self {
                map: text("map")?,
                lacks: text("lacks"),
                chunk: card.get("chunk")?.as_u64()?,
            })
        };
        read().ok_or_else(|| {
            let message = format!("what rank {rank} says of its device cannot be read");
            Error::new(ErrorKind::Mismatch, message).with_culprit(rank)
        })
    }
}

fn look(context: &Context<'_>) -> Result<Arc<device::Context>> {
    let driver = driver::get()?;
    let Some(device) = context.device.or_else(|| driver.current_device()) else {
        let message = "no device was named for this rank: set `device` in the options (DIST_FIELD_DEVICE), or make one \
                       current on the thread that makes the group (cudaSetDevice and a first call, cuCtxSetCurrent)";
        return Err(Error::invalid(message));
    };
    device::Context::of(device)
}

/// What the ranks agree on; or why there is nothing, where some rank has no device and none is needed.
pub(super) fn agree(
    context: &Context<'_>,
    exchange: &dyn Exchange,
    fate: &Arc<dyn Fate>,
    wish: &Wish<'_>,
) -> Result<std::result::Result<Agreed, String>> {
    let have = look(context);
    let lacks = have.as_ref().err().map(|error| error.message().to_owned());
    let card = Card { map: wish.map.to_owned(), lacks, chunk: wish.options.chunk as u64 };
    let cards = exchange.all("staging", &card.encode(), &|| fate.failure())?;
    let cards = cards.iter().enumerate().map(|(rank, bytes)| Card::decode(rank, bytes));
    let cards: Vec<Card> = cards.collect::<Result<_>>()?;
    if let Some(rank) = cards.iter().position(|card| card.map != cards[0].map) {
        let (other, first) = (&cards[rank].map, &cards[0].map);
        let message = format!("rank {rank} asks for the back ends {other}, and rank 0 for {first}");
        return Err(Error::new(ErrorKind::Mismatch, message).with_culprit(rank));
    }
    let missing =
        cards.iter().enumerate().find_map(|(rank, card)| Some((rank, card.lacks.as_ref()?)));
    if let Some((rank, why)) = missing {
        let why = format!("rank {rank} has no device: {why}");
        if wish.is_optional {
            return Ok(Err(why));
        }
        // This rank's own reason has its own kind.
        let kind = have.as_ref().err().map_or(ErrorKind::Unsupported, Error::kind);
        return Err(Error::new(kind, why).with_culprit(rank));
    }
    let chunk =
        cards.iter().map(|card| card.chunk).min().and_then(|least| usize::try_from(least).ok());
    let chunk = chunk.ok_or_else(|| Error::internal("no rank has named a chunk"))?;
    let chunk = chunk.max(GRAIN * context.size).next_multiple_of(GRAIN);
    Ok(Ok(Agreed { context: have?, chunk }))
}
