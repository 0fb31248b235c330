//! Where a rank can be reached, as it tells the others.

use super::interface::MAX_RAILS;
use crate::base::error::{Error, ErrorKind, Result};
use crate::transport::PeerName;
use serde_json::{Value, json};
use std::net::SocketAddr;

/// The most addresses that a peer is believed to have.
const MAX_ADDRESSES: usize = 64;

/// One address to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RailAddress {
    pub(super) address: SocketAddr,
    /// Which of the peer's interfaces it is of, counted from 0.
    pub(super) rail: u8,
}

/// What a rank publishes about its sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressAdvert {
    /// For everybody.
    pub(super) routable: Vec<RailAddress>,
    /// For ranks of the same network name space.
    pub(super) same_netns: Vec<RailAddress>,
    /// That name space; empty where the system does not tell.
    pub(super) network_namespace: String,
    /// How many interfaces take turns.
    pub(super) rails: u8,
    /// How many streams for collectives this rank would like; rank 0's wish counts.
    pub(super) lanes: u8,
    /// Why these addresses, in words.
    pub(super) reason: String,
}

impl AddressAdvert {
    /// The advert for a card.
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
            "why": self.reason,
        })
    }

    /// The advert on a card; `None` where it is none.
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
            reason: text("why")?,
        })
    }

    /// The addresses for a reader whose own advert is `reader`, those of the interface with this
    /// number first.
    ///
    /// # Errors
    /// `Connection` where there is none for it, naming `owner` and what to do.
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
                "{owner} can be reached on its own host only ({}; {}): set DIST_SOCKET_IFNAME there to an \
                 interface that the other hosts reach",
                listed.join(", "),
                self.reason
            );
            return Err(Error::new(ErrorKind::Connection, message).with_culprit(owner.rank));
        }
        Ok(addresses)
    }
}
