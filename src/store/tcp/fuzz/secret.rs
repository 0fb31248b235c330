//! The two sides of the handshake and whoever stands between them: a script's bytes to a server,
//! cut anywhere, and a right or spoilt exchange of a client and a server that share a secret or do
//! not.
//!
//! A script's first byte chooses the secrets, and whether the server hears a client or the script.

use super::super::handshake::{ANSWER_BYTES, ClientHandshake, Progress, ServerHandshake};
use super::super::secret::Secret;
use crate::base::fuzz::Script;

/// More than any word and answer of a server.
const MOST_SAID: usize = 4 + ANSWER_BYTES;

/// Runs a script.
///
/// # Panics
/// Where a proof is taken that was not given, or the two do not understand each other.
pub fn secret(input: &[u8]) {
    let mut script = Script(input);
    let Some(mode) = script.byte() else { return };
    let theirs = (mode & 1 == 0).then(|| known(b"one"));
    let ours = known(if mode & 2 == 0 { b"one" } else { b"other" });
    let server = ServerHandshake::new(theirs.as_ref()).expect("random bytes");
    if mode & 4 == 0 {
        hear(server, theirs.is_some(), &mut script);
    } else {
        meet(server, &ours, theirs.is_some() && mode & 2 == 0, &mut script);
    }
}

fn known(words: &[u8]) -> Secret {
    Secret::from_bytes(words).expect("a secret of fit length")
}

/// A server hears arbitrary bytes in pieces.
fn hear(mut server: ServerHandshake, has_secret: bool, script: &mut Script<'_>) {
    let mut said = Vec::new();
    let mut is_first = true;
    while let Some(length) = script.byte() {
        let mut piece = script.take(usize::from(length));
        let (whole, before) = (piece.len(), said.len());
        let outcome = server.take(&mut piece, &mut said);
        assert!(said.len() <= 2 * MOST_SAID, "{} bytes of answers", said.len());
        match outcome {
            Ok(Progress::More) => assert!(piece.is_empty(), "bytes were left over"),
            Ok(Progress::Done) => {
                assert!(!has_secret, "a proof that cannot have been right was taken");
                assert!(is_first && piece.len() == whole, "bytes of a request were taken");
                assert_eq!(said.len(), before, "it said something to a client without a secret");
                return;
            }
            Err(refusal) => {
                assert!(piece.is_empty(), "bytes were left over");
                // It stays with that, and says nothing more.
                let ended = said.len();
                assert_eq!(server.take(&mut &b"more"[..], &mut said), Err(refusal));
                assert_eq!(said.len(), ended);
                return;
            }
        }
        is_first &= whole == 0;
    }
}

/// A client and a server meet; a script says where one byte is changed on the way, and how the
/// client's are cut.
fn meet(mut server: ServerHandshake, ours: &Secret, is_same: bool, script: &mut Script<'_>) {
    let (client, mut challenge) = ClientHandshake::begin(ours).expect("random bytes");
    let (asks, cut) = (script.byte().unwrap_or_default(), script.byte().unwrap_or_default());
    let (place, change) = (script.byte().unwrap_or_default(), script.byte().unwrap_or_default());
    let spoils = |at: u8, bytes: &mut [u8]| {
        let place = usize::from(place) % bytes.len();
        let is_here = asks & 3 == at && change != 0;
        bytes[place] ^= if is_here { change } else { 0 };
        is_here
    };
    let spoilt = spoils(0, &mut challenge);
    let mut answer = Vec::new();
    if deliver(&mut server, &challenge, cut, &mut answer).is_err() {
        assert!(spoilt || !is_same, "a client was refused that had done nothing wrong");
        return;
    }
    let Ok(mut answer) = <[u8; MOST_SAID]>::try_from(answer) else {
        assert!(!is_same || spoilt, "a server that knows the secret did not answer");
        return;
    };
    let spoilt = spoils(1, &mut answer) || spoilt;
    let (word, rest) = answer.split_at(4);
    let greeted = ClientHandshake::greet(word.try_into().expect("four bytes"));
    let rest: &[u8; ANSWER_BYTES] = rest.try_into().expect("the answer's length");
    let proof = greeted.and_then(|()| client.finish(rest));
    assert_eq!(proof.is_ok(), is_same && !spoilt, "what the client makes of the server's proof");
    let Ok(mut proof) = proof else { return };
    let spoilt = spoils(2, &mut proof) || spoilt;
    let outcome = deliver(&mut server, &proof, cut, &mut Vec::new());
    let is_done = outcome == Ok(Progress::Done);
    assert_eq!(is_done, !spoilt, "what the server makes of the client's proof: {outcome:?}");
}

/// Hands a message over in two pieces.
fn deliver(
    server: &mut ServerHandshake,
    message: &[u8],
    cut: u8,
    answer: &mut Vec<u8>,
) -> Result<Progress, super::super::handshake::Refusal> {
    let (mut first, mut second) = message.split_at(usize::from(cut) % message.len());
    server.take(&mut first, answer)?;
    server.take(&mut second, answer)
}
