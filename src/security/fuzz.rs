//! Entry points for the fuzz targets of the handshake and of the records. They take arbitrary bytes
//! as a script, and panic if a side gives the wrong verdict on a message.
//!
//! This module is compiled only for fuzzing and for tests.
#![allow(clippy::panic, clippy::expect_used, reason = "a fuzz target reports a finding by a panic")]

use super::handshake::{
    CONFIRMATION_BYTES, HandshakeInitiator, HandshakeResponder, HandshakeTerms, MESSAGE_BYTES,
};
use super::{CipherSet, CipherSuite, Secret, connection_keys};
use crate::base::buffer::Dst;
use crate::base::fuzz::FuzzScript;
use crate::sys::record_layer::{OpenerState, RecordOpener, RecordSealer};

/// Runs a script. Its first byte says which terms the two sides have in common. The second byte
/// selects the message that the attacker changes, and the third one the byte of it; the attacker
/// adds the fourth byte to it. If the first byte has its highest bit set, the attacker replaces the
/// message by the rest of the script.
///
/// # Panics
/// If a side accepts a changed message or different terms, or refuses an exchange without either.
pub fn handshake(input: &[u8]) {
    let mut script = FuzzScript(input);
    let mode = script.next_byte().unwrap_or_default();
    let secrets = [b"one", b"two"].map(|text| Secret::from_bytes(text).expect("of fit length"));
    let other_secret = usize::from(mode & 1);
    let prologues: [&[u8]; 2] = [b"from rank 0 to rank 1", b"from rank 1 to rank 0"];
    let other_prologue = usize::from(mode >> 1 & 1);
    let suites = [CipherSuite::ChaChaPoly, {
        let own = CipherSet::of_this_processor();
        own.best_common(own)
    }];
    let (suite, other_suite) = (usize::from(mode >> 2 & 1), usize::from(mode >> 3 & 1));
    let terms = |secret: usize, prologue: usize, suite: usize| HandshakeTerms {
        secret: &secrets[secret],
        prologue: prologues[prologue],
        cipher: suites[suite],
        encrypts: mode & 0x10 != 0,
    };
    let (own, peer) = (terms(0, 0, suite), terms(other_secret, other_prologue, other_suite));
    let is_same = other_secret == 0 && other_prologue == 0 && suites[suite] == suites[other_suite];
    let mut attacker = Attacker::new(mode & 0x80 != 0, script);
    run_exchange(own, peer, is_same, &mut attacker);
}

fn run_exchange(
    own: HandshakeTerms<'_>,
    peer: HandshakeTerms<'_>,
    is_same: bool,
    attacker: &mut Attacker<'_>,
) {
    let (initiator, mut message) = HandshakeInitiator::begin(own).expect("random bytes");
    let is_changed = attacker.change(0, &mut message);
    let outcome = HandshakeResponder::answer(peer, &message);
    assert_eq!(outcome.is_ok(), is_same && !is_changed, "the verdict on the message is wrong");
    let Ok((responder, mut answer)) = outcome else { return };
    let is_changed = attacker.change(1, &mut answer);
    let outcome = initiator.finish(&answer);
    assert_eq!(outcome.is_ok(), !is_changed, "the verdict on the answer is wrong");
    let Ok((confirmed, mut confirmation)) = outcome else { return };
    let is_changed = attacker.change(2, &mut confirmation);
    let outcome = responder.finish(&confirmation);
    assert_eq!(outcome.is_ok(), !is_changed, "the verdict on the confirmation is wrong");
    let Ok((mut acceptance, keys)) = outcome else { return };
    assert_eq!(keys.is_some(), own.encrypts, "the responder has no keys, or keys without need");
    let is_changed = attacker.change(3, &mut acceptance);
    let outcome = confirmed.check_acceptance(&acceptance);
    assert_eq!(outcome.is_ok(), !is_changed, "the verdict on the acceptance is wrong");
}

/// The party between the two sides.
struct Attacker<'a> {
    replaces: bool,
    message: u8,
    position: u8,
    addend: u8,
    rest: &'a [u8],
}

impl<'a> Attacker<'a> {
    fn new(replaces: bool, mut script: FuzzScript<'a>) -> Self {
        let mut next = || script.next_byte().unwrap_or_default();
        let (message, position, addend) = (next(), next(), next());
        Self { replaces, message, position, addend, rest: script.0 }
    }

    /// Changes the message with this number if it is the selected one. Returns true if the message
    /// is different after that.
    fn change(&mut self, number: u8, bytes: &mut [u8]) -> bool {
        const { assert!(CONFIRMATION_BYTES <= MESSAGE_BYTES) };
        if self.message % 5 != number {
            return false;
        }
        let original = bytes.to_vec();
        let offset = usize::from(self.position) % bytes.len();
        bytes[offset] = bytes[offset].wrapping_add(self.addend);
        if self.replaces {
            let count = self.rest.len().min(bytes.len());
            bytes[..count].copy_from_slice(&self.rest[..count]);
        }
        // X25519 ignores the highest bit of a public key, but the hash of the handshake has it.
        original != bytes
    }
}

/// Runs a script: a peer seals records, an attacker changes their bytes, and the other side opens
/// them. The first byte selects the cipher suite and the attack. The next three bytes are the
/// position of the attack, its length or the bits to flip, and the size of the pieces that arrive.
/// Each further byte is the length of a record, until a zero. The rest are the bytes that the
/// attacker inserts.
///
/// # Panics
/// If the opener gives a byte that the peer did not send at this place, reports an orderly end of a
/// changed stream, or refuses an unchanged one.
pub fn records(input: &[u8]) {
    let mut script = FuzzScript(input);
    let mut next = || script.next_byte().unwrap_or_default();
    let (mode, position, extent, piece) = (next(), next(), next(), next());
    let own = CipherSet::of_this_processor();
    let suite = if mode & 1 == 0 { CipherSuite::ChaChaPoly } else { own.best_common(own) };
    let cipher = || connection_keys::record_cipher(suite, &[mode; 32]);
    let mut sealer = RecordSealer::new(cipher());
    let mut text = Vec::new();
    while let len @ 1.. = next() {
        // Some records are longer than the small buffers of an opener.
        let len = usize::from(len) * if len > 250 { 20 } else { 1 };
        let first = text.len();
        text.extend((0..=252_u8).cycle().skip(first % 253).take(len));
        sealer.seal_text(len, |into| into.copy_from_slice(&text[first..])).expect("a fit record");
    }
    sealer.seal_end().expect("a first end");
    let original = sealer.unsent().to_vec();
    let mut bytes = original.clone();
    let at = usize::from(position) * bytes.len() / 256;
    let end = bytes.len().min(at + usize::from(extent));
    match mode >> 1 & 7 {
        0 => {}
        1 => bytes[at] ^= extent,
        2 => drop(bytes.splice(at..end, [])),
        3 => drop(bytes.splice(at..at, original[at..end].to_vec())),
        4 => bytes.truncate(at),
        5 => drop(bytes.splice(at..end, script.0.to_vec())),
        6 => bytes = script.0.to_vec(),
        _ => bytes.extend(script.0),
    }
    check_opened(RecordOpener::new(cipher()), &bytes, &text, usize::from(piece), bytes == original);
}

fn check_opened(
    mut opener: RecordOpener,
    mut bytes: &[u8],
    text: &[u8],
    piece: usize,
    is_unchanged: bool,
) {
    let (mut opened, mut into) = (Vec::new(), [0; 100]);
    loop {
        while opener.open_next() {
            let count = opener.take_text(Dst::from(&mut into[..]));
            opened.extend(&into[..count]);
        }
        if opener.state() != OpenerState::Open {
            break;
        }
        let space = opener.space();
        let count = space.len().min(bytes.len()).min(piece * 16 + 1);
        space[..count].copy_from_slice(&bytes[..count]);
        bytes = &bytes[count..];
        match count {
            0 => opener.end_input(),
            _ => opener.add(count),
        }
    }
    assert!(text.starts_with(&opened), "the opener gave bytes that the peer did not send");
    let is_complete = opener.state() == OpenerState::Ended;
    assert!(!is_complete || opened == text, "the opener lost bytes");
    // Bytes that the attacker adds after the end may not have arrived yet.
    assert!(!is_complete || is_unchanged || !bytes.is_empty(), "a changed stream ended in order");
    assert!(is_complete || !is_unchanged, "an unchanged stream was refused");
}
