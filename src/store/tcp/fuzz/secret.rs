//! Fuzzes both sides of the handshake, and an attacker between them. A run is of one of two kinds:
//!
//! * It sends the bytes of the script to a server, in arbitrary pieces.
//! * It runs an exchange of a client and a server, whose secrets are equal or different. The
//!   attacker may change one byte of the exchange.
//!
//! A script's first byte selects the secrets, the kind of run, and which sides require encryption.

use super::super::handshake::{
    ANSWER_BYTES, AuthProgress, CHALLENGE_BYTES, ClientHandshake, ServerHandshake, ServerReply,
    StoreSecurity,
};
use crate::base::fuzz::FuzzScript;
use crate::security::{CipherSet, Secret};

/// An upper bound for the length of any word and answer of a server.
const MAX_SERVER_BYTES: usize = 4 + ANSWER_BYTES;

/// Runs a script.
///
/// # Panics
/// If a side accepts a wrong proof, or if an unchanged exchange fails although the secrets are
/// equal.
pub fn secret(input: &[u8]) {
    let mut script = FuzzScript(input);
    let Some(mode) = script.next_byte() else { return };
    let server_secret = (mode & 1 == 0).then(|| make_secret(b"one"));
    let client_secret = make_secret(if mode & 2 == 0 { b"one" } else { b"other" });
    let security = StoreSecurity { secret: server_secret, encrypts: mode & 8 != 0, is_open: false };
    let has_secret = security.secret.is_some();
    let server = ServerHandshake::new(&security, CipherSet::of_this_processor());
    if mode & 4 == 0 {
        feed_script(server, has_secret, &mut script);
    } else {
        let is_requested = has_secret && security.encrypts && mode & 16 == 0;
        let is_same = has_secret && mode & 2 == 0;
        let client = FuzzedClient { secret: client_secret, encrypts: mode & 16 != 0 };
        run_exchange(server, &client, is_requested, is_same, &mut script);
    }
}

fn make_secret(words: &[u8]) -> Secret {
    Secret::from_bytes(words).expect("a secret of fit length")
}

/// Sends arbitrary bytes in pieces to a server.
fn feed_script(mut server: ServerHandshake, has_secret: bool, script: &mut FuzzScript<'_>) {
    let mut output = Vec::new();
    let mut is_first = true;
    while let Some(length) = script.next_byte() {
        let mut piece = script.take_bytes(usize::from(length));
        let (whole, before) = (piece.len(), output.len());
        let outcome = server.advance(&mut piece, &mut output);
        assert!(output.len() <= 2 * MAX_SERVER_BYTES, "{} bytes of replies", output.len());
        match outcome {
            Ok(AuthProgress::Incomplete) => assert!(piece.is_empty(), "unread bytes remain"),
            Ok(AuthProgress::Complete) => {
                assert!(!has_secret, "a wrong proof was accepted");
                assert!(is_first && piece.len() == whole, "bytes of a request were consumed");
                assert_eq!(output.len(), before, "the server replied to a client without a secret");
                return;
            }
            Err(refusal) => {
                assert!(piece.is_empty(), "unread bytes remain");
                // The rejection is final, and the server sends no more bytes.
                let output_len = output.len();
                assert_eq!(server.advance(&mut &b"more"[..], &mut output), Err(refusal));
                assert_eq!(output.len(), output_len);
                return;
            }
        }
        is_first &= whole == 0;
    }
}

/// The client of an exchange.
struct FuzzedClient {
    secret: Secret,
    encrypts: bool,
}

impl FuzzedClient {
    fn begin(&self, encrypts: bool) -> (ClientHandshake, [u8; CHALLENGE_BYTES]) {
        let ciphers = CipherSet::of_this_processor();
        ClientHandshake::begin(&self.secret, ciphers, ciphers, encrypts).expect("random bytes")
    }
}

/// Runs the exchange of a client and a server. If only the server requires encryption, it requests
/// another challenge (`is_requested`), which the attacker does not change. The script selects the
/// byte that the attacker changes, and the pieces in which the client's messages arrive.
fn run_exchange(
    mut server: ServerHandshake,
    fuzzed: &FuzzedClient,
    is_requested: bool,
    is_same: bool,
    script: &mut FuzzScript<'_>,
) {
    let (mut client, mut challenge) = fuzzed.begin(fuzzed.encrypts);
    if is_requested {
        let mut word = Vec::new();
        let outcome = send_in_two_pieces(&mut server, &challenge, 0, &mut word);
        assert_eq!(outcome, Ok(AuthProgress::Incomplete), "a challenge was refused");
        let word = word.try_into().expect("a word");
        assert_eq!(
            ClientHandshake::check_server_word(word),
            Ok(ServerReply::EncryptionRequired),
            "a challenge without encryption was accepted"
        );
        (client, challenge) = fuzzed.begin(true);
    }
    let is_encrypted = is_requested || fuzzed.encrypts;
    let (selector, cut) =
        (script.next_byte().unwrap_or_default(), script.next_byte().unwrap_or_default());
    let (position, change) =
        (script.next_byte().unwrap_or_default(), script.next_byte().unwrap_or_default());
    let corrupt = |at: u8, bytes: &mut [u8]| {
        let offset = usize::from(position) % bytes.len();
        let is_corrupted_now = selector & 3 == at && change != 0;
        bytes[offset] ^= if is_corrupted_now { change } else { 0 };
        is_corrupted_now
    };
    let is_corrupted = corrupt(0, &mut challenge);
    let mut answer = Vec::new();
    if send_in_two_pieces(&mut server, &challenge, cut, &mut answer).is_err() {
        assert!(is_corrupted || !is_same, "a correct client was refused");
        return;
    }
    // A server without a secret takes a changed challenge for requests, and does not answer.
    let Ok(mut answer) = <[u8; MAX_SERVER_BYTES]>::try_from(answer) else {
        assert!(!is_same || is_corrupted, "a server with the right secret did not reply");
        return;
    };
    assert!(is_same && !is_corrupted, "a wrong challenge was answered");
    let is_corrupted = corrupt(1, &mut answer);
    let (word, rest) = answer.split_at(4);
    let word_check = ClientHandshake::check_server_word(word.try_into().expect("four bytes"));
    let rest: &[u8; ANSWER_BYTES] = rest.try_into().expect("the answer's length");
    let is_answer = word_check == Ok(ServerReply::Answer);
    let proof = word_check.and_then(|_| client.finish(rest));
    let is_accepted = is_answer && proof.is_ok();
    assert_eq!(is_accepted, !is_corrupted, "the client's verdict on the server's proof is wrong");
    let Ok((mut proof, keys)) = proof else { return };
    assert_eq!(keys.is_some(), is_encrypted, "the client has no keys, or keys without need");
    let is_corrupted = corrupt(2, &mut proof) || is_corrupted;
    let outcome = send_in_two_pieces(&mut server, &proof, cut, &mut Vec::new());
    let is_done = outcome == Ok(AuthProgress::Complete);
    assert_eq!(
        is_done, !is_corrupted,
        "the server's verdict on the client's proof is wrong: {outcome:?}"
    );
    assert_eq!(server.take_keys().is_some(), is_done && is_encrypted);
}

/// Sends a message in two pieces.
fn send_in_two_pieces(
    server: &mut ServerHandshake,
    message: &[u8],
    cut: u8,
    answer: &mut Vec<u8>,
) -> Result<AuthProgress, super::super::handshake::AuthRefusal> {
    let (mut first, mut second) = message.split_at(usize::from(cut) % message.len());
    server.advance(&mut first, answer)?;
    server.advance(&mut second, answer)
}
