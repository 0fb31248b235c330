//! Tests of encrypted connections: the tests of streams and failures again, and attacks by a relay
//! between the ranks.

use super::*;
use crate::base::error::ErrorKind;
use crate::security::handshake::{HandshakeInitiator, HandshakeResponder, HandshakeTerms};
use crate::transport::tcp::link_frame::HEAD_BYTES;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;

/// Defines the test with encrypted connections.
macro_rules! with_encryption {
    ($($module:ident::$test:ident)+) => {
        $(#[test]
        fn $test() {
            SECURITY_OF_MESHES.set(encrypted());
            super::$module::$test();
        })+
    };
}

with_encryption! {
    streams::bytes_arrive_in_order_on_all_families_and_channels
    streams::message_parts_are_sent_in_order
    streams::long_message_of_many_parts_is_sent_in_steps
    streams::sender_blocks_when_receiver_does_not_read
    streams::bytes_of_a_leaving_rank_arrive_before_the_error
    streams::peer_that_left_before_first_use_is_reported_left
    streams::attendant_is_called_for_bytes_space_and_end
    streams::descriptors_are_closed_with_the_mesh
    failure::a_failure_reaches_all_nodes_with_its_reason
    failure::rank_that_fails_and_leaves_sends_its_reason
    failure::leader_death_is_noticed_without_streams
    failure::broken_stream_is_a_death_but_its_bytes_are_received
    failure::reason_within_the_grace_period_replaces_a_broken_stream
    failure::single_ended_connection_is_reported_as_death
    failure::leaving_rank_ends_all_connections_without_failure
    failure::rank_leaving_a_failed_group_is_not_the_culprit
    failure::failure_reason_arrives_on_streams_without_a_leader
    failure::failure_is_sent_before_departures_it_caused
}

/// The action of the relay on the bytes from the connecting side to the acceptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RelayAction {
    Forward,
    /// Inverts a bit of the byte at this position.
    Flip(usize),
    /// Forwards this number of bytes, and then ends both directions with FIN.
    EndAfter(usize),
    /// Sends the bytes in this range twice.
    Repeat(usize, usize),
}

/// The bytes of a hello with its confirmation. Records follow them.
const HANDSHAKE_BYTES: usize = super::super::hello::HELLO_BYTES + 17;

/// The bytes of the frames that carry [`SECRET_TEXT`]: the head that opens the channel, and a short
/// frame with the text. They are in one record.
const FRAME_BYTES: usize = 2 * HEAD_BYTES;

/// Forwards one connection. Adds all bytes of both directions to `seen`.
fn relay(client: &TcpStream, server: SocketAddr, action: RelayAction, seen: &Mutex<Vec<u8>>) {
    let server = TcpStream::connect(server).unwrap();
    let copy = |mut from: &TcpStream, mut to: &TcpStream, action: RelayAction| {
        let (mut buffer, mut position) = (vec![0; 1 << 16], 0);
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let range = position..position + count;
            position += count;
            let mut piece = buffer[..count].to_vec();
            seen.lock().unwrap().extend(&piece);
            match action {
                RelayAction::Flip(at) if range.contains(&at) => piece[at - range.start] ^= 1,
                RelayAction::EndAfter(at) if range.end > at => {
                    drop(to.write_all(&piece[..at.saturating_sub(range.start)]));
                    let both = [&server, client];
                    both.iter().for_each(|it| drop(it.shutdown(Shutdown::Write)));
                    return;
                }
                RelayAction::Repeat(start, end) if range.start <= start && end <= range.end => {
                    let (start, end) = (start - range.start, end - range.start);
                    let repeated = piece[start..end].to_vec();
                    drop(piece.splice(end..end, repeated));
                }
                _ => {}
            }
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        drop(to.shutdown(Shutdown::Write));
    };
    std::thread::scope(|scope| {
        scope.spawn(|| copy(&server, client, RelayAction::Forward));
        copy(client, &server, action);
    });
}

/// Creates two ranks of one node, with a relay for the connections from rank 1 to rank 0. Returns
/// the result of `use_meshes` and the bytes that the relay saw. A broken connection is replaced for
/// `retry_time`; the relay accepts no second one.
fn with_relay<T>(
    security: &LinkSecurity,
    (action, retry_time): (RelayAction, Duration),
    use_meshes: impl FnOnce(&TcpMesh, &TcpMesh) -> T,
) -> (T, Vec<u8>) {
    let mut openings = [(); 2].map(|()| listen_on_loopback("127.0.0.1", 1)).into_iter();
    let (mut first, second) = (openings.next().unwrap(), openings.next().unwrap());
    let server = first.advert().same_netns[0].address;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    first.advert_mut().same_netns = vec![RailAddress { address, rail: 0 }];
    let seen = Mutex::default();
    let result = std::thread::scope(|scope| {
        let relay = scope.spawn(|| {
            let (client, _) = listener.accept().unwrap();
            relay(&client, server, action, &seen);
        });
        let meshes = secured_meshes(vec![first, second], &[0, 0], security);
        for mesh in &meshes {
            let own = mesh.shared.members[mesh.shared.me].process;
            mesh.shared.links.set_retry_time(own, retry_time);
        }
        let result = use_meshes(&meshes[0], &meshes[1]);
        drop(meshes);
        relay.join().unwrap();
        result
    });
    (result, seen.into_inner().unwrap())
}

/// A short time in which a connection must be replaced.
const RETRY_TIME: Duration = Duration::from_millis(600);

const SECRET_TEXT: &[u8] = b"the weights of the model, which nobody may read";

fn contains_secret(bytes: &[u8]) -> bool {
    bytes.windows(16).any(|window| SECRET_TEXT.windows(16).any(|part| part == window))
}

#[test]
fn relay_sees_no_plain_byte() {
    for (security, is_visible) in [(authenticated(), true), (encrypted(), false)] {
        let ((), seen) =
            with_relay(&security, (RelayAction::Forward, Duration::ZERO), |first, second| {
                send_all(second, 0, STREAM, SECRET_TEXT).unwrap();
                let mut got = vec![0; SECRET_TEXT.len()];
                receive_all(first, 1, STREAM, &mut got).unwrap();
                assert_eq!(got, SECRET_TEXT);
            });
        assert_eq!(contains_secret(&seen), is_visible);
        assert!(seen.len() >= HANDSHAKE_BYTES + SECRET_TEXT.len());
    }
}

/// Sends the text through the relay, waits for more than it, and returns the received part, and the
/// error of the receiver.
fn receive_through(action: RelayAction, retry_time: Duration) -> (Vec<u8>, Error) {
    let (result, seen) = with_relay(&encrypted(), (action, retry_time), |first, second| {
        send_all(second, 0, STREAM, SECRET_TEXT).unwrap();
        // A changed length may make the receiver wait for the next record.
        drop(send_all(second, 0, STREAM, SECRET_TEXT));
        let (mut got, mut byte, mut error) = (Vec::new(), [0], None);
        let began = Instant::now();
        while error.is_none() {
            match first.try_receive(1, STREAM, Dst::from(&mut byte[..])) {
                Ok(0) => error = first.failure(),
                Ok(count) => got.extend(&byte[..count]),
                Err(cause) => error = Some(cause),
            }
            assert!(began.elapsed() < TEST_TIMEOUT, "{action:?}: no error");
        }
        (got, error.unwrap())
    });
    assert!(!contains_secret(&seen));
    result
}

#[test]
fn changed_and_repeated_records_are_authentication_errors() {
    let record = HANDSHAKE_BYTES..HANDSHAKE_BYTES + 4 + FRAME_BYTES + 16;
    for at in [0, 3, 4, 20, record.len() - 16, record.len() - 1] {
        let (got, error) = receive_through(RelayAction::Flip(record.start + at), RETRY_TIME);
        assert!(got.is_empty(), "byte {at}: {got:?}");
        assert_eq!((error.kind(), error.culprit()), (ErrorKind::Auth, Some(1)), "{error}");
        assert!(error.message().contains("third party"), "{error}");
    }
    let (got, error) = receive_through(RelayAction::Repeat(record.start, record.end), RETRY_TIME);
    assert_eq!((&got[..], error.kind()), (SECRET_TEXT, ErrorKind::Auth), "{error}");
}

#[test]
fn cut_stream_is_a_death_and_not_a_departure() {
    let all = HANDSHAKE_BYTES + FRAME_BYTES + 20;
    for end in [HANDSHAKE_BYTES, all - 1] {
        let (got, error) = receive_through(RelayAction::EndAfter(end), Duration::ZERO);
        assert_eq!(got, b"");
        // Rank 1 may have noticed the cut of its direction first, and failed the group.
        assert_eq!(error.kind(), ErrorKind::PeerFailed, "{error}");
        assert!(error.culprit().is_some(), "{error}");
        let reasons = ["was cut", "connection broke"];
        assert!(error.message().contains("died"), "{error}");
        assert!(reasons.iter().any(|reason| error.message().contains(reason)), "{error}");
    }
}

#[test]
fn cut_stream_that_cannot_be_replaced_blames_no_rank() {
    let (got, error) = receive_through(RelayAction::EndAfter(HANDSHAKE_BYTES), RETRY_TIME);
    assert_eq!(got, b"");
    assert_eq!((error.kind(), error.culprit()), (ErrorKind::Connection, None), "{error}");
    assert!(error.message().contains("DIST_LINK_RETRY_MS"), "{error}");
}

#[test]
fn different_settings_are_refused() {
    let (first, second) = (listen_on_loopback("127.0.0.1", 1), listen_on_loopback("127.0.0.1", 1));
    let openings = vec![first, second];
    let members = members(&openings, &[0, 0]);
    let group = host::random_nonce().unwrap();
    let deadline = Deadline::after(TEST_TIMEOUT);
    let settings = [encrypted(), authenticated()];
    let meshes: Vec<TcpMesh> = openings
        .into_iter()
        .zip(&settings)
        .enumerate()
        .map(|(rank, (opening, security))| {
            let config = join_config(group, &members, rank, &deadline);
            let config = TcpJoinConfig { security, ..config };
            opening.join(&config, domain(group, &[0, 0], rank), &|| None).unwrap()
        })
        .collect();
    for (from, to, word) in [(0, 1, "DIST_SECURITY=auth"), (1, 0, "DIST_SECURITY=encrypt")] {
        let error = first_error(|| send_all(&meshes[from], to, STREAM, SECRET_TEXT));
        assert_eq!(error.kind(), ErrorKind::Auth, "{error}");
        assert!(error.message().contains(word), "{error}");
    }
}

/// Returns the time of the cipher alone for one message: sealing and opening, in records.
fn cipher_time(bytes: usize) -> Duration {
    const RECORD: usize = 16 << 10;
    let secret = Secret::from_bytes(b"of a measurement").unwrap();
    let own = CipherSet::of_this_processor();
    let cipher = own.best_common(own);
    let terms = HandshakeTerms { secret: &secret, cipher, prologue: b"", encrypts: true };
    let (initiator, message) = HandshakeInitiator::begin(terms).unwrap();
    let (responder, answer) = HandshakeResponder::answer(terms, &message).unwrap();
    let (initiator, confirmation) = initiator.finish(&answer).unwrap();
    let (_, keys) = responder.finish(&confirmation).unwrap();
    let (near, far) = (initiator.into_keys().unwrap().record_ciphers(), keys.unwrap());
    let far = far.record_ciphers();
    let mut text = vec![7; RECORD];
    let began = Instant::now();
    for number in 1..=(bytes / RECORD) as u64 {
        let tag = near.sealing.seal(number, b"head", &mut text);
        far.opening.open(number, b"head", &mut text, &tag).unwrap();
    }
    began.elapsed()
}

/// Measures messages of several lengths in one direction over TCP, plain and encrypted in turns:
/// `cargo test --release --lib one_way_time -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn one_way_time() {
    let two = || vec![listen_on_loopback("127.0.0.1", 1), listen_on_loopback("127.0.0.1", 1)];
    let groups =
        [authenticated(), encrypted()].map(|security| secured_meshes(two(), &[0, 0], &security));
    for (bytes, rounds) in [(16 << 10, 2000), (64 << 10, 2000), (4 << 20, 100)] {
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for (meshes, times) in groups.iter().zip(&mut times) {
                times.push(one_way(meshes, bytes));
            }
            times[2].push(cipher_time(bytes));
        }
        let [plain, sealed, cipher] = times.map(|mut times| {
            times.sort_unstable();
            times[times.len() / 2].as_secs_f64() * 1e6
        });
        let ratio = (sealed - plain) / cipher;
        println!(
            "{bytes} bytes: plain {plain:.1} us, encrypted {sealed:.1} us, cipher {cipher:.1} us, \
             difference / cipher {ratio:.2}"
        );
    }
}

/// Returns the time of a message from rank 0 to rank 1. The receiver waits for it already.
fn one_way(meshes: &[TcpMesh], bytes: usize) -> Duration {
    let (message, mut received) = (vec![7; bytes], vec![0; bytes]);
    let began = Mutex::new(Instant::now());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            send_all(&meshes[0], 1, STREAM, b"ready").unwrap();
            *began.lock().unwrap() = Instant::now();
            send_all(&meshes[0], 1, STREAM, &message).unwrap();
        });
        receive_all(&meshes[1], 0, STREAM, &mut [0; 5]).unwrap();
        receive_all(&meshes[1], 0, STREAM, &mut received).unwrap();
        began.lock().unwrap().elapsed()
    })
}
