//! How the ranks of a group agree to stage: each says whether it has a device, and how much it
//! would copy at once.

use super::options::Options;
use crate::backend::cards::{self, Fields, check_maps};
use crate::backend::device_part::context_of;
use crate::backend::{Context, Exchange, Fate};
use crate::base::error::{Error, ErrorKind, Result};
use crate::device;
use serde_json::json;
use std::sync::Arc;

/// A rank has that much of a chunk at least, however many there are: an element of any type, on
/// cache lines of its own.
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
    chunk: usize,
}

impl Card {
    fn read(fields: &Fields) -> Option<Self> {
        let (map, lacks) = (fields.text("map")?, fields.text("lacks"));
        Some(Self { map, lacks, chunk: fields.integer("chunk")? })
    }
}

/// What the ranks agree on; or why there is nothing, where some rank has no device and none is
/// needed.
pub(super) fn agree(
    context: &Context<'_>,
    exchange: &dyn Exchange,
    fate: &Arc<dyn Fate>,
    wish: &Wish<'_>,
) -> Result<std::result::Result<Agreed, String>> {
    let have = context_of(context);
    let lacks = have.as_ref().err().map(Error::message);
    let mine = json!({ "map": wish.map, "lacks": lacks, "chunk": wish.options.chunk });
    let over = || fate.failure();
    let cards = cards::exchange(exchange, "staging", &mine, &over, Card::read)?;
    check_maps(cards.iter().map(|card| card.map.as_str()))?;
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
    let chunk = cards.iter().map(|card| card.chunk).min();
    let chunk = chunk.ok_or_else(|| Error::internal("no rank has named a chunk"))?;
    let chunk = chunk.max(GRAIN * context.size).next_multiple_of(GRAIN);
    Ok(Ok(Agreed { context: have?, chunk }))
}
