//! Tests of the protocol's limits. If a request exceeds a limit, the server disconnects the client.
//! A libdist client returns an error before it sends the request.

use super::{RawPeer, connect_store, start_server, test_deadline};
use crate::base::ErrorKind;
use crate::store::Store as _;
use crate::store::tcp::proto::{MAX_KEY_BYTES, MAX_KEYS, MAX_VALUE_BYTES};

fn encode_length(number: usize) -> [u8; 8] {
    (number as u64).to_le_bytes()
}

#[test]
fn the_longest_key_is_taken_and_a_longer_one_dropped() {
    let server = start_server();
    let mut raw = RawPeer::connect_validated(&server);
    raw.send(&[&[3], &encode_length(MAX_KEY_BYTES)[..], &vec![b'k'; MAX_KEY_BYTES]].concat());
    raw.expect_hex("00 00 00 00 00 00 00 00");
    // The server rejects the length before the key arrives.
    raw.send(&[&[3], &encode_length(MAX_KEY_BYTES + 1)[..]].concat());
    raw.expect_closed();
}

#[test]
fn the_longest_value_is_taken_and_a_longer_one_dropped() {
    let server = start_server();
    let mut raw = RawPeer::connect_validated(&server);
    raw.send(&[&[1], &encode_length(1)[..], b"k", &encode_length(MAX_VALUE_BYTES)].concat());
    raw.send(&vec![7; MAX_VALUE_BYTES]);
    raw.expect_nothing_more();
    raw.send(&[&[1], &encode_length(1)[..], b"k", &encode_length(MAX_VALUE_BYTES + 1)].concat());
    raw.expect_closed();
}

#[test]
fn the_most_keys_are_taken_and_more_dropped() {
    let server = start_server();
    for opcode in [5, 6, 10, 11] {
        let mut raw = RawPeer::connect_validated(&server);
        raw.send(&[&[opcode], &encode_length(MAX_KEYS + 1)[..]].concat());
        raw.expect_closed();
    }
    let mut raw = RawPeer::connect_validated(&server);
    raw.send(
        &[
            &[5],
            &encode_length(MAX_KEYS)[..],
            &[&encode_length(1)[..], b"k"].concat().repeat(MAX_KEYS),
        ]
        .concat(),
    );
    raw.expect_hex("01");
}

#[test]
fn absurd_lengths_are_dropped() {
    let server = start_server();
    for opcode in [1, 2, 3, 4, 5, 6, 8, 9, 10, 11] {
        let mut raw = RawPeer::connect_validated(&server);
        raw.send(&[&[opcode], &u64::MAX.to_le_bytes()[..]].concat());
        raw.expect_closed();
    }
}

#[test]
fn the_client_refuses_what_the_server_would_drop() {
    let server = start_server();
    let store = connect_store(server.address());
    // One byte less than the server's limit, because the client adds "/" in front.
    let key = vec![b'k'; MAX_KEY_BYTES - 1];
    let long_key = vec![b'k'; MAX_KEY_BYTES];
    let value = vec![1; MAX_VALUE_BYTES];
    let long_value = vec![1; MAX_VALUE_BYTES + 1];
    store.set(&key, &value, &test_deadline()).unwrap();
    assert!(store.get(&key, &test_deadline()).unwrap() == value);
    let many = vec![&b"k"[..]; MAX_KEYS + 1];
    let refused = [
        store.set(&long_key, b"", &test_deadline()).unwrap_err(),
        store.set(b"k", &long_value, &test_deadline()).unwrap_err(),
        store.append(b"k", &long_value, &test_deadline()).unwrap_err(),
        store.compare_set(b"k", b"", &long_value, &test_deadline()).unwrap_err(),
        store.multi_set(&[(b"k", &long_value)], &test_deadline()).unwrap_err(),
        store.get(&long_key, &test_deadline()).unwrap_err(),
        store.add(&long_key, 1, &test_deadline()).unwrap_err(),
        store.check(&many, &test_deadline()).unwrap_err(),
        store.wait(&many, &test_deadline()).unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.message().contains("longer than") || error.message().contains("more than"));
    }
    assert!(!store.check(&many[..MAX_KEYS], &test_deadline()).unwrap());
    let error = store.wait(&many[..MAX_KEYS], &crate::base::Deadline::after_ms(50)).unwrap_err();
    assert!(error.message().ends_with("and 131064 more"), "{error}");
}

#[test]
fn wait_with_too_many_key_bytes_is_refused() {
    let server = start_server();
    let mut raw = RawPeer::connect_validated(&server);
    // Different long keys, in total more than the limit of one wait.
    let count = (64 << 20) / MAX_KEY_BYTES / 2 + 1;
    raw.send(&[&[6], &encode_length(count)[..]].concat());
    for number in 0..count {
        let mut key = vec![b'k'; MAX_KEY_BYTES];
        key[..8].copy_from_slice(&encode_length(number));
        raw.send(&[&encode_length(MAX_KEY_BYTES)[..], &key].concat());
    }
    raw.expect_closed();
}
