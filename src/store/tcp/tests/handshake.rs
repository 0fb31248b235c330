//! Tests of the handshake: exchanges of client and server whose messages are cut at any byte, and
//! all kinds of messages that a side must reject.

use super::super::handshake::{
    ANSWER_BYTES, AuthFailure, AuthProgress, AuthRefusal, CHALLENGE_BYTES, ClientHandshake,
    PROOF_BYTES, ServerHandshake, ServerReply, StoreSecurity,
};
use super::{HELLO, hex_bytes};
use crate::base::ErrorKind;
use crate::security::connection_keys::ConnectionKeys;
use crate::security::{CipherSet, Secret};
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
    server_with(Some(secret()), false, CipherSet::of_this_processor())
}

fn server_with(secret: Option<Secret>, encrypts: bool, ciphers: CipherSet) -> ServerHandshake {
    ServerHandshake::new(&StoreSecurity { secret, encrypts, is_open: false }, ciphers)
}

fn server_without_secret() -> ServerHandshake {
    server_with(None, false, CipherSet::of_this_processor())
}

/// Starts the handshake of a client with this secret.
fn begin(secret: &Secret) -> (ClientHandshake, [u8; CHALLENGE_BYTES]) {
    let ciphers = CipherSet::of_this_processor();
    ClientHandshake::begin(secret, ciphers, ciphers, false).unwrap()
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
    let (client, challenge) = begin(&secret());
    let (outcome, answer) = feed(server, &challenge);
    assert_eq!(outcome, Ok(AuthProgress::Incomplete));
    (client, answer)
}

/// Passes a complete answer of the server to the client.
fn process_answer(
    client: ClientHandshake,
    answer: &[u8],
) -> Result<[u8; PROOF_BYTES], AuthFailure> {
    let (word, rest) = answer.split_first_chunk().unwrap();
    assert_eq!(ClientHandshake::check_server_word(*word)?, ServerReply::Answer);
    client.finish(rest.try_into().unwrap()).map(|(proof, keys)| {
        assert!(keys.is_none());
        proof
    })
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
        let (client, challenge) = begin(&secret());
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
        bytes in vec(prop_oneof![Just(0_u8), 66_u8..68, any::<u8>()], 1..200),
        sizes in vec(1_usize..50, 1..10),
    ) {
        let (outcome, output, _) = feed_in_pieces(&mut server(), &bytes, &sizes);
        prop_assert_ne!(outcome, Ok(AuthProgress::Complete));
        prop_assert!(output.len() <= 4 + ANSWER_BYTES + 4);
    }
}

#[test]
fn client_uses_the_suite_that_the_server_supports() {
    let (all, few) = (CipherSet::of_this_processor(), CipherSet::EVERY_PROCESSOR);
    let mut server = server_with(Some(secret()), false, few);
    let (mut client, mut challenge) = begin(&secret());
    if all != few {
        let (outcome, output) = feed(&mut server, &challenge);
        assert_eq!((outcome, &output[..]), (Ok(AuthProgress::Incomplete), &b"CHAC"[..]));
        assert_eq!(ClientHandshake::check_server_word(*b"CHAC"), Ok(ServerReply::OtherSuite));
        (client, challenge) = ClientHandshake::begin(&secret(), all, few, false).unwrap();
    }
    let (_, answer) = feed(&mut server, &challenge);
    let proof = process_answer(client, &answer).unwrap();
    assert_eq!(feed(&mut server, &proof), (Ok(AuthProgress::Complete), Vec::new()));
}

#[test]
fn forced_change_of_the_suite_is_refused() {
    let (all, few) = (CipherSet::of_this_processor(), CipherSet::EVERY_PROCESSOR);
    if all == few {
        return;
    }
    let (_, challenge) = ClientHandshake::begin(&secret(), all, few, false).unwrap();
    let denied = (Err(AuthRefusal::WrongProof), b"DENY".to_vec());
    assert_eq!(feed(&mut server(), &challenge), denied);
    // An attacker that hides the better suite changes the prologue.
    let mut hidden = challenge;
    hidden[1] = few.number();
    assert_eq!(feed(&mut server(), &hidden), denied);
    // A server requests another suite only once.
    let mut server = server_with(Some(secret()), false, few);
    let (_, challenge) = begin(&secret());
    assert_eq!(feed(&mut server, &challenge).1, b"CHAC");
    assert_eq!(feed(&mut server, &challenge), denied);
}

#[test]
fn server_without_secret_accepts_plain_clients() {
    let mut plain_server = server_without_secret();
    let hello = hex_bytes(HELLO);
    assert_eq!(
        feed_in_pieces(&mut plain_server, &hello, &[3]),
        (Ok(AuthProgress::Complete), Vec::new(), hello)
    );
}

#[test]
fn wrong_secret_is_reported_to_both_sides() {
    let mut server = server();
    let (_, challenge) = begin(&other_secret());
    let challenge = [&challenge[..], &hex_bytes(HELLO)].concat();
    let (outcome, output, left) = feed_in_pieces(&mut server, &challenge, &[1000]);
    assert_eq!((outcome, &output[..]), (Err(AuthRefusal::WrongProof), &b"DENY"[..]));
    assert!(left.is_empty());
    assert_eq!(AuthFailure::from_word(*b"DENY"), Some(AuthFailure::Denied));
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

    let mut plain_server = server_without_secret();
    let (_, challenge) = begin(&secret());
    assert_eq!(
        feed(&mut plain_server, &challenge[..32]),
        (Ok(AuthProgress::Incomplete), Vec::new())
    );
    let (outcome, output) = feed(&mut plain_server, &challenge[32..]);
    assert_eq!((outcome, &output[..]), (Err(AuthRefusal::NoSecret), &b"OPEN"[..]));
}

#[test]
fn unknown_first_byte_gets_no_answer() {
    for first in (0..=255).filter(|byte| ![0, 66].contains(byte)) {
        let outcome = feed(&mut server(), &[first]);
        assert_eq!(outcome, (Err(AuthRefusal::UnexpectedFirstByte(first)), Vec::new()));
    }
}

#[test]
fn proof_is_valid_only_on_its_own_connection() {
    let (mut first, mut second) = (server(), server());
    let (client, challenge) = begin(&secret());
    let (_, answer) = feed(&mut first, &challenge);
    let proof = process_answer(client, &answer).unwrap();
    assert_eq!(feed(&mut first, &proof).0, Ok(AuthProgress::Complete));
    // Replay of a proof to another server, and of an old answer to another client.
    assert_eq!(feed(&mut second, &challenge).0, Ok(AuthProgress::Incomplete));
    assert_eq!(feed(&mut second, &proof), (Err(AuthRefusal::WrongProof), b"DENY".to_vec()));
    let (client, _) = begin(&secret());
    assert_eq!(process_answer(client, &answer), Err(AuthFailure::SecretMismatch));
}

#[test]
fn server_answer_is_not_accepted_from_a_client() {
    let mut server = server();
    let (_, answer) = challenge_server(&mut server);
    let mirrored = [&[67][..], &answer[answer.len() - 16..]].concat();
    assert_eq!(feed(&mut server, &mirrored).0, Err(AuthRefusal::WrongProof));
    // A client gets its own challenge back.
    let (client, challenge) = begin(&secret());
    let mirrored = [&b"KNOW"[..], &challenge[4..]].concat();
    assert_eq!(process_answer(client, &mirrored), Err(AuthFailure::SecretMismatch));
}

#[test]
fn flipped_bit_in_client_messages_is_detected() {
    for bit in 0..CHALLENGE_BYTES * 8 {
        let (_, challenge) = begin(&secret());
        let outcome = feed(&mut server(), &flip_bit(&challenge, bit)).0;
        assert!(outcome.is_err(), "bit {bit}: {outcome:?}");
    }
    for bit in 0..PROOF_BYTES * 8 {
        let mut server = server();
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
    for length in 0..CHALLENGE_BYTES {
        let mut server = server();
        let (_, challenge) = begin(&secret());
        let result = feed(&mut server, &challenge[..length]);
        assert_eq!(result, (Ok(AuthProgress::Incomplete), Vec::new()), "{length} bytes");
    }
    for length in 0..PROOF_BYTES {
        let mut server = server();
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
        assert!(!text.contains("horse") && !text.contains("psk"), "{text}");
    }
}

/// Runs a handshake whose sides may require encryption. Returns the replies of the server before
/// its answer, and the keys of both sides.
fn exchange(
    server_encrypts: bool,
    client_encrypts: bool,
) -> (Vec<Vec<u8>>, [Option<ConnectionKeys>; 2]) {
    let ciphers = CipherSet::of_this_processor();
    let mut server = server_with(Some(secret()), server_encrypts, ciphers);
    let (mut words, mut encrypts) = (Vec::new(), client_encrypts);
    loop {
        let (client, challenge) =
            ClientHandshake::begin(&secret(), ciphers, ciphers, encrypts).unwrap();
        let (_, answer) = feed(&mut server, &challenge);
        let (word, rest) = answer.split_first_chunk().unwrap();
        match ClientHandshake::check_server_word(*word).unwrap() {
            ServerReply::Answer => {
                let (proof, keys) = client.finish(rest.try_into().unwrap()).unwrap();
                assert_eq!(feed(&mut server, &proof).0, Ok(AuthProgress::Complete));
                return (words, [keys, server.take_keys()]);
            }
            _ => words.push(answer),
        }
        encrypts = true;
    }
}

#[test]
fn connection_is_encrypted_if_one_side_requires_it() {
    for (server, client) in [(false, false), (false, true), (true, false), (true, true)] {
        let (words, keys) = exchange(server, client);
        let expected = if server && !client { vec![b"CRYP".to_vec()] } else { Vec::new() };
        assert_eq!(words, expected);
        let [client_keys, server_keys] = keys;
        assert_eq!(client_keys.is_some(), server || client);
        assert_eq!(server_keys.is_some(), server || client);
        let (Some(client_keys), Some(server_keys)) = (client_keys, server_keys) else { continue };
        let (near, far) = (client_keys.record_ciphers(), server_keys.record_ciphers());
        for (from, to) in [(&near, &far), (&far, &near)] {
            let mut text = *b"text";
            let tag = from.sealing.seal(1, b"header", &mut text);
            assert_ne!(&text, b"text");
            assert_eq!(to.opening.open(1, b"header", &mut text, &tag), Ok(()));
            assert_eq!(&text, b"text");
        }
    }
}

#[test]
fn encryption_cannot_be_removed_from_a_challenge() {
    let ciphers = CipherSet::of_this_processor();
    let begin = |encrypts| ClientHandshake::begin(&secret(), ciphers, ciphers, encrypts).unwrap();
    let denied = (Err(AuthRefusal::WrongProof), b"DENY".to_vec());
    for flag in [0, 2, 0xff] {
        let (_, mut challenge) = begin(true);
        challenge[3] = flag;
        assert_eq!(feed(&mut server(), &challenge), denied);
    }
    let (_, mut challenge) = begin(false);
    challenge[3] = 1;
    assert_eq!(feed(&mut server(), &challenge), denied);
    // A server that requires encryption requests it once, and then refuses.
    let mut server = server_with(Some(secret()), true, ciphers);
    assert_eq!(feed(&mut server, &begin(false).1).1, b"CRYP");
    assert_eq!(feed(&mut server, &begin(false).1), denied);
}
