//! The limits of the protocol, at the server (which drops) and at the client (which refuses).

use super::{Raw, connect, soon, start};
use crate::base::ErrorKind;
use crate::store::Store as _;
use crate::store::tcp::proto::{MAX_KEY_BYTES, MAX_KEYS, MAX_VALUE_BYTES};

fn length(number: usize) -> [u8; 8] {
    (number as u64).to_le_bytes()
}

#[test]
fn the_longest_key_is_taken_and_a_longer_one_dropped() {
    let server = start();
    let mut raw = Raw::introduced(&server);
    raw.send(&[&[3], &length(MAX_KEY_BYTES)[..], &vec![b'k'; MAX_KEY_BYTES]].concat());
    raw.gets("00 00 00 00 00 00 00 00");
    // The length alone is enough.
    raw.send(&[&[3], &length(MAX_KEY_BYTES + 1)[..]].concat());
    raw.is_dropped();
}

#[test]
fn the_longest_value_is_taken_and_a_longer_one_dropped() {
    let server = start();
    let mut raw = Raw::introduced(&server);
    raw.send(&[&[1], &length(1)[..], b"k", &length(MAX_VALUE_BYTES)].concat());
    raw.send(&vec![7; MAX_VALUE_BYTES]);
    raw.gets_nothing_more();
    raw.send(&[&[1], &length(1)[..], b"k", &length(MAX_VALUE_BYTES + 1)].concat());
    raw.is_dropped();
}

#[test]
fn the_most_keys_are_taken_and_more_dropped() {
    let server = start();
    for opcode in [5, 6, 10, 11] {
        let mut raw = Raw::introduced(&server);
        raw.send(&[&[opcode], &length(MAX_KEYS + 1)[..]].concat());
        raw.is_dropped();
    }
    let mut raw = Raw::introduced(&server);
    raw.send(
        &[&[5], &length(MAX_KEYS)[..], &[&length(1)[..], b"k"].concat().repeat(MAX_KEYS)].concat(),
    );
    raw.gets("01");
}

#[test]
fn absurd_lengths_are_dropped() {
    let server = start();
    for opcode in [1, 2, 3, 4, 5, 6, 8, 9, 10, 11] {
        let mut raw = Raw::introduced(&server);
        raw.send(&[&[opcode], &u64::MAX.to_le_bytes()[..]].concat());
        raw.is_dropped();
    }
}

#[test]
fn the_client_refuses_what_the_server_would_drop() {
    let server = start();
    let store = connect(server.address());
    // One byte less than the server's limit, for the "/" before it.
    let key = vec![b'k'; MAX_KEY_BYTES - 1];
    let long_key = vec![b'k'; MAX_KEY_BYTES];
    let value = vec![1; MAX_VALUE_BYTES];
    let long_value = vec![1; MAX_VALUE_BYTES + 1];
    store.set(&key, &value, &soon()).unwrap();
    assert!(store.get(&key, &soon()).unwrap() == value);
    let many = vec![&b"k"[..]; MAX_KEYS + 1];
    let refused = [
        store.set(&long_key, b"", &soon()).unwrap_err(),
        store.set(b"k", &long_value, &soon()).unwrap_err(),
        store.append(b"k", &long_value, &soon()).unwrap_err(),
        store.compare_set(b"k", b"", &long_value, &soon()).unwrap_err(),
        store.multi_set(&[(b"k", &long_value)], &soon()).unwrap_err(),
        store.get(&long_key, &soon()).unwrap_err(),
        store.add(&long_key, 1, &soon()).unwrap_err(),
        store.check(&many, &soon()).unwrap_err(),
        store.wait(&many, &soon()).unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.message().contains("longer than") || error.message().contains("more than"));
    }
    assert!(!store.check(&many[..MAX_KEYS], &soon()).unwrap());
    let error = store.wait(&many[..MAX_KEYS], &crate::base::Deadline::after_ms(50)).unwrap_err();
    assert!(error.message().ends_with("and 131064 more"), "{error}");
}

#[test]
fn waiters_cannot_fill_the_memory() {
    let server = start();
    let mut raw = Raw::introduced(&server);
    // Long keys that differ, and more of them than one wait may have.
    let count = (64 << 20) / MAX_KEY_BYTES / 2 + 1;
    raw.send(&[&[6], &length(count)[..]].concat());
    for number in 0..count {
        let mut key = vec![b'k'; MAX_KEY_BYTES];
        key[..8].copy_from_slice(&length(number));
        raw.send(&[&length(MAX_KEY_BYTES)[..], &key].concat());
    }
    raw.is_dropped();
}
