//! The address advert: the addresses at which a rank accepts connections, as the rank publishes
//! them to its peers. A *rail* is one of the network interfaces over which a rank spreads its
//! streams.

use super::interface::MAX_RAILS;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Nonce;
use crate::security::CipherSet;
use crate::transport::PeerName;
use serde_json::{Value, json};
use std::net::SocketAddr;

/// The maximum number of addresses in each list of a valid advert.
const MAX_ADDRESSES: usize = 64;

/// One address of a peer and its rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RailAddress {
    pub(super) address: SocketAddr,
    /// The rail of the address: the index of the peer's interface that has this address, from 0.
    pub(super) rail: u8,
}

/// The addresses of a rank's listening sockets, and the facts by which a peer chooses one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressAdvert {
    /// Addresses for ranks in any network namespace.
    pub(super) routable: Vec<RailAddress>,
    /// Addresses for ranks in the same network namespace.
    pub(super) same_netns: Vec<RailAddress>,
    /// The network namespace of the rank; empty if the system does not report it.
    pub(super) network_namespace: String,
    /// The number of rails. The rank spreads its streams over them round-robin.
    pub(super) rails: u8,
    /// The number of collective streams that this rank requests. The group uses the number that
    /// rank 0 requests.
    pub(super) lanes: u8,
    /// The cipher suites that the rank supports.
    pub(super) ciphers: CipherSet,
    /// The hash of the certificate with which the death witness of the process proves its death.
    /// `None` if the process has no witness.
    pub(super) death_hash: Option<Nonce>,
    /// Why these addresses were chosen, as text.
    pub(super) reason: String,
}

impl AddressAdvert {
    /// Returns the advert as a JSON value for the rank's card (the data that a rank publishes in
    /// the store).
    pub fn encode(&self) -> Value {
        let encode_list = |list: &[RailAddress]| -> Value {
            list.iter().map(|it| json!([it.address.to_string(), it.rail])).collect()
        };
        json!({
            "anyone": encode_list(&self.routable),
            "near": encode_list(&self.same_netns),
            "space": self.network_namespace,
            "rails": self.rails,
            "lanes": self.lanes,
            "ciphers": self.ciphers.number(),
            "death": self.death_hash.map(|hash| hash.to_string()),
            "why": self.reason,
        })
    }

    /// Reads the advert of a peer from its card. Returns `None` if the advert is malformed.
    pub fn decode(value: &Value) -> Option<Self> {
        let text = |name: &str| value.get(name)?.as_str().map(str::to_owned);
        let decode_u8 = |value: &Value| u8::try_from(value.as_u64()?).ok();
        let decode_address = |value: &Value| {
            let address = value.get(0)?.as_str()?.parse().ok()?;
            Some(RailAddress { address, rail: decode_u8(value.get(1)?)? })
        };
        let decode_list = |name: &str| -> Option<Vec<RailAddress>> {
            let list = value.get(name)?.as_array()?;
            (list.len() <= MAX_ADDRESSES).then(|| list.iter().map(decode_address).collect())?
        };
        Some(Self {
            routable: decode_list("anyone")?,
            same_netns: decode_list("near")?,
            network_namespace: text("space")?,
            rails: decode_u8(value.get("rails")?).filter(|&it| usize::from(it) <= MAX_RAILS)?,
            lanes: decode_u8(value.get("lanes")?)?,
            ciphers: CipherSet::from_number(decode_u8(value.get("ciphers")?)?),
            death_hash: match value.get("death")? {
                Value::Null => None,
                hash => Some(Nonce::parse(hash.as_str()?)?),
            },
            reason: text("why")?,
        })
    }

    /// Returns the addresses in this advert, which is the advert of `owner`, that a rank with the
    /// advert `reader` can use. The addresses of rail `first_rail` come first.
    ///
    /// # Errors
    /// `Connection` if no address is reachable for the reader; the message names `owner` and the
    /// remedy.
    pub(super) fn addresses_for(
        &self,
        reader: &Self,
        first_rail: u8,
        owner: &PeerName,
    ) -> Result<Vec<RailAddress>> {
        let is_near = !self.network_namespace.is_empty()
            && self.network_namespace == reader.network_namespace;
        let mut addresses = if is_near { self.same_netns.clone() } else { self.routable.clone() };
        let rails = self.rails.max(1);
        let first = first_rail % rails;
        addresses.sort_by_key(|it| (it.rail % rails + rails - first) % rails);
        if addresses.is_empty() {
            let listed: Vec<_> = self.same_netns.iter().map(|it| it.address.to_string()).collect();
            let message = format!(
                "{owner} is reachable only from its own host ({}; {}); set DIST_SOCKET_IFNAME on that host to an \
                 interface that the other hosts can reach",
                listed.join(", "),
                self.reason
            );
            return Err(Error::new(ErrorKind::Connection, message).with_culprit(owner.rank));
        }
        Ok(addresses)
    }
}
