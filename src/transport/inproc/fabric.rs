//! [`Endpoint`] for threads: bounded queues of bytes between any two ranks of a group, whatever
//! their nodes.

use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Fault, Result};
use crate::base::ids::{GroupId, Rank, WorldSize};
use crate::transport::{
    Attendant, Channel, Direction, Endpoint, Listener, PeerName, SharedDomain, Wish,
};
use crate::wait::bell::Bell;
use crate::wait::nudge::Nudge;
use crate::wait::{Pace, until};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// What one stream holds before its sender waits.
const STREAM_BYTES: usize = 64 << 10;

/// So that messages are spread over several streams as they may be between hosts.
const LANES: u8 = 2;

/// What the members of one group share.
#[derive(Debug)]
struct Hub {
    places: Vec<Place>,
}

/// What the hub keeps for one rank.
#[derive(Debug, Default)]
struct Place {
    /// What has been sent to it.
    inbox: Mutex<BTreeMap<(Rank, Channel), VecDeque<u8>>>,
    /// Rung when bytes come, or room does, or somebody leaves.
    bell: Bell,
    left: AtomicBool,
    member: Mutex<Option<Weak<Shared>>>,
}

static HUBS: LazyLock<Mutex<HashMap<GroupId, Weak<Hub>>>> = LazyLock::new(Mutex::default);

/// One thread's end of all streams.
#[derive(Debug)]
pub struct Fabric {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    hub: Arc<Hub>,
    domain: Arc<dyn SharedDomain>,
    rank: Rank,
    peers: Vec<PeerName>,
    pace: Pace,
    /// The failure of this rank's node has been passed on.
    spread: AtomicBool,
    attendance: Mutex<Attendance>,
    nudge: Nudge,
}

/// Point-to-point streams that nobody waits for.
#[derive(Debug, Default)]
struct Attendance {
    attendant: Option<Weak<dyn Attendant>>,
    paused: bool,
    /// Peers whose streams may go on.
    ready: BTreeSet<Rank>,
    /// Peers whose stream was full.
    full: BTreeSet<Rank>,
}

impl Fabric {
    /// Joins the streams of a group as `rank`; `peers` names every member, and `domain` is the one
    /// of its node.
    ///
    /// # Errors
    /// `System`.
    pub fn join(
        group: GroupId,
        rank: Rank,
        peers: Vec<PeerName>,
        domain: Arc<dyn SharedDomain>,
        pace: Pace,
    ) -> Result<Self> {
        let size = peers.len();
        let hub = Hub::find_or_make(group, size);
        let place = Arc::downgrade(&hub);
        let task = move || {
            let hub = place.upgrade();
            let member = hub.and_then(|hub| hub.member(rank));
            member.into_iter().for_each(|shared| shared.call_attendant());
        };
        let shared = Arc::new(Shared {
            hub,
            domain,
            rank,
            peers,
            pace,
            spread: AtomicBool::new(false),
            // Some may have sent already.
            attendance: Mutex::new(Attendance {
                ready: (0..size).collect(),
                ..Attendance::default()
            }),
            nudge: Nudge::new(task)?,
        });
        *lock(&shared.hub.places[rank].member) = Some(Arc::downgrade(&shared));
        let listener: Arc<dyn Listener> = shared.clone();
        shared.domain.add_listener(Arc::downgrade(&listener));
        shared.domain.region().bell(shared.domain.rank()).listen();
        Ok(Self { shared })
    }
}

impl Hub {
    fn find_or_make(group: GroupId, size: WorldSize) -> Arc<Self> {
        let mut hubs = lock(&HUBS);
        hubs.retain(|_, hub| hub.strong_count() > 0);
        if let Some(hub) = hubs.get(&group).and_then(Weak::upgrade) {
            return hub;
        }
        let hub = Arc::new(Self { places: (0..size).map(|_| Place::default()).collect() });
        hubs.insert(group, Arc::downgrade(&hub));
        hub
    }

    fn member(&self, rank: Rank) -> Option<Arc<Shared>> {
        lock(&self.places[rank].member).as_ref().and_then(Weak::upgrade)
    }

    /// Tells a rank that a stream between it and `peer` may go on.
    fn tell(&self, rank: Rank, peer: Rank, channel: Channel, direction: Direction) {
        self.places[rank].bell.ring();
        if channel == Channel::PointToPoint
            && let Some(member) = self.member(rank)
        {
            member.note(peer, direction);
        }
    }
}

impl Shared {
    /// A point-to-point stream may go on.
    fn note(&self, peer: Rank, direction: Direction) {
        let mut attendance = lock(&self.attendance);
        if direction == Direction::Out && !attendance.full.remove(&peer) {
            return;
        }
        attendance.ready.insert(peer);
        if !attendance.paused {
            self.nudge.nudge();
        }
    }

    fn call_attendant(&self) {
        let attendant = lock(&self.attendance).attendant.clone();
        attendant.and_then(|attendant| attendant.upgrade()).into_iter().for_each(|it| it.attend());
    }

    fn gone(&self, peer: Rank) -> Error {
        let message = format!("{} has left the group", self.peers[peer]);
        Error::new(ErrorKind::PeerFailed, message).with_culprit(peer).with_fault(Fault::Left)
    }

    fn others(&self) -> impl Iterator<Item = Rank> + use<> {
        let rank = self.rank;
        (0..self.peers.len()).filter(move |&peer| peer != rank)
    }
}

impl Listener for Shared {
    fn on_knock(&self) {
        self.hub.places[self.rank].bell.ring();
        let Some(error) = self.domain.failure() else { return };
        if self.spread.swap(true, Ordering::AcqRel) {
            return;
        }
        let members = self.others().filter_map(|peer| self.hub.member(peer));
        members.for_each(|member| member.domain.fail(&error));
        self.nudge.nudge();
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        let Shared { hub, domain, rank, .. } = self.shared.as_ref();
        domain.region().bell(domain.rank()).stop_listening();
        hub.places[*rank].left.store(true, Ordering::Release);
        for peer in self.shared.others() {
            hub.tell(peer, *rank, Channel::PointToPoint, Direction::In);
        }
    }
}

impl Endpoint for Fabric {
    fn rank(&self) -> Rank {
        self.shared.rank
    }

    fn size(&self) -> WorldSize {
        self.shared.peers.len()
    }

    fn peer(&self, rank: Rank) -> &PeerName {
        &self.shared.peers[rank]
    }

    fn lanes(&self) -> u8 {
        LANES
    }

    fn pace(&self) -> Pace {
        self.shared.pace
    }

    fn try_send(&self, to: Rank, channel: Channel, parts: &[Src<'_>]) -> Result<usize> {
        let Shared { hub, rank, .. } = self.shared.as_ref();
        let place = &hub.places[to];
        if place.left.load(Ordering::Acquire) {
            return Err(self.shared.gone(to));
        }
        if channel == Channel::PointToPoint {
            // Before the look: whoever makes room afterwards finds it and tells.
            lock(&self.shared.attendance).full.insert(to);
        }
        let mut sent = 0;
        let mut all = true;
        let mut inbox = lock(&place.inbox);
        let stream = inbox.entry((*rank, channel)).or_default();
        for part in parts {
            let len = part.len().min(STREAM_BYTES - stream.len());
            let mut bytes = vec![0; len];
            Dst::from(bytes.as_mut_slice()).copy_from(part.slice(0, len));
            stream.extend(bytes);
            sent += len;
            all &= len == part.len();
        }
        drop(inbox);
        if all && channel == Channel::PointToPoint {
            lock(&self.shared.attendance).full.remove(&to);
        }
        if sent > 0 {
            hub.tell(to, *rank, channel, Direction::In);
        }
        Ok(sent)
    }

    fn try_receive(&self, from: Rank, channel: Channel, into: Dst<'_>) -> Result<usize> {
        let Shared { hub, rank, .. } = self.shared.as_ref();
        let has_left = hub.places[from].left.load(Ordering::Acquire);
        let mut inbox = lock(&hub.places[*rank].inbox);
        let stream = inbox.entry((from, channel)).or_default();
        let bytes: Vec<u8> = stream.drain(..stream.len().min(into.len())).collect();
        drop(inbox);
        if bytes.is_empty() && has_left && !into.is_empty() {
            return Err(self.shared.gone(from));
        }
        into.slice(0, bytes.len()).copy_from(Src::from(bytes.as_slice()));
        if !bytes.is_empty() {
            hub.tell(from, *rank, channel, Direction::Out);
        }
        Ok(bytes.len())
    }

    fn rest(&self, wishes: &[Wish], limit: Duration) {
        let Shared { hub, rank, .. } = self.shared.as_ref();
        let may_go_on = |wish: &Wish| {
            let (owner, other) = match wish.direction {
                Direction::In => (*rank, wish.peer),
                Direction::Out => (wish.peer, *rank),
            };
            let inbox = lock(&hub.places[owner].inbox);
            let held = inbox.get(&(other, wish.channel)).map_or(0, VecDeque::len);
            hub.places[wish.peer].left.load(Ordering::Acquire)
                || match wish.direction {
                    Direction::In => held > 0,
                    Direction::Out => held < STREAM_BYTES,
                }
        };
        let ready = || wishes.iter().any(may_go_on).then_some(());
        let limit = Deadline::after(limit);
        // Why it ended does not matter: the caller looks itself.
        drop(until(&hub.places[*rank].bell, Pace::PATIENT, &limit, || self.failure(), ready));
    }

    fn ready(&self, peers: &mut Vec<Rank>) {
        peers.extend(std::mem::take(&mut lock(&self.shared.attendance).ready));
    }

    fn set_attendant(&self, attendant: Weak<dyn Attendant>) {
        lock(&self.shared.attendance).attendant = Some(attendant);
        self.shared.nudge.nudge();
    }

    fn pause_attendant(&self, paused: bool) {
        lock(&self.shared.attendance).paused = paused;
        if !paused {
            self.shared.nudge.nudge();
        }
    }

    fn ask(&self, ranks: &[Rank]) -> Vec<Option<String>> {
        // All are threads of this process.
        let domain = &self.shared.domain;
        ranks.iter().map(|_| Some(domain.said(domain.rank()))).collect()
    }

    fn describe(&self) -> Value {
        json!({ "lanes": LANES })
    }

    fn failure(&self) -> Option<Error> {
        self.shared.domain.failure()
    }

    fn fail(&self, error: &Error) {
        self.shared.domain.fail(error);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::host;
    use crate::transport::inproc::Domain;
    use crate::transport::{Geometry, Reuse};

    const PACE: Pace = Pace::PATIENT;

    fn name(rank: Rank) -> PeerName {
        PeerName { rank, pid: host::pid(), host: "here".into() }
    }

    /// A rank that is alone on its node.
    fn join(group: GroupId, rank: Rank, ranks: WorldSize) -> Fabric {
        let geometry = Geometry { ranks: 1, slot_bytes: 4096, reuse: Reuse::Soon };
        let domain = Domain::join(group, rank, 0, vec![name(rank)], geometry, PACE).unwrap();
        Fabric::join(group, rank, (0..ranks).map(name).collect(), Arc::new(domain), PACE).unwrap()
    }

    const STREAM: Channel = Channel::Collective(0);

    #[test]
    fn bytes_keep_their_order_and_a_full_stream_takes_no_more() {
        let group = host::random_nonce().unwrap();
        let (a, b) = (join(group, 0, 2), join(group, 1, 2));
        let text = vec![7; STREAM_BYTES];
        let sent = a.try_send(1, STREAM, &[Src::from(&b"one"[..]), Src::from(text.as_slice())]);
        assert_eq!(sent.unwrap(), STREAM_BYTES);
        assert_eq!(a.try_send(1, STREAM, &[Src::from(&b"x"[..])]).unwrap(), 0);
        let mut bytes = [0; 4];
        assert_eq!(b.try_receive(0, STREAM, Dst::from(&mut bytes[..])).unwrap(), 4);
        assert_eq!(&bytes, b"one\x07");
        assert_eq!(a.try_send(1, STREAM, &[Src::from(&b"xxxxx"[..])]).unwrap(), 4);
        assert_eq!(b.try_receive(0, Channel::PointToPoint, Dst::from(&mut bytes[..])).unwrap(), 0);
    }

    #[test]
    fn what_a_leaver_has_sent_arrives_and_then_it_is_named() {
        let group = host::random_nonce().unwrap();
        let (a, b) = (join(group, 0, 2), join(group, 1, 2));
        a.try_send(1, STREAM, &[Src::from(&b"bye"[..])]).unwrap();
        drop(a);
        let mut bytes = [0; 8];
        assert_eq!(b.try_receive(0, STREAM, Dst::from(&mut bytes[..])).unwrap(), 3);
        let gone = b.try_receive(0, STREAM, Dst::from(&mut bytes[..])).unwrap_err();
        assert_eq!((gone.kind(), gone.culprit()), (ErrorKind::PeerFailed, Some(0)));
        assert_eq!(b.try_send(0, STREAM, &[]).unwrap_err().kind(), ErrorKind::PeerFailed);
    }

    #[test]
    fn a_failure_reaches_all_nodes_and_ends_rests() {
        let group = host::random_nonce().unwrap();
        let (a, b) = (join(group, 0, 2), join(group, 1, 2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let wish = Wish { peer: 0, channel: STREAM, direction: Direction::In };
                b.rest(&[wish], Duration::from_secs(20));
                assert_eq!(b.failure().unwrap().message(), "stop");
            });
            a.fail(&Error::new(ErrorKind::Aborted, "stop"));
        });
    }

    #[derive(Debug)]
    struct Counter(Bell, std::sync::atomic::AtomicU64);

    impl Attendant for Counter {
        fn attend(&self) {
            self.1.fetch_add(1, Ordering::Release);
            self.0.ring();
        }
    }

    #[test]
    fn the_attendant_is_called_when_bytes_come_and_when_there_is_room_again() {
        let group = host::random_nonce().unwrap();
        let (a, b) = (join(group, 0, 2), join(group, 1, 2));
        let count = |fabric: &Fabric| {
            let counter = Arc::new(Counter(Bell::default(), Default::default()));
            let attendant: Arc<dyn Attendant> = counter.clone();
            fabric.set_attendant(Arc::downgrade(&attendant));
            counter
        };
        let (at_a, at_b) = (count(&a), count(&b));
        let wait = |fabric: &Fabric, counter: &Counter, peer| {
            let ready = || {
                let mut peers = Vec::new();
                fabric.ready(&mut peers);
                peers.contains(&peer).then_some(())
            };
            let calls =
                || (counter.1.load(Ordering::Acquire) > 0).then_some(()).and_then(|()| ready());
            until(&counter.0, PACE, &Deadline::after_ms(10_000), || None, calls).unwrap();
        };
        // What has been there from the beginning.
        wait(&a, &at_a, 1);
        wait(&b, &at_b, 0);
        let full = vec![1; STREAM_BYTES + 1];
        a.try_send(1, Channel::PointToPoint, &[Src::from(full.as_slice())]).unwrap();
        // Another stream to the same peer changes nothing.
        a.try_send(1, STREAM, &[Src::from(&b"x"[..])]).unwrap();
        wait(&b, &at_b, 0);
        let mut bytes = [0; 100];
        b.try_receive(0, Channel::PointToPoint, Dst::from(&mut bytes[..])).unwrap();
        wait(&a, &at_a, 1);
    }
}
