//! What a stream is: bytes in order, made when needed, bounded, and with an end that says why.

use super::*;
use crate::base::error::ErrorKind;
use crate::transport::Attendant;
use crate::wait::bell::Bell;
use crate::wait::until;
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn bytes_keep_their_order_on_both_families_and_all_channels() {
    for ip in ["127.0.0.1", "::1"] {
        let meshes = meshes(vec![opening(ip, 3), opening(ip, 1)], &[0, 1]);
        assert_eq!((meshes[0].lanes(), meshes[1].lanes()), (3, 3));
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
        let channels = [STREAM, Channel::Collective(2), Channel::PointToPoint];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for channel in channels {
                    send_all(&meshes[0], 1, channel, &bytes).unwrap();
                }
            });
            for channel in channels {
                let mut got = vec![0; bytes.len()];
                receive_all(&meshes[1], 0, channel, &mut got).unwrap();
                assert!(got == bytes);
            }
        });
        let chosen = meshes[0].describe();
        assert_eq!(chosen["lanes"], 3);
        assert!(chosen["addresses_near"][0].as_str().unwrap().contains(ip), "{chosen}");
    }
}

#[test]
fn parts_go_one_after_another() {
    let (a, b) = pair("127.0.0.1");
    send_all(&a, 1, STREAM, b"one").unwrap();
    let bytes: Vec<u8> = (0..50).collect();
    let parts: Vec<Src<'_>> = bytes.chunks(2).map(Src::from).collect();
    assert_eq!(a.try_send(1, STREAM, &parts).unwrap(), 50);
    let mut got = [0; 53];
    receive_all(&b, 0, STREAM, &mut got).unwrap();
    assert_eq!((&got[..3], &got[3..]), (&b"one"[..], bytes.as_slice()));
    assert_eq!(a.try_send(1, STREAM, &[]).unwrap(), 0);
}

#[test]
fn a_receiver_that_does_not_read_holds_its_sender_up() {
    let (a, b) = pair("127.0.0.1");
    let much = vec![3; 1 << 20];
    send_all(&a, 1, STREAM, b"x").unwrap();
    let mut sent = 1;
    loop {
        match a.try_send(1, STREAM, &[Src::from(much.as_slice())]).unwrap() {
            0 => break,
            some => sent += some,
        }
        assert!(sent < 1 << 30, "no bound");
    }
    // The system still moves bytes from one end to the other; in the end nothing goes.
    let mut got = vec![0; sent];
    receive_all(&b, 0, STREAM, &mut got).unwrap();
    send_all(&a, 1, STREAM, b"again").unwrap();
}

#[test]
fn what_a_leaver_has_sent_arrives_and_then_it_is_named() {
    let (a, b) = pair("127.0.0.1");
    let much = vec![5; 4 << 20];
    send_all(&a, 1, STREAM, b"x").unwrap();
    let sent = a.try_send(1, STREAM, &[Src::from(much.as_slice())]).unwrap();
    // It leaves with bytes of the other's unread, too.
    send_all(&b, 0, STREAM, b"never read").unwrap();
    drop(a);
    let mut got = vec![0; 1 + sent];
    receive_all(&b, 0, STREAM, &mut got).unwrap();
    let gone = until_error(|| receive_all(&b, 0, STREAM, &mut [0]));
    assert_eq!((gone.kind(), gone.culprit()), (ErrorKind::PeerFailed, Some(0)));
    assert!(gone.message().contains("has left the group"), "{gone}");
    let gone = until_error(|| b.try_send(0, STREAM, &[Src::from(&b"y"[..])]).map(drop));
    assert!(gone.message().contains("rank 0") && gone.message().contains("left"), "{gone}");
    assert_eq!(b.failure(), None);
}

#[test]
fn who_left_before_the_first_byte_is_known_to_have_left() {
    let mut meshes = meshes((0..4).map(|_| opening("127.0.0.1", 1)).collect(), &[0, 0, 1, 1]);
    // Rank 3 leads nobody: others learn from the door.
    drop(meshes.pop());
    let gone = until_error(|| send_all(&meshes[1], 3, STREAM, b"hello"));
    assert_eq!((gone.kind(), gone.culprit()), (ErrorKind::PeerFailed, Some(3)));
    assert!(gone.message().contains("has left"), "{gone}");
    // And leaders from its leader.
    let gone = until_error(|| meshes[0].try_send(3, STREAM, &[]).map(drop));
    assert!(gone.message().contains("has left"), "{gone}");
    assert_eq!(meshes[0].failure(), None);
}

#[derive(Debug, Default)]
struct Counter(Bell, AtomicU64);

impl Attendant for Counter {
    fn attend(&self) {
        self.1.fetch_add(1, Ordering::Release);
        self.0.ring();
    }
}

/// Whether the attendant was called, and the peer is named then.
fn was_told(mesh: &Mesh, counter: &Counter, peer: Rank) -> Option<()> {
    if counter.1.swap(0, Ordering::AcqRel) == 0 {
        return None;
    }
    let mut peers = Vec::new();
    mesh.ready(&mut peers);
    peers.contains(&peer).then_some(())
}

/// Waits for that.
fn attended(mesh: &Mesh, counter: &Counter, peer: Rank) {
    let ready = || was_told(mesh, counter, peer);
    until(&counter.0, Pace::PATIENT, &Deadline::after(SOON), || None, ready).unwrap();
}

#[test]
fn the_attendant_is_called_when_bytes_come_there_is_room_or_the_end() {
    let (a, b) = pair("127.0.0.1");
    let channel = Channel::PointToPoint;
    let attendants = [&a, &b].map(|mesh| {
        let counter = Arc::new(Counter::default());
        let attendant: Arc<dyn Attendant> = counter.clone();
        mesh.set_attendant(Arc::downgrade(&attendant));
        counter
    });
    let much = vec![1; 64 << 20];
    assert_eq!(a.try_send(1, channel, &[Src::from(much.as_slice())]).unwrap(), 0);
    attended(&a, &attendants[0], 1);
    assert!(a.try_send(1, channel, &[Src::from(much.as_slice())]).unwrap() < much.len());
    attended(&b, &attendants[1], 0);
    let mut got = vec![0; 8 << 20];
    let limit = Instant::now();
    while was_told(&a, &attendants[0], 1).is_none() {
        b.try_receive(0, channel, Dst::from(got.as_mut_slice())).unwrap();
        assert!(limit.elapsed() < SOON, "nobody is told of the room");
    }
    // While paused, nobody is called, and nothing is lost.
    b.pause_attendant(true);
    let mut peers = Vec::new();
    b.ready(&mut peers);
    drop(a);
    let ends = || match b.try_receive(0, channel, Dst::from(got.as_mut_slice())) {
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    };
    assert!(until_error(ends).message().contains("has left"));
    attendants[1].1.store(0, Ordering::Release);
    b.pause_attendant(false);
    attended(&b, &attendants[1], 0);
}

#[test]
fn dead_addresses_are_passed_over_and_named_where_none_is_left() {
    let first = opening("127.0.0.1", 1);
    let dead = crate::sys::socket::listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = dead.local_addr().unwrap();
    drop(dead);
    let mut second = opening("127.0.0.1", 1);
    second.advert_mut().near.insert(0, Offer { address, rail: 0 });
    let mut third = opening("127.0.0.1", 1);
    let unused = Offer { address: "127.0.0.1:1".parse().unwrap(), rail: 0 };
    let live =
        std::mem::replace(&mut third.advert_mut().near, vec![Offer { address, rail: 0 }, unused]);
    assert_eq!(live.len(), 1);
    let meshes = meshes(vec![first, second, third], &[0, 0, 0]);
    send_all(&meshes[0], 1, STREAM, b"hello").unwrap();
    let mut got = [0; 5];
    receive_all(&meshes[1], 0, STREAM, &mut got).unwrap();
    assert_eq!(&got, b"hello");
    let error = until_error(|| send_all(&meshes[0], 2, STREAM, b"hello"));
    assert_eq!((error.kind(), error.culprit()), (ErrorKind::Connection, Some(2)));
    for word in [address.to_string().as_str(), "127.0.0.1:1", "refused", "rank 2"] {
        assert!(error.message().contains(word), "{error}");
    }
}

#[test]
fn descriptors_return_to_what_they_were() {
    // The door's and the service thread's descriptors stay while others hold them.
    let door = opening("127.0.0.1", 1);
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let (a, b) = pair("127.0.0.1");
    drop((a, b));
    let began = Instant::now();
    let before = open();
    let (a, b) = pair("127.0.0.1");
    send_all(&a, 1, STREAM, b"x").unwrap();
    receive_all(&b, 0, STREAM, &mut [0]).unwrap();
    assert!(open() > before);
    drop((a, b));
    while open() > before {
        assert!(began.elapsed() < SOON, "{} descriptors, {before} before", open());
        std::thread::yield_now();
    }
    drop(door);
}
