//! Tests of authenticated connections: a party between two ranks that records, repeats, returns,
//! exchanges and changes the messages of handshakes, and processes with other secrets or settings.

use super::*;
use crate::base::error::ErrorKind;
use crate::transport::tcp::hello::{
    ANSWER_BYTES, CONFIRM, CONFIRM_BYTES, ConnectionPurpose, HELLO_BYTES, Hello, HelloRefusal,
    parse_answer, parse_end,
};
use crate::transport::tcp::link_frame::{ChannelRanks, Frame, HEAD_BYTES, padding};
use crate::transport::tcp::link_proof::{AcceptProof, ConfirmedProof, ConnectProof, LinkTerms};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// The connecting side of a handshake with rank 0, made by a test.
#[derive(Clone)]
pub(super) struct HelloSender {
    pub(super) hello: Hello,
    pub(super) terms: LinkTerms,
}

impl HelloSender {
    /// Returns a new hello with its proof.
    pub(super) fn begin(&self) -> (ConnectProof, Vec<u8>) {
        let (proof, message) = ConnectProof::begin(&self.terms, &self.hello).unwrap();
        (proof, [&self.hello.encode()[..], &message].concat())
    }
}

/// Returns the sender of hellos from rank 1 to rank 0.
pub(super) fn hello_between(
    security: &LinkSecurity,
    group: GroupId,
    members: &[TcpMember],
    purpose: ConnectionPurpose,
) -> HelloSender {
    let terms = LinkTerms::between(security, &members[1], &members[0]);
    let (security, cipher) = (terms.setting(), terms.cipher());
    let hello = Hello { purpose, group, epoch: 0, from: 1, to: 0, security, cipher };
    HelloSender { hello, terms }
}

/// Sends a hello and checks the answer. Returns the confirmation, which the caller sends.
pub(super) fn greet(stream: &mut TcpStream, sender: &HelloSender) -> (ConfirmedProof, Vec<u8>) {
    let (proof, hello) = sender.begin();
    stream.write_all(&hello).unwrap();
    let mut answer = [0; ANSWER_BYTES];
    stream.read_exact(&mut answer).unwrap();
    let answer = parse_answer(&answer).unwrap().unwrap();
    let (confirmed, tag) = proof.finish(answer).unwrap();
    (confirmed, [&[CONFIRM][..], &tag].concat())
}

/// Reads the end of the handshake.
pub(super) fn expect_acceptance(stream: &mut TcpStream, confirmed: ConfirmedProof) {
    let mut end = [0; CONFIRM_BYTES];
    stream.read_exact(&mut end).unwrap();
    confirmed.check_acceptance(parse_end(&end).unwrap().unwrap()).unwrap();
}

/// Returns the frames by which rank 1 sends these bytes to rank 0.
pub(super) fn frames_with(group: GroupId, bytes: &[u8]) -> Vec<u8> {
    let ranks = ChannelRanks { group, from: 1, to: 0 };
    let open = Frame::Open { channel: 0, ranks }.encode();
    let data = Frame::Data { channel: 0, payload: bytes.len() }.encode();
    [&open[..], &data, bytes, &vec![0; padding(bytes.len())]].concat()
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream
}

/// Returns all bytes until the end of the connection.
fn read_to_end(mut stream: &TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A connection that is closed with unread bytes is reset.
    if let Err(cause) = stream.read_to_end(&mut bytes) {
        assert_ne!(cause.kind(), std::io::ErrorKind::WouldBlock, "the connection stays open");
    }
    bytes
}

/// The mesh of rank 0 in an authenticated group whose rank 1 is played by the test.
struct AttackedRank {
    mesh: TcpMesh,
    address: SocketAddr,
    members: Vec<TcpMember>,
    group: GroupId,
}

impl AttackedRank {
    fn new() -> Self {
        let openings = vec![listen_on_loopback("127.0.0.1", 1), listen_on_loopback("127.0.0.1", 1)];
        let members = members(&openings, &[0, 0]);
        let address = members[0].advert.same_netns[0].address;
        let group = host::random_nonce().unwrap();
        let (deadline, security) = (Deadline::after(TEST_TIMEOUT), authenticated());
        let config = join_config(group, &members, 0, &deadline);
        let config = TcpJoinConfig { security: &security, ..config };
        let first = openings.into_iter().next().unwrap();
        let mesh = first.join(&config, domain(group, &[0, 0], 0), &|| None).unwrap();
        Self { mesh, address, members, group }
    }

    fn sender(&self, security: &LinkSecurity, channel: Channel) -> HelloSender {
        let purpose = ConnectionPurpose::Stream(channel);
        hello_between(security, self.group, &self.members, purpose)
    }

    /// Sends these bytes on a new connection. Returns the reply, until rank 0 ends the connection.
    fn reply_to(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = connect(self.address);
        stream.write_all(bytes).unwrap();
        read_to_end(&stream)
    }

    /// Checks that no stream of rank 1 has arrived.
    fn expect_no_stream(&self) {
        for channel in [STREAM, Channel::PointToPoint] {
            let mut byte = [0];
            let received = self.mesh.try_receive(1, channel, Dst::from(&mut byte[..]));
            assert_eq!(received.unwrap(), 0, "a stream was added");
        }
    }
}

/// A recorded handshake that rank 0 has accepted.
struct RecordedHandshake {
    hello: Vec<u8>,
    confirmation: Vec<u8>,
}

fn record_handshake(stream: &mut TcpStream, sender: &HelloSender) -> RecordedHandshake {
    let (proof, hello) = sender.begin();
    stream.write_all(&hello).unwrap();
    let mut answer = [0; ANSWER_BYTES];
    stream.read_exact(&mut answer).unwrap();
    let (confirmed, tag) = proof.finish(parse_answer(&answer).unwrap().unwrap()).unwrap();
    let confirmation = [&[CONFIRM][..], &tag].concat();
    stream.write_all(&confirmation).unwrap();
    expect_acceptance(stream, confirmed);
    RecordedHandshake { hello, confirmation }
}

#[test]
fn authenticated_meshes_transfer_data() {
    let openings = (0..4).map(|_| listen_on_loopback("127.0.0.1", 2)).collect();
    let meshes = secured_meshes(openings, &[0, 0, 1, 1], &authenticated());
    for channel in [STREAM, Channel::Collective(1), Channel::PointToPoint] {
        for (from, to) in [(0, 2), (3, 0), (2, 1)] {
            send_all(&meshes[from], to, channel, b"content").unwrap();
            let mut bytes = [0; 7];
            receive_all(&meshes[to], from, channel, &mut bytes).unwrap();
            assert_eq!(&bytes, b"content");
        }
    }
}

const WRONG_PROOF: u8 = HelloRefusal::WrongProof as u8;

/// Sends a hello and, after the answer, a recorded confirmation. Returns the end of the handshake.
fn repeat_handshake(rank: &AttackedRank, hello: &[u8], recorded: &RecordedHandshake) -> Vec<u8> {
    let mut repeated = connect(rank.address);
    repeated.write_all(hello).unwrap();
    let mut answer = [0; ANSWER_BYTES];
    repeated.read_exact(&mut answer).unwrap();
    assert_eq!(answer[0], 0);
    repeated.write_all(&recorded.confirmation).unwrap();
    read_to_end(&repeated)
}

#[test]
fn recorded_handshake_cannot_be_repeated() {
    let rank = AttackedRank::new();
    // The attacker records the handshake of a stream, and cuts the stream.
    let sender = rank.sender(&authenticated(), Channel::PointToPoint);
    let other = rank.sender(&authenticated(), STREAM);
    let mut stream = connect(rank.address);
    let recorded = record_handshake(&mut stream, &other);
    // While the stream has no bytes, its sender may connect again. A recording does not suffice.
    assert_eq!(repeat_handshake(&rank, &recorded.hello, &recorded), [WRONG_PROOF]);
    stream.write_all(&frames_with(rank.group, b"y")).unwrap();
    receive_all(&rank.mesh, 1, STREAM, &mut [0]).unwrap();
    let reply = rank.reply_to(&recorded.hello);
    assert_eq!(reply, [HelloRefusal::Duplicate as u8]);
    // A stream that does not exist yet: the hello of another purpose does not fit.
    let mut moved = recorded.hello.clone();
    moved[..48].copy_from_slice(&sender.hello.encode());
    assert_eq!(rank.reply_to(&moved), [WRONG_PROOF]);
    // The attacker has recorded a hello whose handshake it has cut.
    let (_, unused) = sender.begin();
    assert_eq!(repeat_handshake(&rank, &unused, &recorded), [WRONG_PROOF]);
    let mut byte = [0];
    let received = rank.mesh.try_receive(1, Channel::PointToPoint, Dst::from(&mut byte[..]));
    assert_eq!(received.unwrap(), 0);
}

#[test]
fn hello_from_the_store_alone_is_refused() {
    // The attacker knows the group, the ranks, the addresses and the nonces, but not the secret.
    let rank = AttackedRank::new();
    let other = LinkSecurity::Auth(Secret::from_bytes(b"guessed").unwrap());
    let (_, hello) = rank.sender(&other, STREAM).begin();
    assert_eq!(rank.reply_to(&hello), [HelloRefusal::WrongProof as u8]);
    let (_, hello) = rank.sender(&LinkSecurity::None, STREAM).begin();
    assert_eq!(rank.reply_to(&hello), [HelloRefusal::RequiresAuth as u8]);
    rank.expect_no_stream();
}

#[test]
fn every_changed_bit_of_a_handshake_is_refused() {
    let rank = AttackedRank::new();
    let sender = rank.sender(&authenticated(), STREAM);
    for at in 0..HELLO_BYTES {
        let (_, mut hello) = sender.begin();
        hello[at] ^= 1 << (at % 8);
        let reply = rank.reply_to(&hello);
        assert!(reply.len() == 1 && reply[0] != 0, "byte {at}: {reply:?}");
    }
    for at in 0..CONFIRM_BYTES {
        let mut stream = connect(rank.address);
        let (_, mut confirmation) = greet(&mut stream, &sender);
        confirmation[at] ^= 1 << (at % 8);
        stream.write_all(&confirmation).unwrap();
        let reply = read_to_end(&stream);
        assert!(reply.len() <= 1 && reply != [0], "byte {at}: {reply:?}");
    }
    rank.expect_no_stream();
}

#[test]
fn confirmations_of_two_connections_cannot_be_exchanged() {
    let rank = AttackedRank::new();
    let sender = rank.sender(&authenticated(), STREAM);
    let (mut left, mut right) = (connect(rank.address), connect(rank.address));
    let (_, left_confirmation) = greet(&mut left, &sender);
    let (_, right_confirmation) = greet(&mut right, &sender);
    left.write_all(&right_confirmation).unwrap();
    right.write_all(&left_confirmation).unwrap();
    for stream in [left, right] {
        assert_eq!(read_to_end(&stream), [HelloRefusal::WrongProof as u8]);
    }
    rank.expect_no_stream();
}

/// Runs a rank that sends to rank 1, whose place `impostor` takes. Returns the error of the rank.
fn error_against(impostor: impl Fn(TcpStream) + Sync) -> Error {
    with_listener_of_test(
        |listener, _| {
            let (stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
            impostor(stream);
        },
        |mesh| first_error(|| send_all(mesh, 1, STREAM, b"secret data")),
    )
}

/// Creates the mesh of rank 0 in an authenticated group, in which `peer` listens in place of rank
/// 1.
/// Returns the result of `use_mesh`.
fn with_listener_of_test<T>(
    peer: impl Fn(&TcpListener, &[TcpMember]) + Sync,
    use_mesh: impl FnOnce(&TcpMesh) -> T,
) -> T {
    let openings = vec![listen_on_loopback("127.0.0.1", 1), listen_on_loopback("127.0.0.1", 1)];
    let mut members = members(&openings, &[0, 0]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    members[1].advert.same_netns = vec![RailAddress { address, rail: 0 }];
    let group = host::random_nonce().unwrap();
    let (deadline, security) = (Deadline::after(TEST_TIMEOUT), authenticated());
    let config = join_config(group, &members, 0, &deadline);
    let config = TcpJoinConfig { security: &security, ..config };
    let first = openings.into_iter().next().unwrap();
    let mesh = first.join(&config, domain(group, &[0, 0], 0), &|| None).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| peer(&listener, &members));
        use_mesh(&mesh)
    })
}

#[test]
fn overloaded_acceptor_is_tried_again() {
    let peer = |listener: &TcpListener, members: &[TcpMember]| {
        for _ in 0..5 {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; HELLO_BYTES]).unwrap();
            stream.write_all(&[HelloRefusal::Overloaded as u8]).unwrap();
        }
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = [0; HELLO_BYTES];
        stream.read_exact(&mut bytes).unwrap();
        let (prefix, proof) = bytes.split_first_chunk().unwrap();
        let hello = Hello::decode(prefix).unwrap();
        let terms = LinkTerms::between(&authenticated(), &members[0], &members[1]);
        let (accepting, answer) =
            AcceptProof::answer(&terms, &hello, proof.try_into().unwrap()).unwrap();
        stream.write_all(&[&[0][..], &answer].concat()).unwrap();
        let mut confirmation = [0; CONFIRM_BYTES];
        stream.read_exact(&mut confirmation).unwrap();
        let acceptance = accepting.finish(confirmation[1..].try_into().unwrap()).unwrap();
        stream.write_all(acceptance.message()).unwrap();
        let mut frames = [0; 2 * HEAD_BYTES];
        stream.read_exact(&mut frames).unwrap();
        let payload = &frames[HEAD_BYTES + 16..];
        assert!(payload.starts_with(b"data\0"), "{payload:?}");
    };
    with_listener_of_test(peer, |mesh| send_all(mesh, 1, STREAM, b"data").unwrap());
}

#[test]
fn acceptor_without_the_secret_gets_no_data() {
    let error = error_against(|mut stream| {
        let mut hello = [0; HELLO_BYTES];
        stream.read_exact(&mut hello).unwrap();
        // The proof returns to its author.
        stream.write_all(&[&[0][..], &hello[HELLO_BYTES - 48..]].concat()).unwrap();
        assert!(read_to_end(&stream).is_empty());
    });
    assert_eq!((error.kind(), error.culprit()), (ErrorKind::Auth, Some(1)), "{error}");
    let error = error_against(|mut stream| {
        stream.read_exact(&mut [0; HELLO_BYTES]).unwrap();
        stream.write_all(&[HelloRefusal::RequiresNone as u8]).unwrap();
        assert!(read_to_end(&stream).is_empty());
    });
    assert_eq!(error.kind(), ErrorKind::Auth);
    for setting in ["DIST_SECURITY=none", "auth"] {
        assert!(error.message().contains(setting), "{error}");
    }
}

#[test]
fn hello_cannot_be_redirected_to_another_rank() {
    // The attacker passes the hello that rank 0 sends to rank 1 on to rank 0 of the same group.
    let rank = AttackedRank::new();
    let terms = LinkTerms::between(&authenticated(), &rank.members[0], &rank.members[1]);
    let sender = rank.sender(&authenticated(), STREAM);
    let hello = Hello { from: 0, to: 1, ..sender.hello };
    let (_, hello) = HelloSender { hello, terms }.begin();
    assert_eq!(rank.reply_to(&hello), [HelloRefusal::NoSuchRank as u8]);
    let mut mirrored = hello;
    mirrored[..48].copy_from_slice(&sender.hello.encode());
    assert_eq!(rank.reply_to(&mirrored), [HelloRefusal::WrongProof as u8]);
    rank.expect_no_stream();
}

#[test]
fn replayed_hellos_do_not_prevent_a_connection() {
    let rank = AttackedRank::new();
    let sender = rank.sender(&authenticated(), STREAM);
    let (_, recorded) = sender.begin();
    let mut held = Vec::new();
    for _ in 0..600 {
        let mut stream = connect(rank.address);
        stream.write_all(&recorded).unwrap();
        held.push(stream);
    }
    let mut stream = connect(rank.address);
    let _recorded = record_handshake(&mut stream, &sender);
    stream.write_all(&frames_with(rank.group, b"data")).unwrap();
    let mut bytes = [0; 4];
    receive_all(&rank.mesh, 1, STREAM, &mut bytes).unwrap();
    assert_eq!(&bytes, b"data");
    // The oldest replay was closed.
    assert_eq!(read_to_end(&held[0]).last(), Some(&(HelloRefusal::Overloaded as u8)));
}
