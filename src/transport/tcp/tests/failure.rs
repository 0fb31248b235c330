//! Deaths and failures, as all nodes come to know of them.

use super::*;
use crate::base::error::ErrorKind;
use crate::transport::tcp::door::lock;
use crate::transport::tcp::frame::Frame;
use crate::transport::tcp::mesh::Out;
use crate::transport::tcp::standing::PARTING;

fn mesh_of(nodes: &[usize]) -> Vec<Mesh> {
    meshes(nodes.iter().map(|_| opening("127.0.0.1", 1)).collect(), nodes)
}

/// Ends the connections of a rank as the system does when it dies. While the domain is held, its
/// node does not hear that it has left.
fn die(mesh: Mesh) -> Arc<dyn SharedDomain> {
    let shared = &mesh.shared;
    let domain = Arc::clone(&shared.domain);
    mesh.door.forget((shared.group, shared.me));
    for slot in &shared.slots {
        drop(std::mem::take(&mut *lock(&slot.out)));
        drop(lock(&slot.incoming).take());
    }
    let lines = std::mem::take(&mut *lock(&shared.lines));
    lines.iter().flatten().for_each(|line| line.cut());
    drop(lines);
    drop(mesh);
    domain
}

#[test]
fn a_failure_reaches_all_nodes_with_its_reason() {
    let meshes = mesh_of(&[0, 0, 1, 2, 2]);
    let stop = Error::new(ErrorKind::Mismatch, "rank 4 called something else").with_culprit(4);
    std::thread::scope(|scope| {
        for mesh in &meshes[..4] {
            scope.spawn(|| assert_eq!(failure_of(mesh, 4), stop));
        }
        // By one that leads nobody.
        meshes[4].fail(&stop);
    });
}

#[test]
fn who_fails_and_leaves_at_once_says_why() {
    for _ in 0..20 {
        let mut meshes = mesh_of(&[0, 1]);
        let stop = Error::new(ErrorKind::Mismatch, "rank 1 called something else").with_culprit(1);
        let leaver = meshes.remove(1);
        leaver.fail(&stop);
        drop(leaver);
        assert_eq!(failure_of(&meshes[0], 1), stop);
    }
}

#[test]
fn the_first_reason_stays() {
    let meshes = mesh_of(&[0, 1]);
    meshes[0].fail(&Error::new(ErrorKind::Aborted, "first"));
    assert_eq!(failure_of(&meshes[1], 0).message(), "first");
    meshes[1].fail(&Error::new(ErrorKind::Aborted, "second"));
    for mesh in &meshes {
        assert_eq!(mesh.failure().unwrap().message(), "first");
    }
}

#[test]
fn the_death_of_a_leader_is_noticed_without_any_stream() {
    let mut meshes = mesh_of(&[0, 0, 1, 1]);
    let leader = meshes.remove(2);
    let _unsaid = die(leader);
    for mesh in &meshes[..2] {
        let error = failure_of(mesh, 2);
        assert_eq!((error.kind(), error.culprit()), (ErrorKind::PeerFailed, Some(2)));
        for word in ["rank 2", "pid", "host2", "died"] {
            assert!(error.message().contains(word), "{error}");
        }
    }
}

#[test]
fn a_stream_that_breaks_is_a_death_though_its_bytes_still_count() {
    let mut meshes = mesh_of(&[0, 1, 1]);
    let victim = meshes.pop().unwrap();
    send_all(&victim, 0, STREAM, b"last words").unwrap();
    let mut got = [0; 4];
    receive_all(&meshes[0], 2, STREAM, &mut got).unwrap();
    let _unsaid = die(victim);
    let error = failure_of(&meshes[0], 2);
    assert_eq!((error.kind(), error.culprit()), (ErrorKind::PeerFailed, Some(2)));
    assert!(error.message().contains("died"), "{error}");
    let mut rest = [0; 6];
    receive_all(&meshes[0], 2, STREAM, &mut rest).unwrap();
    assert_eq!(&rest, b" words");
    let error = until_error(|| receive_all(&meshes[0], 2, STREAM, &mut [0]));
    assert_eq!(error.culprit(), Some(2));
    let error = until_error(|| meshes[0].try_send(2, STREAM, &[]).map(drop));
    assert_eq!((error.kind(), error.culprit()), (ErrorKind::PeerFailed, Some(2)));
    // The other node is told, too.
    assert_eq!(failure_of(&meshes[1], 2).culprit(), Some(2));
}

#[test]
fn who_knows_better_is_believed() {
    let meshes = mesh_of(&[0, 1]);
    send_all(&meshes[1], 0, STREAM, b"x").unwrap();
    receive_all(&meshes[0], 1, STREAM, &mut [0]).unwrap();
    let shared = &meshes[0].shared;
    let better = Error::new(ErrorKind::PeerFailed, "rank 1 died in all_reduce").with_culprit(1);
    // The stream breaks, and within the time of grace the reason comes.
    if let Out::Open(stream) = &*lock(&meshes[1].shared.slot(0, STREAM).out) {
        stream.reset();
    }
    shared.fail_from_afar(&better);
    let error = until_error(|| receive_all(&meshes[0], 1, STREAM, &mut [0]));
    assert_eq!(error, better);
}

#[test]
fn joining_ends_when_there_is_a_reason() {
    let openings = vec![opening("127.0.0.1", 1), opening("127.0.0.1", 1)];
    let members = members(&openings, &[0, 1]);
    let group = host::random_nonce().unwrap();
    let mut openings = openings.into_iter();
    let (late, alone) = (Deadline::after_ms(300), Deadline::after(SOON));
    let first = openings.next().unwrap();
    let timeout =
        first.join(&party(group, &members, 0, &late), domain(group, &[0, 1], 0), &|| None);
    let timeout = timeout.unwrap_err();
    assert_eq!((timeout.kind(), timeout.culprit()), (ErrorKind::Timeout, Some(1)));
    let given_up = || Some(Error::new(ErrorKind::Aborted, "somebody gave up"));
    let began = Instant::now();
    let second = openings.next().unwrap();
    let party = party(group, &members, 1, &alone);
    let error = second.join(&party, domain(group, &[0, 1], 1), &given_up).unwrap_err();
    assert_eq!(error.message(), "somebody gave up");
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn what_a_leader_says_before_it_drops_its_group_is_passed_on() {
    for turn in 0..20 {
        let mut meshes = mesh_of(&[0, 1]);
        let stop = Error::new(ErrorKind::Mismatch, format!("turn {turn}")).with_culprit(0);
        let leader = meshes.remove(0);
        leader.fail(&stop);
        drop(leader);
        assert_eq!(failure_of(&meshes[0], 0), stop);
    }
}

#[test]
fn a_rank_whose_node_says_that_it_left_has_not_died() {
    let meshes = mesh_of(&[0, 1, 1]);
    let shared = &meshes[0].shared;
    shared.mark_died(2, "its connection broke");
    shared.mark_said_left(2);
    shared.mark_died(2, "another connection broke");
    let gone = until_error(|| receive_all(&meshes[0], 2, STREAM, &mut [0]));
    assert!(gone.message().contains("has left"), "{gone}");
    // Its death is not made known when the time of grace is over.
    await_obituaries(&meshes[0]);
    assert_eq!(meshes[0].failure(), None);
}

/// Two ranks of two nodes, between which there is a stream for collectives and one for messages.
fn with_two_streams() -> Vec<Mesh> {
    let meshes = mesh_of(&[0, 1]);
    for channel in [STREAM, Channel::PointToPoint] {
        send_all(&meshes[1], 0, channel, b"x").unwrap();
        receive_all(&meshes[0], 1, channel, &mut [0]).unwrap();
    }
    meshes
}

/// Waits until nothing is to be made known any more.
fn await_obituaries(mesh: &Mesh) {
    let began = Instant::now();
    while !lock(&mesh.shared.obituaries).is_empty() {
        assert!(began.elapsed() < SOON, "an obituary stays");
        std::thread::yield_now();
    }
}

#[test]
fn one_connection_that_ends_while_others_do_not_was_cut_off() {
    let meshes = with_two_streams();
    let slot = meshes[1].shared.slot(0, STREAM);
    match &*lock(&slot.out) {
        Out::Open(stream) => stream.end_sending(),
        other => panic!("{other:?}"),
    }
    let error = failure_of(&meshes[0], 1);
    assert_eq!((error.kind(), error.culprit()), (ErrorKind::PeerFailed, Some(1)));
    assert!(error.message().contains("others did not"), "{error}");
}

#[test]
fn all_connections_end_with_a_rank_that_leaves() {
    let mut meshes = with_two_streams();
    let leaver = meshes.remove(1);
    // Its node does not hear it, so that nobody says so.
    let domain = Arc::clone(&leaver.shared.domain);
    let lines = std::mem::take(&mut *lock(&leaver.shared.lines));
    drop(leaver);
    let gone = until_error(|| receive_all(&meshes[0], 1, STREAM, &mut [0]));
    assert!(gone.message().contains("has left"), "{gone}");
    await_obituaries(&meshes[0]);
    assert_eq!(meshes[0].failure(), None);
    drop((lines, domain));
}

#[test]
fn who_leaves_a_group_that_has_failed_is_not_taken_for_the_reason() {
    let mut meshes = with_two_streams();
    let leaver = meshes.remove(1);
    // Its node says it late.
    let lines = std::mem::take(&mut *lock(&leaver.shared.lines));
    let began = Instant::now();
    drop(leaver);
    while began.elapsed() < PARTING / 2 {
        for outcome in [
            meshes[0].try_receive(1, STREAM, Dst::from(&mut [0][..])),
            meshes[0].try_send(1, Channel::PointToPoint, &[Src::from(&b"y"[..])]),
        ] {
            // A thread that could not run sees it all at once.
            assert!(outcome.is_ok() || began.elapsed() >= PARTING, "{outcome:?}");
        }
    }
    let reason = Error::new(ErrorKind::PeerFailed, "rank 2 died");
    meshes[0].shared.fail_from_afar(&reason);
    assert_eq!(failure_of(&meshes[0], 1), reason);
    drop(lines);
}

#[test]
fn who_sends_to_one_that_leaves_a_failed_group_hears_why_though_no_leader_is_there() {
    for unread in [&b""[..], b"not taken"] {
        let mut meshes = with_two_streams();
        let leaver = meshes.remove(0);
        let lines = std::mem::take(&mut *lock(&leaver.shared.lines));
        send_all(&meshes[0], 0, STREAM, unread).unwrap();
        let stop = Error::new(ErrorKind::PeerFailed, "rank 7 died").with_culprit(1);
        leaver.fail(&stop);
        drop(leaver);
        let error = until_error(|| meshes[0].failure().map_or(Ok(()), Err));
        assert_eq!(error, stop);
        drop(lines);
    }
}

#[test]
fn a_failure_is_told_before_who_has_left_because_of_it() {
    let mut meshes = mesh_of(&[0, 0, 1]);
    let stop = Error::new(ErrorKind::Mismatch, "rank 1 called something else").with_culprit(1);
    let leaver = meshes.remove(1);
    let leader = &meshes[0].shared;
    // The service thread has told nothing before it may.
    let passing = lock(&leader.passing);
    leaver.fail(&stop);
    drop(leaver);
    let began = Instant::now();
    while !leader.domain.has_left(1) {
        assert!(began.elapsed() < SOON);
        std::thread::yield_now();
    }
    let mut reported = vec![false; 2];
    assert_eq!(leader.news_of(&mut reported), [Frame::Abort(stop), Frame::Left(1)]);
    assert_eq!(reported, [false, true]);
    drop(passing);
}

#[test]
fn a_failure_of_this_rank_is_no_death_of_the_peer() {
    let meshes = mesh_of(&[0, 1]);
    let shared = &meshes[0].shared;
    let own = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
    let error = shared.judge(1, &own).unwrap_err();
    assert_eq!((error.kind(), error.culprit()), (ErrorKind::OutOfMemory, None));
    let broken = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    assert_eq!(shared.judge(1, &broken), Ok(true));
    assert_eq!(failure_of(&meshes[0], 1).culprit(), Some(1));
}
