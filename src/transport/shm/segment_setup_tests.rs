//! Tests of the setup of the segment: ranks that fail, die or lose their link.

use super::{ShmDomain, ShmJoinConfig, ShmMember, join};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{Nonce, Rank};
use crate::sys::host;
use crate::transport::neighbour::{
    NeighbourMember, NeighbourRegistry, PeerRoute, ProcessAddress, SetupPeer,
};
use crate::transport::region::RegionGeometry;
use crate::transport::{HeartbeatConfig, PeerName, ReusePolicy, SharedDomain as _};
use crate::wait::{WaitPolicy, wait_until};
use std::io::{BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

const CHILD_TEST: &str = "transport::shm::segment_setup_tests::child_member_that_does_not_answer";
const GROUP: &str = "DIST_TEST_GROUP";
const FIRST_PROCESS: &str = "DIST_TEST_PROCESS";
const GEOMETRY: RegionGeometry = RegionGeometry::within_host(2, 4096, ReusePolicy::WhileCached);

/// The second of two members, in its own process. It reports when the segment has arrived, ends
/// its registration if the test lets it continue, and never maps the segment.
#[test]
#[ignore = "the body of another process"]
fn child_member_that_does_not_answer() {
    let nonce = |name| Nonce::parse(&std::env::var(name).unwrap()).unwrap();
    let (group, process) = (nonce(GROUP), nonce(FIRST_PROCESS));
    let member = NeighbourMember::register(group, 1, 2).unwrap();
    let print = |text: &str| {
        println!("\n{CHILD_TEST}={text}");
        std::io::stdout().flush().unwrap();
    };
    print(&member.socket_name());
    let deadline = Deadline::after_ms(30_000);
    if member.connects_to(process) {
        drop(member.connect(process, &deadline).unwrap());
    }
    let first = SetupPeer { process, rank: 0, route: PeerRoute::SameProcess };
    member.await_frames_of(0);
    let arrived = || member.take_segment(&first);
    let policy = WaitPolicy::SLEEP_SOON;
    drop(wait_until(member.setup_changed(), policy, &deadline, || None, arrived).unwrap());
    print("arrived");
    let wait = || std::io::stdin().read_exact(&mut [0]).unwrap();
    wait();
    drop(member);
    // This wait never ends.
    wait();
}

/// Reads the next line that the child has printed for the test.
fn child_line(output: &mut impl std::io::BufRead) -> String {
    let prefix = format!("{CHILD_TEST}=");
    loop {
        let mut line = String::new();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "the child ended");
        if let Some(text) = line.trim_end().strip_prefix(&prefix) {
            return text.to_owned();
        }
    }
}

fn member(socket: String, number: u8) -> ShmMember {
    ShmMember { socket, nonce: Nonce([number; 16]) }
}

/// Returns the error of the first of two members. `act` controls the second member, a child
/// process to which the segment has been sent.
fn error_of_first_member(act: impl FnOnce(&mut Child)) -> Error {
    let group = host::random_nonce().unwrap();
    let first = NeighbourMember::register(group, 0, 2).unwrap();
    let process = ProcessAddress::registry(&first.socket_name()).unwrap();
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args([CHILD_TEST, "--exact", "--ignored", "--nocapture"])
        .envs([(GROUP, group.to_string()), (FIRST_PROCESS, process.to_string())])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(other.stdout.take().unwrap());
    let members = [member(first.socket_name(), 0), member(child_line(&mut output), 1)];
    let name = |(rank, pid)| PeerName::new(rank, pid, "here".into());
    let peers: Arc<[PeerName]> = [(0, host::pid()), (1, other.id())].map(name).into();
    let (peers, deadline) = (&peers, &Deadline::after_ms(30_000));
    let vitals = HeartbeatConfig::default();
    let config = ShmJoinConfig { group, peers, members: &members, me: 0, deadline, vitals };
    let error = std::thread::scope(|scope| {
        let first = scope
            .spawn(|| join(&first, &config, GEOMETRY, WaitPolicy::SLEEP_SOON, &|| None).map(drop));
        assert_eq!(child_line(&mut output), "arrived");
        act(&mut other);
        first.join().unwrap().unwrap_err()
    });
    drop(other.kill());
    other.wait().unwrap();
    assert_eq!(error.culprit(), Some(1), "{error}");
    error
}

#[test]
fn peer_death_during_segment_setup_is_reported() {
    let error = error_of_first_member(|other| other.kill().unwrap());
    assert_eq!(error.kind(), ErrorKind::PeerFailed, "{error}");
    assert!(error.to_string().contains("died"), "{error}");
}

#[test]
fn closed_link_during_setup_is_not_a_death() {
    let error = error_of_first_member(|other| {
        other.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    });
    assert_eq!(error.kind(), ErrorKind::Connection, "{error}");
    assert!(!error.to_string().contains("died"), "{error}");
}

/// Runs the setup of two ranks with a registry each.
fn join_pair(
    registries: &[Arc<NeighbourRegistry>; 2],
    geometries: [RegionGeometry; 2],
) -> [Result<ShmDomain>; 2] {
    let group = host::random_nonce().unwrap();
    let register = |rank: Rank| {
        NeighbourMember::register_with(Arc::clone(&registries[rank]), group, rank, 2).unwrap()
    };
    let ranks = [0, 1].map(register);
    let members = [member(ranks[0].socket_name(), 0), member(ranks[1].socket_name(), 1)];
    let name = |rank| PeerName::new(rank, host::pid(), "here".into());
    let peers: Arc<[PeerName]> = [0, 1].map(name).into();
    let (peers, deadline) = (&peers, &Deadline::after_ms(30_000));
    std::thread::scope(|scope| {
        let join = |me: Rank| {
            let (rank, members, geometry) = (&ranks[me], &members, geometries[me]);
            scope.spawn(move || {
                let vitals = HeartbeatConfig::default();
                let config = ShmJoinConfig { group, peers, members, me, deadline, vitals };
                join(rank, &config, geometry, WaitPolicy::SLEEP_SOON, &|| None)
            })
        };
        [0, 1].map(join).map(|thread| thread.join().unwrap())
    })
}

fn registries() -> [Arc<NeighbourRegistry>; 2] {
    [0, 1].map(|_| Arc::new(NeighbourRegistry::new().unwrap()))
}

#[test]
fn failed_join_ends_the_setup_of_the_peer() {
    let other = RegionGeometry { slot_bytes: 8192, ..GEOMETRY };
    let [first, second] = join_pair(&registries(), [GEOMETRY, other]).map(Result::unwrap_err);
    assert!(second.to_string().contains("sealed segment"), "{second}");
    assert_eq!(first.kind(), ErrorKind::Connection, "{first}");
    assert!(first.to_string().contains("does not join"), "{first}");
}

#[test]
fn broken_link_fails_its_groups_and_is_replaced() {
    let registries = registries();
    let groups = [0, 1].map(|_| join_pair(&registries, [GEOMETRY; 2]).map(Result::unwrap));
    let [departed, _] = join_pair(&registries, [GEOMETRY; 2]).map(Result::unwrap);
    departed.leave();
    let link = groups[0][0].shared.route(1).link().unwrap();
    socket2::SockRef::from(&link.as_fd()).shutdown(std::net::Shutdown::Both).unwrap();
    let began = std::time::Instant::now();
    for domain in groups.iter().flatten() {
        while domain.failure().is_none() {
            assert!(began.elapsed().as_secs() < 30, "the group did not fail");
            std::thread::yield_now();
        }
    }
    assert_eq!(departed.failure(), None);
    let [first, second] = join_pair(&registries, [GEOMETRY; 2]).map(Result::unwrap);
    first.leave();
    while !second.has_left(0) {
        assert!(began.elapsed().as_secs() < 30, "the departure did not arrive");
        std::thread::yield_now();
    }
    assert_eq!(second.failure(), None);
}
