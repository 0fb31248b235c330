//! How the ranks of a plug-in's group come together: each says who and where it is, the plug-in makes its part, and only
//! when all have it is there a group.

use super::super::{Context, Exchange, PeerName, Place};
use super::group::PluginGroup;
use super::{Plugin, State};
use crate::base::error::{Context as _, Error, ErrorKind, Result};
use crate::base::nodes::Nodes;
use crate::sys::host;
use serde_json::{Value, json};
use std::sync::Arc;

/// One rank's card.
struct Card {
    backend: String,
    host_id: String,
    host_name: String,
    pid: u32,
}

impl Card {
    fn encode(backend: &str) -> Vec<u8> {
        let card = json!({
            "backend": backend,
            "host_id": host::identity(),
            "host_name": host::name(),
            "pid": host::pid(),
        });
        card.to_string().into_bytes()
    }

    fn decode(rank: usize, bytes: &[u8]) -> Result<Self> {
        let read = || {
            let card: Value = serde_json::from_slice(bytes).ok()?;
            let text = |name: &str| card.get(name)?.as_str().map(str::to_owned);
            Some(Self {
                backend: text("backend")?,
                host_id: text("host_id")?,
                host_name: text("host_name")?,
                pid: u32::try_from(card.get("pid")?.as_u64()?).ok()?,
            })
        };
        read().ok_or_else(|| {
            let message = format!(
                "what rank {rank} says of itself cannot be read: does it use the same back end?"
            );
            Error::new(ErrorKind::Mismatch, message).with_culprit(rank)
        })
    }
}

/// Makes a group over a plug-in, together with its other ranks.
pub(super) fn create(
    name: &'static str,
    plugin: &dyn Plugin,
    context: &Context<'_>,
    exchange: &dyn Exchange,
) -> Result<PluginGroup> {
    let made = come_together(name, plugin, context, exchange);
    made.inspect_err(|error| exchange.give_up(error))
}

fn come_together(
    name: &'static str,
    plugin: &dyn Plugin,
    context: &Context<'_>,
    exchange: &dyn Exchange,
) -> Result<PluginGroup> {
    let cards = exchange.all("plugin", &Card::encode(name), &|| None)?;
    let decoded = cards.iter().enumerate().map(|(rank, bytes)| Card::decode(rank, bytes));
    let cards: Vec<Card> = decoded.collect::<Result<_>>()?;
    if let Some(rank) = cards.iter().position(|card| card.backend != name) {
        let other = &cards[rank].backend;
        let message = format!("rank {rank} asks for the back end {other}, and this one for {name}");
        return Err(Error::new(ErrorKind::Mismatch, message).with_culprit(rank));
    }
    let state = Arc::new(State::default());
    let made = plugin
        .create(context, exchange, &state)
        .context(|| format!("back end {name}, rank {} of {}", context.rank, context.size))?;
    state.begin(&made.communicator);
    let over = || made.communicator.failure();
    let mine = made.kinds.bits().to_le_bytes();
    let kinds = exchange.all("plugin-ready", &mine, &over)?;
    if let Some(rank) = kinds.iter().position(|kinds| *kinds != mine) {
        let message =
            format!("rank {rank} has other operations of the back end {name} than this one");
        return Err(Error::new(ErrorKind::Mismatch, message).with_culprit(rank));
    }
    crate::log!(
        crate::base::log::Level::Info,
        "group {} of {} ranks over back end {name}",
        context.group,
        context.size
    );
    Ok(PluginGroup::new(name, context.rank, places(cards), made, state))
}

fn places(cards: Vec<Card>) -> Vec<Place> {
    let labels: Vec<&str> = cards.iter().map(|card| card.host_id.as_str()).collect();
    let nodes = Nodes::by_label(&labels);
    let place = |(rank, card): (usize, &Card)| Place {
        name: PeerName { rank, pid: card.pid, host: card.host_name.as_str().into() },
        host_index: nodes.node_of(rank),
        local_rank: nodes.local_rank(rank),
    };
    cards.iter().enumerate().map(place).collect()
}
