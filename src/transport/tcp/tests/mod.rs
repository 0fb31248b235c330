//! Tests of meshes between threads, and of misbehaving peers. They use the loopback interface, free
//! ports and deadlines.

mod departures;
mod encrypted;
mod failure;
mod hostile;
mod links;
mod policy;
mod proofs;
mod resume;
mod streams;

use super::advert::{AddressAdvert, RailAddress};
use super::endpoint::TcpMesh;
use super::join::TcpListening;
use super::listener_registry::ListenerRegistry;
use super::members::{TcpJoinConfig, TcpMember};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::ids::{GroupId, Nonce, Rank};
use crate::security::{CipherSet, LinkSecurity, Secret};
use crate::sys::host;
use crate::transport::inproc::InprocDomain;
use crate::transport::{
    Channel, Endpoint, HeartbeatConfig, PeerName, RegionGeometry, ReusePolicy, SharedDomain,
    StreamDirection, StreamInterest,
};
use crate::wait::WaitPolicy;
use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

const STREAM: Channel = Channel::Collective(0);

/// A limit that no successful call of a test exceeds.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

fn name(rank: Rank) -> PeerName {
    PeerName::new(rank, host::pid(), format!("host{rank}").into())
}

/// Listens on one address of this host and requests this number of collective streams.
fn listen_on_loopback(ip: &str, lanes: u8) -> TcpListening {
    let address = (ip.parse::<IpAddr>().unwrap(), 0).into();
    let registry = ListenerRegistry::listen_on(&[address], None).unwrap();
    let port = registry.port(address.ip()).unwrap();
    let same_netns = vec![RailAddress { address: (address.ip(), port).into(), rail: 0 }];
    let reason = "requested by a test".to_owned();
    let space = host::network_namespace();
    TcpListening::new(
        registry,
        AddressAdvert {
            routable: Vec::new(),
            same_netns,
            network_namespace: space,
            rails: 1,
            lanes,
            ciphers: CipherSet::of_this_processor(),
            death_hash: None,
            reason,
        },
    )
}

/// Returns the members of a group of new processes; `nodes` contains the node of each rank.
fn members(openings: &[TcpListening], nodes: &[usize]) -> Vec<TcpMember> {
    let processes: Vec<_> = openings.iter().map(|_| host::random_nonce().unwrap()).collect();
    members_in(&processes, openings, nodes)
}

/// Returns the members of a group of these processes.
fn members_in(processes: &[Nonce], openings: &[TcpListening], nodes: &[usize]) -> Vec<TcpMember> {
    let member = |(rank, opening): (Rank, &TcpListening)| TcpMember {
        name: name(rank),
        nonce: host::random_nonce().unwrap(),
        process: processes[rank],
        node: nodes[rank],
        advert: opening.advert().clone(),
    };
    openings.iter().enumerate().map(member).collect()
}

/// Returns the domain of a rank's node.
fn domain(group: GroupId, nodes: &[usize], me: Rank) -> Arc<dyn SharedDomain> {
    let on_node: Vec<Rank> = (0..nodes.len()).filter(|&rank| nodes[rank] == nodes[me]).collect();
    let local = on_node.iter().position(|&rank| rank == me).unwrap();
    let geometry = RegionGeometry {
        ranks: on_node.len(),
        group_ranks: nodes.len(),
        slot_bytes: 4096,
        reuse_policy: ReusePolicy::WhileCached,
    };
    let peers = on_node.into_iter().map(name).collect();
    Arc::new(
        InprocDomain::join(group, nodes[me], local, peers, geometry, WaitPolicy::SLEEP_SOON)
            .unwrap(),
    )
}

fn join_config<'a>(
    group: GroupId,
    members: &'a [TcpMember],
    me: Rank,
    deadline: &'a Deadline,
) -> TcpJoinConfig<'a> {
    let vitals = HeartbeatConfig::default();
    TcpJoinConfig {
        group,
        epoch: 0,
        members,
        me,
        deadline,
        wait_policy: WaitPolicy::SLEEP_SOON,
        vitals,
        security: &LinkSecurity::None,
    }
}

fn authenticated() -> LinkSecurity {
    LinkSecurity::Auth(Secret::from_bytes(b"correct horse battery staple").unwrap())
}

fn encrypted() -> LinkSecurity {
    LinkSecurity::Encrypt(Secret::from_bytes(b"correct horse battery staple").unwrap())
}

thread_local! {
    /// The protection of the groups that [`meshes`] creates on this thread.
    static SECURITY_OF_MESHES: RefCell<LinkSecurity> = const { RefCell::new(LinkSecurity::None) };
}

/// Creates the meshes of all ranks of a new group.
fn meshes(openings: Vec<TcpListening>, nodes: &[usize]) -> Vec<TcpMesh> {
    let security = SECURITY_OF_MESHES.with_borrow(Clone::clone);
    secured_meshes(openings, nodes, &security)
}

/// Creates the meshes of all ranks of a new group with this protection.
fn secured_meshes(
    openings: Vec<TcpListening>,
    nodes: &[usize],
    security: &LinkSecurity,
) -> Vec<TcpMesh> {
    let members = members(&openings, nodes);
    join_all(openings, &members, nodes, security)
}

/// Joins the ranks of a new group.
fn join_all(
    openings: Vec<TcpListening>,
    members: &[TcpMember],
    nodes: &[usize],
    security: &LinkSecurity,
) -> Vec<TcpMesh> {
    let group = host::random_nonce().unwrap();
    std::thread::scope(|scope| {
        let join = |(me, opening): (Rank, TcpListening)| {
            scope.spawn(move || {
                let deadline = Deadline::after(TEST_TIMEOUT);
                let config = join_config(group, members, me, &deadline);
                let config = TcpJoinConfig { security, ..config };
                opening.join(&config, domain(group, nodes, me), &|| None).unwrap()
            })
        };
        let threads: Vec<_> = openings.into_iter().enumerate().map(join).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn pair(ip: &str) -> (TcpMesh, TcpMesh) {
    let mut meshes = meshes(vec![listen_on_loopback(ip, 1), listen_on_loopback(ip, 1)], &[0, 1]);
    let second = meshes.pop().unwrap();
    (meshes.pop().unwrap(), second)
}

fn send_all(mesh: &TcpMesh, to: Rank, channel: Channel, mut bytes: &[u8]) -> Result<()> {
    let began = Instant::now();
    while !bytes.is_empty() {
        let sent = mesh.try_send(to, channel, &[Src::from(bytes)])?;
        bytes = &bytes[sent..];
        if sent == 0 {
            assert!(began.elapsed() < TEST_TIMEOUT, "rank {to} accepts no bytes");
            mesh.wait_for_streams(
                &[StreamInterest { peer: to, channel, direction: StreamDirection::Out }],
                TEST_TIMEOUT,
            );
        }
    }
    Ok(())
}

fn receive_all(mesh: &TcpMesh, from: Rank, channel: Channel, bytes: &mut [u8]) -> Result<()> {
    let mut filled = 0;
    let began = Instant::now();
    while filled < bytes.len() {
        let got = mesh.try_receive(from, channel, Dst::from(&mut bytes[filled..]))?;
        filled += got;
        if got == 0 {
            assert!(began.elapsed() < TEST_TIMEOUT, "rank {from} sends no bytes");
            mesh.wait_for_streams(
                &[StreamInterest { peer: from, channel, direction: StreamDirection::In }],
                TEST_TIMEOUT,
            );
        }
    }
    Ok(())
}

/// Repeats a call until it fails, and returns the error.
fn first_error(mut what: impl FnMut() -> Result<()>) -> Error {
    let began = Instant::now();
    loop {
        match what() {
            Err(error) => return error,
            Ok(()) => std::thread::yield_now(),
        }
        assert!(began.elapsed() < TEST_TIMEOUT, "the operation did not fail in time");
    }
}

/// Waits for bytes from `peer` until the group fails, and returns the failure.
fn failure_of(mesh: &TcpMesh, peer: Rank) -> Error {
    let interest = StreamInterest { peer, channel: STREAM, direction: StreamDirection::In };
    let began = Instant::now();
    loop {
        if let Some(error) = mesh.failure() {
            return error;
        }
        assert!(began.elapsed() < TEST_TIMEOUT, "no failure");
        mesh.wait_for_streams(&[interest], TEST_TIMEOUT);
    }
}
