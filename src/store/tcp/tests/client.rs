//! The client, byte by byte, against a server that follows a script; and its errors.

use super::{Raw, bytes, connect, soon, start};
use crate::base::{Deadline, ErrorKind};
use crate::store::tcp::ClientOptions;
use crate::store::tcp::abilities::{Abilities, Ability};
use crate::store::{Store, TcpStore};
use crate::sys::thread;
use std::io::Read as _;
use std::net::TcpListener;
use std::sync::mpsc;

/// A listener and the options that lead to it.
pub(super) fn listener() -> (TcpListener, ClientOptions) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let host = "127.0.0.1".to_owned();
    (listener, ClientOptions { host, port, ..ClientOptions::default() })
}

pub(super) fn accept(listener: &TcpListener) -> Raw {
    Raw::new(listener.accept().unwrap().0)
}

/// Takes the introduction, which has this process's id in its PING, and answers it.
pub(super) fn introduce(raw: &mut Raw) -> u32 {
    raw.gets("00 ce f7 85 3c");
    ping(raw)
}

/// Takes a PING and answers it.
fn ping(raw: &mut Raw) -> u32 {
    raw.gets("0d");
    let mut nonce = [0; 4];
    raw.0.read_exact(&mut nonce).unwrap();
    raw.send(&nonce);
    u32::from_le_bytes(nonce)
}

/// Runs a script as the server of one client, and what the client does.
fn with_script<T>(
    script: impl FnOnce(&TcpListener, Raw) + Send + 'static,
    client: impl FnOnce(TcpStore) -> T,
) -> T {
    let (listener, options) = listener();
    let (done, finished) = mpsc::channel();
    let server = thread::spawn("test-script", move || {
        let mut raw = accept(&listener);
        assert_eq!(introduce(&mut raw), std::process::id());
        script(&listener, raw);
        done.send(()).unwrap();
    });
    drop(server.unwrap());
    let outcome = client(TcpStore::connect(options, &soon()).unwrap());
    finished.recv_timeout(soon().left()).expect("the script went as written");
    outcome
}

/// Runs a script that takes these requests and gives these answers.
fn with_exchange<T>(
    lines: &'static [(&'static str, &'static str)],
    client: impl FnOnce(TcpStore) -> T,
) -> T {
    let script = move |_: &TcpListener, mut raw: Raw| {
        for (request, answer) in lines {
            raw.gets(request);
            raw.sends(answer);
        }
    };
    with_script(script, client)
}

const WAIT_K: &str = "06 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b";
const CHECK_K: &str = "05 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b";
const GET_K: &str = "03 02 00 00 00 00 00 00 00 2f 6b";
const ADD_K: &str = "04 02 00 00 00 00 00 00 00 2f 6b 01 00 00 00 00 00 00 00";
const SET_K: &str = "01 02 00 00 00 00 00 00 00 2f 6b 02 00 00 00 00 00 00 00 76 31";
const NOTHING: &str = "00 00 00 00 00 00 00 00";
const V1: &str = "02 00 00 00 00 00 00 00 76 31";

#[test]
fn a_set_is_not_waited_for_and_a_get_is_one_round_trip() {
    let lines = &[(SET_K, ""), (GET_K, V1)];
    with_exchange(lines, |store| {
        store.set(b"k", b"v1", &soon()).unwrap();
        assert_eq!(store.get(b"k", &soon()).unwrap(), b"v1");
    });
}

#[test]
fn counters_and_comparisons() {
    let lines = &[
        ("04 02 00 00 00 00 00 00 00 2f 6e fe ff ff ff ff ff ff ff", "03 00 00 00 00 00 00 00"),
        (
            "02 03 00 00 00 00 00 00 00 2f 63 73 01 00 00 00 00 00 00 00 61 02 00 00 00 00 00 00 00 62 62",
            "02 00 00 00 00 00 00 00 62 62",
        ),
        ("05 00 00 00 00 00 00 00 00", "00"),
        (CHECK_K, "01"),
        ("07", "03 00 00 00 00 00 00 00"),
        ("08 02 00 00 00 00 00 00 00 2f 6b", "01 00 00 00 00 00 00 00"),
        ("09 03 00 00 00 00 00 00 00 2f 61 70 02 00 00 00 00 00 00 00 78 78", ""),
    ];
    with_exchange(lines, |store| {
        assert_eq!(store.add(b"n", -2, &soon()).unwrap(), 3);
        assert_eq!(store.compare_set(b"cs", b"a", b"bb", &soon()).unwrap(), b"bb");
        assert!(store.check(&[], &soon()).unwrap());
        assert!(!store.check(&[b"k"], &soon()).unwrap());
        assert_eq!(store.num_keys(&soon()).unwrap(), 3);
        assert!(store.delete_key(b"k", &soon()).unwrap());
        store.append(b"ap", b"xx", &soon()).unwrap();
    });
}

#[test]
fn lists() {
    const KEYS: &str = "03 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 61 02 00 00 00 00 00 00 \
                        00 2f 62 03 00 00 00 00 00 00 00 2f 61 70";
    let script = |_: &TcpListener, mut raw: Raw| {
        raw.gets(
            "0b 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 61 01 00 00 00 00 00 00 00 31 02 \
             00 00 00 00 00 00 00 2f 62 02 00 00 00 00 00 00 00 32 32",
        );
        raw.gets(&format!("0a {KEYS}"));
        raw.sends("01 00 00 00 00 00 00 00 31 02 00 00 00 00 00 00 00 32 32");
        raw.sends("04 00 00 00 00 00 00 00 78 78 79 79");
    };
    with_script(script, |store| {
        store.multi_set(&[(b"a", b"1"), (b"b", b"22")], &soon()).unwrap();
        let values = store.multi_get(&[b"a", b"b", b"ap"], &soon()).unwrap();
        assert_eq!(values, [&b"1"[..], b"22", b"xxyy"]);
    });
}

/// The second connection of a client, which is for waiting.
fn side(listener: &TcpListener) -> Raw {
    let mut side = accept(listener);
    introduce(&mut side);
    side
}

#[test]
fn a_timed_out_wait_is_cancelled_and_its_connection_goes_on() {
    let script = |listener: &TcpListener, mut main: Raw| {
        main.gets(CHECK_K);
        main.sends("01");
        let mut side = side(listener);
        side.gets(WAIT_K);
        side.gets("0c");
        side.sends("01");
        side.gets(CHECK_K);
        side.sends("01");
        main.gets("07");
        main.sends("03 00 00 00 00 00 00 00");
        main.gets(CHECK_K);
        main.sends("01");
        side.gets(WAIT_K);
        side.sends("00");
    };
    with_script(script, |store| {
        let error = store.wait(&[b"k"], &Deadline::after_ms(50)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(error.message().contains("missing: \"k\""), "{error}");
        assert_eq!(store.num_keys(&soon()).unwrap(), 3);
        store.wait(&[b"k"], &soon()).unwrap();
    });
}

#[test]
fn what_was_told_has_taken_place_before_anybody_waits() {
    let script = |listener: &TcpListener, mut main: Raw| {
        main.gets(SET_K);
        main.gets(GET_K);
        // Gone already: somebody has deleted it.
        main.sends(NOTHING);
        main.gets(CHECK_K);
        main.sends("01");
        let mut side = side(listener);
        side.gets(WAIT_K);
        side.sends("00");
        side.gets(GET_K);
        side.sends(V1);
        main.gets(SET_K);
        // A barrier is asked for on the other connection: first this one must be done.
        main.gets("0d");
        let mut nonce = [0; 4];
        main.0.read_exact(&mut nonce).unwrap();
        main.send(&nonce);
        side.gets("12 02 00 00 00 00 00 00 00 2f 62 01 00 00 00 00 00 00 00");
        side.sends("00");
    };
    with_script(script, |mut store| {
        store.assume_all_abilities();
        store.set(b"k", b"v1", &soon()).unwrap();
        assert_eq!(store.get(b"k", &soon()).unwrap(), b"v1");
        store.set(b"k", b"v1", &soon()).unwrap();
        store.barrier(b"b", 1, &soon()).unwrap();
    });
}

#[test]
fn a_key_that_comes_with_the_time_out_has_come() {
    let script = |listener: &TcpListener, mut main: Raw| {
        main.gets(GET_K);
        main.sends(NOTHING);
        main.gets(CHECK_K);
        main.gets(GET_K);
        main.sends("01");
        main.sends(NOTHING);
        let mut side = side(listener);
        side.gets(WAIT_K);
        side.gets("0c");
        side.sends("00 01");
        side.gets(GET_K);
        side.sends(V1);
    };
    with_script(script, |store| {
        assert_eq!(store.get(b"k", &Deadline::after_ms(50)).unwrap(), b"v1");
    });
}

#[test]
fn a_get_survives_a_wake_without_a_key() {
    let script = |listener: &TcpListener, mut main: Raw| {
        main.gets(GET_K);
        main.sends(NOTHING);
        main.gets(CHECK_K);
        main.gets(GET_K);
        main.sends("01");
        main.sends(NOTHING);
        let mut side = side(listener);
        // Woken, and not there: wait on. Woken, there, and empty.
        for answer in ["01", "00"] {
            side.gets(WAIT_K);
            side.sends("00");
            side.gets(GET_K);
            side.sends(NOTHING);
            side.gets(CHECK_K);
            side.gets(GET_K);
            side.sends(answer);
            side.sends(NOTHING);
        }
    };
    with_script(script, |store| assert_eq!(store.get(b"k", &soon()).unwrap(), b""));
}

#[test]
fn an_older_server_is_found_out_and_spared() {
    // Closes the connection on what it does not know; everything else is left as it was.
    let probes = ["10 0d 00 00 00 00 00 00 00 6c 69 62 64 69 73 74 2f 70 72 6f 62 65", "11"];
    let script = move |listener: &TcpListener, mut main: Raw| {
        for probe in probes {
            let mut fresh = side(listener);
            fresh.gets(probe);
        }
        main.gets("07");
        main.sends("03 00 00 00 00 00 00 00");
    };
    with_script(script, |store| {
        let link = store.link();
        let abilities = Abilities::default();
        assert!(!abilities.has(Ability::Queues, link, &soon()).unwrap());
        // Asked once only.
        assert!(!abilities.has(Ability::Queues, link, &soon()).unwrap());
        let error = store.list_keys(&soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert_eq!(store.num_keys(&soon()).unwrap(), 3);
    });
}

#[test]
fn an_addition_that_ends_the_connection_is_explained() {
    let value = "02 00 00 00 00 00 00 00";
    for (text, kind) in [("76 31", ErrorKind::NotANumber), ("31 32", ErrorKind::Connection)] {
        let script = move |listener: &TcpListener, mut raw: Raw| {
            raw.gets(ADD_K);
            drop(raw);
            let mut again = side(listener);
            again.gets(GET_K);
            again.sends(&format!("{value} {text}"));
        };
        let error = with_script(script, |store| store.add(b"k", 1, &soon()).unwrap_err());
        assert_eq!(error.kind(), kind, "{error}");
    }
}

#[test]
fn a_negative_count_is_no_answer() {
    let lines = &[("07", "ff ff ff ff ff ff ff ff")];
    let error = with_exchange(lines, |store| store.num_keys(&soon()).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Connection);
    assert!(error.message().contains("sent -1 as a count"), "{error}");
}

#[test]
fn a_lost_connection_is_replaced_for_what_changes_nothing() {
    let script = |listener: &TcpListener, mut raw: Raw| {
        raw.gets(CHECK_K);
        drop(raw);
        let mut again = side(listener);
        again.gets(CHECK_K);
        again.sends("00");
    };
    with_script(script, |store| store.wait(&[b"k"], &soon()).unwrap());
}

#[test]
fn a_lost_connection_is_reported_for_what_changes_something() {
    let script = |_: &TcpListener, mut raw: Raw| raw.gets(ADD_K);
    let error = with_script(script, |store| store.add(b"k", 1, &soon()).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Connection);
    assert!(error.message().contains("lost") && error.message().contains("unknown"), "{error}");
}

#[test]
fn a_set_that_was_lost_fails_the_next_call() {
    let script = |listener: &TcpListener, mut raw: Raw| {
        raw.gets("01 02 00 00 00 00 00 00 00 2f 6b");
        drop(raw);
        let mut again = side(listener);
        again.gets("07");
        again.sends("00 00 00 00 00 00 00 00");
    };
    with_script(script, |store| {
        store.set(b"k", b"v1", &soon()).unwrap();
        let error = store.num_keys(&soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Connection);
        assert!(error.message().contains("1 earlier call (set"), "{error}");
        // It has been said; from here on there is a new connection.
        assert_eq!(store.num_keys(&soon()).unwrap(), 0);
    });
}

#[test]
fn a_connection_that_was_closed_while_idle_is_not_used() {
    let script = |listener: &TcpListener, raw: Raw| {
        drop(raw);
        let mut again = side(listener);
        again.gets(ADD_K);
        again.sends("01 00 00 00 00 00 00 00");
    };
    with_script(script, |store| {
        // The end of the first connection must have arrived; nothing else tells when.
        while store.link().is_usable() {
            std::thread::yield_now();
        }
        // Within the time in which a connection is taken to be good it is not looked at.
        crate::wait::pause(std::time::Duration::from_millis(20), &soon());
        assert_eq!(store.add(b"k", 1, &soon()).unwrap(), 1);
    });
}

#[test]
fn a_server_that_is_gone_is_reported_at_once() {
    let server = start();
    let store = connect(server.address());
    let port = server.port();
    drop(server);
    for outcome in [
        store.num_keys(&soon()).map(drop),
        store.set(b"k", b"v", &soon()),
        store.get(b"k", &soon()).map(drop),
        store.wait(&[b"k"], &soon()),
    ] {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Connection, "{error}");
        assert!(error.message().contains(&format!("127.0.0.1:{port}")), "{error}");
    }
}

#[test]
fn a_client_with_a_world_size_counts_itself() {
    let server = start();
    let store = connect(server.address());
    let (host, port) = ("127.0.0.1".to_owned(), server.port());
    // It does not wait for the other one: only the process with the server does.
    let options = ClientOptions {
        host,
        port,
        world_size: Some(2),
        wait_for_workers: true,
        ..ClientOptions::default()
    };
    TcpStore::connect(options, &soon()).unwrap();
    // Counted under a key without "/", which is a key nevertheless.
    assert_eq!(store.num_keys(&soon()).unwrap(), 1);
    assert_eq!(store.arrivals(&soon()).unwrap(), 1);
    assert!(!store.check(&[b"init/"], &soon()).unwrap());
}

#[test]
fn a_deadline_that_has_passed_changes_nothing() {
    let server = start();
    let store = connect(server.address());
    let error = store.set(b"k", b"v", &Deadline::after_ms(0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(!store.check(&[b"k"], &soon()).unwrap());
}

#[test]
fn a_stuck_server_is_given_up_at_the_deadline() {
    let script = |_: &TcpListener, mut raw: Raw| {
        raw.gets("07");
        raw.is_dropped();
    };
    let error = with_script(script, |store| store.num_keys(&Deadline::after_ms(100)).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(bytes("07"), [7]);
}
