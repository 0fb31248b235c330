//! The other rank: what it says, and what it does to the memory that it shares.

use super::super::transfer::words;
use super::PEER;
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{Nonce, Rank, WorldSize};
use crate::sys::host;
use crate::transport::inproc::Domain;
use crate::transport::ring::{Reader, Writer};
use crate::transport::{
    Attendant, Channel, Endpoint, Geometry, PeerName, Reuse, SharedDomain, Wish,
};
use crate::wait::Pace;
use serde_json::Value;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// What the peer's process is recognised by, and what it lends.
static MARK: Nonce = Nonce([9; 16]);
static LENT: [u8; 20_000] = [b'l'; 20_000];

/// Where the peer's lent buffer lies.
pub(super) fn lent_address() -> u64 {
    LENT.as_ptr().addr() as u64
}

/// Either way to the peer.
pub(super) struct Peer {
    domain: Arc<dyn SharedDomain>,
    streams: Option<Arc<Streams>>,
    rings: Option<Rings>,
    said: Vec<u8>,
}

/// The peer's ends of the rings.
struct Rings {
    /// Its membership; gone when it has left.
    domain: Option<Domain>,
    out: Writer,
    into: Reader,
    /// It has written positions of its own choosing.
    is_spoilt: bool,
}

impl Peer {
    /// Over rings in memory that is used again so soon, or over streams.
    pub(super) fn new(rings: Option<Reuse>) -> Self {
        static GROUPS: AtomicU64 = AtomicU64::new(0);
        let number = u128::from(GROUPS.fetch_add(1, Ordering::Relaxed));
        let group = Nonce(number.to_le_bytes());
        let name = |rank| PeerName { rank, pid: host::pid(), host: "here".into() };
        let ranks = if rings.is_some() { 2 } else { 1 };
        let reuse = rings.unwrap_or(Reuse::Soon);
        let geometry = Geometry { ranks, slot_bytes: 4096, reuse };
        let join = |rank: Rank| {
            let peers = (0..ranks).map(name).collect();
            Domain::join(group, usize::MAX, rank, peers, geometry, Pace::PATIENT).expect("a domain")
        };
        let domain: Arc<dyn SharedDomain> = Arc::new(join(0));
        let names = [name(0), name(PEER)];
        let streams = rings.is_none().then(|| Arc::new(Streams { names, inner: Mutex::default() }));
        let rings = rings.map(|_| Rings {
            domain: Some(join(PEER)),
            out: Writer::new(PEER, 0),
            into: Reader::new(0, PEER),
            is_spoilt: false,
        });
        Self { domain, streams, rings, said: Vec::new() }
    }

    pub(super) fn domain(&self) -> Arc<dyn SharedDomain> {
        Arc::clone(&self.domain)
    }

    pub(super) fn endpoint(&self) -> Option<Arc<dyn Endpoint>> {
        self.streams.clone().map(|streams| -> Arc<dyn Endpoint> { streams })
    }

    /// Sends bytes, as far as there is room.
    pub(super) fn say(&mut self, bytes: &[u8]) {
        if let Some(streams) = &self.streams {
            streams.inner().incoming.extend(bytes);
        }
        if let Some(Rings { out, is_spoilt, .. }) = &mut self.rings {
            let region = self.domain.region();
            let written = out.write(region, &[Src::from(bytes)]);
            assert!(written.is_ok() || *is_spoilt, "a position of this rank makes no sense");
            out.publish(region);
        }
    }

    /// Takes up to so many bytes.
    pub(super) fn listen(&mut self, count: usize) {
        if let Some(streams) = &self.streams {
            let mut inner = streams.inner();
            inner.room += count;
            inner.is_ready = true;
        }
        if let Some(Rings { into, is_spoilt, .. }) = &mut self.rings {
            let mut bytes = vec![0; count];
            let region = self.domain.region();
            let got = into.read(region, Dst::from(bytes.as_mut_slice()));
            assert!(got.is_ok() || *is_spoilt, "a position of this rank makes no sense");
            into.release(region);
            self.said.extend(&bytes[..got.unwrap_or(0)]);
        }
    }

    /// Writes anything over its positions.
    pub(super) fn spoil(&mut self, which: u8, position: i64) {
        let Some(rings) = &mut self.rings else { return };
        rings.is_spoilt = true;
        let position = position.cast_unsigned();
        let region = self.domain.region();
        match which & 1 {
            0 => region.ring(PEER, 0).written.claim(position),
            _ => region.ring(0, PEER).read.claim(position),
        }
    }

    /// Shows its mark, or lends a buffer.
    pub(super) fn lend(&mut self, place: u8, number: u8) {
        if self.rings.is_none() {
            return;
        }
        let desk = self.domain.region().desk(PEER);
        match place {
            255 => desk.show_mark(MARK.0.as_ptr().addr() as u64, words(&MARK)),
            254 => desk.show_mark(u64::from(number), words(&MARK)),
            _ => desk.lend(place.into(), number.into()),
        }
    }

    pub(super) fn leave(&mut self) {
        if let Some(streams) = &self.streams {
            streams.inner().has_left = true;
        }
        if let Some(rings) = &mut self.rings {
            rings.domain = None;
        }
    }

    /// What the engine has said and was not looked at; `None` where the peer has spoilt that.
    pub(super) fn said(&mut self) -> Option<&mut Vec<u8>> {
        if let Some(streams) = &self.streams {
            self.said.append(&mut streams.inner().outgoing);
        }
        let is_spoilt = self.rings.as_ref().is_some_and(|rings| rings.is_spoilt);
        (!is_spoilt).then_some(&mut self.said)
    }
}

/// Streams to and from the peer.
#[derive(Debug)]
struct Streams {
    names: [PeerName; 2],
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    incoming: Vec<u8>,
    /// How much of it has been taken.
    taken: usize,
    outgoing: Vec<u8>,
    room: usize,
    is_ready: bool,
    has_left: bool,
    failure: Option<Error>,
}

impl Streams {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gone() -> Error {
        Error::new(ErrorKind::PeerFailed, "the peer has left the group").with_culprit(PEER)
    }
}

impl Endpoint for Streams {
    fn rank(&self) -> Rank {
        0
    }

    fn size(&self) -> WorldSize {
        2
    }

    fn peer(&self, rank: Rank) -> &PeerName {
        &self.names[rank]
    }

    fn lanes(&self) -> u8 {
        1
    }

    fn pace(&self) -> Pace {
        Pace::PATIENT
    }

    fn try_send(&self, to: Rank, _: Channel, parts: &[Src<'_>]) -> Result<usize> {
        assert_eq!(to, PEER);
        let mut inner = self.inner();
        if inner.has_left {
            return Err(Self::gone());
        }
        let before = inner.outgoing.len();
        for part in parts {
            let len = part.len().min(inner.room);
            let mut bytes = vec![0; len];
            Dst::from(bytes.as_mut_slice()).copy_from(part.slice(0, len));
            inner.room -= len;
            inner.outgoing.extend(bytes);
        }
        Ok(inner.outgoing.len() - before)
    }

    fn try_receive(&self, from: Rank, _: Channel, into: Dst<'_>) -> Result<usize> {
        assert_eq!(from, PEER);
        let mut inner = self.inner();
        let rest = &inner.incoming[inner.taken..];
        let count = into.len().min(rest.len());
        if count == 0 && inner.has_left && !into.is_empty() {
            return Err(Self::gone());
        }
        into.slice(0, count).copy_from(Src::from(&rest[..count]));
        inner.taken += count;
        Ok(count)
    }

    fn rest(&self, _: &[Wish], _: Duration) {}

    fn ready(&self, peers: &mut Vec<Rank>) {
        let mut inner = self.inner();
        let is_ready = std::mem::take(&mut inner.is_ready);
        if is_ready || inner.has_left || inner.taken < inner.incoming.len() {
            peers.push(PEER);
        }
    }

    fn set_attendant(&self, _: Weak<dyn Attendant>) {}

    fn pause_attendant(&self, _: bool) {}

    fn describe(&self) -> Value {
        Value::Null
    }

    fn failure(&self) -> Option<Error> {
        self.inner().failure.clone()
    }

    fn fail(&self, error: &Error) {
        self.inner().failure.get_or_insert_with(|| error.clone());
    }
}
