//! The server against peers that are no store clients, or bad ones. Each test ends with a good
//! client that is served.

use super::{HELLO, HELLO_ANSWER, Raw, Server, bytes, connect, soon, start};
use crate::store::Store as _;
use std::io::Write as _;
use std::time::Duration;

fn still_serves(server: &Server) {
    let store = connect(server.address());
    store.set(b"health", b"good", &soon()).unwrap();
    assert_eq!(store.get(b"health", &soon()).unwrap(), b"good");
}

#[test]
fn whatever_does_not_begin_with_validate_is_dropped_at_once() {
    let server = start();
    for opening in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        b"\x0d\x01\x02\x03\x04",                     // PING
        b"\x0d",                                     // its first byte
        b"\x01",                                     // SET
        b"\x07",                                     // a request without fields
        b"\x00\xce\xf7\x85\x3d",                     // VALIDATE with a wrong number
        b"\x00\xce\xf7\x85\x3c\x00\xce\xf7\x85\x3c", // twice
    ] {
        let mut raw = Raw::to(&server);
        raw.send(opening);
        raw.is_dropped();
    }
    still_serves(&server);
}

#[test]
fn unknown_operations_are_dropped() {
    let server = start();
    for opcode in [19, 64, 99, 255] {
        let mut raw = Raw::introduced(&server);
        raw.send(&[opcode]);
        raw.is_dropped();
    }
    still_serves(&server);
}

#[test]
fn what_was_asked_before_the_offence_is_answered() {
    let server = start();
    let mut raw = Raw::introduced(&server);
    raw.send(b"\x0d\x01\x02\x03\x04\x63");
    raw.gets("01 02 03 04");
    raw.is_dropped();
}

#[test]
fn adding_to_text_is_dropped_and_changes_nothing() {
    let server = start();
    let store = connect(server.address());
    store.set(b"t", b"abc", &soon()).unwrap();
    let mut raw = Raw::introduced(&server);
    raw.sends("04 02 00 00 00 00 00 00 00 2f 74 01 00 00 00 00 00 00 00");
    raw.is_dropped();
    assert_eq!(store.get(b"t", &soon()).unwrap(), b"abc");
}

#[test]
fn a_slow_client_is_served_byte_by_byte() {
    let server = start();
    let mut raw = Raw::to(&server);
    let set = "01 02 00 00 00 00 00 00 00 2f 6b 02 00 00 00 00 00 00 00 76 31";
    let get = "03 02 00 00 00 00 00 00 00 2f 6b";
    for byte in bytes(&format!("{HELLO} {set} {get}")) {
        raw.send(&[byte]);
    }
    raw.gets(HELLO_ANSWER);
    raw.gets("02 00 00 00 00 00 00 00 76 31");
}

#[test]
fn silent_and_half_introduced_peers_are_dropped_in_time() {
    let server = start();
    let mut silent = Raw::to(&server);
    let mut half = Raw::to(&server);
    half.send(&[0x00, 0xce]);
    let mut good = Raw::introduced(&server);
    assert!(silent.is_closed_within(Duration::from_secs(30)));
    assert!(half.is_closed_within(Duration::from_secs(30)));
    // An introduced one may be silent as long as it likes.
    good.gets_nothing_more();
}

#[test]
fn a_request_that_never_ends_holds_up_nobody() {
    let server = start();
    let mut stuck = Raw::introduced(&server);
    stuck.sends("01 02 00 00 00 00 00 00 00 2f");
    still_serves(&server);
    stuck.sends("6b 01 00 00 00 00 00 00 00 31");
    stuck.gets_nothing_more();
}

#[test]
fn a_client_that_reads_nothing_is_dropped_beyond_a_bound() {
    let server = start();
    let store = connect(server.address());
    store.set(b"big", &vec![1; 8 << 20], &soon()).unwrap();
    let mut greedy = Raw::introduced(&server);
    let get = bytes("03 04 00 00 00 00 00 00 00 2f 62 69 67");
    // 40 answers of 8 MiB: more than may wait for their reader.
    greedy.send(&get.repeat(40));
    still_serves(&server);
    let mut sink = std::io::sink();
    // Ends with what the sockets had taken, and then the end.
    let got = std::io::copy(&mut greedy.0, &mut sink).unwrap_or(0);
    assert!(got < 40 << 23, "{got}");
}

#[test]
fn a_reader_that_is_merely_slow_gets_everything() {
    let server = start();
    let store = connect(server.address());
    let value = vec![5; 8 << 20];
    store.set(b"big", &value, &soon()).unwrap();
    // An answer shows that it is there.
    assert!(store.check(&[b"big"], &soon()).unwrap());
    let mut reader = Raw::introduced(&server);
    reader.send(&bytes("03 04 00 00 00 00 00 00 00 2f 62 69 67").repeat(8));
    still_serves(&server);
    for _ in 0..8 {
        reader.gets("00 00 80 00 00 00 00 00");
        let mut got = vec![0; value.len()];
        std::io::Read::read_exact(&mut reader.0, &mut got).unwrap();
        assert!(got == value);
    }
}

#[test]
fn two_hundred_clients_at_once() {
    let server = start();
    let mut clients: Vec<_> = (0..200).map(|_| Raw::to(&server)).collect();
    for client in &mut clients {
        client.sends(HELLO);
        // WAIT for "/go".
        client.sends("06 01 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 2f 67 6f");
    }
    for client in &mut clients {
        client.gets(HELLO_ANSWER);
        client.gets_nothing_more();
    }
    connect(server.address()).set(b"go", b"1", &soon()).unwrap();
    for client in &mut clients {
        client.gets("00");
    }
}

#[test]
fn clients_that_vanish_in_mid_request_leave_nothing() {
    let server = start();
    let store = connect(server.address());
    for cut in 1..20 {
        let mut raw = Raw::introduced(&server);
        let set = bytes("01 02 00 00 00 00 00 00 00 2f 6b 02 00 00 00 00 00 00 00 76 31");
        raw.0.write_all(&set[..cut]).unwrap();
    }
    still_serves(&server);
    assert!(!store.check(&[b"k"], &soon()).unwrap());
}
