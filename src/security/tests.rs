//! Tests of the handshake: the published test vectors, an independent implementation as the other
//! side, and messages that an attacker changes, repeats, returns or exchanges.

use super::connection_keys::record_cipher;
use super::handshake::{
    CONFIRMATION_BYTES, HandshakeInitiator, HandshakeResponder, HandshakeTerms, MESSAGE_BYTES,
    WrongProof,
};
use super::resolver::{KernelRandomResolver, resolver};
use super::{CipherSet, CipherSuite, Secret, fuzz};
use crate::base::fuzz::replay_corpus;
use proptest::collection::vec;
use proptest::prelude::*;
use snow::resolvers::{BoxedCryptoResolver, DefaultResolver, FallbackResolver};
use snow::{Builder, HandshakeState};

const SUITES: [CipherSuite; 2] = [CipherSuite::ChaChaPoly, CipherSuite::AesGcm];

/// The suites that this processor supports.
fn suites() -> impl Iterator<Item = CipherSuite> {
    let own = CipherSet::of_this_processor();
    SUITES.into_iter().filter(move |&suite| suite as u8 & own.number() != 0)
}

fn secret() -> Secret {
    Secret::from_bytes(b"correct horse battery staple").unwrap()
}

fn terms(secret: &Secret, cipher: CipherSuite) -> HandshakeTerms<'_> {
    HandshakeTerms { secret, cipher, prologue: b"rank 0 to rank 1, stream 2", encrypts: false }
}

/// One published exchange: the ephemeral private keys and the messages, in hexadecimal digits.
struct TestVector {
    cipher: CipherSuite,
    /// The payload and the bytes of each message. The first two belong to the handshake.
    messages: [(&'static str, &'static str); 4],
}

/// The vectors of `NNpsk0` in the collection of the Noise implementation Cacophony.
const TEST_VECTORS: [TestVector; 2] = [
    TestVector {
        cipher: CipherSuite::AesGcm,
        messages: [
            (
                "4c756477696720766f6e204d69736573",
                "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c7944\
                 7c37a89fc17813788d30df2d59501d6066f5f8aecc3406bbd9829f2d24a531b1",
            ),
            (
                "4d757272617920526f746862617264",
                "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f144808843\
                 2f29d79368ef9de4e1ae7a362fb05bf0ad668e026bf5714554497b3a720461",
            ),
            ("462e20412e20486179656b", "7c01e898a6201f36aecee532e29cd0b7f8ffa29d3366ad0dce39a6"),
            ("4361726c204d656e676572", "a9ff535aace3db6a1da1a7fb00fe2de2622bb373abad9fb42c00e0"),
        ],
    },
    TestVector {
        cipher: CipherSuite::ChaChaPoly,
        messages: [
            (
                "4c756477696720766f6e204d69736573",
                "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c7944\
                 79b962b8aff8485742ac32f905ba45369e2465fb59e138a93d67a0d1266b6a54",
            ),
            (
                "4d757272617920526f746862617264",
                "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f144808843\
                 d6062704d5a9c422a8e834423f8c1feada7e8d0d910a1a2cd030fb584221e3",
            ),
            ("462e20412e20486179656b", "e632c3763d7669067383433197a3baddf146e9e70ad4b4e9e59e0f"),
            ("4361726c204d656e676572", "64c6bee32ea91c8474bb4c21d7a700109ad45af77b29764ba5eb1e"),
        ],
    },
];
const VECTOR_INITIATOR_KEY: &str =
    "893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a";
const VECTOR_RESPONDER_KEY: &str =
    "bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b";

fn bytes_of(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

fn vector_state(cipher: CipherSuite, is_initiator: bool) -> HandshakeState {
    let key = bytes_of(if is_initiator { VECTOR_INITIATOR_KEY } else { VECTOR_RESPONDER_KEY });
    let parameters = cipher.protocol_name().parse().unwrap();
    let builder = Builder::with_resolver(parameters, resolver())
        .fixed_ephemeral_key_for_testing_only(&key)
        .psk(0, b"This is my Austrian perspective!")
        .and_then(|builder| builder.prologue(b"John Galt"))
        .unwrap();
    if is_initiator { builder.build_initiator() } else { builder.build_responder() }.unwrap()
}

#[test]
fn published_vectors_are_reproduced() {
    for suite in suites() {
        let vector = TEST_VECTORS.iter().find(|vector| vector.cipher == suite).unwrap();
        let (mut initiator, mut responder) =
            (vector_state(suite, true), vector_state(suite, false));
        let mut buffer = [0; 256];
        let check = |length: usize, buffer: &[u8], expected: &str| {
            assert_eq!(buffer[..length], bytes_of(expected), "{suite:?}");
        };
        let [first, second, third, fourth] = vector.messages;
        let length = initiator.write_message(&bytes_of(first.0), &mut buffer).unwrap();
        check(length, &buffer, first.1);
        responder.read_message(&bytes_of(first.1), &mut buffer).unwrap();
        let length = responder.write_message(&bytes_of(second.0), &mut buffer).unwrap();
        check(length, &buffer, second.1);
        initiator.read_message(&bytes_of(second.1), &mut buffer).unwrap();
        let mut initiator = initiator.into_transport_mode().unwrap();
        let mut responder = responder.into_transport_mode().unwrap();
        let length = initiator.write_message(&bytes_of(third.0), &mut buffer).unwrap();
        check(length, &buffer, third.1);
        let length = responder.read_message(&bytes_of(third.1), &mut buffer).unwrap();
        check(length, &buffer, third.0);
        let length = responder.write_message(&bytes_of(fourth.0), &mut buffer).unwrap();
        check(length, &buffer, fourth.1);
        let length = initiator.read_message(&bytes_of(fourth.1), &mut buffer).unwrap();
        check(length, &buffer, fourth.0);
    }
}

/// Returns one side of the handshake with the cryptography of RustCrypto only.
fn independent_state(terms: HandshakeTerms<'_>, is_initiator: bool) -> HandshakeState {
    let rust_crypto: BoxedCryptoResolver =
        Box::new(FallbackResolver::new(Box::new(KernelRandomResolver), Box::new(DefaultResolver)));
    let parameters = terms.cipher.protocol_name().parse().unwrap();
    let builder = Builder::with_resolver(parameters, rust_crypto)
        .psk(0, terms.secret.handshake_key())
        .and_then(|builder| builder.prologue(terms.prologue))
        .unwrap();
    if is_initiator { builder.build_initiator() } else { builder.build_responder() }.unwrap()
}

proptest! {
    #[test]
    fn independent_implementation_completes_the_handshake(
        secret in vec(any::<u8>(), 1..64), prologue in vec(any::<u8>(), 0..200),
    ) {
        let secret = Secret::from_bytes(&secret).unwrap();
        for cipher in suites() {
            let terms = HandshakeTerms {
                secret: &secret, cipher, prologue: &prologue, encrypts: false,
            };
            let (mut answer, mut tag) = ([0; MESSAGE_BYTES], [0; CONFIRMATION_BYTES]);
            // The independent side accepts.
            let mut other = independent_state(terms, false);
            let (initiator, message) = HandshakeInitiator::begin(terms).unwrap();
            other.read_message(&message, &mut []).unwrap();
            other.write_message(&[], &mut answer).unwrap();
            let (confirmed, confirmation) = initiator.finish(&answer).unwrap();
            let mut other = other.into_transport_mode().unwrap();
            other.read_message(&confirmation, &mut []).unwrap();
            other.write_message(&[], &mut tag).unwrap();
            prop_assert!(confirmed.check_acceptance(&tag).unwrap().is_none());
            // The independent side connects.
            let mut other = independent_state(terms, true);
            let mut message = [0; MESSAGE_BYTES];
            other.write_message(&[], &mut message).unwrap();
            let (responder, answer) = HandshakeResponder::answer(terms, &message).unwrap();
            other.read_message(&answer, &mut []).unwrap();
            let mut other = other.into_transport_mode().unwrap();
            other.write_message(&[], &mut tag).unwrap();
            let (acceptance, _) = responder.finish(&tag).unwrap();
            prop_assert!(other.read_message(&acceptance, &mut []).is_ok());
        }
    }

    #[test]
    fn any_script_gets_the_right_verdicts(script in vec(any::<u8>(), 0..60)) {
        fuzz::handshake(&script);
    }

    #[test]
    fn ciphers_agree_with_an_independent_implementation(
        key in any::<[u8; 32]>(), nonce in any::<u64>(),
        text in vec(any::<u8>(), 0..300), payload in vec(any::<u8>(), 0..2000),
        changed in any::<prop::sample::Index>(),
    ) {
        use snow::params::CipherChoice;
        use snow::resolvers::CryptoResolver as _;
        for choice in [CipherChoice::AESGCM, CipherChoice::ChaChaPoly] {
            let mut own = resolver().resolve_cipher(&choice).unwrap();
            let mut other = DefaultResolver.resolve_cipher(&choice).unwrap();
            own.set(&key);
            other.set(&key);
            let length = payload.len() + 16;
            let (mut left, mut right) = (vec![0; length], vec![0; length]);
            prop_assert_eq!(own.encrypt(nonce, &text, &payload, &mut left), length);
            other.encrypt(nonce, &text, &payload, &mut right);
            prop_assert_eq!(&left, &right);
            let mut opened = vec![0; length];
            let count = own.decrypt(nonce, &text, &left, &mut opened).unwrap();
            prop_assert_eq!(&opened[..count], &payload[..]);
            left[changed.index(length)] ^= 1;
            prop_assert!(own.decrypt(nonce, &text, &left, &mut opened).is_err());

        }
    }
}

#[test]
fn messages_of_another_exchange_are_refused() {
    let secret = secret();
    for cipher in suites() {
        let terms = terms(&secret, cipher);
        let begin = || HandshakeInitiator::begin(terms).unwrap();
        let (first, first_message) = begin();
        let (second, second_message) = begin();
        let answer = |message| HandshakeResponder::answer(terms, message).unwrap();
        let (first_responder, first_answer) = answer(&first_message);
        let (_, second_answer) = answer(&second_message);
        // Exchanged answers.
        assert_eq!(second.finish(&first_answer).unwrap_err(), WrongProof);
        assert_eq!(begin().0.finish(&second_answer).unwrap_err(), WrongProof);
        // A recorded exchange, repeated against the responder.
        let (confirmed, confirmation) = first.finish(&first_answer).unwrap();
        let (acceptance, _) = first_responder.finish(&confirmation).unwrap();
        let (replayed, _) = answer(&first_message);
        assert_eq!(replayed.finish(&confirmation).unwrap_err(), WrongProof);
        // Messages that return to their author.
        let (reflected, message) = begin();
        assert_eq!(reflected.finish(&message).unwrap_err(), WrongProof);
        assert_eq!(confirmed.check_acceptance(&confirmation).unwrap_err(), WrongProof);
        let (responder, _) = answer(&first_message);
        assert_eq!(responder.finish(&acceptance).unwrap_err(), WrongProof);
    }
}

#[test]
fn different_prologues_suites_and_secrets_are_refused() {
    let (secret, other) = (secret(), Secret::from_bytes(b"another").unwrap());
    for cipher in suites() {
        let own = terms(&secret, cipher);
        let mut different = vec![
            HandshakeTerms { prologue: b"rank 1 to rank 0, stream 2", ..own },
            HandshakeTerms { prologue: b"", ..own },
            HandshakeTerms { secret: &other, ..own },
        ];
        different.extend(
            suites()
                .filter(|&suite| suite != cipher)
                .map(|cipher| HandshakeTerms { cipher, ..own }),
        );
        for other in different {
            let (_, message) = HandshakeInitiator::begin(own).unwrap();
            assert_eq!(HandshakeResponder::answer(other, &message).unwrap_err(), WrongProof);
        }
    }
}

#[test]
fn public_keys_of_small_order_are_refused() {
    let secret = secret();
    let cipher = suites().last().unwrap();
    let (initiator, _) = HandshakeInitiator::begin(terms(&secret, cipher)).unwrap();
    assert_eq!(initiator.finish(&[0; MESSAGE_BYTES]).unwrap_err(), WrongProof);
}

#[test]
fn debug_output_contains_no_key() {
    let secret = secret();
    let terms = terms(&secret, CipherSuite::ChaChaPoly);
    let (initiator, message) = HandshakeInitiator::begin(terms).unwrap();
    let (responder, _) = HandshakeResponder::answer(terms, &message).unwrap();
    for text in [format!("{terms:?}"), format!("{initiator:?}"), format!("{responder:?}")] {
        assert!(text.len() < 400, "{text}");
        let key = secret.handshake_key();
        assert!(!text.contains(&format!("{}, {}", key[0], key[1])), "{text}");
    }
}

#[test]
fn handshake_corpus() {
    replay_corpus("handshake", fuzz::handshake);
}

/// Measures the processor time of each side of a handshake: `cargo test --release --lib
/// handshake_time -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn handshake_time_of_each_side() {
    const ROUNDS: u32 = 2000;
    let secret = secret();
    for cipher in suites() {
        let terms = terms(&secret, cipher);
        let (mut connecting, mut accepting) = Default::default();
        for _ in 0..ROUNDS {
            let mut lap = std::time::Instant::now();
            let mut add = |total: &mut std::time::Duration| {
                let now = std::time::Instant::now();
                *total += now - lap;
                lap = now;
            };
            let (initiator, message) = HandshakeInitiator::begin(terms).unwrap();
            add(&mut connecting);
            let (responder, answer) = HandshakeResponder::answer(terms, &message).unwrap();
            add(&mut accepting);
            let (confirmed, confirmation) = initiator.finish(&answer).unwrap();
            add(&mut connecting);
            let (acceptance, _) = responder.finish(&confirmation).unwrap();
            add(&mut accepting);
            confirmed.check_acceptance(&acceptance).unwrap();
            add(&mut connecting);
        }
        println!("{cipher:?}: {:?} and {:?}", connecting / ROUNDS, accepting / ROUNDS);
    }
}

/// The suite of snow that a record cipher must agree with.
fn snow_cipher(suite: CipherSuite, key: &[u8; 32]) -> Box<dyn snow::types::Cipher> {
    use snow::params::CipherChoice;
    use snow::resolvers::CryptoResolver as _;
    let choice = match suite {
        CipherSuite::AesGcm => CipherChoice::AESGCM,
        CipherSuite::ChaChaPoly => CipherChoice::ChaChaPoly,
    };
    let mut cipher = DefaultResolver.resolve_cipher(&choice).unwrap();
    cipher.set(key);
    cipher
}

proptest! {
    #[test]
    fn records_agree_with_an_independent_implementation(
        key in any::<[u8; 32]>(), number in 1..u64::MAX, header in any::<[u8; 4]>(),
        payload in vec(any::<u8>(), 0..3000), changed in any::<prop::sample::Index>(),
    ) {
        for suite in suites() {
            let mut own = record_cipher(suite, &key);
            let mut other = snow_cipher(suite, &key);
            for _ in 0..2 {
                let mut text = payload.clone();
                let tag = own.seal(number, &header, &mut text);
                let mut expected = vec![0; payload.len() + 16];
                other.encrypt(number, &header, &payload, &mut expected);
                let sealed = [&text[..], &tag].concat();
                prop_assert_eq!(&sealed, &expected);
                prop_assert_eq!(own.open(number, &header, &mut text, &tag), Ok(()));
                prop_assert_eq!(&text, &payload);
                // Each bit of the record, its header and its number counts.
                let mut bad = sealed.clone();
                bad[changed.index(sealed.len())] ^= 1;
                let (bad_text, bad_tag) = bad.split_at_mut(payload.len());
                let bad_tag: &[u8; 16] = (&*bad_tag).try_into().unwrap();
                prop_assert!(own.open(number, &header, bad_text, bad_tag).is_err());
                for (number, header) in [
                    (number - 1, header), (number, [header[0] ^ 1, header[1], header[2], header[3]]),
                ] {
                    let mut text = sealed[..payload.len()].to_vec();
                    prop_assert!(own.open(number, &header, &mut text, &tag).is_err());
                }
                // The key of the next round.
                own.rekey();
                let mut next = [0; 48];
                other.encrypt(u64::MAX, &[], &[0; 32], &mut next);
                other.set(next[..32].try_into().unwrap());
            }
        }
    }

    #[test]
    fn any_script_of_records_gets_the_right_verdicts(script in vec(any::<u8>(), 0..200)) {
        fuzz::records(&script);
    }
}

#[test]
fn both_sides_get_the_keys_of_the_protocol() {
    let secret = secret();
    for cipher in suites() {
        let terms = HandshakeTerms { encrypts: true, ..terms(&secret, cipher) };
        let (initiator, message) = HandshakeInitiator::begin(terms).unwrap();
        let mut other = independent_state(terms, false);
        let (mut answer, mut tag) = ([0; MESSAGE_BYTES], [0; CONFIRMATION_BYTES]);
        other.read_message(&message, &mut []).unwrap();
        other.write_message(&[], &mut answer).unwrap();
        let (confirmed, confirmation) = initiator.finish(&answer).unwrap();
        let mut other = other.into_transport_mode().unwrap();
        other.read_message(&confirmation, &mut []).unwrap();
        other.write_message(&[], &mut tag).unwrap();
        let keys = confirmed.check_acceptance(&tag).unwrap().unwrap();
        assert!(!format!("{keys:?}").contains('['), "{keys:?}");
        // The records continue the messages of the protocol: number 1 of each direction.
        let ciphers = keys.record_ciphers();
        let mut text = *b"a record";
        let tag = ciphers.sealing.seal(1, &[], &mut text);
        let mut opened = [0; 8];
        assert_eq!(other.read_message(&[&text[..], &tag].concat(), &mut opened).unwrap(), 8);
        assert_eq!(&opened, b"a record");
        let mut sealed = [0; 24];
        other.write_message(b"a record", &mut sealed).unwrap();
        let (text, tag) = sealed.split_at_mut(8);
        assert_eq!(ciphers.opening.open(1, &[], text, (&*tag).try_into().unwrap()), Ok(()));
        assert_eq!(text, b"a record");
    }
}

#[test]
fn records_corpus() {
    replay_corpus("records", fuzz::records);
}

/// Measures the record layer against the cipher alone, with records of several lengths: `cargo test
/// --release --lib record_layer_time -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn record_layer_time() {
    use crate::base::buffer::Dst;
    use crate::sys::record_layer::{RecordOpener, RecordSealer};
    const TOTAL: usize = 64 << 20;
    for (suite, len) in suites().flat_map(|suite| [4, 1 << 10, 16 << 10].map(|len| (suite, len))) {
        let rounds = (TOTAL / len).min(200_000);
        let (source, mut into) = (vec![7; len], vec![0; len]);
        let mut best = [f64::MAX; 2];
        for _ in 0..5 {
            let cipher = record_cipher(suite, &[3; 32]);
            let began = std::time::Instant::now();
            for round in 1..=rounds as u64 {
                let tag = cipher.seal(round, &[0; 4], &mut into);
                cipher.open(round, &[0; 4], &mut into, &tag).unwrap();
            }
            best[0] = best[0].min(began.elapsed().as_secs_f64());
            let mut sealer = RecordSealer::new(record_cipher(suite, &[3; 32]));
            let mut opener = RecordOpener::new(record_cipher(suite, &[3; 32]));
            let began = std::time::Instant::now();
            for _ in 0..rounds {
                sealer.seal_text(len, |text| text.copy_from_slice(&source)).unwrap();
                while !sealer.unsent().is_empty() {
                    let space = opener.space();
                    let count = space.len().min(sealer.unsent().len());
                    space[..count].copy_from_slice(&sealer.unsent()[..count]);
                    opener.add(count);
                    sealer.mark_sent(count);
                }
                assert!(opener.open_next());
                assert_eq!(opener.take_text(Dst::from(into.as_mut_slice())), len);
            }
            best[1] = best[1].min(began.elapsed().as_secs_f64());
        }
        let rate = |seconds: f64| (rounds * len) as f64 / seconds / 1e9;
        println!(
            "{suite:?}, {len} bytes: cipher {:.2} GB/s, records {:.2} GB/s, share {:.2}, {:.0} ns",
            rate(best[0]),
            rate(best[1]),
            best[0] / best[1],
            best[1] / rounds as f64 * 1e9
        );
    }
}
