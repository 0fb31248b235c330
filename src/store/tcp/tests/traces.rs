//! The server, byte by byte: what torch's clients were captured sending, and what torch's server
//! answered.

use std::sync::Arc;

use super::{HELLO, HELLO_ANSWER, Raw, Server, start};

const SET_K: &str = "01 02 00 00 00 00 00 00 00 2f 6b 02 00 00 00 00 00 00 00 76 31";
const WAIT_K: &str = "06 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b";
const WAIT_NOKEY: &str = "06 01 00 00 00 00 00 00 00 06 00 00 00 00 00 00 00 2f 6e 6f 6b 65 79";
const SET_NOKEY: &str = "01 06 00 00 00 00 00 00 00 2f 6e 6f 6b 65 79 01 00 00 00 00 00 00 00 31";
const ADD_N_5: &str = "04 02 00 00 00 00 00 00 00 2f 6e 05 00 00 00 00 00 00 00";
const CANCEL: &str = "0c";

fn fresh() -> (Arc<Server>, Raw) {
    let server = start();
    let raw = Raw::introduced(&server);
    (server, raw)
}

#[test]
fn values() {
    let (_server, mut c) = fresh();
    c.sends(SET_K);
    c.sends(WAIT_K);
    c.gets("00");
    c.sends("03 02 00 00 00 00 00 00 00 2f 6b");
    c.gets("02 00 00 00 00 00 00 00 76 31");
    // A missing key has an empty value.
    c.sends("03 03 00 00 00 00 00 00 00 2f 7a 7a");
    c.gets("00 00 00 00 00 00 00 00");
    c.sends("09 03 00 00 00 00 00 00 00 2f 61 70 02 00 00 00 00 00 00 00 78 78");
    c.sends("09 03 00 00 00 00 00 00 00 2f 61 70 02 00 00 00 00 00 00 00 79 79");
    c.sends("03 03 00 00 00 00 00 00 00 2f 61 70");
    c.gets("04 00 00 00 00 00 00 00 78 78 79 79");
    c.gets_nothing_more();
}

#[test]
fn counters() {
    let (_server, mut c) = fresh();
    c.sends(ADD_N_5);
    c.gets("05 00 00 00 00 00 00 00");
    c.sends("04 02 00 00 00 00 00 00 00 2f 6e fe ff ff ff ff ff ff ff");
    c.gets("03 00 00 00 00 00 00 00");
    c.sends("03 02 00 00 00 00 00 00 00 2f 6e");
    c.gets("01 00 00 00 00 00 00 00 33");
    // A client that joins a world of two.
    c.sends("04 05 00 00 00 00 00 00 00 69 6e 69 74 2f 01 00 00 00 00 00 00 00");
    c.gets("01 00 00 00 00 00 00 00");
    c.gets_nothing_more();
}

#[test]
fn checks() {
    let (_server, mut c) = fresh();
    c.sends(SET_K);
    c.sends("05 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b");
    c.gets("00");
    c.sends(
        "05 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b 03 00 00 00 00 00 00 00 2f 7a 7a",
    );
    c.gets("01");
    c.sends("05 00 00 00 00 00 00 00 00");
    c.gets("00");
    c.gets_nothing_more();
}

#[test]
fn compare_and_set() {
    let (_server, mut c) = fresh();
    c.sends(
        "02 03 00 00 00 00 00 00 00 2f 63 73 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 61",
    );
    c.gets("01 00 00 00 00 00 00 00 61");
    c.sends(
        "02 03 00 00 00 00 00 00 00 2f 63 73 01 00 00 00 00 00 00 00 61 02 00 00 00 00 00 00 00 62 62",
    );
    c.gets("02 00 00 00 00 00 00 00 62 62");
    c.sends(
        "02 03 00 00 00 00 00 00 00 2f 63 73 05 00 00 00 00 00 00 00 57 52 4f 4e 47 03 00 00 00 00 \
         00 00 00 63 63 63",
    );
    c.gets("02 00 00 00 00 00 00 00 62 62");
    c.sends(
        "02 08 00 00 00 00 00 00 00 2f 6d 69 73 73 69 6e 67 03 00 00 00 00 00 00 00 65 78 70 03 00 \
         00 00 00 00 00 00 6e 65 77",
    );
    c.gets("03 00 00 00 00 00 00 00 65 78 70");
    c.sends("07");
    c.gets("01 00 00 00 00 00 00 00");
}

#[test]
fn counting_and_deleting() {
    let (_server, mut c) = fresh();
    c.sends(SET_K);
    c.sends(ADD_N_5);
    c.gets("05 00 00 00 00 00 00 00");
    c.sends("07");
    c.gets("02 00 00 00 00 00 00 00");
    c.sends("08 02 00 00 00 00 00 00 00 2f 6b");
    c.gets("01 00 00 00 00 00 00 00");
    c.sends("08 02 00 00 00 00 00 00 00 2f 6b");
    c.gets("00 00 00 00 00 00 00 00");
    c.sends("07");
    c.gets("01 00 00 00 00 00 00 00");
}

#[test]
fn lists() {
    let (_server, mut c) = fresh();
    c.sends(
        "0b 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 61 01 00 00 00 00 00 00 00 31 02 00 \
         00 00 00 00 00 00 2f 62 02 00 00 00 00 00 00 00 32 32",
    );
    c.sends("09 03 00 00 00 00 00 00 00 2f 61 70 04 00 00 00 00 00 00 00 78 78 79 79");
    c.sends(
        "0a 03 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 61 02 00 00 00 00 00 00 00 2f 62 03 \
         00 00 00 00 00 00 00 2f 61 70",
    );
    c.gets(
        "01 00 00 00 00 00 00 00 31 02 00 00 00 00 00 00 00 32 32 04 00 00 00 00 00 00 00 78 78 79 79",
    );
    // No keys, no answer; a missing key, an empty value.
    c.sends("0a 00 00 00 00 00 00 00 00");
    c.sends("0a 01 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 2f 7a 7a");
    c.gets("00 00 00 00 00 00 00 00");
    c.gets_nothing_more();
}

const PUSH_Q_X1: &str = "0e 02 00 00 00 00 00 00 00 2f 71 02 00 00 00 00 00 00 00 78 31";
const POP_Q: &str = "0f 02 00 00 00 00 00 00 00 2f 71";
const WAIT_Q: &str = "06 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 71";
const X1: &str = "02 00 00 00 00 00 00 00 78 31";
const EMPTY: &str = "00 00 00 00 00 00 00 00";

#[test]
fn queues() {
    let (_server, mut c) = fresh();
    c.sends(PUSH_Q_X1);
    c.sends("0e 02 00 00 00 00 00 00 00 2f 71 02 00 00 00 00 00 00 00 78 32");
    c.sends("10 02 00 00 00 00 00 00 00 2f 71");
    c.gets("02 00 00 00 00 00 00 00");
    c.sends(WAIT_Q);
    c.gets("00");
    c.sends(POP_Q);
    c.gets(&format!("02 00 00 00 00 00 00 00 {X1}"));
    c.sends(POP_Q);
    c.gets("01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 78 32");
    c.sends(POP_Q);
    c.gets(EMPTY);
    // A queue is no key: not counted, not there, not deleted.
    c.sends(PUSH_Q_X1);
    c.sends("07 08 02 00 00 00 00 00 00 00 2f 71 05 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 71");
    c.gets(&format!("{EMPTY} {EMPTY} 01"));
    c.gets_nothing_more();
}

#[test]
fn an_item_wakes_the_first_waiter_only() {
    let (server, mut first) = fresh();
    let (mut second, mut other) = (Raw::introduced(&server), Raw::introduced(&server));
    first.sends(WAIT_Q);
    first.gets_nothing_more();
    second.sends(WAIT_Q);
    second.gets_nothing_more();
    other.sends(PUSH_Q_X1);
    first.gets("00");
    second.gets_nothing_more();
    first.sends(POP_Q);
    first.gets(&format!("01 00 00 00 00 00 00 00 {X1}"));
    other.sends(PUSH_Q_X1);
    second.gets("00");
}

#[test]
fn an_item_that_is_not_taken_is_offered_to_the_next() {
    for leave in [
        // It goes.
        (|_: &mut Raw| {}) as fn(&mut Raw),
        // Its time-out came too late.
        |raw| {
            raw.sends(CANCEL);
            raw.gets("01");
        },
        // It does something else.
        |raw| raw.gets_nothing_more(),
    ] {
        let (server, mut first) = fresh();
        let (mut second, mut other) = (Raw::introduced(&server), Raw::introduced(&server));
        first.sends(WAIT_Q);
        first.gets_nothing_more();
        second.sends(WAIT_Q);
        second.gets_nothing_more();
        other.sends(PUSH_Q_X1);
        first.gets("00");
        leave(&mut first);
        drop(first);
        second.gets("00");
        second.sends(POP_Q);
        second.gets(&format!("01 00 00 00 00 00 00 00 {X1}"));
    }
}

#[test]
fn lists_of_keys() {
    let (_server, mut c) = fresh();
    c.sends("11");
    c.gets(EMPTY);
    c.sends(SET_K);
    c.sends("11");
    c.gets("01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b");
    c.gets_nothing_more();
}

const BARRIER_OF_2: &str = "12 05 00 00 00 00 00 00 00 2f 62 61 72 32 02 00 00 00 00 00 00 00";

#[test]
fn barriers() {
    let (server, mut c) = fresh();
    let mut other = Raw::introduced(&server);
    c.sends("12 04 00 00 00 00 00 00 00 2f 62 61 72 01 00 00 00 00 00 00 00");
    c.gets("00");
    // The count is a key.
    c.sends("03 04 00 00 00 00 00 00 00 2f 62 61 72");
    c.gets("01 00 00 00 00 00 00 00 31");
    c.sends(BARRIER_OF_2);
    c.gets_nothing_more();
    other.sends(BARRIER_OF_2);
    other.gets("00");
    c.gets("00");
    // Complete once and for all.
    other.sends(BARRIER_OF_2);
    other.gets("00");
    c.gets_nothing_more();
}

#[test]
fn a_cancelled_barrier_is_left_but_counted() {
    let (server, mut c) = fresh();
    let mut other = Raw::introduced(&server);
    c.sends(BARRIER_OF_2);
    c.sends(CANCEL);
    c.gets("01");
    other.sends(BARRIER_OF_2);
    other.gets("00");
    c.gets_nothing_more();
}

#[test]
fn a_wait_is_answered_when_its_last_key_comes() {
    let (server, mut c) = fresh();
    let mut other = Raw::introduced(&server);
    c.sends("06 00 00 00 00 00 00 00 00");
    c.gets("00");
    // "/k", "/n", and "/k" again.
    c.sends(
        "06 03 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b 02 00 00 00 00 00 00 00 2f 6e 02 \
         00 00 00 00 00 00 00 2f 6b",
    );
    c.gets_nothing_more();
    other.sends(SET_K);
    other.sends(SET_K);
    other.gets_nothing_more();
    c.gets_nothing_more();
    other.sends(ADD_N_5);
    other.gets("05 00 00 00 00 00 00 00");
    c.gets("00");
    c.gets_nothing_more();
}

#[test]
fn a_key_that_came_and_went_counts() {
    let (server, mut c) = fresh();
    let mut other = Raw::introduced(&server);
    c.sends(
        "06 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b 02 00 00 00 00 00 00 00 2f 6e",
    );
    c.gets_nothing_more();
    other.sends(SET_K);
    other.sends("08 02 00 00 00 00 00 00 00 2f 6b");
    other.gets("01 00 00 00 00 00 00 00");
    other.sends(ADD_N_5);
    other.gets("05 00 00 00 00 00 00 00");
    c.gets("00");
}

#[test]
fn a_connection_may_wake_itself_in_order() {
    let (_server, mut c) = fresh();
    // In one write: WAIT, SET, PING. The WAIT's answer comes before the PING's.
    c.sends(&format!("{WAIT_K} {SET_K} 0d 09 09 09 09"));
    c.gets("00 09 09 09 09");
}

#[test]
fn a_cancelled_wait_is_forgotten() {
    let (server, mut c) = fresh();
    let mut other = Raw::introduced(&server);
    // Also where nothing is pending.
    c.sends(CANCEL);
    c.gets("01");
    c.sends(WAIT_NOKEY);
    c.sends(CANCEL);
    c.gets("01");
    other.sends(SET_NOKEY);
    other.gets_nothing_more();
    c.gets_nothing_more();
}

#[test]
fn a_cancel_that_comes_too_late_follows_the_answer() {
    let (server, mut c) = fresh();
    let mut other = Raw::introduced(&server);
    c.sends(WAIT_NOKEY);
    c.gets_nothing_more();
    other.sends(SET_NOKEY);
    other.gets_nothing_more();
    c.sends(CANCEL);
    c.gets("00 01");
    c.gets_nothing_more();
}

#[test]
fn another_wait_replaces_the_first() {
    let (server, mut c) = fresh();
    let mut other = Raw::introduced(&server);
    c.sends(WAIT_K);
    c.sends(WAIT_NOKEY);
    c.gets_nothing_more();
    other.sends(SET_K);
    other.gets_nothing_more();
    c.gets_nothing_more();
    other.sends(SET_NOKEY);
    c.gets("00");
    c.gets_nothing_more();
}

#[test]
fn a_clone_is_another_connection_and_keys_outlive_it() {
    let (server, mut c) = fresh();
    let mut clone = Raw::to(&server);
    clone.sends(HELLO);
    clone.gets(HELLO_ANSWER);
    clone.sends(SET_K);
    clone.gets_nothing_more();
    drop(clone);
    c.sends(WAIT_K);
    c.gets("00");
}

#[test]
fn a_vanished_waiter_is_forgotten() {
    let (server, mut c) = fresh();
    let mut waiter = Raw::introduced(&server);
    waiter.sends(WAIT_K);
    waiter.gets_nothing_more();
    drop(waiter);
    c.sends(SET_K);
    c.gets_nothing_more();
}

#[test]
fn a_half_closed_connection_still_gets_its_answer() {
    let (_server, mut c) = fresh();
    c.sends(ADD_N_5);
    c.0.shutdown(std::net::Shutdown::Write).unwrap();
    c.gets("05 00 00 00 00 00 00 00");
    c.is_dropped();
}

#[test]
fn an_empty_key_and_value_are_legal() {
    let (_server, mut c) = fresh();
    c.sends("01 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00");
    c.sends("05 01 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00");
    c.gets("00");
}

#[test]
fn additions_read_numbers_as_c_does() {
    let (_server, mut c) = fresh();
    // SET "/n" to " 12abc", ADD 1.
    c.sends("01 02 00 00 00 00 00 00 00 2f 6e 06 00 00 00 00 00 00 00 20 31 32 61 62 63");
    c.sends("04 02 00 00 00 00 00 00 00 2f 6e 01 00 00 00 00 00 00 00");
    c.gets("0d 00 00 00 00 00 00 00");
    // And wrap: the largest number plus 1.
    c.sends("04 02 00 00 00 00 00 00 00 2f 6d ff ff ff ff ff ff ff 7f");
    c.gets("ff ff ff ff ff ff ff 7f");
    c.sends("04 02 00 00 00 00 00 00 00 2f 6d 01 00 00 00 00 00 00 00");
    c.gets("00 00 00 00 00 00 00 80");
}
