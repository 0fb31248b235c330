//! Meshes between threads, and peers that behave badly. Everything is on the loopback interface, on
//! free ports, with deadlines.

mod failure;
mod hostile;
mod policy;
mod streams;

use super::advert::{Advert, Offer};
use super::door::Door;
use super::endpoint::Mesh;
use super::join::{Member, Opening, Party};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::ids::{GroupId, Nonce, Rank};
use crate::sys::host;
use crate::transport::inproc::Domain;
use crate::transport::{
    Channel, Direction, Endpoint, Geometry, PeerName, Reuse, SharedDomain, Vitals, Wish,
};
use crate::wait::Pace;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

const STREAM: Channel = Channel::Collective(0);

/// Enough for anything that succeeds.
const SOON: Duration = Duration::from_secs(30);

fn name(rank: Rank) -> PeerName {
    PeerName { rank, pid: host::pid(), host: format!("host{rank}").into() }
}

/// A door at one address of this host, with as many lanes as asked for.
fn opening(ip: &str, lanes: u8) -> Opening {
    let address = (ip.parse::<IpAddr>().unwrap(), 0).into();
    let door = Door::open(&[address], None).unwrap();
    let port = door.port(address.ip()).unwrap();
    let near = vec![Offer { address: (address.ip(), port).into(), rail: 0 }];
    let why = "a test wants it".to_owned();
    let space = host::network_space();
    Opening::new(door, Advert { anyone: Vec::new(), near, space, rails: 1, lanes, why })
}

/// What all know of all; `nodes` has the node of each rank.
fn members(openings: &[Opening], nodes: &[usize]) -> Vec<Member> {
    let member = |(rank, opening): (Rank, &Opening)| Member {
        name: name(rank),
        nonce: host::random_nonce().unwrap(),
        node: nodes[rank],
        advert: opening.advert().clone(),
    };
    openings.iter().enumerate().map(member).collect()
}

/// The domain of a rank's node.
fn domain(group: GroupId, nodes: &[usize], me: Rank) -> Arc<dyn SharedDomain> {
    let on_node: Vec<Rank> = (0..nodes.len()).filter(|&rank| nodes[rank] == nodes[me]).collect();
    let local = on_node.iter().position(|&rank| rank == me).unwrap();
    let geometry = Geometry { ranks: on_node.len(), slot_bytes: 4096, reuse: Reuse::Soon };
    let peers = on_node.into_iter().map(name).collect();
    Arc::new(Domain::join(group, nodes[me], local, peers, geometry, Pace::PATIENT).unwrap())
}

fn party<'a>(group: GroupId, members: &'a [Member], me: Rank, deadline: &'a Deadline) -> Party<'a> {
    let vitals = Vitals::default();
    Party { group, epoch: 0, members, me, deadline, pace: Pace::PATIENT, vitals }
}

/// The meshes of all ranks of a new group.
fn meshes(openings: Vec<Opening>, nodes: &[usize]) -> Vec<Mesh> {
    let group = host::random_nonce().unwrap();
    let members = members(&openings, nodes);
    std::thread::scope(|scope| {
        let join = |(me, opening): (Rank, Opening)| {
            let members = &members;
            scope.spawn(move || {
                let deadline = Deadline::after(SOON);
                let party = party(group, members, me, &deadline);
                opening.join(&party, domain(group, nodes, me), &|| None).unwrap()
            })
        };
        let threads: Vec<_> = openings.into_iter().enumerate().map(join).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn pair(ip: &str) -> (Mesh, Mesh) {
    let mut meshes = meshes(vec![opening(ip, 1), opening(ip, 1)], &[0, 1]);
    let second = meshes.pop().unwrap();
    (meshes.pop().unwrap(), second)
}

fn send_all(mesh: &Mesh, to: Rank, channel: Channel, mut bytes: &[u8]) -> Result<()> {
    let began = Instant::now();
    while !bytes.is_empty() {
        let sent = mesh.try_send(to, channel, &[Src::from(bytes)])?;
        bytes = &bytes[sent..];
        if sent == 0 {
            assert!(began.elapsed() < SOON, "rank {to} takes nothing");
            mesh.rest(&[Wish { peer: to, channel, direction: Direction::Out }], SOON);
        }
    }
    Ok(())
}

fn receive_all(mesh: &Mesh, from: Rank, channel: Channel, bytes: &mut [u8]) -> Result<()> {
    let mut filled = 0;
    let began = Instant::now();
    while filled < bytes.len() {
        let got = mesh.try_receive(from, channel, Dst::from(&mut bytes[filled..]))?;
        filled += got;
        if got == 0 {
            assert!(began.elapsed() < SOON, "nothing comes from rank {from}");
            mesh.rest(&[Wish { peer: from, channel, direction: Direction::In }], SOON);
        }
    }
    Ok(())
}

/// The first error that something gives.
fn until_error(mut what: impl FnMut() -> Result<()>) -> Error {
    let began = Instant::now();
    loop {
        match what() {
            Err(error) => return error,
            Ok(()) => std::thread::yield_now(),
        }
        assert!(began.elapsed() < SOON, "it goes on and on");
    }
}

/// Waits for the group to fail, as a rank does that waits for a message.
fn failure_of(mesh: &Mesh, peer: Rank) -> Error {
    let wish = Wish { peer, channel: STREAM, direction: Direction::In };
    let began = Instant::now();
    loop {
        if let Some(error) = mesh.failure() {
            return error;
        }
        assert!(began.elapsed() < SOON, "no failure");
        mesh.rest(&[wish], SOON);
    }
}
