//! Creates a mesh: listens ([`listen`]), and joins the other ranks ([`TcpListening::join`]) after
//! the caller has exchanged addresses with them. A join connects the node leaders (the first rank
//! of each node) to each other. Streams connect later, at their first use.

use super::advert::{AddressAdvert, RailAddress};

use super::endpoint::{PollScratch, TcpMesh};
use super::heartbeat_monitor;
use super::hello::ConnectionPurpose;
use super::incoming_connection::ConnectionAcceptor;
use super::interface::{self, AddressFamily, InterfaceAddress, InterfaceRules};
use super::link_table::LinkTable;
use super::link_user::LinkUser;
use super::listener_registry::ListenerRegistry;
use super::members::{TcpJoinConfig, node_leaders};
use super::mesh::{ChannelPair, TcpMeshShared};
use super::mesh_waker::MeshWaker;
use super::message_streams::MessageStreams;
use super::peer_state::PRESENT;
use super::port_range::port_range;
use super::published_address::PublishedAddress;
use super::reconnect::ReconnectEndpoint;
use crate::base::config;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::security::CipherSet;
use crate::sys::{host, netif, socket};
use crate::transport::{Channel, DoorbellListener, MAX_COLLECTIVE_STREAMS, SharedDomain};
use crate::wait::doorbell::Doorbell;
use crate::wait::service::{self, Alarm, AlarmHandler};
use crate::wait::service_task::ServiceTask;
use crate::wait::{WaitInterrupt, WaitPolicy, wait_until};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

/// The limit for looking up the host name of the store. The limit is short, because the caller has
/// already connected to the store.
const STORE_LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// The time between two calls of `cancelled`, the function by which the caller of a join can end
/// the wait.
const CANCEL_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The listening sockets of this rank and the advert of their addresses, before the rank joins a
/// mesh.
#[derive(Debug)]
pub struct TcpListening {
    registry: Arc<ListenerRegistry>,
    advert: AddressAdvert,
}

/// Listens on the addresses of the interfaces that environment variables select. If none is set,
/// listens on the addresses of the interface that has the route to the store. `route_hint` is the
/// host and port of the store.
///
/// # Errors
/// `InvalidArgument` for an environment variable with an invalid value, `Connection` if no port is
/// free, `System`.
pub fn listen(route_hint: Option<(&str, u16)>) -> Result<TcpListening> {
    let rules = interface_rules(route_hint)?;
    let choice = interface::choose_interfaces(&netif::interfaces()?, &rules)?;
    let lanes = config::read_bounded(
        config::TCP_LANES,
        u64::from(choice.rails),
        1,
        MAX_COLLECTIVE_STREAMS as u64,
    )?;
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for chosen in choice.same_netns.iter().chain(&choice.routable) {
        if !addresses.contains(&chosen.address) {
            addresses.push(chosen.address);
        }
    }
    let published = PublishedAddress::from_environment()?;
    let range = port_range()?;
    let ports = published.as_ref().map(PublishedAddress::local_ports).or(range.as_ref());
    let registry = ListenerRegistry::listen_on(&addresses, ports)?;
    let rail_address = |chosen: &InterfaceAddress| {
        let mut address = chosen.address;
        address.set_port(registry.port(address.ip())?);
        Some(RailAddress { address, rail: chosen.rail })
    };
    let same_netns: Vec<RailAddress> = choice.same_netns.iter().filter_map(rail_address).collect();
    let mut routable: Vec<RailAddress> = choice.routable.iter().filter_map(rail_address).collect();
    if let Some(published) = &published {
        routable =
            published.advertised(if routable.is_empty() { &same_netns } else { &routable })?;
    }
    let advert = AddressAdvert {
        routable,
        same_netns,
        network_namespace: host::network_namespace(),
        rails: choice.rails,
        lanes: u8::try_from(lanes).unwrap_or(1),
        ciphers: CipherSet::of_this_processor(),
        death_hash: None,
        reason: choice.reason,
    };
    let texts = advert
        .same_netns
        .iter()
        .chain(&advert.routable)
        .map(|advertised| advertised.address.to_string());
    let texts: Vec<_> = texts.collect();
    crate::log!(LogLevel::Info, "listening on {} ({})", texts.join(", "), advert.reason);
    Ok(TcpListening { registry, advert })
}

fn interface_rules(route_hint: Option<(&str, u16)>) -> Result<InterfaceRules> {
    let first = |variables: [config::EnvVariable; 2]| -> Result<Option<(String, &'static str)>> {
        for variable in variables {
            if let Some(text) = config::read_text(variable)? {
                return Ok(Some((text, variable.name)));
            }
        }
        Ok(None)
    };
    let family = first([config::SOCKET_FAMILY, config::NCCL_SOCKET_FAMILY])?;
    let family = family.map(|(text, name)| AddressFamily::parse(&text, name)).transpose()?;
    let mut rules = InterfaceRules {
        list: first([config::SOCKET_IFNAME, config::GLOO_SOCKET_IFNAME])?,
        family,
        ..InterfaceRules::default()
    };
    if let Some((host, port)) = route_hint {
        // Ignore a lookup error, because the client of the store reports it.
        let found =
            socket::resolve(host, port, &Deadline::after(STORE_LOOKUP_TIMEOUT)).unwrap_or_default();
        let sources = found.iter().filter_map(|it| socket::source_address_for(it.ip()).ok());
        let sources: Vec<IpAddr> = sources.map(|ip| ip.to_canonical()).collect();
        let has_wanted_family = |ip: &&IpAddr| {
            family.is_none_or(|family| (family == AddressFamily::V4) == ip.is_ipv4())
        };
        // If the store has no address of the wanted family, its address of the other family still
        // selects the interface.
        rules.store_source = sources.iter().find(has_wanted_family).or(sources.first()).copied();
        // Only these names mean that all ranks are on this host. The host's own name does not mean
        // this: it may resolve to a loopback address on this host, and to the real address on other
        // hosts.
        rules.is_local_job = matches!(host, "localhost" | "127.0.0.1" | "::1" | "[::1]");
    }
    // These addresses are reserved for documentation, so no host has them. The lookup of the route
    // to them finds the default route, and sends no packet.
    let documentation_addresses =
        [IpAddr::from([198, 51, 100, 1]), IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1])];
    rules.default_source =
        documentation_addresses.into_iter().find_map(|ip| socket::source_address_for(ip).ok());
    Ok(rules)
}

impl TcpListening {
    #[cfg(test)]
    pub(super) fn new(registry: Arc<ListenerRegistry>, advert: AddressAdvert) -> Self {
        Self { registry, advert }
    }

    /// Returns a value for another group of the same process.
    #[cfg(test)]
    pub(super) fn share(&self) -> Self {
        Self::new(Arc::clone(&self.registry), self.advert.clone())
    }

    #[cfg(test)]
    pub(super) fn advert_mut(&mut self) -> &mut AddressAdvert {
        &mut self.advert
    }

    /// Starts the death witness of this process, unless `DIST_DEATH_WITNESS` disables it.
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid value of the variable.
    pub fn start_witness(&mut self) -> Result<()> {
        if config::read_bool(config::DEATH_WITNESS)?.unwrap_or(true) {
            self.advert.death_hash = self.registry.start_witness();
        }
        Ok(())
    }

    /// Returns the addresses to publish to the peers.
    pub fn advert(&self) -> &AddressAdvert {
        &self.advert
    }

    /// Opens the endpoint for connections between the survivors of the group after the group has
    /// failed.
    ///
    /// # Errors
    /// `System`.
    pub fn reconnect_endpoint(&self, join_config: &TcpJoinConfig<'_>) -> Result<ReconnectEndpoint> {
        ReconnectEndpoint::open(Arc::clone(&self.registry), join_config)
    }

    /// Joins the mesh. `domain` is the shared-memory domain of this rank's node. After all ranks
    /// have joined, streams can be used. This call polls `cancelled` periodically; if `cancelled`
    /// returns an error, the wait ends with this error.
    ///
    /// # Errors
    /// The error of `cancelled`, or the failure of the domain; `Connection` or `Timeout` with the
    /// name of the leader that did not connect; `System`.
    pub fn join(
        self,
        join_config: &TcpJoinConfig<'_>,
        domain: Arc<dyn SharedDomain>,
        cancelled: &dyn Fn() -> Option<Error>,
    ) -> Result<TcpMesh> {
        let leaders = node_leaders(join_config.members);
        let shared = new_shared(join_config, domain, &leaders, self.registry.links())?;
        let task = Arc::downgrade(&shared);
        let forward_task = ServiceTask::new(move || {
            task.upgrade().iter().for_each(|shared| shared.forward_updates())
        })?;
        // `set` cannot fail, because each of the two cells is set only here.
        drop(shared.forward_task.set(forward_task));
        drop(shared.delayed_event_alarm.set(new_delayed_event_alarm(&shared)?));
        let listener: Arc<dyn DoorbellListener> = shared.clone();
        shared.domain.add_listener(Arc::downgrade(&listener));
        let acceptor: Arc<dyn ConnectionAcceptor> = shared.clone();
        let key = (join_config.group, join_config.me);
        self.registry.register(key, Arc::downgrade(&acceptor))?;
        let user: Weak<dyn LinkUser> = shared.weak.clone();
        shared.links.register(key, &user);
        // After this line, an error drops `mesh`, so this rank leaves the group.
        let mesh = TcpMesh {
            shared: Arc::clone(&shared),
            registry: self.registry,
            poll_scratch: Mutex::new(PollScratch::default()),
        };
        if shared.is_leader() {
            if let Some(timing) = join_config.vitals.timing {
                heartbeat_monitor::start(&shared, timing)?;
            }
            open_control_channels(&shared, &leaders);
            await_leaders(&shared, join_config, cancelled)?;
        }
        shared.finish_join();
        Ok(mesh)
    }
}

fn new_delayed_event_alarm(shared: &Arc<TcpMeshShared>) -> Result<Alarm> {
    #[derive(Debug)]
    struct DelayedEventAlarm(Weak<TcpMeshShared>);
    impl AlarmHandler for DelayedEventAlarm {
        fn on_alarm(&self) {
            self.0.upgrade().iter().for_each(|shared| shared.apply_due_events());
        }
    }
    service::alarm(Arc::new(DelayedEventAlarm(Arc::downgrade(shared))))
}

fn new_shared(
    join_config: &TcpJoinConfig<'_>,
    domain: Arc<dyn SharedDomain>,
    leaders: &[Rank],
    links: &Arc<LinkTable>,
) -> Result<Arc<TcpMeshShared>> {
    let ranks = join_config.members.len();
    let wanted_lanes = join_config.members.first().map_or(1, |first| first.advert.lanes);
    let lanes = wanted_lanes.clamp(1, u8::try_from(MAX_COLLECTIVE_STREAMS).unwrap_or(1));
    let is_leader = AtomicBool::new(leaders.contains(&join_config.me));
    let messages = MessageStreams::new(Arc::clone(links))?;
    let slots = ranks * (usize::from(lanes) + 1);
    Ok(Arc::new_cyclic(|weak| TcpMeshShared {
        group: join_config.group,
        epoch: join_config.epoch,
        me: join_config.me,
        security: join_config.security.clone(),
        members: join_config.members.into(),
        leaders: leaders.to_vec(),
        lanes,
        wait_policy: join_config.wait_policy,
        links: Arc::clone(links),
        channel_pairs: (0..slots).map(|_| ChannelPair::default()).collect(),
        announced_departures: Mutex::new(vec![false; ranks]),
        peer_states: (0..ranks).map(|_| AtomicU8::new(PRESENT)).collect(),
        wake: MeshWaker::default(),
        messages,
        delayed_events: Mutex::default(),
        delayed_event_alarm: OnceLock::new(),
        heartbeat_alarm: OnceLock::new(),
        activity_answers: Mutex::default(),
        label_query: Mutex::default(),
        control_channels: Mutex::default(),
        connect_error: Mutex::default(),
        doorbell: Doorbell::default(),
        is_leader,
        has_joined: AtomicBool::new(false),
        timing: join_config.vitals.timing,
        is_failure_forwarded: AtomicBool::new(false),
        is_failure_reported: AtomicBool::new(false),
        reported_left: Mutex::new(vec![false; domain.size()]),
        forwarding: Mutex::default(),
        forward_task: OnceLock::new(),
        is_leaving: AtomicBool::new(false),
        weak: weak.clone(),
        domain,
    }))
}

/// Opens the control channels of this leader to all other leaders.
fn open_control_channels(shared: &TcpMeshShared, leaders: &[Rank]) {
    *lock(&shared.control_channels) = leaders.iter().map(|_| None).collect();
    for (node, &leader) in leaders.iter().enumerate().filter(|(_, leader)| **leader != shared.me) {
        shared.open_control_channel(node, leader);
    }
    // Frames that came before have waited in the table.
    shared.links.accept_control((shared.group, shared.me));
}

/// Waits until all other leaders have joined.
fn await_leaders(
    shared: &TcpMeshShared,
    join_config: &TcpJoinConfig<'_>,
    cancelled: &dyn Fn() -> Option<Error>,
) -> Result<()> {
    let abort_reason = || lock(&shared.connect_error).clone().or_else(|| shared.domain.failure());
    loop {
        // An attempt of another group may have failed, so this group starts its own.
        for channel in shared.open_control_channels() {
            let purpose = ConnectionPurpose::Stream(Channel::PointToPoint);
            let (leader, until) = (channel.leader, Some(*join_config.deadline));
            channel
                .link
                .connect(|handler| shared.new_connector(leader, purpose, until, handler))?;
        }
        let slice = join_config.deadline.capped(CANCEL_CHECK_INTERVAL);
        let all_joined =
            || shared.open_control_channels().iter().all(|it| it.is_established()).then_some(());
        match wait_until(&shared.doorbell, WaitPolicy::SLEEP_SOON, &slice, abort_reason, all_joined)
        {
            Ok(()) => return Ok(()),
            Err(WaitInterrupt::Aborted(error)) => return Err(error),
            Err(WaitInterrupt::Deadline) => {}
        }
        cancelled().map_or(Ok(()), Err)?;
        if join_config.deadline.has_passed() {
            return Err(timeout_error(shared, join_config));
        }
    }
}

fn timeout_error(shared: &TcpMeshShared, join_config: &TcpJoinConfig<'_>) -> Error {
    let mut missing = shared.open_control_channels();
    missing.retain(|channel| !channel.is_established());
    let names: Vec<_> =
        missing.iter().map(|channel| shared.name(channel.leader).to_string()).collect();
    let causes: Vec<_> =
        missing.iter().filter_map(|channel| channel.link.describe_connect()).collect();
    let message = format!(
        "no connection to {} within {} ms{}{}",
        names.join(", "),
        join_config.deadline.timeout().as_millis(),
        if causes.is_empty() { "" } else { ": " },
        causes.join("; ")
    );
    let error = Error::new(ErrorKind::Timeout, message);
    missing.first().map(|channel| channel.leader).into_iter().fold(error, Error::with_culprit)
}
