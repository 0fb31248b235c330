//! Tests of streams: the order of the bytes, the connection at the first use, the bounded buffers,
//! and the error that names the reason for the end.

use super::*;
use crate::base::error::ErrorKind;
use crate::transport::ProgressHandler;
use crate::wait::doorbell::Doorbell;
use crate::wait::wait_until;
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
pub(super) fn bytes_arrive_in_order_on_all_families_and_channels() {
    for ip in ["127.0.0.1", "::1"] {
        let meshes = meshes(vec![listen_on_loopback(ip, 3), listen_on_loopback(ip, 1)], &[0, 1]);
        assert_eq!((meshes[0].collective_streams(), meshes[1].collective_streams()), (3, 3));
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
pub(super) fn message_parts_are_sent_in_order() {
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
pub(super) fn long_message_of_many_parts_is_sent_in_steps() {
    let (a, b) = pair("127.0.0.1");
    send_all(&a, 1, STREAM, b"x").unwrap();
    let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(6000).collect();
    let mut sent = 0;
    while sent < bytes.len() {
        let empty = Src::from(&[][..]);
        let rest = bytes[sent..].chunks(100).map(Src::from);
        let parts: Vec<Src<'_>> = std::iter::repeat_n(empty, 5).chain(rest).collect();
        sent += a.try_send(1, STREAM, &parts).unwrap();
    }
    let mut got = vec![0; bytes.len() + 1];
    receive_all(&b, 0, STREAM, &mut got).unwrap();
    assert!(got[1..] == bytes);
}

#[test]
pub(super) fn sender_blocks_when_receiver_does_not_read() {
    let (a, b) = pair("127.0.0.1");
    let much = vec![3; 1 << 20];
    send_all(&a, 1, STREAM, b"x").unwrap();
    let (mut sent, mut rest) = (1, much.len());
    loop {
        let part = &much[much.len() - rest..];
        match a.try_send(1, STREAM, &[Src::from(part)]).unwrap() {
            0 => break,
            some => {
                sent += some;
                rest = if some == rest { much.len() } else { rest - some };
            }
        }
        assert!(sent < 1 << 30, "no bound");
    }
    // The stream is full. Once the receiver has taken these bytes, the stream has room again.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            send_all(&a, 1, STREAM, &much[much.len() - rest..]).unwrap();
            send_all(&a, 1, STREAM, b"again").unwrap();
        });
        let mut got = vec![0; sent + rest + 5];
        receive_all(&b, 0, STREAM, &mut got).unwrap();
        assert!(got.ends_with(b"again"));
        assert_eq!(got.iter().filter(|&&byte| byte == 3).count(), sent + rest - 1);
    });
}

#[test]
pub(super) fn bytes_of_a_leaving_rank_arrive_before_the_error() {
    let (a, b) = pair("127.0.0.1");
    let much = vec![5; 4 << 20];
    send_all(&a, 1, STREAM, b"x").unwrap();
    let sent = a.try_send(1, STREAM, &[Src::from(much.as_slice())]).unwrap();
    // Rank 0 also leaves with unread bytes from rank 1.
    send_all(&b, 0, STREAM, b"unread").unwrap();
    drop(a);
    // Rank 0 leaves in the middle of its message: the last 64 KiB may be lost.
    let mut got = vec![0; 1 + if sent < much.len() { sent.saturating_sub(64 << 10) } else { sent }];
    receive_all(&b, 0, STREAM, &mut got).unwrap();
    let gone = first_error(|| receive_all(&b, 0, STREAM, &mut [0]));
    assert_eq!((gone.kind(), gone.culprit()), (ErrorKind::PeerFailed, Some(0)));
    assert!(gone.message().contains("has left the group"), "{gone}");
    let gone = first_error(|| b.try_send(0, STREAM, &[Src::from(&b"y"[..])]).map(drop));
    assert!(gone.message().contains("rank 0") && gone.message().contains("left"), "{gone}");
    assert_eq!(b.failure(), None);
}

#[test]
pub(super) fn peer_that_left_before_first_use_is_reported_left() {
    let mut meshes =
        meshes((0..4).map(|_| listen_on_loopback("127.0.0.1", 1)).collect(), &[0, 0, 1, 1]);
    // Rank 3 is not a leader: other ranks learn of its departure from the refusal of its process.
    drop(meshes.pop());
    let gone = first_error(|| send_all(&meshes[1], 3, STREAM, b"hello"));
    assert_eq!((gone.kind(), gone.culprit()), (ErrorKind::PeerFailed, Some(3)));
    assert!(gone.message().contains("has left"), "{gone}");
    // A leader learns of the departure from the leader of the departed rank's node.
    let gone = first_error(|| meshes[0].try_send(3, STREAM, &[]).map(drop));
    assert!(gone.message().contains("has left"), "{gone}");
    assert_eq!(meshes[0].failure(), None);
}

#[derive(Debug, Default)]
struct AttendantCounter(Doorbell, AtomicU64);

impl ProgressHandler for AttendantCounter {
    fn on_streams_ready(&self) {
        self.1.fetch_add(1, Ordering::Release);
        self.0.notify();
    }
}

/// Returns `Some` if the progress handler was called and the peer is reported as ready.
fn take_notification(mesh: &TcpMesh, counter: &AttendantCounter, peer: Rank) -> Option<()> {
    if counter.1.swap(0, Ordering::AcqRel) == 0 {
        return None;
    }
    let mut peers = Vec::new();
    mesh.collect_ready_peers(&mut peers);
    peers.contains(&peer).then_some(())
}

/// Waits until [`take_notification`] returns `Some`.
fn wait_for_attendant(mesh: &TcpMesh, counter: &AttendantCounter, peer: Rank) {
    let ready = || take_notification(mesh, counter, peer);
    wait_until(&counter.0, WaitPolicy::SLEEP_SOON, &Deadline::after(TEST_TIMEOUT), || None, ready)
        .unwrap();
}

#[test]
pub(super) fn attendant_is_called_for_bytes_space_and_end() {
    let (a, b) = pair("127.0.0.1");
    let channel = Channel::PointToPoint;
    let attendants = [&a, &b].map(|mesh| {
        let counter = Arc::new(AttendantCounter::default());
        let handler: Arc<dyn ProgressHandler> = counter.clone();
        mesh.set_progress_handler(Arc::downgrade(&handler));
        counter
    });
    let much = vec![1; 64 << 20];
    let mut sent = 0;
    loop {
        let some = a.try_send(1, channel, &[Src::from(&much[sent..])]).unwrap();
        sent += some;
        if some == 0 && sent > 0 {
            break;
        }
    }
    assert!(sent < much.len());
    while take_notification(&a, &attendants[0], 1).is_some() {}
    wait_for_attendant(&b, &attendants[1], 0);
    let mut got = vec![0; 8 << 20];
    let limit = Instant::now();
    while take_notification(&a, &attendants[0], 1).is_none() {
        b.try_receive(0, channel, Dst::from(got.as_mut_slice())).unwrap();
        assert!(limit.elapsed() < TEST_TIMEOUT, "no handler is notified of the free space");
    }
    // While paused, the handler is not called (one call may have begun before), and no event is
    // lost.
    b.pause_progress_handler(true);
    let mut peers = Vec::new();
    b.collect_ready_peers(&mut peers);
    attendants[1].1.store(0, Ordering::Release);
    drop(a);
    assert!(attendants[1].1.load(Ordering::Acquire) <= 1);
    b.pause_progress_handler(false);
    wait_for_attendant(&b, &attendants[1], 0);
    let ends = || b.try_receive(0, channel, Dst::from(got.as_mut_slice())).map(drop);
    assert!(first_error(ends).message().contains("has left"));
}

#[test]
pub(super) fn dead_addresses_are_skipped_and_named_on_failure() {
    let first = listen_on_loopback("127.0.0.1", 1);
    let dead = crate::sys::socket::listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = dead.local_addr().unwrap();
    drop(dead);
    let mut second = listen_on_loopback("127.0.0.1", 1);
    second.advert_mut().same_netns.insert(0, RailAddress { address, rail: 0 });
    let mut third = listen_on_loopback("127.0.0.1", 1);
    let unused = RailAddress { address: "127.0.0.1:1".parse().unwrap(), rail: 0 };
    let live = std::mem::replace(
        &mut third.advert_mut().same_netns,
        vec![RailAddress { address, rail: 0 }, unused],
    );
    assert_eq!(live.len(), 1);
    let meshes = meshes(vec![first, second, third], &[0, 0, 0]);
    send_all(&meshes[0], 1, STREAM, b"hello").unwrap();
    let mut got = [0; 5];
    receive_all(&meshes[1], 0, STREAM, &mut got).unwrap();
    assert_eq!(&got, b"hello");
    let error = first_error(|| send_all(&meshes[0], 2, STREAM, b"hello"));
    assert_eq!((error.kind(), error.culprit()), (ErrorKind::Connection, Some(2)));
    for word in [address.to_string().as_str(), "127.0.0.1:1", "refused", "rank 2"] {
        assert!(error.message().contains(word), "{error}");
    }
}

#[test]
pub(super) fn descriptors_are_closed_with_the_mesh() {
    // The descriptors of the listener registry and of the service thread stay open while other
    // users hold them.
    let listening = listen_on_loopback("127.0.0.1", 1);
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    // The events of waiting threads stay, too.
    let (a, b) = pair("127.0.0.1");
    send_all(&a, 1, STREAM, b"x").unwrap();
    receive_all(&b, 0, STREAM, &mut [0]).unwrap();
    drop((a, b));
    let began = Instant::now();
    let before = open();
    let (a, b) = pair("127.0.0.1");
    send_all(&a, 1, STREAM, b"x").unwrap();
    receive_all(&b, 0, STREAM, &mut [0]).unwrap();
    assert!(open() > before);
    drop((a, b));
    while open() > before {
        assert!(began.elapsed() < TEST_TIMEOUT, "{} descriptors, before: {before}", open());
        std::thread::yield_now();
    }
    drop(listening);
}
