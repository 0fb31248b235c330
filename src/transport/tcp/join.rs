//! How a rank comes into a mesh: it opens the door, tells where that is, and once it knows the
//! others, leaders connect to each other. Streams are made later, when they are first used.

use super::advert::{Advert, Offer};
use super::control::Line;
use super::door::{Door, Guest, lock};
use super::endpoint::{Mesh, Rest};
use super::gate::Gate;
use super::heart;
use super::hello::Purpose;
use super::interface::{self, Chosen, Family, Rules};
use super::mesh::{Ends, Shared, Slot};
use super::messages::Messages;
use super::standing::PRESENT;
use crate::base::config;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Nonce, Rank};
use crate::base::log::Level;
use crate::sys::event::Event;
use crate::sys::poll::Poller;
use crate::sys::{host, netif, socket};
use crate::transport::{Listener, MAX_LANES, PeerName, SharedDomain, Vitals};
use crate::wait::bell::Bell;
use crate::wait::nudge::Nudge;
use crate::wait::service::{self, Alarm, Alarmed};
use crate::wait::{Interrupt, Pace, until};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

/// How long looking up the store's host may take; whoever asks has connected to it already.
const LOOK_UP: Duration = Duration::from_secs(5);

/// How long to wait in one go before asking whether the others still try.
const LOOK_AROUND: Duration = Duration::from_millis(250);

/// What is known of one rank of the group before they meet.
#[derive(Clone, Debug)]
pub struct Member {
    /// Who it is.
    pub name: PeerName,
    /// The nonce that it published.
    pub nonce: Nonce,
    /// Its node, counted from 0; the first rank of each node is the node's leader.
    pub node: usize,
    /// Where it can be reached.
    pub advert: Advert,
}

/// Who meets whom.
#[derive(Debug)]
pub struct Party<'a> {
    /// The group.
    pub group: GroupId,
    /// Which life of the group.
    pub epoch: u32,
    /// All ranks, in order.
    pub members: &'a [Member],
    /// This one.
    pub me: Rank,
    /// When the leaders must have met.
    pub deadline: &'a Deadline,
    /// How this rank waits.
    pub pace: Pace,
    /// What they tell of themselves from then on.
    pub vitals: Vitals,
}

/// An open door, and what is to be told of it.
#[derive(Debug)]
pub struct Opening {
    door: Arc<Door>,
    advert: Advert,
}

/// Opens the door at the addresses that the environment asks for, or that lead to the store, whose
/// host and port are the hint.
///
/// # Errors
/// `InvalidArgument` for a variable that makes no sense here, `Connection` where no port is free,
/// `System`.
pub fn open(route_hint: Option<(&str, u16)>) -> Result<Opening> {
    let rules = rules(route_hint)?;
    let choice = interface::choose(&netif::interfaces()?, &rules)?;
    let lanes = config::bounded(config::TCP_LANES, u64::from(choice.rails), 1, MAX_LANES as u64)?;
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for chosen in choice.near.iter().chain(&choice.anyone) {
        if !addresses.contains(&chosen.address) {
            addresses.push(chosen.address);
        }
    }
    let door = Door::open(&addresses, port_range()?.as_ref())?;
    let offer = |chosen: &Chosen| {
        let mut address = chosen.address;
        address.set_port(door.port(address.ip())?);
        Some(Offer { address, rail: chosen.rail })
    };
    let advert = Advert {
        anyone: choice.anyone.iter().filter_map(offer).collect(),
        near: choice.near.iter().filter_map(offer).collect(),
        space: host::network_space(),
        rails: choice.rails,
        lanes: u8::try_from(lanes).unwrap_or(1),
        why: choice.why,
    };
    let offers = advert.near.iter().chain(&advert.anyone).map(|offer| offer.address.to_string());
    let offers: Vec<_> = offers.collect();
    crate::log!(Level::Info, "listening on {} ({})", offers.join(", "), advert.why);
    Ok(Opening { door, advert })
}

fn rules(route_hint: Option<(&str, u16)>) -> Result<Rules> {
    let first = |variables: [config::Variable; 2]| -> Result<Option<(String, &'static str)>> {
        for variable in variables {
            if let Some(text) = config::text(variable)? {
                return Ok(Some((text, variable.name)));
            }
        }
        Ok(None)
    };
    let family = first([config::SOCKET_FAMILY, config::NCCL_SOCKET_FAMILY])?;
    let family = family.map(|(text, name)| Family::parse(&text, name)).transpose()?;
    let mut rules = Rules {
        list: first([config::SOCKET_IFNAME, config::GLOO_SOCKET_IFNAME])?,
        family,
        ..Rules::default()
    };
    if let Some((host, port)) = route_hint {
        // A store that cannot be found is found out by those who use it.
        let found = socket::resolve(host, port, &Deadline::after(LOOK_UP)).unwrap_or_default();
        let sources = found.iter().filter_map(|it| socket::source_towards(it.ip()).ok());
        let sources: Vec<IpAddr> = sources.map(|ip| ip.to_canonical()).collect();
        let fits =
            |ip: &&IpAddr| family.is_none_or(|family| (family == Family::V4) == ip.is_ipv4());
        // The interface counts, even where the store has no address of the wanted family.
        rules.to_store = sources.iter().find(fits).or(sources.first()).copied();
        // A host's own name may mean another loopback address there, and its real one elsewhere.
        rules.is_local_job = matches!(host, "localhost" | "127.0.0.1" | "::1" | "[::1]");
    }
    // Addresses that nobody has; nothing is sent.
    let nobody = [IpAddr::from([198, 51, 100, 1]), IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1])];
    rules.to_world = nobody.into_iter().find_map(|ip| socket::source_towards(ip).ok());
    Ok(rules)
}

fn port_range() -> Result<Option<RangeInclusive<u16>>> {
    config::text(config::PORT_RANGE)?.map(|text| parse_range(&text)).transpose()
}

/// "low-high", or one port.
pub(super) fn parse_range(text: &str) -> Result<RangeInclusive<u16>> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    match (low.trim().parse(), high.trim().parse()) {
        (Ok(low), Ok(high)) if 0 < low && low <= high => Ok(low..=high),
        _ => {
            let message = format!(
                "DIST_PORT_RANGE=\"{text}\" is neither a port nor a range such as 20000-20100"
            );
            Err(Error::invalid(message))
        }
    }
}

impl Opening {
    #[cfg(test)]
    pub(super) fn new(door: Arc<Door>, advert: Advert) -> Self {
        Self { door, advert }
    }

    #[cfg(test)]
    pub(super) fn advert_mut(&mut self) -> &mut Advert {
        &mut self.advert
    }

    /// What to tell the others.
    pub fn advert(&self) -> &Advert {
        &self.advert
    }

    /// Where those find this rank, once the group has failed, who make another of what is left.
    ///
    /// # Errors
    /// `System`.
    pub fn gate(&self, party: &Party<'_>) -> Result<Gate> {
        Gate::open(Arc::clone(&self.door), party)
    }

    /// Joins the others; `domain` is the one of this rank's node. Once all have joined, streams can
    /// be used. `over` is asked now and then whether there is a reason not to wait any longer.
    ///
    /// # Errors
    /// That reason, or the domain's failure; `Connection` or `Timeout` naming the leader that could
    /// not be reached; `System`.
    pub fn join(
        self,
        party: &Party<'_>,
        domain: Arc<dyn SharedDomain>,
        over: &dyn Fn() -> Option<Error>,
    ) -> Result<Mesh> {
        let leaders = leaders(party.members);
        let node = party.members[party.me].node;
        let shared = shared(party, domain, &leaders)?;
        let task = Arc::downgrade(&shared);
        let news = Nudge::new(move || task.upgrade().iter().for_each(|shared| shared.pass_on()))?;
        // Each is set once, here.
        drop(shared.news.set(news));
        drop(shared.undertaker.set(obituary_clock(&shared)?));
        let ends = Ends { shared: Arc::downgrade(&shared), poller: Arc::clone(&shared.ends) };
        let listener: Arc<dyn Listener> = shared.clone();
        shared.domain.add_listener(Arc::downgrade(&listener));
        let guest: Arc<dyn Guest> = shared.clone();
        let key = (party.group, party.me);
        self.door.register(key, Arc::downgrade(&guest))?;
        // From here on, dropping it leaves.
        let mesh = Mesh {
            shared: Arc::clone(&shared),
            door: self.door,
            resting: Mutex::new(Rest::default()),
            watches: vec![service::watch(Arc::new(ends))?],
        };
        if shared.leads {
            if let Some(rhythm) = party.vitals.rhythm {
                heart::start(&shared, rhythm)?;
            }
            for &leader in leaders.iter().take(node) {
                let dial = shared.dial(leader, Purpose::Control, Some(*party.deadline))?;
                lock(&shared.dials).push(Arc::clone(&dial));
                dial.start();
            }
            await_lines(&shared, party, &leaders, over)?;
            // What happened before there was anybody to tell.
            shared.pass_on();
        }
        Ok(mesh)
    }
}

fn obituary_clock(shared: &Arc<Shared>) -> Result<Alarm> {
    #[derive(Debug)]
    struct Clock(Weak<Shared>);
    impl Alarmed for Clock {
        fn on_alarm(&self) {
            self.0.upgrade().iter().for_each(|shared| shared.publish_obituaries());
        }
    }
    service::alarm(Arc::new(Clock(Arc::downgrade(shared))))
}

/// The first rank of each node.
fn leaders(members: &[Member]) -> Vec<Rank> {
    let nodes = members.iter().map(|member| member.node + 1).max().unwrap_or(0);
    (0..nodes)
        .map(|node| members.iter().position(|member| member.node == node).unwrap_or(usize::MAX))
        .collect()
}

fn shared(
    party: &Party<'_>,
    domain: Arc<dyn SharedDomain>,
    leaders: &[Rank],
) -> Result<Arc<Shared>> {
    let ranks = party.members.len();
    let asked = party.members.first().map_or(1, |first| first.advert.lanes);
    let lanes = asked.clamp(1, u8::try_from(MAX_LANES).unwrap_or(1));
    let leads = leaders.contains(&party.me);
    let (ends, wake, messages) = (Arc::new(Poller::new()?), Event::new()?, Messages::new()?);
    let lines: Vec<Option<Arc<Line>>> =
        if leads { leaders.iter().map(|_| None).collect() } else { Vec::new() };
    let slots = ranks * (usize::from(lanes) + 1);
    Ok(Arc::new_cyclic(|weak| Shared {
        group: party.group,
        epoch: party.epoch,
        me: party.me,
        members: party.members.to_vec(),
        leaders: leaders.to_vec(),
        lanes,
        pace: party.pace,
        slots: (0..slots).map(|_| Slot::default()).collect(),
        standings: (0..ranks).map(|_| AtomicU8::new(PRESENT)).collect(),
        ends,
        wake,
        messages,
        obituaries: Mutex::default(),
        undertaker: OnceLock::new(),
        vitals: party.vitals,
        heart: OnceLock::new(),
        inquiry: Mutex::default(),
        labels_asked: Mutex::default(),
        lines: Mutex::new(lines),
        dials: Mutex::default(),
        unreached: Mutex::default(),
        bell: Bell::default(),
        leads,
        spread: AtomicBool::new(false),
        stirred: AtomicBool::new(false),
        reported: Mutex::new(vec![false; domain.size()]),
        passing: Mutex::default(),
        news: OnceLock::new(),
        leaving: AtomicBool::new(false),
        weak: weak.clone(),
        domain,
    }))
}

/// Waits until this leader is connected with all others.
fn await_lines(
    shared: &Shared,
    party: &Party<'_>,
    leaders: &[Rank],
    over: &dyn Fn() -> Option<Error>,
) -> Result<()> {
    let own = party.members[party.me].node;
    let missing = || -> Vec<Rank> {
        let lines = lock(&shared.lines);
        let absent = |node: &usize| *node != own && lines.get(*node).is_some_and(Option::is_none);
        (0..leaders.len()).filter(absent).map(|node| leaders[node]).collect()
    };
    let halted = || lock(&shared.unreached).clone().or_else(|| shared.domain.failure());
    loop {
        let slice = party.deadline.capped(LOOK_AROUND);
        let met = || missing().is_empty().then_some(());
        match until(&shared.bell, Pace::PATIENT, &slice, halted, met) {
            Ok(()) => return Ok(()),
            Err(Interrupt::Halted(error)) => return Err(error),
            Err(Interrupt::Deadline) => {}
        }
        over().map_or(Ok(()), Err)?;
        if party.deadline.has_passed() {
            return Err(late(shared, party, &missing()));
        }
    }
}

fn late(shared: &Shared, party: &Party<'_>, missing: &[Rank]) -> Error {
    let names: Vec<_> = missing.iter().map(|&rank| shared.name(rank).to_string()).collect();
    let causes: Vec<_> = lock(&shared.dials).iter().filter_map(|dial| dial.describe()).collect();
    let message = format!(
        "no connection with {} within {} ms{}{}",
        names.join(", "),
        party.deadline.allowed().as_millis(),
        if causes.is_empty() { "" } else { ": " },
        causes.join("; ")
    );
    let error = Error::new(ErrorKind::Timeout, message);
    missing.first().copied().into_iter().fold(error, Error::with_culprit)
}
