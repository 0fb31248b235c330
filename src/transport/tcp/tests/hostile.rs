//! Tests with connections to the listening socket that do not come from ranks of the group.

use super::*;
use crate::base::error::ErrorKind;
use crate::transport::tcp::hello::{
    ANSWER_BYTES, ConnectionPurpose, HELLO_BYTES, Hello, HelloRefusal,
};
use crate::transport::tcp::tests::proofs::{
    HelloSender, expect_acceptance, frames_with, greet, hello_between,
};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

/// Creates the mesh of rank 0 in a group whose rank 1 never starts, and the sender of the hello of
/// rank 1.
fn mesh_without_peer() -> (TcpMesh, HelloSender, TcpStream) {
    let openings = vec![listen_on_loopback("127.0.0.1", 1), listen_on_loopback("127.0.0.1", 1)];
    let members = members(&openings, &[0, 0]);
    let address = members[0].advert.same_netns[0].address;
    let group = host::random_nonce().unwrap();
    let deadline = Deadline::after(TEST_TIMEOUT);
    let first = openings.into_iter().next().unwrap();
    let config = join_config(group, &members, 0, &deadline);
    let mesh = first.join(&config, domain(group, &[0, 0], 0), &|| None).unwrap();
    let purpose = ConnectionPurpose::Stream(STREAM);
    let hello = hello_between(&LinkSecurity::None, group, &members, purpose);
    (mesh, hello, connect(address))
}

fn connect(address: std::net::SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream
}

/// Returns everything that the acceptor sends in response to these bytes.
fn answer_to(address: std::net::SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(address);
    stream.write_all(bytes).unwrap();
    let mut answer = vec![0; ANSWER_BYTES];
    let mut filled = 0;
    while filled < answer.len() {
        match stream.read(&mut answer[filled..]) {
            Ok(got) if got > 0 => filled += got,
            Err(cause) if cause.kind() == std::io::ErrorKind::WouldBlock => panic!("no answer"),
            // A connection that is closed with unread bytes is reset.
            _ => break,
        }
    }
    answer.truncate(filled);
    answer
}

#[test]
fn unexpected_hellos_are_refused_and_expected_one_accepted() {
    let (mesh, good, mut stream) = mesh_without_peer();
    let address = stream.peer_addr().unwrap();
    let sender = good;
    let good = sender.hello;
    let wrong = Nonce([7; 16]);
    let strangers = [
        (Hello { from: 0, ..good }, HelloRefusal::IdentityMismatch),
        (Hello { from: 99, ..good }, HelloRefusal::IdentityMismatch),
        (Hello { epoch: 1, ..good }, HelloRefusal::IdentityMismatch),
        (
            Hello { purpose: ConnectionPurpose::Stream(Channel::Collective(5)), ..good },
            HelloRefusal::IdentityMismatch,
        ),
        (Hello { purpose: ConnectionPurpose::Reconnect, ..good }, HelloRefusal::NoSuchRank),
        (Hello { group: wrong, ..good }, HelloRefusal::NoSuchRank),
        (Hello { to: 5, ..good }, HelloRefusal::NoSuchRank),
    ];
    for (hello, refusal) in strangers {
        let (_, bytes) = HelloSender { hello, ..sender.clone() }.begin();
        assert_eq!(answer_to(address, &bytes), [refusal as u8], "{hello:?}");
    }
    assert_eq!(
        answer_to(address, b"GET / HTTP/1.1\r\n\r\n"),
        [HelloRefusal::UnknownProtocol as u8]
    );
    let (confirmed, confirmation) = greet(&mut stream, &sender);
    // The mesh takes nothing before the confirmation.
    assert_eq!(mesh.try_receive(1, STREAM, Dst::from(&mut [0][..])).unwrap(), 0);
    stream.write_all(&confirmation).unwrap();
    expect_acceptance(&mut stream, confirmed);
    stream.write_all(&frames_with(good.group, b"data")).unwrap();
    let mut got = [0; 4];
    receive_all(&mesh, 1, STREAM, &mut got).unwrap();
    assert_eq!(&got, b"data");
    assert_eq!(answer_to(address, &sender.begin().1), [HelloRefusal::Duplicate as u8]);
}

#[test]
fn every_changed_hello_byte_is_refused() {
    let (_mesh, good, stream) = mesh_without_peer();
    let address = stream.peer_addr().unwrap();
    // Without a secret, any number of the connecting side is valid.
    let fresh = HELLO_BYTES - 48..HELLO_BYTES - 32;
    for at in (0..HELLO_BYTES).filter(|at| !fresh.contains(at)) {
        let mut bytes = good.begin().1;
        bytes[at] ^= 1 << (at % 8);
        let point_to_point = at == 10 && bytes[at] == 1;
        let answer = answer_to(address, &bytes);
        assert!(point_to_point || answer.len() == 1 && answer[0] != 0, "byte {at}: {answer:?}");
    }
}

#[test]
fn impostor_acceptor_gets_no_data() {
    let openings = vec![listen_on_loopback("127.0.0.1", 1), listen_on_loopback("127.0.0.1", 1)];
    let mut members = members(&openings, &[0, 0]);
    let impostor = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = impostor.local_addr().unwrap();
    members[1].advert.same_netns = vec![RailAddress { address, rail: 0 }];
    let group = host::random_nonce().unwrap();
    let deadline = Deadline::after(TEST_TIMEOUT);
    let first = openings.into_iter().next().unwrap();
    let config = join_config(group, &members, 0, &deadline);
    let mesh = first.join(&config, domain(group, &[0, 0], 0), &|| None).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = impostor.accept().unwrap();
            stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
            let mut hello = [0; HELLO_BYTES];
            stream.read_exact(&mut hello).unwrap();
            // The impostor returns the proof.
            stream.write_all(&[&[0][..], &hello[HELLO_BYTES - 48..]].concat()).unwrap();
            let mut rest = Vec::new();
            // The acceptor sends neither an acceptance nor data; how it closes the connection does
            // not matter.
            drop(stream.read_to_end(&mut rest));
            assert!(rest.is_empty());
        });
        let error = first_error(|| send_all(&mesh, 1, STREAM, b"secret"));
        assert_eq!((error.kind(), error.culprit()), (ErrorKind::Auth, Some(1)));
        assert!(error.message().contains("proof of the job's secret is wrong"), "{error}");
    });
}

#[test]
fn groups_share_a_port_and_exhausted_range_is_an_error() {
    let one = listen_on_loopback("127.0.0.1", 1);
    let other = listen_on_loopback("127.0.0.1", 1);
    assert_eq!(one.advert().same_netns, other.advert().same_netns);
    let taken = crate::sys::socket::listen("127.0.0.9:0".parse().unwrap()).unwrap();
    let port = taken.local_addr().unwrap().port();
    let error =
        ListenerRegistry::listen_on(&["127.0.0.9:0".parse().unwrap()], Some(&(port..=port)))
            .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Connection);
    let range = format!("DIST_PORT_RANGE={port}-{port}");
    for word in [range.as_str(), "in use", "127.0.0.9", "widen"] {
        assert!(error.message().contains(word), "{error}");
    }
    drop(taken);
    let registry =
        ListenerRegistry::listen_on(&["127.0.0.9:0".parse().unwrap()], Some(&(port..=port)))
            .unwrap();
    assert_eq!(registry.port("127.0.0.9".parse().unwrap()), Some(port));
}

#[test]
fn confirmed_hello_after_leave_is_refused() {
    let (mesh, good, mut stream) = mesh_without_peer();
    let (_, confirmation) = greet(&mut stream, &good);
    // The listener registry stays, for other groups of the process.
    let other = listen_on_loopback("127.0.0.1", 1);
    drop(mesh);
    stream.write_all(&confirmation).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, [HelloRefusal::NoSuchRank as u8]);
    drop(other);
}
