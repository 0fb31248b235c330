//! The peer rank of a fuzz run: the bytes that it sends, and its accesses to shared memory.

use super::PEER;
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{Nonce, Rank, WorldSize};
use crate::base::sync::lock;
use crate::sys::host;
use crate::transport::exposure::cookie_words;
use crate::transport::inproc::InprocDomain;
use crate::transport::ring::{RingReader, RingWriter};
use crate::transport::{
    Channel, Endpoint, PeerName, ProgressHandler, RegionGeometry, ReusePolicy, SharedDomain,
    StreamInterest,
};
use crate::wait::WaitPolicy;
use serde_json::Value;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

/// The process cookie of the peer.
static COOKIE: Nonce = Nonce([9; 16]);
/// The buffer that the peer exposes for reading.
static EXPOSED: [u8; 20_000] = [b'l'; 20_000];

/// Returns the address of the peer's exposed buffer.
pub(super) fn exposed_address() -> u64 {
    EXPOSED.as_ptr().addr() as u64
}

/// The peer rank, which uses rings or streams.
pub(super) struct FuzzPeer {
    domain: Arc<dyn SharedDomain>,
    streams: Option<Arc<FuzzStreams>>,
    rings: Option<FuzzRings>,
    received: Vec<u8>,
}

/// The peer's ends of the rings.
struct FuzzRings {
    /// The peer's membership in the domain; `None` after the peer has left.
    domain: Option<InprocDomain>,
    writer: RingWriter,
    reader: RingReader,
    /// Whether the peer has written arbitrary positions.
    is_corrupted: bool,
}

impl FuzzPeer {
    /// Creates a peer. It uses rings with this reuse policy, or streams if `rings` is `None`.
    pub(super) fn new(rings: Option<ReusePolicy>) -> Self {
        static GROUPS: AtomicU64 = AtomicU64::new(0);
        let number = u128::from(GROUPS.fetch_add(1, Ordering::Relaxed));
        let group = Nonce(number.to_le_bytes());
        let name = |rank| PeerName::new(rank, host::pid(), "here".into());
        let ranks = if rings.is_some() { 2 } else { 1 };
        let reuse = rings.unwrap_or(ReusePolicy::WhileCached);
        let geometry = RegionGeometry::within_host(ranks, 4096, reuse);
        let join = |rank: Rank| {
            let peers = (0..ranks).map(name).collect();
            InprocDomain::join(group, usize::MAX, rank, peers, geometry, WaitPolicy::SLEEP_SOON)
                .expect("a domain")
        };
        let domain: Arc<dyn SharedDomain> = Arc::new(join(0));
        let names = [name(0), name(PEER)];
        let streams =
            rings.is_none().then(|| Arc::new(FuzzStreams { names, inner: Mutex::default() }));
        let rings = rings.map(|_| FuzzRings {
            domain: Some(join(PEER)),
            writer: RingWriter::new(PEER, 0),
            reader: RingReader::new(0, PEER),
            is_corrupted: false,
        });
        Self { domain, streams, rings, received: Vec::new() }
    }

    pub(super) fn domain(&self) -> Arc<dyn SharedDomain> {
        Arc::clone(&self.domain)
    }

    pub(super) fn endpoint(&self) -> Option<Arc<dyn Endpoint>> {
        self.streams.clone().map(|streams| -> Arc<dyn Endpoint> { streams })
    }

    /// Sends as many of the bytes as there is room for.
    pub(super) fn send_bytes(&mut self, bytes: &[u8]) {
        if let Some(streams) = &self.streams {
            streams.inner().incoming.extend(bytes);
        }
        if let Some(FuzzRings { writer: out, is_corrupted: is_spoilt, .. }) = &mut self.rings {
            let region = self.domain.region();
            let written = out.write(region, &[Src::from(bytes)]);
            assert!(written.is_ok() || *is_spoilt, "this rank wrote an invalid position");
            out.publish(region);
        }
    }

    /// Receives up to `count` bytes.
    pub(super) fn receive_bytes(&mut self, count: usize) {
        if let Some(streams) = &self.streams {
            let mut inner = streams.inner();
            inner.room += count;
            inner.is_ready = true;
        }
        if let Some(FuzzRings { reader: into, is_corrupted: is_spoilt, .. }) = &mut self.rings {
            let mut bytes = vec![0; count];
            let region = self.domain.region();
            let got = into.read(region, Dst::from(bytes.as_mut_slice()));
            assert!(got.is_ok() || *is_spoilt, "this rank wrote an invalid position");
            into.release(region);
            self.received.extend(&bytes[..got.unwrap_or(0)]);
        }
    }

    /// Overwrites one of the peer's ring positions with an arbitrary value.
    pub(super) fn corrupt_position(&mut self, which: u8, position: i64) {
        let Some(rings) = &mut self.rings else { return };
        rings.is_corrupted = true;
        let position = position.cast_unsigned();
        let region = self.domain.region();
        match which & 1 {
            0 => region.ring(PEER, 0).writer_cursor.corrupt_position(position),
            _ => region.ring(0, PEER).reader_cursor.corrupt_position(position),
        }
    }

    /// Publishes the peer's cookie, or exposes its buffer.
    pub(super) fn expose(&mut self, slot: u8, number: u8) {
        if self.rings.is_none() {
            return;
        }
        let table = self.domain.region().exposure_table(PEER);
        match slot {
            255 => table.publish_cookie(COOKIE.0.as_ptr().addr() as u64, cookie_words(&COOKIE)),
            254 => table.publish_cookie(u64::from(number), cookie_words(&COOKIE)),
            _ => table.expose(slot.into(), number.into()),
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

    /// Returns the bytes from the engine that have not been checked yet; `None` after the peer has
    /// corrupted its ring.
    pub(super) fn received(&mut self) -> Option<&mut Vec<u8>> {
        if let Some(streams) = &self.streams {
            self.received.append(&mut streams.inner().outgoing);
        }
        let is_spoilt = self.rings.as_ref().is_some_and(|rings| rings.is_corrupted);
        (!is_spoilt).then_some(&mut self.received)
    }
}

/// The streams to and from the peer.
#[derive(Debug)]
struct FuzzStreams {
    names: [PeerName; 2],
    inner: Mutex<FuzzStreamState>,
}

#[derive(Debug, Default)]
struct FuzzStreamState {
    incoming: Vec<u8>,
    /// The number of incoming bytes that the engine has taken.
    taken: usize,
    outgoing: Vec<u8>,
    room: usize,
    is_ready: bool,
    has_left: bool,
    failure: Option<Error>,
}

impl FuzzStreams {
    fn inner(&self) -> MutexGuard<'_, FuzzStreamState> {
        lock(&self.inner)
    }

    fn left_error() -> Error {
        Error::new(ErrorKind::PeerFailed, "the peer has left the group").with_culprit(PEER)
    }
}

impl Endpoint for FuzzStreams {
    fn rank(&self) -> Rank {
        0
    }

    fn size(&self) -> WorldSize {
        2
    }

    fn peer(&self, rank: Rank) -> &PeerName {
        &self.names[rank]
    }

    fn collective_streams(&self) -> u8 {
        1
    }

    fn wait_policy(&self) -> WaitPolicy {
        WaitPolicy::SLEEP_SOON
    }

    fn try_send(&self, to: Rank, _: Channel, parts: &[Src<'_>]) -> Result<usize> {
        assert_eq!(to, PEER);
        let mut inner = self.inner();
        if inner.has_left {
            return Err(Self::left_error());
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
            return Err(Self::left_error());
        }
        into.slice(0, count).copy_from(Src::from(&rest[..count]));
        inner.taken += count;
        Ok(count)
    }

    fn wait_for_streams(&self, _: &[StreamInterest], _: Duration) {}

    fn collect_ready_peers(&self, peers: &mut Vec<Rank>) {
        let mut inner = self.inner();
        let is_ready = std::mem::take(&mut inner.is_ready);
        if is_ready || inner.has_left || inner.taken < inner.incoming.len() {
            peers.push(PEER);
        }
    }

    fn set_progress_handler(&self, _: Weak<dyn ProgressHandler>) {}

    fn pause_progress_handler(&self, _: bool) {}

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
