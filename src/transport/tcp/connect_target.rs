//! The target of a connection attempt: the addresses of a peer and, for each of them, the local
//! address from which this rank connects.

use super::advert::RailAddress;
use super::hello::Hello;
use super::link_proof::LinkTerms;
use super::members::TcpMember;
use crate::base::deadline::Deadline;
use crate::base::error::Error;
use crate::base::ids::Nonce;
use crate::transport::PeerName;
use std::net::SocketAddr;

/// The target of a connection attempt.
#[derive(Clone, Debug)]
pub(super) struct PeerConnectTarget {
    pub(super) hello: Hello,
    pub(super) terms: LinkTerms,
    /// The number of this rank in texts.
    pub(super) own_shown_rank: u32,
    pub(super) name: PeerName,
    pub(super) addresses: Vec<RailAddress>,
    /// The local addresses from which to connect, with their rails (indexes of interfaces). The
    /// list is empty if the system chooses the local address.
    pub(super) source_addresses: Vec<RailAddress>,
    /// The hash of the death certificate of the peer's process, if it has a death witness.
    pub(super) death_hash: Option<Nonce>,
    /// The deadline until which the attempt is retried, because the peer may not listen yet; `None`
    /// for no retries.
    pub(super) retry_until: Option<Deadline>,
}

impl PeerConnectTarget {
    /// Returns the target for a connection from this rank, the member `own`, to the member `peer`.
    ///
    /// # Errors
    /// `Connection` if no address is reachable.
    pub(super) fn between(
        hello: Hello,
        terms: LinkTerms,
        own: &TcpMember,
        peer: &TcpMember,
        retry_until: Option<Deadline>,
    ) -> Result<Self, Error> {
        let addresses = peer.advert.addresses_for(&own.advert, hello.purpose.rail(), &peer.name)?;
        // If one side has fewer rails than the other, equal rail indexes of the two sides do not
        // mean the same network.
        let uses_rails = own.advert.rails > 1 && own.advert.rails == peer.advert.rails;
        let source_addresses = if uses_rails { own.advert.same_netns.clone() } else { Vec::new() };
        let (own_shown_rank, name) = (own.name.shown_rank, peer.name.clone());
        let death_hash = peer.advert.death_hash;
        Ok(Self {
            hello,
            terms,
            own_shown_rank,
            name,
            addresses,
            source_addresses,
            death_hash,
            retry_until,
        })
    }
}

/// An address of the peer, and the local address from which to connect, or `None` if the system
/// chooses it.
pub(super) type AddressPair = (SocketAddr, Option<SocketAddr>);

/// Returns all addresses of the peer in the order in which they are tried. Each address appears
/// first with the local address of the same rail, and then without a local address. The second
/// attempt is needed if the peer has no route back to that local address.
pub(super) fn address_pairs(target: &PeerConnectTarget) -> Vec<AddressPair> {
    let mut pairs = Vec::new();
    for &rail_address in &target.addresses {
        pairs.extend(
            source_address_for(rail_address, &target.source_addresses)
                .map(|it| (rail_address.address, Some(it))),
        );
        pairs.push((rail_address.address, None));
    }
    pairs
}

/// Returns the local address that has the same rail as the peer's address, if there is one.
fn source_address_for(rail_address: RailAddress, sources: &[RailAddress]) -> Option<SocketAddr> {
    let rails = sources.iter().map(|source| source.rail + 1).max()?;
    let fits = |source: &&RailAddress| {
        source.rail == rail_address.rail % rails
            && source.address.is_ipv4() == rail_address.address.is_ipv4()
            && source.address.ip().is_loopback() == rail_address.address.ip().is_loopback()
    };
    let mut source = sources.iter().find(fits)?.address;
    source.set_port(0);
    Some(source)
}
