//! Tests of the server against peers that are not store clients, or that violate the protocol. At
//! the end of each test, the server must serve a correct client.

use super::{
    HELLO, HELLO_ANSWER, RawPeer, Server, connect_store, hex_bytes, start_server, test_deadline,
};
use crate::store::Store as _;
use std::io::Write as _;
use std::time::Duration;

fn assert_serves(server: &Server) {
    let store = connect_store(server.address());
    store.set(b"health", b"good", &test_deadline()).unwrap();
    assert_eq!(store.get(b"health", &test_deadline()).unwrap(), b"good");
}

#[test]
fn peer_without_validate_is_dropped_immediately() {
    let server = start_server();
    for opening in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        b"\x0d\x01\x02\x03\x04",                     // PING
        b"\x0d",                                     // the first byte of PING
        b"\x01",                                     // SET
        b"\x07",                                     // a request without fields
        b"\x00\xce\xf7\x85\x3d",                     // VALIDATE with a wrong number
        b"\x00\xce\xf7\x85\x3c\x00\xce\xf7\x85\x3c", // VALIDATE twice
    ] {
        let mut raw = RawPeer::connect(&server);
        raw.send(opening);
        raw.expect_closed();
    }
    assert_serves(&server);
}

#[test]
fn unknown_operations_are_dropped() {
    let server = start_server();
    for opcode in [19, 64, 99, 255] {
        let mut raw = RawPeer::connect_validated(&server);
        raw.send(&[opcode]);
        raw.expect_closed();
    }
    assert_serves(&server);
}

#[test]
fn requests_before_a_violation_are_answered() {
    let server = start_server();
    let mut raw = RawPeer::connect_validated(&server);
    raw.send(b"\x0d\x01\x02\x03\x04\x63");
    raw.expect_hex("01 02 03 04");
    raw.expect_closed();
}

#[test]
fn adding_to_text_is_dropped_and_changes_nothing() {
    let server = start_server();
    let store = connect_store(server.address());
    store.set(b"t", b"abc", &test_deadline()).unwrap();
    let mut raw = RawPeer::connect_validated(&server);
    raw.send_hex("04 02 00 00 00 00 00 00 00 2f 74 01 00 00 00 00 00 00 00");
    raw.expect_closed();
    assert_eq!(store.get(b"t", &test_deadline()).unwrap(), b"abc");
}

#[test]
fn a_slow_client_is_served_byte_by_byte() {
    let server = start_server();
    let mut raw = RawPeer::connect(&server);
    let set = "01 02 00 00 00 00 00 00 00 2f 6b 02 00 00 00 00 00 00 00 76 31";
    let get = "03 02 00 00 00 00 00 00 00 2f 6b";
    for byte in hex_bytes(&format!("{HELLO} {set} {get}")) {
        raw.send(&[byte]);
    }
    raw.expect_hex(HELLO_ANSWER);
    raw.expect_hex("02 00 00 00 00 00 00 00 76 31");
}

#[test]
fn unvalidated_peers_are_dropped_at_the_timeout() {
    let server = start_server();
    let mut silent = RawPeer::connect(&server);
    let mut half = RawPeer::connect(&server);
    half.send(&[0x00, 0xce]);
    let mut good = RawPeer::connect_validated(&server);
    assert!(silent.is_closed_within(Duration::from_secs(30)));
    assert!(half.is_closed_within(Duration::from_secs(30)));
    // A validated client may be idle without a limit.
    good.expect_nothing_more();
}

#[test]
fn incomplete_request_does_not_block_other_clients() {
    let server = start_server();
    let mut stuck = RawPeer::connect_validated(&server);
    stuck.send_hex("01 02 00 00 00 00 00 00 00 2f");
    assert_serves(&server);
    stuck.send_hex("6b 01 00 00 00 00 00 00 00 31");
    stuck.expect_nothing_more();
}

#[test]
fn client_that_never_reads_is_dropped_at_the_limit() {
    let server = start_server();
    let store = connect_store(server.address());
    store.set(b"big", &vec![1; 8 << 20], &test_deadline()).unwrap();
    let mut greedy = RawPeer::connect_validated(&server);
    let get = hex_bytes("03 04 00 00 00 00 00 00 00 2f 62 69 67");
    // 40 replies of 8 MiB exceed the limit of unread replies.
    greedy.send(&get.repeat(40));
    assert_serves(&server);
    let mut sink = std::io::sink();
    // The server has closed the connection, so the read ends after the bytes that were in the
    // socket buffers.
    let got = std::io::copy(&mut greedy.0, &mut sink).unwrap_or(0);
    assert!(got < 40 << 23, "{got}");
}

#[test]
fn slow_reader_receives_all_answers() {
    let server = start_server();
    let store = connect_store(server.address());
    let value = vec![5; 8 << 20];
    store.set(b"big", &value, &test_deadline()).unwrap();
    // A reply confirms the preceding one-way request.
    assert!(store.check(&[b"big"], &test_deadline()).unwrap());
    let mut reader = RawPeer::connect_validated(&server);
    reader.send(&hex_bytes("03 04 00 00 00 00 00 00 00 2f 62 69 67").repeat(8));
    assert_serves(&server);
    for _ in 0..8 {
        reader.expect_hex("00 00 80 00 00 00 00 00");
        let mut got = vec![0; value.len()];
        std::io::Read::read_exact(&mut reader.0, &mut got).unwrap();
        assert!(got == value);
    }
}

#[test]
fn two_hundred_clients_wait_for_one_key() {
    let server = start_server();
    let mut clients: Vec<_> = (0..200).map(|_| RawPeer::connect(&server)).collect();
    for client in &mut clients {
        client.send_hex(HELLO);
        // WAIT for "/go".
        client.send_hex("06 01 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 2f 67 6f");
    }
    for client in &mut clients {
        client.expect_hex(HELLO_ANSWER);
        client.expect_nothing_more();
    }
    connect_store(server.address()).set(b"go", b"1", &test_deadline()).unwrap();
    for client in &mut clients {
        client.expect_hex("00");
    }
}

#[test]
fn client_lost_in_mid_request_changes_nothing() {
    let server = start_server();
    let store = connect_store(server.address());
    for cut in 1..20 {
        let mut raw = RawPeer::connect_validated(&server);
        let set = hex_bytes("01 02 00 00 00 00 00 00 00 2f 6b 02 00 00 00 00 00 00 00 76 31");
        raw.0.write_all(&set[..cut]).unwrap();
    }
    assert_serves(&server);
    assert!(!store.check(&[b"k"], &test_deadline()).unwrap());
}
