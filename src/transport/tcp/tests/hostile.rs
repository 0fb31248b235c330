//! Those who come to the door and are no ranks of the group.

use super::*;
use crate::base::error::ErrorKind;
use crate::transport::tcp::hello::{
    ANSWER_BYTES, CONFIRM, HELLO_BYTES, Hello, Purpose, Refusal, TAKEN,
};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

/// A mesh whose rank 1 nobody plays, and the hello that this rank would say.
fn lonely() -> (Mesh, Hello, TcpStream) {
    let openings = vec![opening("127.0.0.1", 1), opening("127.0.0.1", 1)];
    let members = members(&openings, &[0, 0]);
    let address = members[0].advert.near[0].address;
    let group = host::random_nonce().unwrap();
    let deadline = Deadline::after(SOON);
    let first = openings.into_iter().next().unwrap();
    let party = party(group, &members, 0, &deadline);
    let mesh = first.join(&party, domain(group, &[0, 0], 0), &|| None).unwrap();
    let hello = Hello {
        purpose: Purpose::Stream(STREAM),
        group,
        epoch: 0,
        from: 1,
        to: 0,
        nonce: members[1].nonce,
        expected: members[0].nonce,
    };
    (mesh, hello, connect(address))
}

fn connect(address: std::net::SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

/// All that the door says to these bytes.
fn answer_to(address: std::net::SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(address);
    stream.write_all(bytes).unwrap();
    let mut answer = vec![0; ANSWER_BYTES];
    let mut filled = 0;
    while filled < answer.len() {
        match stream.read(&mut answer[filled..]) {
            Ok(got) if got > 0 => filled += got,
            Err(cause) if cause.kind() == std::io::ErrorKind::WouldBlock => panic!("no answer"),
            // Dropped with bytes unread, it is a reset.
            _ => break,
        }
    }
    answer.truncate(filled);
    answer
}

#[test]
fn whoever_is_not_expected_is_refused_and_the_expected_one_is_not() {
    let (mesh, good, mut stream) = lonely();
    let address = stream.peer_addr().unwrap();
    let wrong = Nonce([7; 16]);
    let strangers = [
        (Hello { nonce: wrong, ..good }, Refusal::Stranger),
        (Hello { expected: wrong, ..good }, Refusal::Stranger),
        (Hello { from: 0, ..good }, Refusal::Stranger),
        (Hello { from: 0, nonce: good.expected, ..good }, Refusal::Stranger),
        (Hello { from: 99, ..good }, Refusal::Stranger),
        (Hello { epoch: 1, ..good }, Refusal::Stranger),
        (Hello { purpose: Purpose::Stream(Channel::Collective(5)), ..good }, Refusal::Stranger),
        (Hello { purpose: Purpose::Control, ..good }, Refusal::Stranger),
        (Hello { group: wrong, ..good }, Refusal::NotHere),
        (Hello { to: 5, ..good }, Refusal::NotHere),
    ];
    for (hello, refusal) in strangers {
        assert_eq!(answer_to(address, &hello.encode()), [refusal as u8], "{hello:?}");
    }
    assert_eq!(answer_to(address, b"GET / HTTP/1.1\r\n\r\n"), [Refusal::Foreign as u8]);
    stream.write_all(&good.encode()).unwrap();
    let mut answer = [0; ANSWER_BYTES];
    stream.read_exact(&mut answer).unwrap();
    let said: [u8; HELLO_BYTES] = answer[1..].try_into().unwrap();
    assert_eq!((answer[0], Hello::decode(&said)), (0, Ok(good.answer())));
    // Not before it has confirmed is anything taken.
    assert_eq!(mesh.try_receive(1, STREAM, Dst::from(&mut [0][..])).unwrap(), 0);
    stream.write_all(&[CONFIRM]).unwrap();
    let mut taken = [0];
    stream.read_exact(&mut taken).unwrap();
    assert_eq!(taken, [TAKEN]);
    stream.write_all(b"data").unwrap();
    let mut got = [0; 4];
    receive_all(&mesh, 1, STREAM, &mut got).unwrap();
    assert_eq!(&got, b"data");
    assert_eq!(answer_to(address, &good.encode()), [Refusal::Double as u8]);
}

#[test]
fn every_change_of_a_hello_is_refused() {
    let (_mesh, good, stream) = lonely();
    let address = stream.peer_addr().unwrap();
    for at in 0..HELLO_BYTES {
        let mut bytes = good.encode();
        bytes[at] ^= 1 << (at % 8);
        let point_to_point = at == 10 && bytes[at] == 1;
        let answer = answer_to(address, &bytes);
        assert!(point_to_point || answer.len() == 1 && answer[0] != 0, "byte {at}: {answer:?}");
    }
}

#[test]
fn an_acceptor_that_is_somebody_else_gets_no_data() {
    let openings = vec![opening("127.0.0.1", 1), opening("127.0.0.1", 1)];
    let mut members = members(&openings, &[0, 0]);
    let impostor = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = impostor.local_addr().unwrap();
    members[1].advert.near = vec![Offer { address, rail: 0 }];
    let group = host::random_nonce().unwrap();
    let deadline = Deadline::after(SOON);
    let first = openings.into_iter().next().unwrap();
    let party = party(group, &members, 0, &deadline);
    let mesh = first.join(&party, domain(group, &[0, 0], 0), &|| None).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = impostor.accept().unwrap();
            stream.set_read_timeout(Some(SOON)).unwrap();
            let mut hello = [0; HELLO_BYTES];
            stream.read_exact(&mut hello).unwrap();
            let mut answer = Hello::decode(&hello).unwrap().answer();
            answer.nonce = Nonce([1; 16]);
            stream.write_all(&[&[0][..], &answer.encode()].concat()).unwrap();
            let mut rest = Vec::new();
            // Neither a confirmation nor data; how it is closed does not matter.
            drop(stream.read_to_end(&mut rest));
            assert!(rest.is_empty());
        });
        let error = until_error(|| send_all(&mesh, 1, STREAM, b"secret"));
        assert_eq!((error.kind(), error.culprit()), (ErrorKind::Connection, Some(1)));
        assert!(error.message().contains("not the group's"), "{error}");
    });
}

#[test]
fn one_port_serves_all_groups_and_a_range_that_is_used_up_says_so() {
    let one = opening("127.0.0.1", 1);
    let other = opening("127.0.0.1", 1);
    assert_eq!(one.advert().near, other.advert().near);
    let taken = crate::sys::socket::listen("127.0.0.9:0".parse().unwrap()).unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = Door::open(&["127.0.0.9:0".parse().unwrap()], Some(&(port..=port))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Connection);
    let range = format!("DIST_PORT_RANGE={port}-{port}");
    for word in [range.as_str(), "in use", "127.0.0.9", "widen"] {
        assert!(error.message().contains(word), "{error}");
    }
    drop(taken);
    let door = Door::open(&["127.0.0.9:0".parse().unwrap()], Some(&(port..=port))).unwrap();
    assert_eq!(door.port("127.0.0.9".parse().unwrap()), Some(port));
}

#[test]
fn who_is_greeted_by_a_rank_that_leaves_is_told_so() {
    let (mesh, good, mut stream) = lonely();
    stream.write_all(&good.encode()).unwrap();
    stream.read_exact(&mut [0; ANSWER_BYTES]).unwrap();
    // The door stays, for others of the process.
    let other = opening("127.0.0.1", 1);
    drop(mesh);
    stream.write_all(&[CONFIRM]).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, [Refusal::NotHere as u8]);
    drop(other);
}
