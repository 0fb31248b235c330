//! The handshake: the two sides with each other, however the bytes are cut; and everything that
//! must not get through.

use super::super::Secret;
use super::super::handshake::{
    ANSWER_BYTES, ClientHandshake, MESSAGE_BYTES, Obstacle, Progress, Refusal, ServerHandshake,
};
use super::{HELLO, bytes};
use crate::base::ErrorKind;
use proptest::collection::vec;
use proptest::prelude::*;

const WORDS: &[u8] = b"correct horse battery staple";

fn secret() -> Secret {
    Secret::from_bytes(WORDS).unwrap()
}

fn other() -> Secret {
    Secret::from_bytes(b"Correct horse battery staple").unwrap()
}

fn server() -> ServerHandshake {
    ServerHandshake::new(Some(&secret())).unwrap()
}

type Outcome = Result<Progress, Refusal>;

/// What a server says to these bytes, taken in pieces of these sizes, over and over; how it went,
/// and what it left.
fn say(server: &mut ServerHandshake, bytes: &[u8], sizes: &[usize]) -> (Outcome, Vec<u8>, Vec<u8>) {
    let mut output = Vec::new();
    let mut left = bytes;
    for &size in sizes.iter().cycle() {
        let (mut piece, rest) = left.split_at(left.len().min(size));
        let outcome = server.take(&mut piece, &mut output);
        left = &left[left.len() - rest.len() - piece.len()..];
        if outcome != Ok(Progress::More) || left.is_empty() {
            return (outcome, output, left.to_vec());
        }
    }
    unreachable!("there are sizes, over and over")
}

/// The same in one piece, without what was left.
fn tell(server: &mut ServerHandshake, bytes: &[u8]) -> (Outcome, Vec<u8>) {
    let (outcome, output, _) = say(server, bytes, &[1000]);
    (outcome, output)
}

/// A challenge, and this server's answer to it.
fn challenged(server: &mut ServerHandshake) -> (ClientHandshake, Vec<u8>) {
    let (client, challenge) = ClientHandshake::begin(&secret()).unwrap();
    let (outcome, answer) = tell(server, &challenge);
    assert_eq!(outcome, Ok(Progress::More));
    (client, answer)
}

/// What a client makes of a whole answer.
fn answered(client: ClientHandshake, answer: &[u8]) -> Result<[u8; MESSAGE_BYTES], Obstacle> {
    let (word, rest) = answer.split_first_chunk().unwrap();
    ClientHandshake::greet(*word)?;
    client.finish(rest.try_into().unwrap())
}

/// A copy with one bit changed.
fn flipped(bytes: &[u8], bit: usize) -> Vec<u8> {
    let mut copy = bytes.to_vec();
    copy[bit / 8] ^= 1 << (bit % 8);
    copy
}

proptest! {
    #[test]
    fn both_sides_agree_however_the_bytes_are_cut(sizes in vec(1_usize..50, 1..10)) {
        let mut server = server();
        let (client, challenge) = ClientHandshake::begin(&secret()).unwrap();
        let (outcome, answer, left) = say(&mut server, &challenge, &sizes);
        prop_assert_eq!((outcome, left.len()), (Ok(Progress::More), 0));
        let mut bytes = answered(client, &answer).unwrap().to_vec();
        bytes.extend(b"what follows");
        let (outcome, output, left) = say(&mut server, &bytes, &sizes);
        prop_assert_eq!((outcome, output.len()), (Ok(Progress::Done), 0));
        prop_assert_eq!(left, b"what follows");
    }

    #[test]
    fn nothing_gets_through_by_chance(
        bytes in vec(prop_oneof![Just(0_u8), 64_u8..66, any::<u8>()], 1..200),
        sizes in vec(1_usize..50, 1..10),
    ) {
        let (outcome, output, _) = say(&mut server(), &bytes, &sizes);
        prop_assert_ne!(outcome, Ok(Progress::Done));
        prop_assert!(output.len() <= 4 + ANSWER_BYTES + 4);
    }
}

#[test]
fn the_bytes_are_those_of_the_table() {
    let mut server = server();
    let challenge = [&[64][..], &[7; 32]].concat();
    let (_, answer) = tell(&mut server, &challenge);
    assert_eq!((&answer[..4], answer.len()), (&b"KNOW"[..], 68));
    let nonce = &answer[4..36];
    assert_eq!(secret().hash(&[b"libdist store server", &[7; 32], nonce]), answer[36..]);
    let proof = secret().hash(&[b"libdist store client", &[7; 32], nonce]);
    let proof = [&[65][..], proof.as_bytes()].concat();
    assert_eq!(tell(&mut server, &proof), (Ok(Progress::Done), Vec::new()));
}

#[test]
fn without_a_secret_nothing_changes_for_clients_without_one() {
    let mut open = ServerHandshake::new(None).unwrap();
    let hello = bytes(HELLO);
    assert_eq!(say(&mut open, &hello, &[3]), (Ok(Progress::Done), Vec::new(), hello));
}

#[test]
fn whoever_does_not_know_the_secret_is_told_so() {
    // A client with another one closes the connection; if it goes on all the same, the server does.
    let mut server = server();
    let (client, challenge) = ClientHandshake::begin(&other()).unwrap();
    let (_, answer) = tell(&mut server, &challenge);
    assert_eq!(answered(client, &answer), Err(Obstacle::OtherSecret));
    let wrong = other().hash(&[b"libdist store client", &challenge[1..], &answer[4..36]]);
    let wrong = [&[65][..], wrong.as_bytes(), &bytes(HELLO)].concat();
    let (outcome, output, left) = say(&mut server, &wrong, &[1000]);
    assert_eq!((outcome, &output[..]), (Err(Refusal::WrongProof), &b"DENY"[..]));
    assert!(left.is_empty());
    // Nor does it listen any longer.
    assert_eq!(tell(&mut server, &challenge), (Err(Refusal::WrongProof), Vec::new()));
}

#[test]
fn clients_of_the_other_kind_are_heard_out_and_told_why() {
    let hello = bytes(HELLO);
    let (outcome, output, left) = say(&mut server(), &hello, &[9]);
    assert_eq!((outcome, &output[..]), (Err(Refusal::SecretNeeded), &b"AUTH"[..]));
    assert!(left.is_empty());
    assert_eq!(tell(&mut server(), &hello[..9]), (Ok(Progress::More), Vec::new()));

    let mut open = ServerHandshake::new(None).unwrap();
    let (_, challenge) = ClientHandshake::begin(&secret()).unwrap();
    assert_eq!(tell(&mut open, &challenge[..32]), (Ok(Progress::More), Vec::new()));
    let (outcome, output) = tell(&mut open, &challenge[32..]);
    assert_eq!((outcome, &output[..]), (Err(Refusal::NoSecret), &b"OPEN"[..]));
}

#[test]
fn strangers_are_told_nothing() {
    for first in (0..=255).filter(|byte| ![0, 64].contains(byte)) {
        let outcome = tell(&mut server(), &[first]);
        assert_eq!(outcome, (Err(Refusal::Stranger(first)), Vec::new()));
    }
}

#[test]
fn a_proof_counts_on_its_own_connection_only() {
    let (mut first, mut second) = (server(), server());
    let (client, challenge) = ClientHandshake::begin(&secret()).unwrap();
    let (_, answer) = tell(&mut first, &challenge);
    let proof = answered(client, &answer).unwrap();
    assert_eq!(tell(&mut first, &proof).0, Ok(Progress::Done));
    // The same words said to another server, or an old server's answer to another client.
    assert_eq!(tell(&mut second, &challenge).0, Ok(Progress::More));
    assert_eq!(tell(&mut second, &proof), (Err(Refusal::WrongProof), b"DENY".to_vec()));
    let (client, _) = ClientHandshake::begin(&secret()).unwrap();
    assert_eq!(answered(client, &answer), Err(Obstacle::OtherSecret));
}

#[test]
fn a_servers_own_proof_is_none_of_a_clients() {
    let mut server = server();
    let (_, answer) = challenged(&mut server);
    let mirrored = [&[65][..], &answer[36..]].concat();
    assert_eq!(tell(&mut server, &mirrored).0, Err(Refusal::WrongProof));
}

#[test]
fn every_changed_bit_of_a_clients_messages_is_noticed() {
    for bit in 0..MESSAGE_BYTES * 8 {
        let mut server = server();
        let (client, challenge) = ClientHandshake::begin(&secret()).unwrap();
        let (outcome, answer) = tell(&mut server, &flipped(&challenge, bit));
        if bit >= 8 {
            // Another challenge gets another proof.
            assert_eq!(outcome, Ok(Progress::More), "bit {bit}");
            assert_eq!(answered(client, &answer), Err(Obstacle::OtherSecret), "bit {bit}");
        } else {
            assert!(outcome.is_err(), "bit {bit}");
        }
        let mut server = self::server();
        let (client, answer) = challenged(&mut server);
        let proof = answered(client, &answer).unwrap();
        let outcome = tell(&mut server, &flipped(&proof, bit)).0;
        assert_eq!(outcome, Err(Refusal::WrongProof), "bit {bit}");
    }
}

#[test]
fn every_changed_bit_of_a_servers_answer_is_noticed() {
    for bit in 0..(4 + ANSWER_BYTES) * 8 {
        let (client, answer) = challenged(&mut server());
        let obstacle = answered(client, &flipped(&answer, bit)).unwrap_err();
        let is_word = bit < 32;
        assert_eq!(matches!(obstacle, Obstacle::NotAStore(_)), is_word, "bit {bit}");
        assert_eq!(obstacle == Obstacle::OtherSecret, !is_word, "bit {bit}");
    }
}

#[test]
fn no_part_of_a_message_is_enough() {
    for length in 0..MESSAGE_BYTES {
        let mut server = server();
        let (_, challenge) = ClientHandshake::begin(&secret()).unwrap();
        let said = tell(&mut server, &challenge[..length]);
        assert_eq!(said, (Ok(Progress::More), Vec::new()), "{length} bytes");
        let mut server = self::server();
        let (client, answer) = challenged(&mut server);
        let proof = answered(client, &answer).unwrap();
        let said = tell(&mut server, &proof[..length]);
        assert_eq!(said, (Ok(Progress::More), Vec::new()), "{length} bytes");
    }
}

#[test]
fn users_are_told_what_to_do_and_nobody_is_told_the_secret() {
    for (obstacle, kind, is_final, word) in [
        (Obstacle::SecretNeeded, ErrorKind::Auth, true, "DIST_STORE_SECRET_FILE"),
        (Obstacle::NoSecret, ErrorKind::Auth, true, "start that store with it"),
        (Obstacle::Denied, ErrorKind::Auth, true, "another job's store"),
        (Obstacle::OtherSecret, ErrorKind::Auth, true, "another job's store"),
        (Obstacle::NoAnswer, ErrorKind::Auth, false, "torch's"),
        (Obstacle::NotAStore(*b"HTTP"), ErrorKind::Connection, true, "\"HTTP\""),
    ] {
        let error = obstacle.error(&"node1:7");
        assert_eq!((error.kind(), obstacle.is_final()), (kind, is_final), "{error}");
        assert!(error.message().contains("node1:7"), "{error}");
        assert!(error.message().contains(word), "{error}");
    }
    let mut server = server();
    let (client, _) = challenged(&mut server);
    for text in [format!("{server:?}"), format!("{client:?}")] {
        assert!(text.contains("Secret(..)") && !text.contains("horse"), "{text}");
    }
}
