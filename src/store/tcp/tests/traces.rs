//! Tests of the server with captured traffic. The tests send requests that were captured from
//! torch's clients, and compare each byte of the replies with the replies of torch's server.

use std::sync::Arc;

use super::{HELLO, HELLO_ANSWER, RawPeer, Server, start_server};

const SET_K: &str = "01 02 00 00 00 00 00 00 00 2f 6b 02 00 00 00 00 00 00 00 76 31";
const WAIT_K: &str = "06 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b";
const WAIT_NOKEY: &str = "06 01 00 00 00 00 00 00 00 06 00 00 00 00 00 00 00 2f 6e 6f 6b 65 79";
const SET_NOKEY: &str = "01 06 00 00 00 00 00 00 00 2f 6e 6f 6b 65 79 01 00 00 00 00 00 00 00 31";
const ADD_N_5: &str = "04 02 00 00 00 00 00 00 00 2f 6e 05 00 00 00 00 00 00 00";
const CANCEL: &str = "0c";

fn start_with_peer() -> (Arc<Server>, RawPeer) {
    let server = start_server();
    let raw = RawPeer::connect_validated(&server);
    (server, raw)
}

#[test]
fn values() {
    let (_server, mut c) = start_with_peer();
    c.send_hex(SET_K);
    c.send_hex(WAIT_K);
    c.expect_hex("00");
    c.send_hex("03 02 00 00 00 00 00 00 00 2f 6b");
    c.expect_hex("02 00 00 00 00 00 00 00 76 31");
    // A missing key has an empty value.
    c.send_hex("03 03 00 00 00 00 00 00 00 2f 7a 7a");
    c.expect_hex("00 00 00 00 00 00 00 00");
    c.send_hex("09 03 00 00 00 00 00 00 00 2f 61 70 02 00 00 00 00 00 00 00 78 78");
    c.send_hex("09 03 00 00 00 00 00 00 00 2f 61 70 02 00 00 00 00 00 00 00 79 79");
    c.send_hex("03 03 00 00 00 00 00 00 00 2f 61 70");
    c.expect_hex("04 00 00 00 00 00 00 00 78 78 79 79");
    c.expect_nothing_more();
}

#[test]
fn counters() {
    let (_server, mut c) = start_with_peer();
    c.send_hex(ADD_N_5);
    c.expect_hex("05 00 00 00 00 00 00 00");
    c.send_hex("04 02 00 00 00 00 00 00 00 2f 6e fe ff ff ff ff ff ff ff");
    c.expect_hex("03 00 00 00 00 00 00 00");
    c.send_hex("03 02 00 00 00 00 00 00 00 2f 6e");
    c.expect_hex("01 00 00 00 00 00 00 00 33");
    // ADD of 1 to "init/", as a client sends it that joins a world of two.
    c.send_hex("04 05 00 00 00 00 00 00 00 69 6e 69 74 2f 01 00 00 00 00 00 00 00");
    c.expect_hex("01 00 00 00 00 00 00 00");
    c.expect_nothing_more();
}

#[test]
fn checks() {
    let (_server, mut c) = start_with_peer();
    c.send_hex(SET_K);
    c.send_hex("05 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b");
    c.expect_hex("00");
    c.send_hex(
        "05 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b 03 00 00 00 00 00 00 00 2f 7a 7a",
    );
    c.expect_hex("01");
    c.send_hex("05 00 00 00 00 00 00 00 00");
    c.expect_hex("00");
    c.expect_nothing_more();
}

#[test]
fn compare_and_set() {
    let (_server, mut c) = start_with_peer();
    c.send_hex(
        "02 03 00 00 00 00 00 00 00 2f 63 73 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 61",
    );
    c.expect_hex("01 00 00 00 00 00 00 00 61");
    c.send_hex(
        "02 03 00 00 00 00 00 00 00 2f 63 73 01 00 00 00 00 00 00 00 61 02 00 00 00 00 00 00 00 62 62",
    );
    c.expect_hex("02 00 00 00 00 00 00 00 62 62");
    c.send_hex(
        "02 03 00 00 00 00 00 00 00 2f 63 73 05 00 00 00 00 00 00 00 57 52 4f 4e 47 03 00 00 00 00 \
         00 00 00 63 63 63",
    );
    c.expect_hex("02 00 00 00 00 00 00 00 62 62");
    c.send_hex(
        "02 08 00 00 00 00 00 00 00 2f 6d 69 73 73 69 6e 67 03 00 00 00 00 00 00 00 65 78 70 03 00 \
         00 00 00 00 00 00 6e 65 77",
    );
    c.expect_hex("03 00 00 00 00 00 00 00 65 78 70");
    c.send_hex("07");
    c.expect_hex("01 00 00 00 00 00 00 00");
}

#[test]
fn counting_and_deleting() {
    let (_server, mut c) = start_with_peer();
    c.send_hex(SET_K);
    c.send_hex(ADD_N_5);
    c.expect_hex("05 00 00 00 00 00 00 00");
    c.send_hex("07");
    c.expect_hex("02 00 00 00 00 00 00 00");
    c.send_hex("08 02 00 00 00 00 00 00 00 2f 6b");
    c.expect_hex("01 00 00 00 00 00 00 00");
    c.send_hex("08 02 00 00 00 00 00 00 00 2f 6b");
    c.expect_hex("00 00 00 00 00 00 00 00");
    c.send_hex("07");
    c.expect_hex("01 00 00 00 00 00 00 00");
}

#[test]
fn lists() {
    let (_server, mut c) = start_with_peer();
    c.send_hex(
        "0b 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 61 01 00 00 00 00 00 00 00 31 02 00 \
         00 00 00 00 00 00 2f 62 02 00 00 00 00 00 00 00 32 32",
    );
    c.send_hex("09 03 00 00 00 00 00 00 00 2f 61 70 04 00 00 00 00 00 00 00 78 78 79 79");
    c.send_hex(
        "0a 03 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 61 02 00 00 00 00 00 00 00 2f 62 03 \
         00 00 00 00 00 00 00 2f 61 70",
    );
    c.expect_hex(
        "01 00 00 00 00 00 00 00 31 02 00 00 00 00 00 00 00 32 32 04 00 00 00 00 00 00 00 78 78 79 79",
    );
    // MULTI_GET of no keys has no reply. A missing key has an empty value.
    c.send_hex("0a 00 00 00 00 00 00 00 00");
    c.send_hex("0a 01 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 2f 7a 7a");
    c.expect_hex("00 00 00 00 00 00 00 00");
    c.expect_nothing_more();
}

const PUSH_Q_X1: &str = "0e 02 00 00 00 00 00 00 00 2f 71 02 00 00 00 00 00 00 00 78 31";
const POP_Q: &str = "0f 02 00 00 00 00 00 00 00 2f 71";
const WAIT_Q: &str = "06 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 71";
const X1: &str = "02 00 00 00 00 00 00 00 78 31";
const EMPTY: &str = "00 00 00 00 00 00 00 00";

#[test]
fn queues() {
    let (_server, mut c) = start_with_peer();
    c.send_hex(PUSH_Q_X1);
    c.send_hex("0e 02 00 00 00 00 00 00 00 2f 71 02 00 00 00 00 00 00 00 78 32");
    c.send_hex("10 02 00 00 00 00 00 00 00 2f 71");
    c.expect_hex("02 00 00 00 00 00 00 00");
    c.send_hex(WAIT_Q);
    c.expect_hex("00");
    c.send_hex(POP_Q);
    c.expect_hex(&format!("02 00 00 00 00 00 00 00 {X1}"));
    c.send_hex(POP_Q);
    c.expect_hex("01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 78 32");
    c.send_hex(POP_Q);
    c.expect_hex(EMPTY);
    // A queue is not a key: it is not counted, checked or deleted.
    c.send_hex(PUSH_Q_X1);
    c.send_hex("07 08 02 00 00 00 00 00 00 00 2f 71 05 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 71");
    c.expect_hex(&format!("{EMPTY} {EMPTY} 01"));
    c.expect_nothing_more();
}

#[test]
fn an_item_wakes_the_first_waiter_only() {
    let (server, mut first) = start_with_peer();
    let (mut second, mut other) =
        (RawPeer::connect_validated(&server), RawPeer::connect_validated(&server));
    first.send_hex(WAIT_Q);
    first.expect_nothing_more();
    second.send_hex(WAIT_Q);
    second.expect_nothing_more();
    other.send_hex(PUSH_Q_X1);
    first.expect_hex("00");
    second.expect_nothing_more();
    first.send_hex(POP_Q);
    first.expect_hex(&format!("01 00 00 00 00 00 00 00 {X1}"));
    other.send_hex(PUSH_Q_X1);
    second.expect_hex("00");
}

#[test]
fn an_item_that_is_not_taken_is_offered_to_the_next() {
    for leave in [
        // The client disconnects.
        (|_: &mut RawPeer| {}) as fn(&mut RawPeer),
        // The client cancels its wait too late.
        |raw| {
            raw.send_hex(CANCEL);
            raw.expect_hex("01");
        },
        // The client sends another request.
        |raw| raw.expect_nothing_more(),
    ] {
        let (server, mut first) = start_with_peer();
        let (mut second, mut other) =
            (RawPeer::connect_validated(&server), RawPeer::connect_validated(&server));
        first.send_hex(WAIT_Q);
        first.expect_nothing_more();
        second.send_hex(WAIT_Q);
        second.expect_nothing_more();
        other.send_hex(PUSH_Q_X1);
        first.expect_hex("00");
        leave(&mut first);
        drop(first);
        second.expect_hex("00");
        second.send_hex(POP_Q);
        second.expect_hex(&format!("01 00 00 00 00 00 00 00 {X1}"));
    }
}

#[test]
fn lists_of_keys() {
    let (_server, mut c) = start_with_peer();
    c.send_hex("11");
    c.expect_hex(EMPTY);
    c.send_hex(SET_K);
    c.send_hex("11");
    c.expect_hex("01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b");
    c.expect_nothing_more();
}

const BARRIER_OF_2: &str = "12 05 00 00 00 00 00 00 00 2f 62 61 72 32 02 00 00 00 00 00 00 00";

#[test]
fn barriers() {
    let (server, mut c) = start_with_peer();
    let mut other = RawPeer::connect_validated(&server);
    c.send_hex("12 04 00 00 00 00 00 00 00 2f 62 61 72 01 00 00 00 00 00 00 00");
    c.expect_hex("00");
    // The barrier's count is a key.
    c.send_hex("03 04 00 00 00 00 00 00 00 2f 62 61 72");
    c.expect_hex("01 00 00 00 00 00 00 00 31");
    c.send_hex(BARRIER_OF_2);
    c.expect_nothing_more();
    other.send_hex(BARRIER_OF_2);
    other.expect_hex("00");
    c.expect_hex("00");
    // A complete barrier stays complete.
    other.send_hex(BARRIER_OF_2);
    other.expect_hex("00");
    c.expect_nothing_more();
}

#[test]
fn a_cancelled_barrier_is_left_but_counted() {
    let (server, mut c) = start_with_peer();
    let mut other = RawPeer::connect_validated(&server);
    c.send_hex(BARRIER_OF_2);
    c.send_hex(CANCEL);
    c.expect_hex("01");
    other.send_hex(BARRIER_OF_2);
    other.expect_hex("00");
    c.expect_nothing_more();
}

#[test]
fn a_wait_is_answered_when_its_last_key_comes() {
    let (server, mut c) = start_with_peer();
    let mut other = RawPeer::connect_validated(&server);
    c.send_hex("06 00 00 00 00 00 00 00 00");
    c.expect_hex("00");
    // WAIT for "/k", "/n", and "/k" again.
    c.send_hex(
        "06 03 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b 02 00 00 00 00 00 00 00 2f 6e 02 \
         00 00 00 00 00 00 00 2f 6b",
    );
    c.expect_nothing_more();
    other.send_hex(SET_K);
    other.send_hex(SET_K);
    other.expect_nothing_more();
    c.expect_nothing_more();
    other.send_hex(ADD_N_5);
    other.expect_hex("05 00 00 00 00 00 00 00");
    c.expect_hex("00");
    c.expect_nothing_more();
}

#[test]
fn wait_counts_a_key_that_was_deleted_meanwhile() {
    let (server, mut c) = start_with_peer();
    let mut other = RawPeer::connect_validated(&server);
    c.send_hex(
        "06 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b 02 00 00 00 00 00 00 00 2f 6e",
    );
    c.expect_nothing_more();
    other.send_hex(SET_K);
    other.send_hex("08 02 00 00 00 00 00 00 00 2f 6b");
    other.expect_hex("01 00 00 00 00 00 00 00");
    other.send_hex(ADD_N_5);
    other.expect_hex("05 00 00 00 00 00 00 00");
    c.expect_hex("00");
}

#[test]
fn own_set_ends_own_wait_in_order() {
    let (_server, mut c) = start_with_peer();
    // In one write: WAIT, SET, PING. The WAIT's answer comes before the PING's.
    c.send_hex(&format!("{WAIT_K} {SET_K} 0d 09 09 09 09"));
    c.expect_hex("00 09 09 09 09");
}

#[test]
fn a_cancelled_wait_is_forgotten() {
    let (server, mut c) = start_with_peer();
    let mut other = RawPeer::connect_validated(&server);
    // CANCEL_WAIT without a pending wait has a reply too.
    c.send_hex(CANCEL);
    c.expect_hex("01");
    c.send_hex(WAIT_NOKEY);
    c.send_hex(CANCEL);
    c.expect_hex("01");
    other.send_hex(SET_NOKEY);
    other.expect_nothing_more();
    c.expect_nothing_more();
}

#[test]
fn a_cancel_that_comes_too_late_follows_the_answer() {
    let (server, mut c) = start_with_peer();
    let mut other = RawPeer::connect_validated(&server);
    c.send_hex(WAIT_NOKEY);
    c.expect_nothing_more();
    other.send_hex(SET_NOKEY);
    other.expect_nothing_more();
    c.send_hex(CANCEL);
    c.expect_hex("00 01");
    c.expect_nothing_more();
}

#[test]
fn another_wait_replaces_the_first() {
    let (server, mut c) = start_with_peer();
    let mut other = RawPeer::connect_validated(&server);
    c.send_hex(WAIT_K);
    c.send_hex(WAIT_NOKEY);
    c.expect_nothing_more();
    other.send_hex(SET_K);
    other.expect_nothing_more();
    c.expect_nothing_more();
    other.send_hex(SET_NOKEY);
    c.expect_hex("00");
    c.expect_nothing_more();
}

#[test]
fn keys_outlive_the_connection_that_set_them() {
    let (server, mut c) = start_with_peer();
    let mut clone = RawPeer::connect(&server);
    clone.send_hex(HELLO);
    clone.expect_hex(HELLO_ANSWER);
    clone.send_hex(SET_K);
    clone.expect_nothing_more();
    drop(clone);
    c.send_hex(WAIT_K);
    c.expect_hex("00");
}

#[test]
fn wait_of_a_closed_connection_is_removed() {
    let (server, mut c) = start_with_peer();
    let mut waiter = RawPeer::connect_validated(&server);
    waiter.send_hex(WAIT_K);
    waiter.expect_nothing_more();
    drop(waiter);
    c.send_hex(SET_K);
    c.expect_nothing_more();
}

#[test]
fn a_half_closed_connection_still_gets_its_answer() {
    let (_server, mut c) = start_with_peer();
    c.send_hex(ADD_N_5);
    c.0.shutdown(std::net::Shutdown::Write).unwrap();
    c.expect_hex("05 00 00 00 00 00 00 00");
    c.expect_closed();
}

#[test]
fn an_empty_key_and_value_are_legal() {
    let (_server, mut c) = start_with_peer();
    c.send_hex("01 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00");
    c.send_hex("05 01 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00");
    c.expect_hex("00");
}

#[test]
fn additions_read_numbers_as_c_does() {
    let (_server, mut c) = start_with_peer();
    // SET "/n" to " 12abc", ADD 1.
    c.send_hex("01 02 00 00 00 00 00 00 00 2f 6e 06 00 00 00 00 00 00 00 20 31 32 61 62 63");
    c.send_hex("04 02 00 00 00 00 00 00 00 2f 6e 01 00 00 00 00 00 00 00");
    c.expect_hex("0d 00 00 00 00 00 00 00");
    // The sum wraps around: the largest number plus 1.
    c.send_hex("04 02 00 00 00 00 00 00 00 2f 6d ff ff ff ff ff ff ff 7f");
    c.expect_hex("ff ff ff ff ff ff ff 7f");
    c.send_hex("04 02 00 00 00 00 00 00 00 2f 6d 01 00 00 00 00 00 00 00");
    c.expect_hex("00 00 00 00 00 00 00 80");
}
