//! How the ranks of a native group come together: they exchange cards, each computes the same plan from
//! them, they meet in shared memory, and each reports whether it did.

use super::card::Card;
use super::{Native, malformed};
use crate::algo::Shape;
use crate::algo::shared::Lane;
use crate::backend::{Context, Exchange, Place};
use crate::base::config;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::Level;
use crate::transport::shm::{Meeting, Member, Party};
use crate::transport::{Geometry, PeerName, SharedDomain, inproc};
use crate::wait::Pace;
use std::sync::Mutex;
use std::time::Duration;

/// The largest element in bytes: a slot must hold one for each rank.
const LARGEST_ELEMENT: usize = 16;

/// What all ranks compute alike from the cards.
#[derive(Debug)]
struct Plan {
    in_process: bool,
    geometry: Geometry,
    shape: Shape,
    pace: Pace,
}

/// Makes the native back end of a group of two ranks or more.
///
/// # Errors
/// `Unsupported` where the ranks are on several hosts; `Timeout` naming the ranks that did not come;
/// whatever kept a rank from sharing memory, with that rank's name.
pub(in crate::backend) fn create(context: &Context<'_>, exchange: &dyn Exchange) -> Result<Native> {
    come_together(context, exchange).inspect_err(|error| exchange.give_up(error))
}

fn come_together(context: &Context<'_>, exchange: &dyn Exchange) -> Result<Native> {
    let meeting = Meeting::open()?;
    let mine = Card::of_this_rank(meeting.name(), context.options)?;
    let cards: Vec<Card> = exchange
        .all("card", &mine.encode(), &|| None)?
        .iter()
        .enumerate()
        .map(|(rank, bytes)| Card::decode(bytes).ok_or_else(|| malformed(rank)))
        .collect::<Result<_>>()?;
    let places = one_host(&cards)?;
    let plan = plan(&cards)?;
    let domain = meet(context, &plan, &cards, &places, meeting, exchange)?;
    // Only when all have met is there a group. Who dies meanwhile is noticed by its lifeline.
    exchange.all("met", b"", &|| domain.failure())?;
    let transport = if plan.in_process { "inproc" } else { "shm" };
    crate::log!(Level::Info, "group {} of {} ranks over {transport}", context.group, context.size);
    let lane = Mutex::new(Lane::new(context.group, context.size));
    Ok(Native { domain, transport, shape: plan.shape, places, lane })
}

/// Everybody's place; refused where they are on several hosts.
fn one_host(cards: &[Card]) -> Result<Vec<Place>> {
    let first = &cards[0];
    if let Some(rank) = cards.iter().position(|card| card.host_id != first.host_id) {
        let message = format!(
            "rank 0 is on host {} and rank {rank} on host {}: the native back end of this version joins \
             ranks of one host only (transport between hosts is not there yet)",
            first.host_name, cards[rank].host_name
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let place = |(rank, card): (Rank, &Card)| Place {
        name: PeerName { rank, pid: card.pid, host: card.host_name.clone() },
        host_index: 0,
        local_rank: rank,
    };
    Ok(cards.iter().enumerate().map(place).collect())
}

fn plan(cards: &[Card]) -> Result<Plan> {
    let ranks = cards.len();
    let one_process = cards.iter().all(|card| card.process == cards[0].process);
    let in_process = match cards[0].transport.as_str() {
        "auto" => one_process,
        "shm" => false,
        "inproc" if one_process => true,
        "inproc" => {
            let message =
                "transport inproc was asked for, but the ranks are not threads of one process";
            return Err(Error::invalid(message));
        }
        other => {
            let message = format!("transport \"{other}\" is none of auto, shm, inproc");
            return Err(Error::invalid(message));
        }
    };
    let least = (ranks * LARGEST_ELEMENT).max(cards[0].slot_bytes);
    let geometry = Geometry { ranks, slot_bytes: least.next_multiple_of(4096) };
    let cores = cards.iter().map(|card| card.cores).min().unwrap_or(1);
    let spin = Duration::from_micros(config::bounded(config::SPIN_US, 200, 0, 1_000_000)?);
    let pace = Pace::new(ranks, cores, spin);
    Ok(Plan { in_process, geometry, shape: Shape { ranks, crowded: pace.crowded }, pace })
}

fn meet(
    context: &Context<'_>,
    plan: &Plan,
    cards: &[Card],
    places: &[Place],
    meeting: Meeting,
    exchange: &dyn Exchange,
) -> Result<Box<dyn SharedDomain>> {
    let (group, rank) = (context.group, context.rank);
    if plan.in_process {
        let peers = places.iter().map(|place| place.name.clone()).collect();
        let domain = inproc::Domain::join(group, 0, rank, peers, plan.geometry, plan.pace)?;
        return Ok(Box::new(domain));
    }
    let member = |(place, card): (&Place, &Card)| Member {
        peer: place.name.clone(),
        socket: card.socket.clone(),
        nonce: card.nonce,
    };
    let members: Vec<Member> = places.iter().zip(cards).map(member).collect();
    let party = Party { group, members: &members, me: rank, deadline: context.deadline };
    let domain = meeting.join(&party, plan.geometry, plan.pace, &|| exchange.given_up())?;
    Ok(Box::new(domain))
}
