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
pub(super) struct Offer {
    pub(super) address: SocketAddr,
    /// Which of the peer's interfaces it is of, counted from 0.
    pub(super) rail: u8,
}

/// What a rank publishes about its sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advert {
    /// For everybody.
    pub(super) anyone: Vec<Offer>,
    /// For ranks of the same network name space.
    pub(super) near: Vec<Offer>,
    /// That name space; empty where the system does not tell.
    pub(super) space: String,
    /// How many interfaces take turns.
    pub(super) rails: u8,
    /// How many streams for collectives this rank would like; rank 0's wish counts.
    pub(super) lanes: u8,
    /// Why these addresses, in words.
    pub(super) why: String,
}

impl Advert {
    /// The advert for a card.
    pub fn encode(&self) -> Value {
        let offers = |list: &[Offer]| -> Value {
            list.iter().map(|it| json!([it.address.to_string(), it.rail])).collect()
        };
        json!({
            "anyone": offers(&self.anyone),
            "near": offers(&self.near),
            "space": self.space,
            "rails": self.rails,
            "lanes": self.lanes,
            "why": self.why,
        })
    }

    /// The advert on a card; `None` where it is none.
    pub fn decode(value: &Value) -> Option<Self> {
        let text = |name: &str| value.get(name)?.as_str().map(str::to_owned);
        let small = |value: &Value| u8::try_from(value.as_u64()?).ok();
        let offer = |value: &Value| {
            let address = value.get(0)?.as_str()?.parse().ok()?;
            Some(Offer { address, rail: small(value.get(1)?)? })
        };
        let offers = |name: &str| -> Option<Vec<Offer>> {
            let list = value.get(name)?.as_array()?;
            (list.len() <= MAX_ADDRESSES).then(|| list.iter().map(offer).collect())?
        };
        Some(Self {
            anyone: offers("anyone")?,
            near: offers("near")?,
            space: text("space")?,
            rails: small(value.get("rails")?).filter(|&it| usize::from(it) <= MAX_RAILS)?,
            lanes: small(value.get("lanes")?)?,
            why: text("why")?,
        })
    }

    /// The addresses for a reader whose own advert is `reader`, those of the interface with this
    /// number first.
    ///
    /// # Errors
    /// `Connection` where there is none for it, naming `owner` and what to do.
    pub(super) fn offers_for(
        &self,
        reader: &Self,
        first_rail: u8,
        owner: &PeerName,
    ) -> Result<Vec<Offer>> {
        let is_near = !self.space.is_empty() && self.space == reader.space;
        let mut offers = if is_near { self.near.clone() } else { self.anyone.clone() };
        let rails = self.rails.max(1);
        let first = first_rail % rails;
        offers.sort_by_key(|it| (it.rail % rails + rails - first) % rails);
        if offers.is_empty() {
            let near: Vec<_> = self.near.iter().map(|it| it.address.to_string()).collect();
            let message = format!(
                "{owner} can be reached on its own host only ({}; {}): set DIST_SOCKET_IFNAME there to an \
                 interface that the other hosts reach",
                near.join(", "),
                self.why
            );
            return Err(Error::new(ErrorKind::Connection, message).with_culprit(owner.rank));
        }
        Ok(offers)
    }
}
