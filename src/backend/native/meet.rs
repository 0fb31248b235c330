//! How the ranks of a native group come together: they exchange cards, each computes the same plan
//! from them, those of a node meet in shared memory, the nodes connect, and each rank reports
//! whether it did.

use super::card::{Card, check_transport};
use super::cores::are_crowded;
use super::{Lanes, Membership, Native, malformed};
use crate::algo::Shape;
use crate::algo::rules::Rules;
use crate::backend::{Context, Exchange, Place};
use crate::base::config;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::Level;
use crate::base::nodes::Nodes;
use crate::transport::attach;
use crate::transport::matching::Engine;
use crate::transport::reunion::{self, Port};
use crate::transport::shm::{Meeting, Member, Party};
use crate::transport::{Endpoint, Geometry, PeerName, Rhythm, SharedDomain, Vitals, inproc, tcp};
use crate::wait::bell::Bell;
use crate::wait::{Pace, until};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The largest element in bytes: a slot must hold one for each rank of the group.
const LARGEST_ELEMENT: usize = 16;

/// What joins the nodes, and where ranks of other nodes find this one later.
type Joined = (Arc<dyn Endpoint>, Option<tcp::Gate>);

/// What all ranks compute alike from the cards.
#[derive(Debug)]
struct Plan {
    nodes: Nodes,
    places: Vec<Place>,
    names: Arc<[PeerName]>,
    /// The nodes are joined by queues in memory, since all ranks are threads of one process.
    in_process: bool,
    slot_bytes: usize,
    shape: Shape,
    rules: Rules,
    pace: Pace,
    heartbeat_ms: u64,
}

/// Makes the native back end of a group of two ranks or more.
///
/// # Errors
/// `Timeout` naming the ranks that did not come; whatever kept a rank from meeting the others, with
/// that rank's name.
pub(in crate::backend) fn create(context: &Context<'_>, exchange: &dyn Exchange) -> Result<Native> {
    come_together(context, exchange)
        .map_err(|error| better_reason(error, exchange))
        .inspect_err(|error| exchange.give_up(error))
}

/// How long a rank looks for a better reason than a connection that broke.
const REASON: Duration = Duration::from_millis(200);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Whoever gives up closes its connections: what it says is worth more than that.
fn better_reason(error: Error, exchange: &dyn Exchange) -> Error {
    if error.kind() != ErrorKind::Connection {
        return error;
    }
    let (limit, never) = (Deadline::after(REASON), Bell::default());
    loop {
        if let Some(reason) = exchange.given_up() {
            return reason;
        }
        if limit.has_passed() {
            return error;
        }
        let slice = limit.capped(LOOK_AGAIN);
        drop(until(&never, Pace::PATIENT, &slice, || None, || None::<()>));
    }
}

fn come_together(context: &Context<'_>, exchange: &dyn Exchange) -> Result<Native> {
    let meeting = Meeting::open()?;
    let mine = Card::of_this_rank(meeting.name(), context)?;
    let mut cards: Vec<Card> = exchange
        .all("card", &mine.encode(), &|| None)?
        .iter()
        .enumerate()
        .map(|(rank, bytes)| Card::decode(bytes).ok_or_else(|| malformed(rank)))
        .collect::<Result<_>>()?;
    let plan = Plan::of(&cards)?;
    let (domain, inside) = plan.meet_node(context, &cards, &meeting, exchange)?;
    let (mesh, gate) = plan.join_nodes(context, &cards, &domain, exchange)?.unzip();
    let gate: Option<tcp::Gate> = gate.flatten();
    // Where each wait costs a context switch, what only one of two has to do is cheaper.
    let may_be_read = mine.mark.is_some() && (plan.pace.crowded || attach::is_cheap());
    let messages = match &mesh {
        Some(_) => Engine::new(Arc::clone(&domain), mesh.clone(), may_be_read)?,
        None => Engine::dormant(Arc::clone(&domain), may_be_read),
    };
    // Only when all have met is there a group. Who dies meanwhile is noticed by its lifeline.
    let reach = Reach::of(plan.reads_node(context.rank, &cards));
    let met = exchange.all("met", reach.name(), &|| domain.failure())?;
    let plan = plan.attached(&met);
    let port = Arc::new(plan.port(context, &cards, meeting, gate)?);
    let transport = plan.transport(inside);
    crate::log!(Level::Info, "group {} of {} ranks over {transport}", context.group, context.size);
    let Plan { nodes, places, shape, rules, heartbeat_ms, .. } = plan;
    let looks_who_is_there = cards[0].detail;
    if let Some(other) = cards.iter().position(|card| card.detail != looks_who_is_there) {
        crate::log!(
            Level::Warn,
            "rank {other} has another debug level than rank 0, whose level decides whether group {} looks who is \
             there before each collective",
            context.group
        );
    }
    let overrides = std::mem::take(&mut cards[0].rules);
    let lanes = Lanes::new(context.group, &nodes, context.rank);
    let direct = Arc::clone(lanes.steps.direct().calls());
    let domain = Membership(domain);
    Ok(Native {
        messages,
        mesh,
        domain,
        transport,
        heartbeat_ms,
        shape,
        rules,
        overrides,
        nodes,
        places,
        looks_who_is_there,
        port,
        direct,
        lanes: Mutex::new(lanes),
    })
}

/// What a rank says when it has met the others: what it can do to the memory of those of its node,
/// and at what price.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reach {
    reads: bool,
    is_cheap: bool,
    writes: bool,
}

impl Reach {
    const NAMES: [(&'static [u8], Self); 5] = [
        (b"reads not", Self::with(false, false, false)),
        (b"reads dearly", Self::with(true, false, false)),
        (b"reads", Self::with(true, true, false)),
        (b"reads and writes dearly", Self::with(true, false, true)),
        (b"reads and writes", Self::with(true, true, true)),
    ];

    const fn with(reads: bool, is_cheap: bool, writes: bool) -> Self {
        Self { reads, is_cheap, writes }
    }

    fn of(reads: bool) -> Self {
        Self::with(reads, reads && attach::is_cheap(), reads && attach::may_write())
    }

    fn name(self) -> &'static [u8] {
        Self::NAMES
            .iter()
            .find(|&&(_, reach)| reach == self)
            .map_or(b"reads not", |&(name, _)| name)
    }

    fn named(name: &[u8]) -> Self {
        let known = Self::NAMES.iter().find(|&&(known, _)| known == name);
        known.map_or_else(Self::default, |&(_, reach)| reach)
    }
}

impl Plan {
    fn of(cards: &[Card]) -> Result<Self> {
        let transport = cards[0].transport.as_str();
        let one_process = cards.iter().all(|card| card.process == cards[0].process);
        check_transport(transport)?;
        if transport == "inproc" && !one_process {
            let message =
                "transport inproc was asked for, but the ranks are not threads of one process";
            return Err(Error::invalid(message));
        }
        let hosts: Vec<&str> = cards.iter().map(|card| card.host_id.as_str()).collect();
        let hosts = Nodes::by_label(&hosts);
        let nodes = if transport == "tcp" { Nodes::apart(cards.len()) } else { hosts.clone() };
        let spin = Duration::from_micros(config::bounded(config::SPIN_US, 200, 0, 1_000_000)?);
        let pace = Pace {
            spin,
            crowded: (0..hosts.count()).any(|host| is_crowded(cards, hosts.members(host))),
        };
        let reuse = cards[0].reuse_among(one_process);
        let usual = || Geometry::usual_slot_bytes(nodes.largest(), pace.crowded, reuse);
        let wanted = cards[0].slot_bytes.unwrap_or_else(usual);
        let least = (cards.len() * LARGEST_ELEMENT).max(wanted);
        let shape = Shape::of(&nodes, pace.crowded);
        let places = places(cards, &hosts);
        Ok(Self {
            names: places.iter().map(|place| place.name.clone()).collect(),
            places,
            nodes,
            in_process: transport == "inproc",
            slot_bytes: least.next_multiple_of(4096),
            rules: Rules::new(cards[0].rules.clone(), &shape),
            shape,
            pace,
            heartbeat_ms: cards[0].heartbeat_ms,
        })
    }

    /// Whether a rank can read the memory of the others of its node.
    fn reads_node(&self, rank: Rank, cards: &[Card]) -> bool {
        let others = self.nodes.members(self.nodes.node_of(rank)).iter().filter(|&&it| it != rank);
        others.map(|&other| &cards[other]).all(|card| {
            card.mark.is_some_and(|mark| attach::recognises(card.pid, mark, &card.process))
        })
    }

    /// The ranks of each node can read each other's memory, and write it, if all have said so. It
    /// pays if half of them say so: one that was disturbed finds the price too high, and never too
    /// low.
    fn attached(mut self, met: &[Vec<u8>]) -> Self {
        let met: Vec<_> = met.iter().map(|name| Reach::named(name)).collect();
        let cheap = met.iter().filter(|reach| reach.is_cheap).count();
        self.shape.attached = met.iter().all(|reach| reach.reads);
        self.shape.reached = met.iter().all(|reach| reach.writes);
        self.shape.pulls = self.shape.attached && 2 * cheap >= met.len();
        self
    }

    /// What joins the ranks, for people; `inside` joins those of a node.
    fn transport(&self, inside: &'static str) -> String {
        let between = if self.in_process { "inproc" } else { "tcp" };
        match (self.nodes.count(), self.nodes.largest()) {
            (1, _) => inside.to_owned(),
            (_, 1) => between.to_owned(),
            _ => format!("{inside} inside nodes, {between} between them"),
        }
    }

    /// What the ranks tell of themselves.
    fn vitals(&self, context: &Context<'_>) -> Vitals {
        Vitals { rhythm: Rhythm::of_ms(self.heartbeat_ms), activity: context.activity }
    }

    /// Shares memory with the other ranks of the node.
    fn meet_node(
        &self,
        context: &Context<'_>,
        cards: &[Card],
        meeting: &Meeting,
        exchange: &dyn Exchange,
    ) -> Result<(Arc<dyn SharedDomain>, &'static str)> {
        let (group, node) = (context.group, self.nodes.node_of(context.rank));
        let (members, me) = (self.nodes.members(node), self.nodes.local_rank(context.rank));
        let name = |&rank: &Rank| self.places[rank].name.clone();
        let in_process = self.in_process
            || cards[0].transport != "shm"
                && members.iter().all(|&rank| cards[rank].process == cards[context.rank].process);
        let reuse = cards[members[0]].reuse_among(in_process);
        let geometry = Geometry { ranks: members.len(), slot_bytes: self.slot_bytes, reuse };
        if in_process || members.len() == 1 {
            let peers = members.iter().map(name).collect();
            let domain = inproc::Domain::join(group, node, me, peers, geometry, self.pace)?;
            return Ok((Arc::new(domain.telling(context.activity)), "inproc"));
        }
        let member =
            |rank: &Rank| Member { socket: cards[*rank].socket.clone(), nonce: cards[*rank].nonce };
        let peers = match self.nodes.count() {
            1 => Arc::clone(&self.names),
            _ => members.iter().map(name).collect(),
        };
        let members: Vec<Member> = members.iter().map(member).collect();
        let vitals = self.vitals(context);
        let (peers, members, deadline) = (&peers, &members, context.deadline);
        let party = Party { group, peers, members, me, deadline, vitals };
        let domain = meeting.join(&party, geometry, self.pace, &|| exchange.given_up())?;
        Ok((Arc::new(domain), "shm"))
    }

    /// Joins the node to the others, where there are any. Only then does a rank listen to the
    /// network.
    fn join_nodes(
        &self,
        context: &Context<'_>,
        cards: &[Card],
        domain: &Arc<dyn SharedDomain>,
        exchange: &dyn Exchange,
    ) -> Result<Option<Joined>> {
        if self.nodes.count() == 1 {
            return Ok(None);
        }
        let peers: Vec<PeerName> = self.places.iter().map(|place| place.name.clone()).collect();
        if self.in_process {
            let (domain, pace) = (Arc::clone(domain), self.pace);
            let fabric = inproc::Fabric::join(context.group, context.rank, peers, domain, pace)?;
            return Ok(Some((Arc::new(fabric), None)));
        }
        let opening = tcp::open(context.store)?;
        let mine = opening.advert().encode().to_string();
        let over = || exchange.given_up().or_else(|| domain.failure());
        let adverts = exchange.all("addresses", mine.as_bytes(), &|| domain.failure())?;
        let member = |(rank, bytes): (Rank, &Vec<u8>)| {
            let advert = serde_json::from_slice(bytes).ok().as_ref().and_then(tcp::Advert::decode);
            Ok(tcp::Member {
                name: peers[rank].clone(),
                nonce: cards[rank].nonce,
                node: self.nodes.node_of(rank),
                advert: advert.ok_or_else(|| malformed(rank))?,
            })
        };
        let members: Vec<_> = adverts.iter().enumerate().map(member).collect::<Result<_>>()?;
        let party = tcp::Party {
            group: context.group,
            epoch: context.epoch,
            members: &members,
            me: context.rank,
            deadline: context.deadline,
            pace: self.pace,
            vitals: self.vitals(context),
        };
        let gate = opening.gate(&party)?;
        let mesh = opening.join(&party, Arc::clone(domain), &over)?;
        Ok(Some((Arc::new(mesh), Some(gate))))
    }

    /// Where the others find this rank later: those of its node at the socket where they have met.
    fn port(
        &self,
        context: &Context<'_>,
        cards: &[Card],
        meeting: Meeting,
        gate: Option<tcp::Gate>,
    ) -> Result<Port> {
        let own = self.nodes.node_of(context.rank);
        let member = |(rank, card): (Rank, &Card)| {
            let is_near = self.in_process || self.nodes.node_of(rank) == own;
            let socket = || Meeting::nonce(&card.socket).ok_or_else(|| malformed(rank));
            Ok(reunion::Member { nonce: card.nonce, socket: is_near.then(socket).transpose()? })
        };
        let members = cards.iter().enumerate().map(member).collect::<Result<_>>()?;
        let (names, listener) = (Arc::clone(&self.names), meeting.into_listener());
        Ok(Port::new(context.group, context.rank, names, members, listener, gate))
    }
}

/// Whether the ranks of a host cannot all run at once.
fn is_crowded(cards: &[Card], members: &[Rank]) -> bool {
    are_crowded(&members.iter().map(|&rank| &cards[rank].cores).collect::<Vec<_>>())
}

fn places(cards: &[Card], hosts: &Nodes) -> Vec<Place> {
    // Ranks of a host share its name.
    let first = |host: usize| &cards[hosts.members(host)[0]].host_name;
    let shared: Vec<Arc<str>> =
        (0..hosts.count()).map(|host| first(host).as_str().into()).collect();
    let place = |(rank, card): (Rank, &Card)| {
        let host_index = hosts.node_of(rank);
        let known = &shared[host_index];
        let is_known = **known == *card.host_name;
        let host = if is_known { Arc::clone(known) } else { card.host_name.as_str().into() };
        let name = PeerName { rank, pid: card.pid, host };
        Place { name, host_index, local_rank: hosts.local_rank(rank) }
    };
    cards.iter().enumerate().map(place).collect()
}
