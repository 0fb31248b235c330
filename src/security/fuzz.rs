//! Entry point for the fuzz target of the handshake. It takes arbitrary bytes as a script, and
//! panics if a side gives the wrong verdict on a message.
//!
//! This module is compiled only for fuzzing and for tests.
#![allow(clippy::panic, clippy::expect_used, reason = "a fuzz target reports a finding by a panic")]

use super::handshake::{
    CONFIRMATION_BYTES, HandshakeInitiator, HandshakeResponder, HandshakeTerms, MESSAGE_BYTES,
};
use super::{CipherSet, CipherSuite, Secret};
use crate::base::fuzz::FuzzScript;

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
