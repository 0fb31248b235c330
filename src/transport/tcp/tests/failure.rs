//! Tests that deaths and failures of the group are reported on all nodes.

use super::*;
use crate::base::error::ErrorKind;
use crate::base::sync::lock;
use crate::sys::stream::SocketStream;
use crate::transport::tcp::control_frame::ControlFrame;
use crate::transport::tcp::link_user::LinkEnd;
use crate::transport::tcp::outgoing_link::OutgoingLink;
use crate::transport::tcp::peer_state::DEPARTURE_GRACE;
use std::sync::atomic::Ordering;

fn mesh_of(nodes: &[usize]) -> Vec<TcpMesh> {
    meshes(nodes.iter().map(|_| listen_on_loopback("127.0.0.1", 1)).collect(), nodes)
}

/// Closes the connections of a rank as the system does when the rank dies. While the caller holds
/// the returned domain, the other ranks of the node do not see that the rank has left.
fn drop_without_goodbye(mesh: TcpMesh) -> Arc<dyn SharedDomain> {
    let shared = &mesh.shared;
    let domain = Arc::clone(&shared.domain);
    mesh.registry.unregister((shared.group, shared.me));
    shared.links.unregister((shared.group, shared.me));
    shared.links.drop_abruptly(shared.members[shared.me].process);
    // A rank that dies does not say that it leaves.
    let _never_dropped = std::mem::ManuallyDrop::new(mesh);
    domain
}

/// Lets a leader send no further control frames.
fn mute(mesh: &TcpMesh) {
    mesh.shared
        .open_control_channels()
        .iter()
        .for_each(|channel| channel.is_muted.store(true, Ordering::Release));
}

/// Returns the link on which a rank sends to a peer.
pub(super) fn outgoing_link(mesh: &TcpMesh, peer: Rank) -> Arc<OutgoingLink> {
    let slot = lock(&mesh.shared.channel_pair(peer, STREAM).outgoing);
    Arc::clone(&slot.channel.as_ref().unwrap().0)
}

/// Returns the connection on which a rank sends to a peer.
pub(super) fn outgoing_stream(mesh: &TcpMesh, peer: Rank) -> Arc<SocketStream> {
    outgoing_link(mesh, peer).stream().unwrap()
}

#[test]
pub(super) fn a_failure_reaches_all_nodes_with_its_reason() {
    let meshes = mesh_of(&[0, 0, 1, 2, 2]);
    let stop = Error::new(ErrorKind::Mismatch, "rank 4 called another operation").with_culprit(4);
    std::thread::scope(|scope| {
        for mesh in &meshes[..4] {
            scope.spawn(|| assert_eq!(failure_of(mesh, 4), stop));
        }
        // Rank 4 fails the group; it is not a leader.
        meshes[4].fail(&stop);
    });
}

#[test]
pub(super) fn rank_that_fails_and_leaves_sends_its_reason() {
    for _ in 0..20 {
        let mut meshes = mesh_of(&[0, 1]);
        let stop =
            Error::new(ErrorKind::Mismatch, "rank 1 called another operation").with_culprit(1);
        let leaver = meshes.remove(1);
        leaver.fail(&stop);
        drop(leaver);
        assert_eq!(failure_of(&meshes[0], 1), stop);
    }
}

#[test]
pub(super) fn first_failure_reason_is_kept() {
    let meshes = mesh_of(&[0, 1]);
    meshes[0].fail(&Error::new(ErrorKind::Aborted, "first"));
    assert_eq!(failure_of(&meshes[1], 0).message(), "first");
    meshes[1].fail(&Error::new(ErrorKind::Aborted, "second"));
    for mesh in &meshes {
        assert_eq!(mesh.failure().unwrap().message(), "first");
    }
}

#[test]
pub(super) fn leader_death_is_noticed_without_streams() {
    let mut meshes = mesh_of(&[0, 0, 1, 1]);
    let leader = meshes.remove(2);
    let _domain = drop_without_goodbye(leader);
    for mesh in &meshes[..2] {
        let error = failure_of(mesh, 2);
        assert_eq!((error.kind(), error.culprit()), (ErrorKind::PeerFailed, Some(2)));
        for word in ["rank 2", "pid", "host2", "died"] {
            assert!(error.message().contains(word), "{error}");
        }
    }
}

#[test]
pub(super) fn broken_stream_is_a_death_but_its_bytes_are_received() {
    let mut meshes = mesh_of(&[0, 1, 1]);
    let victim = meshes.pop().unwrap();
    send_all(&victim, 0, STREAM, b"last bytes").unwrap();
    let mut got = [0; 4];
    receive_all(&meshes[0], 2, STREAM, &mut got).unwrap();
    let _domain = drop_without_goodbye(victim);
    let error = failure_of(&meshes[0], 2);
    assert_eq!((error.kind(), error.culprit()), (ErrorKind::PeerFailed, Some(2)));
    assert!(error.message().contains("died"), "{error}");
    let mut rest = [0; 6];
    receive_all(&meshes[0], 2, STREAM, &mut rest).unwrap();
    assert_eq!(&rest, b" bytes");
    let error = first_error(|| receive_all(&meshes[0], 2, STREAM, &mut [0]));
    assert_eq!(error.culprit(), Some(2));
    let error = first_error(|| meshes[0].try_send(2, STREAM, &[]).map(drop));
    assert_eq!((error.kind(), error.culprit()), (ErrorKind::PeerFailed, Some(2)));
    // The rank on the other node also receives the report.
    assert_eq!(failure_of(&meshes[1], 2).culprit(), Some(2));
}

#[test]
pub(super) fn reason_within_the_grace_period_replaces_a_broken_stream() {
    let meshes = mesh_of(&[0, 1]);
    send_all(&meshes[1], 0, STREAM, b"x").unwrap();
    receive_all(&meshes[0], 1, STREAM, &mut [0]).unwrap();
    let shared = &meshes[0].shared;
    let better = Error::new(ErrorKind::PeerFailed, "rank 1 died in all_reduce").with_culprit(1);
    // The stream breaks, nothing answers in place of rank 1, and the reason arrives within
    // [`DEATH_GRACE`].
    meshes[1].registry.unregister((shared.group, 1));
    outgoing_stream(&meshes[1], 0).reset();
    shared.fail_this_node(&better);
    let error = first_error(|| receive_all(&meshes[0], 1, STREAM, &mut [0]));
    assert_eq!(error, better);
}

#[test]
pub(super) fn join_ends_on_timeout_or_cancellation() {
    let openings = vec![listen_on_loopback("127.0.0.1", 1), listen_on_loopback("127.0.0.1", 1)];
    let members = members(&openings, &[0, 1]);
    let group = host::random_nonce().unwrap();
    let mut openings = openings.into_iter();
    let (late, alone) = (Deadline::after_ms(300), Deadline::after(TEST_TIMEOUT));
    let first = openings.next().unwrap();
    let timeout =
        first.join(&join_config(group, &members, 0, &late), domain(group, &[0, 1], 0), &|| None);
    let timeout = timeout.unwrap_err();
    assert_eq!((timeout.kind(), timeout.culprit()), (ErrorKind::Timeout, Some(1)));
    let given_up = || Some(Error::new(ErrorKind::Aborted, "aborted by the test"));
    let began = Instant::now();
    let second = openings.next().unwrap();
    let config = join_config(group, &members, 1, &alone);
    let error = second.join(&config, domain(group, &[0, 1], 1), &given_up).unwrap_err();
    assert_eq!(error.message(), "aborted by the test");
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
pub(super) fn failure_of_a_leaving_leader_is_forwarded() {
    for round in 0..20 {
        let mut meshes = mesh_of(&[0, 1]);
        let stop = Error::new(ErrorKind::Mismatch, format!("round {round}")).with_culprit(0);
        let leader = meshes.remove(0);
        leader.fail(&stop);
        drop(leader);
        assert_eq!(failure_of(&meshes[0], 0), stop);
    }
}

#[test]
pub(super) fn rank_reported_as_left_is_not_declared_dead() {
    let meshes = mesh_of(&[0, 1, 1]);
    let shared = &meshes[0].shared;
    shared.mark_died(2, "its connection broke");
    shared.mark_reported_left(2);
    shared.mark_died(2, "another connection broke");
    let left_error = first_error(|| receive_all(&meshes[0], 2, STREAM, &mut [0]));
    assert!(left_error.message().contains("has left"), "{left_error}");
    // After the grace period, the death is still not reported.
    await_delayed_events(&meshes[0]);
    assert_eq!(meshes[0].failure(), None);
}

/// Creates two ranks on two nodes, with a collective stream and a point-to-point stream between
/// them.
fn with_two_streams() -> Vec<TcpMesh> {
    let meshes = mesh_of(&[0, 1]);
    for channel in [STREAM, Channel::PointToPoint] {
        send_all(&meshes[1], 0, channel, b"x").unwrap();
        receive_all(&meshes[0], 1, channel, &mut [0]).unwrap();
    }
    meshes
}

/// Waits until no delayed event is left.
fn await_delayed_events(mesh: &TcpMesh) {
    let began = Instant::now();
    while !lock(&mesh.shared.delayed_events).is_empty() {
        assert!(began.elapsed() < TEST_TIMEOUT, "a delayed event remains");
        std::thread::yield_now();
    }
}

#[test]
pub(super) fn single_ended_connection_is_reported_as_death() {
    let meshes = with_two_streams();
    outgoing_link(&meshes[1], 0).close(false);
    let error = failure_of(&meshes[0], 1);
    assert_eq!((error.kind(), error.culprit()), (ErrorKind::PeerFailed, Some(1)));
    assert!(error.message().contains("its other connections did not"), "{error}");
}

#[test]
pub(super) fn leaving_rank_ends_all_connections_without_failure() {
    let mut meshes = with_two_streams();
    let leaver = meshes.remove(1);
    // The rank's node does not see the departure, so no leader reports it.
    let domain = Arc::clone(&leaver.shared.domain);
    mute(&leaver);
    drop(leaver);
    let left_error = first_error(|| receive_all(&meshes[0], 1, STREAM, &mut [0]));
    assert!(left_error.message().contains("has left"), "{left_error}");
    await_delayed_events(&meshes[0]);
    assert_eq!(meshes[0].failure(), None);
    drop(domain);
}

#[test]
pub(super) fn rank_leaving_a_failed_group_is_not_the_culprit() {
    let mut meshes = with_two_streams();
    let leaver = meshes.remove(1);
    // The rank's node reports the departure late.
    mute(&leaver);
    let began = Instant::now();
    drop(leaver);
    while began.elapsed() < DEPARTURE_GRACE / 2 {
        for outcome in [
            meshes[0].try_receive(1, STREAM, Dst::from(&mut [0][..])),
            meshes[0].try_send(1, Channel::PointToPoint, &[Src::from(&b"y"[..])]),
        ] {
            // A test thread that was not scheduled sees both events at once.
            assert!(outcome.is_ok() || began.elapsed() >= DEPARTURE_GRACE, "{outcome:?}");
        }
    }
    let reason = Error::new(ErrorKind::PeerFailed, "rank 2 died");
    meshes[0].shared.fail_this_node(&reason);
    assert_eq!(failure_of(&meshes[0], 1), reason);
}

#[test]
pub(super) fn failure_reason_arrives_on_streams_without_a_leader() {
    for unread in [&b""[..], b"not read"] {
        let mut meshes = with_two_streams();
        let leaver = meshes.remove(0);
        mute(&leaver);
        send_all(&meshes[0], 0, STREAM, unread).unwrap();
        let stop = Error::new(ErrorKind::PeerFailed, "rank 7 died").with_culprit(1);
        leaver.fail(&stop);
        drop(leaver);
        let error = first_error(|| meshes[0].failure().map_or(Ok(()), Err));
        assert_eq!(error, stop);
    }
}

#[test]
pub(super) fn failure_is_sent_before_departures_it_caused() {
    let mut meshes = mesh_of(&[0, 0, 1]);
    let stop = Error::new(ErrorKind::Mismatch, "rank 1 called another operation").with_culprit(1);
    let leaver = meshes.remove(1);
    let leader = &meshes[0].shared;
    // The service thread sends no update while the lock is held.
    let passing = lock(&leader.forwarding);
    leaver.fail(&stop);
    drop(leaver);
    let began = Instant::now();
    while !leader.domain.has_left(1) {
        assert!(began.elapsed() < TEST_TIMEOUT);
        std::thread::yield_now();
    }
    let mut reported = vec![false; 2];
    assert_eq!(
        leader.collect_updates(&mut reported),
        [ControlFrame::Abort(stop), ControlFrame::Left(1)]
    );
    assert_eq!(reported, [false, true]);
    drop(passing);
}

#[test]
pub(super) fn local_error_is_not_a_peer_death() {
    let meshes = mesh_of(&[0, 1]);
    let shared = &meshes[0].shared;
    let own = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
    shared.handle_link_end(1, &LinkEnd::Broken(own));
    let error = meshes[0].failure().unwrap();
    assert_eq!((error.kind(), error.culprit()), (ErrorKind::OutOfMemory, None));
    let meshes = mesh_of(&[0, 1]);
    let broken = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    meshes[0].shared.handle_link_end(1, &LinkEnd::Broken(broken));
    assert_eq!(failure_of(&meshes[0], 1).culprit(), Some(1));
}
