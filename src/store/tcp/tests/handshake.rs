//! Tests of the handshake: exchanges of client and server whose messages are cut at any byte, and
//! all kinds of messages that a side must reject.

use super::super::Secret;
use super::super::handshake::{
    ANSWER_BYTES, AuthFailure, AuthProgress, AuthRefusal, ClientHandshake, MESSAGE_BYTES,
    ServerHandshake,
};
use super::{HELLO, hex_bytes};
use crate::base::ErrorKind;
use proptest::collection::vec;
use proptest::prelude::*;

const SECRET_BYTES: &[u8] = b"correct horse battery staple";

fn secret() -> Secret {
    Secret::from_bytes(SECRET_BYTES).unwrap()
}

fn other_secret() -> Secret {
    Secret::from_bytes(b"Correct horse battery staple").unwrap()
}

fn server() -> ServerHandshake {
    ServerHandshake::new(Some(&secret())).unwrap()
}

type AuthResult = Result<AuthProgress, AuthRefusal>;

/// Feeds bytes to a server in pieces. The sizes of the pieces are `sizes`, repeated cyclically.
/// Returns the outcome, the reply and the remaining bytes.
fn feed_in_pieces(
    server: &mut ServerHandshake,
    bytes: &[u8],
    sizes: &[usize],
) -> (AuthResult, Vec<u8>, Vec<u8>) {
    let mut output = Vec::new();
    let mut left = bytes;
    for &size in sizes.iter().cycle() {
        let (mut piece, rest) = left.split_at(left.len().min(size));
        let outcome = server.advance(&mut piece, &mut output);
        left = &left[left.len() - rest.len() - piece.len()..];
        if outcome != Ok(AuthProgress::Incomplete) || left.is_empty() {
            return (outcome, output, left.to_vec());
        }
    }
    unreachable!("the sizes repeat without end")
}

/// Feeds bytes in one piece, and returns the outcome and the reply.
fn feed(server: &mut ServerHandshake, bytes: &[u8]) -> (AuthResult, Vec<u8>) {
    let (outcome, output, _) = feed_in_pieces(server, bytes, &[1000]);
    (outcome, output)
}

/// Sends a challenge to the server. Returns the client and the server's answer.
fn challenge_server(server: &mut ServerHandshake) -> (ClientHandshake, Vec<u8>) {
    let (client, challenge) = ClientHandshake::begin(&secret()).unwrap();
    let (outcome, answer) = feed(server, &challenge);
    assert_eq!(outcome, Ok(AuthProgress::Incomplete));
    (client, answer)
}

/// Passes a complete answer of the server to the client.
fn process_answer(
    client: ClientHandshake,
    answer: &[u8],
) -> Result<[u8; MESSAGE_BYTES], AuthFailure> {
    let (word, rest) = answer.split_first_chunk().unwrap();
    ClientHandshake::check_server_word(*word)?;
    client.finish(rest.try_into().unwrap())
}

/// Returns a copy with one bit inverted.
fn flip_bit(bytes: &[u8], bit: usize) -> Vec<u8> {
    let mut copy = bytes.to_vec();
    copy[bit / 8] ^= 1 << (bit % 8);
    copy
}

proptest! {
    #[test]
    fn handshake_succeeds_for_any_split_of_the_bytes(sizes in vec(1_usize..50, 1..10)) {
        let mut server = server();
        let (client, challenge) = ClientHandshake::begin(&secret()).unwrap();
        let (outcome, answer, left) = feed_in_pieces(&mut server, &challenge, &sizes);
        prop_assert_eq!((outcome, left.len()), (Ok(AuthProgress::Incomplete), 0));
        let mut bytes = process_answer(client, &answer).unwrap().to_vec();
        bytes.extend(b"what follows");
        let (outcome, output, left) = feed_in_pieces(&mut server, &bytes, &sizes);
        prop_assert_eq!((outcome, output.len()), (Ok(AuthProgress::Complete), 0));
        prop_assert_eq!(left, b"what follows");
    }

    #[test]
    fn random_bytes_never_pass_the_handshake(
        bytes in vec(prop_oneof![Just(0_u8), 64_u8..66, any::<u8>()], 1..200),
        sizes in vec(1_usize..50, 1..10),
    ) {
        let (outcome, output, _) = feed_in_pieces(&mut server(), &bytes, &sizes);
        prop_assert_ne!(outcome, Ok(AuthProgress::Complete));
        prop_assert!(output.len() <= 4 + ANSWER_BYTES + 4);
    }
}

#[test]
fn messages_match_the_documented_format() {
    let mut server = server();
    let challenge = [&[64][..], &[7; 32]].concat();
    let (_, answer) = feed(&mut server, &challenge);
    assert_eq!((&answer[..4], answer.len()), (&b"KNOW"[..], 68));
    let nonce = &answer[4..36];
    assert_eq!(secret().hash(&[b"libdist store server", &[7; 32], nonce]), answer[36..]);
    let proof = secret().hash(&[b"libdist store client", &[7; 32], nonce]);
    let proof = [&[65][..], proof.as_bytes()].concat();
    assert_eq!(feed(&mut server, &proof), (Ok(AuthProgress::Complete), Vec::new()));
}

#[test]
fn server_without_secret_accepts_plain_clients() {
    let mut server_without_secret = ServerHandshake::new(None).unwrap();
    let hello = hex_bytes(HELLO);
    assert_eq!(
        feed_in_pieces(&mut server_without_secret, &hello, &[3]),
        (Ok(AuthProgress::Complete), Vec::new(), hello)
    );
}

#[test]
fn wrong_secret_is_reported_to_both_sides() {
    // A client with another secret would close the connection here. If the client continues
    // nevertheless, the server rejects it.
    let mut server = server();
    let (client, challenge) = ClientHandshake::begin(&other_secret()).unwrap();
    let (_, answer) = feed(&mut server, &challenge);
    assert_eq!(process_answer(client, &answer), Err(AuthFailure::SecretMismatch));
    let wrong = other_secret().hash(&[b"libdist store client", &challenge[1..], &answer[4..36]]);
    let wrong = [&[65][..], wrong.as_bytes(), &hex_bytes(HELLO)].concat();
    let (outcome, output, left) = feed_in_pieces(&mut server, &wrong, &[1000]);
    assert_eq!((outcome, &output[..]), (Err(AuthRefusal::WrongProof), &b"DENY"[..]));
    assert!(left.is_empty());
    // The rejection is final.
    assert_eq!(feed(&mut server, &challenge), (Err(AuthRefusal::WrongProof), Vec::new()));
}

#[test]
fn secret_mismatch_is_reported_after_the_full_message() {
    let hello = hex_bytes(HELLO);
    let (outcome, output, left) = feed_in_pieces(&mut server(), &hello, &[9]);
    assert_eq!((outcome, &output[..]), (Err(AuthRefusal::SecretRequired), &b"AUTH"[..]));
    assert!(left.is_empty());
    assert_eq!(feed(&mut server(), &hello[..9]), (Ok(AuthProgress::Incomplete), Vec::new()));

    let mut server_without_secret = ServerHandshake::new(None).unwrap();
    let (_, challenge) = ClientHandshake::begin(&secret()).unwrap();
    assert_eq!(
        feed(&mut server_without_secret, &challenge[..32]),
        (Ok(AuthProgress::Incomplete), Vec::new())
    );
    let (outcome, output) = feed(&mut server_without_secret, &challenge[32..]);
    assert_eq!((outcome, &output[..]), (Err(AuthRefusal::NoSecret), &b"OPEN"[..]));
}

#[test]
fn unknown_first_byte_gets_no_answer() {
    for first in (0..=255).filter(|byte| ![0, 64].contains(byte)) {
        let outcome = feed(&mut server(), &[first]);
        assert_eq!(outcome, (Err(AuthRefusal::UnexpectedFirstByte(first)), Vec::new()));
    }
}

#[test]
fn proof_is_valid_only_on_its_own_connection() {
    let (mut first, mut second) = (server(), server());
    let (client, challenge) = ClientHandshake::begin(&secret()).unwrap();
    let (_, answer) = feed(&mut first, &challenge);
    let proof = process_answer(client, &answer).unwrap();
    assert_eq!(feed(&mut first, &proof).0, Ok(AuthProgress::Complete));
    // Replay of a proof to another server, and of an old answer to another client.
    assert_eq!(feed(&mut second, &challenge).0, Ok(AuthProgress::Incomplete));
    assert_eq!(feed(&mut second, &proof), (Err(AuthRefusal::WrongProof), b"DENY".to_vec()));
    let (client, _) = ClientHandshake::begin(&secret()).unwrap();
    assert_eq!(process_answer(client, &answer), Err(AuthFailure::SecretMismatch));
}

#[test]
fn server_proof_is_not_accepted_from_a_client() {
    let mut server = server();
    let (_, answer) = challenge_server(&mut server);
    let mirrored = [&[65][..], &answer[36..]].concat();
    assert_eq!(feed(&mut server, &mirrored).0, Err(AuthRefusal::WrongProof));
}

#[test]
fn flipped_bit_in_client_messages_is_detected() {
    for bit in 0..MESSAGE_BYTES * 8 {
        let mut server = server();
        let (client, challenge) = ClientHandshake::begin(&secret()).unwrap();
        let (outcome, answer) = feed(&mut server, &flip_bit(&challenge, bit));
        if bit >= 8 {
            // A changed challenge leads to another proof.
            assert_eq!(outcome, Ok(AuthProgress::Incomplete), "bit {bit}");
            assert_eq!(
                process_answer(client, &answer),
                Err(AuthFailure::SecretMismatch),
                "bit {bit}"
            );
        } else {
            assert!(outcome.is_err(), "bit {bit}");
        }
        let mut server = self::server();
        let (client, answer) = challenge_server(&mut server);
        let proof = process_answer(client, &answer).unwrap();
        let outcome = feed(&mut server, &flip_bit(&proof, bit)).0;
        assert_eq!(outcome, Err(AuthRefusal::WrongProof), "bit {bit}");
    }
}

#[test]
fn flipped_bit_in_server_answer_is_detected() {
    for bit in 0..(4 + ANSWER_BYTES) * 8 {
        let (client, answer) = challenge_server(&mut server());
        let auth_failure = process_answer(client, &flip_bit(&answer, bit)).unwrap_err();
        let is_word = bit < 32;
        assert_eq!(matches!(auth_failure, AuthFailure::NotAStore(_)), is_word, "bit {bit}");
        assert_eq!(auth_failure == AuthFailure::SecretMismatch, !is_word, "bit {bit}");
    }
}

#[test]
fn partial_message_gets_no_answer() {
    for length in 0..MESSAGE_BYTES {
        let mut server = server();
        let (_, challenge) = ClientHandshake::begin(&secret()).unwrap();
        let result = feed(&mut server, &challenge[..length]);
        assert_eq!(result, (Ok(AuthProgress::Incomplete), Vec::new()), "{length} bytes");
        let mut server = self::server();
        let (client, answer) = challenge_server(&mut server);
        let proof = process_answer(client, &answer).unwrap();
        let result = feed(&mut server, &proof[..length]);
        assert_eq!(result, (Ok(AuthProgress::Incomplete), Vec::new()), "{length} bytes");
    }
}

#[test]
fn errors_give_a_remedy_and_hide_the_secret() {
    for (auth_failure, kind, is_final, word) in [
        (AuthFailure::SecretRequired, ErrorKind::Auth, true, "DIST_STORE_SECRET_FILE"),
        (AuthFailure::NoSecret, ErrorKind::Auth, true, "start the store with"),
        (AuthFailure::Denied, ErrorKind::Auth, true, "another job's store"),
        (AuthFailure::SecretMismatch, ErrorKind::Auth, true, "another job's store"),
        (AuthFailure::NoAnswer, ErrorKind::Auth, false, "torch's"),
        (AuthFailure::NotAStore(*b"HTTP"), ErrorKind::Connection, true, "\"HTTP\""),
    ] {
        let error = auth_failure.to_error(&"node1:7");
        assert_eq!((error.kind(), auth_failure.is_final()), (kind, is_final), "{error}");
        assert!(error.message().contains("node1:7"), "{error}");
        assert!(error.message().contains(word), "{error}");
    }
    let mut server = server();
    let (client, _) = challenge_server(&mut server);
    for text in [format!("{server:?}"), format!("{client:?}")] {
        assert!(text.contains("Secret(..)") && !text.contains("horse"), "{text}");
    }
}
