//! How the ranks of a plug-in's group come together: each says who and where it is, the plug-in
//! makes its part, and only when all have it is there a group.

use super::super::cards::{self, Fields};
use super::super::{Context, Exchange, PeerName, Place};
use super::group::PluginGroup;
use super::{Plugin, State, current};
use crate::base::error::{Context as _, Error, ErrorKind, Result};
use crate::base::nodes::Nodes;
use crate::device;
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
    fn of_this_rank(backend: &str) -> Value {
        json!({
            "backend": backend,
            "host_id": host::identity(),
            "host_name": host::name(),
            "pid": host::pid(),
        })
    }

    fn read(fields: &Fields) -> Option<Self> {
        Some(Self {
            backend: fields.text("backend")?,
            host_id: fields.text("host_id")?,
            host_name: fields.text("host_name")?,
            pid: fields.integer("pid")?,
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
    let mine = Card::of_this_rank(name);
    let cards = cards::exchange(exchange, "plugin", &mine, &|| None, Card::read)?;
    if let Some(rank) = cards.iter().position(|card| card.backend != name) {
        let other = &cards[rank].backend;
        let message = format!("rank {rank} asks for the back end {other}, and this one for {name}");
        return Err(Error::new(ErrorKind::Mismatch, message).with_culprit(rank));
    }
    let state = Arc::new(State::default());
    // Whoever needs the device says what is wrong with it.
    let device = context.device.and_then(|device| device::Context::of(device).ok());
    let made = {
        let _current = device.as_ref().map(|device| device.enter()).transpose()?;
        plugin.create(context, exchange, &state)
    };
    let made =
        made.context(|| format!("back end {name}, rank {} of {}", context.rank, context.size))?;
    let made = match device {
        Some(device) if made.serves_device => current::with_device(made, device),
        _ => made,
    };
    state.begin(&made.communicator);
    let over = || made.communicator.failure();
    let mut mine = made.kinds.bits().to_le_bytes().to_vec();
    mine.push(u8::from(made.serves_device));
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
