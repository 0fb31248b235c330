//! The bootstrap of a native group, in six steps:
//!
//! 1. Each rank registers with the registry of its process, by which the ranks of its node reach
//!    it ([`neighbour`](crate::transport::neighbour)), and the ranks all-gather their
//!    [`NativePeerInfo`].
//! 2. Each rank computes the same [`NativeGroupPlan`] from the peer infos of all ranks. The ranks
//!    of each host try whether they can share memory ([`super::memory_sharing`]).
//! 3. The ranks of a node join a shared region (the memory that they share).
//! 4. If there are several nodes, the ranks all-gather their network addresses and connect the
//!    nodes.
//! 5. Each rank reports that it has joined. This report contains its [`CmaCapability`].
//! 6. Each rank creates its survivor endpoint, at which the surviving ranks reach it after a
//!    failure of the group. The endpoint keeps the registration.

use super::cores::are_oversubscribed;
use super::creation_failures::{meet_all, prefer_peer_failure};
use super::memory_sharing::{MemorySharing, SharingTrial};
use super::open_domains::DomainMembership;
use super::peer_info::{NativePeerInfo, check_transport};
use super::{NativeBackend, malformed_peer_info};
use crate::algo::GroupShape;
use crate::algo::fast_path::FastPathState;
use crate::algo::group_state::GroupState;
use crate::algo::rules::AlgorithmRules;
use crate::backend::peer_info::rank_locations;
use crate::backend::{BootstrapExchange, GroupContext, RankLocation};
use crate::base::config;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::base::nodes::NodeMap;
use crate::base::plural::Plural;
use crate::sys::shm::Segment;
use crate::transport::cma;
use crate::transport::matching::MatchingEngine;
use crate::transport::neighbour::{NeighbourMember, ProcessAddress};
use crate::transport::shm::{self, SegmentPlan, ShmJoinConfig, ShmMember};
use crate::transport::survivor_rendezvous::{self, SurvivorEndpoint};
use crate::transport::{
    Endpoint, HeartbeatConfig, HeartbeatTiming, PeerName, RegionGeometry, ReusePolicy,
    SharedDomain, inproc, tcp,
};
use crate::wait::WaitPolicy;
use std::sync::Arc;
use std::time::Duration;

/// The largest element in bytes. A data slot must hold one element for each rank of the group.
const LARGEST_ELEMENT: usize = 16;

/// The mesh (the streams that connect the nodes), and the endpoint at which ranks of other nodes
/// can reconnect after a failure of the group.
type MeshAndEndpoint = (Arc<dyn Endpoint>, Option<tcp::ReconnectEndpoint>);

/// The plan of a group, which all ranks compute identically from the peer infos.
#[derive(Debug)]
struct NativeGroupPlan {
    nodes: NodeMap,
    rank_locations: Vec<RankLocation>,
    names: Arc<[PeerName]>,
    /// True if all ranks are threads of one process. In that case, queues in memory connect the
    /// nodes.
    in_process: bool,
    slot_bytes: usize,
    shape: GroupShape,
    rules: AlgorithmRules,
    wait_policy: WaitPolicy,
    heartbeat_ms: u64,
}

/// Creates the native back end of a group of at least two ranks.
///
/// # Errors
/// `Timeout` with the missing ranks. If a rank could not join, its error with the name of that
/// rank.
pub(in crate::backend) fn create(
    context: &GroupContext<'_>,
    exchange: &dyn BootstrapExchange,
) -> Result<NativeBackend> {
    bootstrap_group(context, exchange)
        .map_err(|error| prefer_peer_failure(error, exchange))
        .inspect_err(|error| exchange.publish_failure(error))
}

fn bootstrap_group(
    context: &GroupContext<'_>,
    exchange: &dyn BootstrapExchange,
) -> Result<NativeBackend> {
    let registration = NeighbourMember::register(context.group, context.rank, context.size)?;
    let own_info = NativePeerInfo::of_this_rank(&registration.socket_name(), context)?;
    let mut infos: Vec<NativePeerInfo> = exchange
        .all_gather("card", &own_info.encode(), &|| None)?
        .iter()
        .enumerate()
        .map(|(rank, bytes)| NativePeerInfo::decode(bytes).ok_or_else(|| malformed_peer_info(rank)))
        .collect::<Result<_>>()?;
    let (plan, segment) = NativeGroupPlan::agree(context, &infos, &registration, exchange)?;
    let (domain, node_transport) =
        plan.join_node(context, &infos, &registration, segment, exchange)?;
    let (mesh, reconnect_endpoint) =
        plan.connect_nodes(context, &infos, &domain, exchange)?.unzip();
    let reconnect_endpoint: Option<tcp::ReconnectEndpoint> = reconnect_endpoint.flatten();
    // On an oversubscribed host, each wait costs a context switch. A CMA read (get) is cheaper
    // there even if CMA reads are slow, because the receiver copies alone.
    let can_be_read = own_info.cookie_address.is_some()
        && (plan.wait_policy.is_oversubscribed || cma::is_cma_message_cheap());
    let matching_engine = match &mesh {
        Some(_) => MatchingEngine::new(Arc::clone(&domain), mesh.clone(), can_be_read)?,
        None => MatchingEngine::new_lazy(Arc::clone(&domain), can_be_read),
    };
    let cma = CmaCapability::detect(plan.can_read_node(context.rank, &infos));
    let cma_names = meet_all(exchange, domain.as_ref(), cma.name())?;
    let plan = plan.with_cma(&cma_names);
    let survivor_endpoint = Arc::new(plan.create_survivor_endpoint(
        context,
        &infos,
        registration,
        reconnect_endpoint,
    )?);
    let transport = plan.transport_name(node_transport);
    crate::log!(
        LogLevel::Info,
        "group {}: {} over {transport}",
        context.group,
        Plural(context.size, "rank")
    );
    let NativeGroupPlan { nodes, rank_locations, shape, rules, heartbeat_ms, .. } = plan;
    let has_arrival_check = infos[0].has_detail_level;
    if let Some(other) = infos.iter().position(|info| info.has_detail_level != has_arrival_check) {
        crate::log!(
            LogLevel::Warn,
            "rank {other} and rank 0 have different debug levels: rank 0's level decides whether \
             group {} runs an arrival check before each collective",
            context.group
        );
    }
    let overrides = std::mem::take(&mut infos[0].rules);
    let state = GroupState::new(context.group, &nodes, context.rank);
    let direct = Arc::clone(state.cursor.arena_access().call_count());
    let state = FastPathState::new(state, Arc::clone(&domain));
    let domain = DomainMembership(domain);
    Ok(NativeBackend {
        matching_engine,
        mesh,
        domain,
        transport,
        heartbeat_ms,
        shape,
        rules,
        algorithm_overrides: overrides,
        nodes,
        rank_locations,
        has_arrival_check,
        survivor_endpoint,
        zero_copy_calls: direct,
        state,
    })
}

/// The cross-memory attach (CMA) capability of a rank: whether it can read and write the memory of
/// the other ranks of its node, and whether reads are cheap. The rank publishes its capability
/// after it has joined its node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CmaCapability {
    can_read: bool,
    is_cheap: bool,
    can_write: bool,
}

impl CmaCapability {
    const NAMES: [(&'static [u8], Self); 5] = [
        (b"reads not", Self::new(false, false, false)),
        (b"reads dearly", Self::new(true, false, false)),
        (b"reads", Self::new(true, true, false)),
        (b"reads and writes dearly", Self::new(true, false, true)),
        (b"reads and writes", Self::new(true, true, true)),
    ];

    const fn new(reads: bool, is_cheap: bool, writes: bool) -> Self {
        Self { can_read: reads, is_cheap, can_write: writes }
    }

    fn detect(reads: bool) -> Self {
        Self::new(reads, reads && cma::is_cma_read_cheap(), reads && cma::can_cma_write())
    }

    fn name(self) -> &'static [u8] {
        Self::NAMES
            .iter()
            .find(|&&(_, capability)| capability == self)
            .map_or(b"reads not", |&(name, _)| name)
    }

    fn from_name(name: &[u8]) -> Self {
        let known = Self::NAMES.iter().find(|&&(known, _)| known == name);
        known.map_or_else(Self::default, |&(_, capability)| capability)
    }
}

impl NativeGroupPlan {
    /// Returns the plan for the ranks that can share memory, and the segment of this rank's node,
    /// if this rank has created it.
    fn agree(
        context: &GroupContext<'_>,
        infos: &[NativePeerInfo],
        registration: &Arc<NeighbourMember>,
        exchange: &dyn BootstrapExchange,
    ) -> Result<(Self, Option<Segment>)> {
        let plan = Self::compute(infos, None, context.shown_ranks)?;
        match plan.try_memory_sharing(context, infos, registration, exchange)? {
            Some(MemorySharing { nodes, .. }) if nodes != plan.nodes => {
                Ok((Self::compute(infos, Some(nodes), context.shown_ranks)?, None))
            }
            sharing => Ok((plan, sharing.and_then(|sharing| sharing.segment))),
        }
    }

    /// Computes the plan. `nodes` are the ranks that share memory, if the ranks have found out that
    /// not all ranks of a host do.
    fn compute(
        infos: &[NativePeerInfo],
        nodes: Option<NodeMap>,
        shown_ranks: Option<&[Rank]>,
    ) -> Result<Self> {
        let transport = infos[0].transport.as_str();
        let one_process = infos.iter().all(|info| info.process_cookie == infos[0].process_cookie);
        check_transport(transport)?;
        if transport == "inproc" && !one_process {
            let message =
                "transport=inproc: the ranks are not threads of one process; use transport=auto";
            return Err(Error::invalid(message));
        }
        let hosts: Vec<&str> = infos.iter().map(|info| info.host_id.as_str()).collect();
        let hosts = NodeMap::by_label(&hosts);
        let nodes = match nodes {
            _ if transport == "tcp" => NodeMap::one_per_rank(infos.len()),
            Some(nodes) => nodes,
            None => hosts.clone(),
        };
        let spin = Duration::from_micros(config::read_bounded(config::SPIN_US, 200, 0, 1_000_000)?);
        let wait_policy = WaitPolicy {
            spin_time: spin,
            is_oversubscribed: (0..hosts.node_count())
                .any(|host| is_oversubscribed(infos, hosts.members(host))),
        };
        let reuse = infos[0].reuse_policy_for(one_process);
        let default_slot_bytes = || {
            RegionGeometry::default_slot_bytes(
                nodes.max_ranks_per_node(),
                wait_policy.is_oversubscribed,
                reuse,
            )
        };
        let slot_bytes = infos[0].slot_bytes.unwrap_or_else(default_slot_bytes);
        let min_slot_bytes = (infos.len() * LARGEST_ELEMENT).max(slot_bytes);
        let shape = GroupShape::of(&nodes, wait_policy.is_oversubscribed);
        let process_of = |rank: Rank| (infos[rank].pid, infos[rank].host_name.as_str());
        let rank_locations = rank_locations(&hosts, shown_ranks, process_of);
        Ok(Self {
            names: rank_locations.iter().map(|location| location.name.clone()).collect(),
            rank_locations,
            nodes,
            in_process: transport == "inproc",
            slot_bytes: min_slot_bytes.next_multiple_of(4096),
            rules: AlgorithmRules::new(infos[0].rules.clone(), &shape),
            shape,
            wait_policy,
            heartbeat_ms: infos[0].heartbeat_ms,
        })
    }

    /// Returns true if the rank can read the memory of all other ranks of its node.
    fn can_read_node(&self, rank: Rank, infos: &[NativePeerInfo]) -> bool {
        let others = self.nodes.members(self.nodes.node_of(rank)).iter().filter(|&&it| it != rank);
        others.map(|&other| &infos[other]).all(|info| {
            info.cookie_address.is_some_and(|cookie_address| {
                cma::has_process_cookie(info.pid, cookie_address, &info.process_cookie)
            })
        })
    }

    /// Enables CMA reads if all ranks have reported that they can read, and CMA writes if all ranks
    /// have reported that they can write. CMA reads count as cheap if at least half of the ranks
    /// have measured that they are cheap, because noise can only increase the measured cost.
    fn with_cma(mut self, cma_names: &[Vec<u8>]) -> Self {
        let capabilities: Vec<_> =
            cma_names.iter().map(|name| CmaCapability::from_name(name)).collect();
        let cheap = capabilities.iter().filter(|capability| capability.is_cheap).count();
        self.shape.has_cma = capabilities.iter().all(|capability| capability.can_read);
        self.shape.has_cma_write = capabilities.iter().all(|capability| capability.can_write);
        self.shape.has_cheap_cma_read = self.shape.has_cma && 2 * cheap >= capabilities.len();
        self
    }

    /// Returns the name of the transport for log messages. `node_transport` is the transport within
    /// a node.
    fn transport_name(&self, node_transport: &'static str) -> String {
        let network_transport = if self.in_process { "inproc" } else { "tcp" };
        match (self.nodes.node_count(), self.nodes.max_ranks_per_node()) {
            (1, _) => node_transport.to_owned(),
            (_, 1) => network_transport.to_owned(),
            _ => format!("{node_transport} inside nodes, {network_transport} between them"),
        }
    }

    /// Returns the heartbeat configuration of this rank.
    fn heartbeat_config(&self, context: &GroupContext<'_>) -> HeartbeatConfig {
        HeartbeatConfig {
            timing: HeartbeatTiming::from_limit_ms(self.heartbeat_ms),
            activity_fn: context.activity,
        }
    }

    /// Tries whether the ranks of each host can share memory. Returns `None` if no rank would share
    /// memory with another process. The plan has the ranks of each host on one node.
    fn try_memory_sharing(
        &self,
        context: &GroupContext<'_>,
        infos: &[NativePeerInfo],
        registration: &Arc<NeighbourMember>,
        exchange: &dyn BootstrapExchange,
    ) -> Result<Option<MemorySharing>> {
        if !SharingTrial::is_needed(infos, &self.nodes) {
            return Ok(None);
        }
        let members = self.nodes.members(self.nodes.node_of(context.rank));
        let geometry = self.geometry_of(members, infos[members[0]].reuse_policy_for(false));
        let (hosts, names) = (&self.nodes, &*self.names);
        let trial = SharingTrial { context, infos, hosts, names, registration, geometry };
        trial.run(exchange).map(Some)
    }

    fn geometry_of(&self, members: &[Rank], reuse_policy: ReusePolicy) -> RegionGeometry {
        let group_ranks = self.nodes.rank_count();
        let slot_bytes = self.slot_bytes;
        RegionGeometry { ranks: members.len(), group_ranks, slot_bytes, reuse_policy }
    }

    /// Joins the shared region of the node with the other ranks of the node. `segment` is the
    /// segment of the node, if this rank has created it.
    fn join_node(
        &self,
        context: &GroupContext<'_>,
        infos: &[NativePeerInfo],
        registration: &Arc<NeighbourMember>,
        segment: Option<Segment>,
        exchange: &dyn BootstrapExchange,
    ) -> Result<(Arc<dyn SharedDomain>, &'static str)> {
        let (group, node) = (context.group, self.nodes.node_of(context.rank));
        let (members, me) = (self.nodes.members(node), self.nodes.local_rank(context.rank));
        let name = |&rank: &Rank| self.rank_locations[rank].name.clone();
        let in_process = self.in_process
            || infos[0].transport != "shm"
                && members
                    .iter()
                    .all(|&rank| infos[rank].process_cookie == infos[context.rank].process_cookie);
        let reuse = infos[members[0]].reuse_policy_for(in_process);
        let geometry = self.geometry_of(members, reuse);
        if in_process || members.len() == 1 {
            let peers = members.iter().map(name).collect();
            let domain =
                inproc::InprocDomain::join(group, node, me, peers, geometry, self.wait_policy)?;
            return Ok((Arc::new(domain.with_activity(context.activity)), "inproc"));
        }
        let member = |rank: &Rank| ShmMember {
            socket: infos[*rank].socket.clone(),
            nonce: infos[*rank].rank_nonce,
        };
        let peers = match self.nodes.node_count() {
            1 => Arc::clone(&self.names),
            _ => members.iter().map(name).collect(),
        };
        let members: Vec<ShmMember> = members.iter().map(member).collect();
        let heartbeat = self.heartbeat_config(context);
        let (peers, members, deadline) = (&peers, &members, context.deadline);
        let join_config = ShmJoinConfig { group, peers, members, me, deadline, vitals: heartbeat };
        let cancelled = || exchange.peer_failure();
        let plan = SegmentPlan { geometry, created: segment };
        let domain =
            shm::join_with(registration, &join_config, plan, self.wait_policy, &cancelled)?;
        Ok((Arc::new(domain), "shm"))
    }

    /// Connects this rank to the ranks of the other nodes. If there is only one node, does nothing,
    /// so that the rank does not listen on the network.
    fn connect_nodes(
        &self,
        context: &GroupContext<'_>,
        infos: &[NativePeerInfo],
        domain: &Arc<dyn SharedDomain>,
        exchange: &dyn BootstrapExchange,
    ) -> Result<Option<MeshAndEndpoint>> {
        if self.nodes.node_count() == 1 {
            return Ok(None);
        }
        let peers: Vec<PeerName> =
            self.rank_locations.iter().map(|location| location.name.clone()).collect();
        if self.in_process {
            let (domain, wait_policy) = (Arc::clone(domain), self.wait_policy);
            let mesh =
                inproc::InprocMesh::join(context.group, context.rank, peers, domain, wait_policy)?;
            return Ok(Some((Arc::new(mesh), None)));
        }
        let mut mesh_listener = tcp::listen(context.store_address)?;
        // A death of any other rank of a node is proven by the ranks of its node.
        if self.nodes.local_rank(context.rank) == 0 {
            mesh_listener.start_witness()?;
        }
        let own_advert = mesh_listener.advert().encode().to_string();
        let check_cancelled = || exchange.peer_failure().or_else(|| domain.failure());
        let adverts =
            exchange.all_gather("addresses", own_advert.as_bytes(), &|| domain.failure())?;
        let member = |(rank, bytes): (Rank, &Vec<u8>)| {
            let advert =
                serde_json::from_slice(bytes).ok().as_ref().and_then(tcp::AddressAdvert::decode);
            Ok(tcp::TcpMember {
                name: peers[rank].clone(),
                nonce: infos[rank].rank_nonce,
                process: infos[rank].process_cookie,
                node: self.nodes.node_of(rank),
                advert: advert.ok_or_else(|| malformed_peer_info(rank))?,
            })
        };
        let members: Vec<_> = adverts.iter().enumerate().map(member).collect::<Result<_>>()?;
        let join_config = tcp::TcpJoinConfig {
            group: context.group,
            epoch: context.epoch,
            members: &members,
            me: context.rank,
            deadline: context.deadline,
            wait_policy: self.wait_policy,
            vitals: self.heartbeat_config(context),
            security: context.security,
        };
        let reconnect_endpoint = mesh_listener.reconnect_endpoint(&join_config)?;
        let mesh = mesh_listener.join(&join_config, Arc::clone(domain), &check_cancelled)?;
        Ok(Some((Arc::new(mesh), Some(reconnect_endpoint))))
    }

    /// Creates the endpoint at which the surviving ranks reach this rank after a failure of the
    /// group. Ranks of the same node use the registration of the bootstrap.
    fn create_survivor_endpoint(
        &self,
        context: &GroupContext<'_>,
        infos: &[NativePeerInfo],
        registration: Arc<NeighbourMember>,
        reconnect_endpoint: Option<tcp::ReconnectEndpoint>,
    ) -> Result<SurvivorEndpoint> {
        let own = self.nodes.node_of(context.rank);
        let member = |(rank, info): (Rank, &NativePeerInfo)| {
            let is_on_node = self.in_process || self.nodes.node_of(rank) == own;
            let process =
                || ProcessAddress::registry(&info.socket).ok_or_else(|| malformed_peer_info(rank));
            Ok(survivor_rendezvous::SurvivorAddress {
                nonce: info.rank_nonce,
                process: is_on_node.then(process).transpose()?,
            })
        };
        let members = infos.iter().enumerate().map(member).collect::<Result<_>>()?;
        let names = Arc::clone(&self.names);
        Ok(SurvivorEndpoint::new(
            context.group,
            context.rank,
            names,
            members,
            registration,
            reconnect_endpoint,
        ))
    }
}

/// Returns true if the ranks of a host cannot all run at the same time.
fn is_oversubscribed(infos: &[NativePeerInfo], members: &[Rank]) -> bool {
    are_oversubscribed(&members.iter().map(|&rank| &infos[rank].cores).collect::<Vec<_>>())
}
