//! Tests of the client against a scripted server that compares each byte of the requests, and tests
//! of the client's errors.

use super::{RawPeer, connect_store, hex_bytes, start_server, test_deadline};
use crate::base::{Deadline, ErrorKind};
use crate::store::tcp::ClientOptions;
use crate::store::tcp::capabilities::{ServerCapabilities, ServerCapability};
use crate::store::{Store, TcpStore};
use crate::sys::thread;
use std::io::Read as _;
use std::net::TcpListener;
use std::sync::mpsc;

/// Returns a listener and the options for connecting to it.
pub(super) fn listener() -> (TcpListener, ClientOptions) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let host = "127.0.0.1".to_owned();
    (listener, ClientOptions { host, port, ..ClientOptions::default() })
}

pub(super) fn accept(listener: &TcpListener) -> RawPeer {
    RawPeer::new(listener.accept().unwrap().0)
}

/// Expects VALIDATE and PING, and sends the reply. Returns the number in the PING.
pub(super) fn answer_validation(raw: &mut RawPeer) -> u32 {
    raw.expect_hex("00 ce f7 85 3c");
    answer_ping(raw)
}

/// Expects a PING, and sends the reply. Returns the number in the PING.
fn answer_ping(raw: &mut RawPeer) -> u32 {
    raw.expect_hex("0d");
    let mut nonce = [0; 4];
    raw.0.read_exact(&mut nonce).unwrap();
    raw.send(&nonce);
    u32::from_le_bytes(nonce)
}

/// Runs `script` as the server of one client, and `client` with the connected store.
fn with_script<T>(
    script: impl FnOnce(&TcpListener, RawPeer) + Send + 'static,
    client: impl FnOnce(TcpStore) -> T,
) -> T {
    let (listener, options) = listener();
    let (done, finished) = mpsc::channel();
    let server = thread::spawn("test-script", move || {
        let mut raw = accept(&listener);
        assert_eq!(answer_validation(&mut raw), std::process::id());
        script(&listener, raw);
        done.send(()).unwrap();
    });
    drop(server.unwrap());
    let outcome = client(TcpStore::connect(options, &test_deadline()).unwrap());
    finished.recv_timeout(test_deadline().remaining()).expect("the script did not complete");
    outcome
}

/// Runs a script that expects these requests and sends these replies.
fn with_exchange<T>(
    lines: &'static [(&'static str, &'static str)],
    client: impl FnOnce(TcpStore) -> T,
) -> T {
    let script = move |_: &TcpListener, mut raw: RawPeer| {
        for (request, answer) in lines {
            raw.expect_hex(request);
            raw.send_hex(answer);
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
fn set_is_one_way_and_get_is_one_round_trip() {
    let lines = &[(SET_K, ""), (GET_K, V1)];
    with_exchange(lines, |mut store| {
        store.assume_all_capabilities();
        store.set(b"k", b"v1", &test_deadline()).unwrap();
        assert_eq!(store.get(b"k", &test_deadline()).unwrap(), b"v1");
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
        assert_eq!(store.add(b"n", -2, &test_deadline()).unwrap(), 3);
        assert_eq!(store.compare_set(b"cs", b"a", b"bb", &test_deadline()).unwrap(), b"bb");
        assert!(store.check(&[], &test_deadline()).unwrap());
        assert!(!store.check(&[b"k"], &test_deadline()).unwrap());
        assert_eq!(store.num_keys(&test_deadline()).unwrap(), 3);
        assert!(store.delete_key(b"k", &test_deadline()).unwrap());
        store.append(b"ap", b"xx", &test_deadline()).unwrap();
    });
}

#[test]
fn multi_set_and_multi_get() {
    const KEYS: &str = "03 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 61 02 00 00 00 00 00 00 \
                        00 2f 62 03 00 00 00 00 00 00 00 2f 61 70";
    let script = |_: &TcpListener, mut raw: RawPeer| {
        raw.expect_hex(
            "0b 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 61 01 00 00 00 00 00 00 00 31 02 \
             00 00 00 00 00 00 00 2f 62 02 00 00 00 00 00 00 00 32 32",
        );
        raw.expect_hex(&format!("0a {KEYS}"));
        raw.send_hex("01 00 00 00 00 00 00 00 31 02 00 00 00 00 00 00 00 32 32");
        raw.send_hex("04 00 00 00 00 00 00 00 78 78 79 79");
    };
    with_script(script, |mut store| {
        store.assume_all_capabilities();
        store.multi_set(&[(b"a", b"1"), (b"b", b"22")], &test_deadline()).unwrap();
        let values = store.multi_get(&[b"a", b"b", b"ap"], &test_deadline()).unwrap();
        assert_eq!(values, [&b"1"[..], b"22", b"xxyy"]);
    });
}

/// Accepts the client's side connection for waits.
fn accept_side_connection(listener: &TcpListener) -> RawPeer {
    let mut side = accept(listener);
    answer_validation(&mut side);
    side
}

#[test]
fn timed_out_wait_is_cancelled_and_connection_reused() {
    let script = |listener: &TcpListener, mut main: RawPeer| {
        main.expect_hex(CHECK_K);
        main.send_hex("01");
        let mut side = accept_side_connection(listener);
        side.expect_hex(WAIT_K);
        side.expect_hex("0c");
        side.send_hex("01");
        side.expect_hex(CHECK_K);
        side.send_hex("01");
        main.expect_hex("07");
        main.send_hex("03 00 00 00 00 00 00 00");
        main.expect_hex(CHECK_K);
        main.send_hex("01");
        side.expect_hex(WAIT_K);
        side.send_hex("00");
    };
    with_script(script, |store| {
        let error = store.wait(&[b"k"], &Deadline::after_ms(50)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(error.message().contains("missing: \"k\""), "{error}");
        assert_eq!(store.num_keys(&test_deadline()).unwrap(), 3);
        store.wait(&[b"k"], &test_deadline()).unwrap();
    });
}

#[test]
fn one_way_requests_complete_before_a_wait() {
    let script = |listener: &TcpListener, mut main: RawPeer| {
        main.expect_hex(SET_K);
        main.expect_hex(GET_K);
        // The key is missing again: another client deleted it.
        main.send_hex(NOTHING);
        main.expect_hex(CHECK_K);
        main.expect_hex(GET_K);
        main.send_hex("01");
        main.send_hex(NOTHING);
        let mut side = accept_side_connection(listener);
        side.expect_hex(WAIT_K);
        side.send_hex("00");
        side.expect_hex(GET_K);
        side.send_hex(V1);
        main.expect_hex(SET_K);
        // Before the client sends BARRIER on the side connection, it confirms the requests on the
        // primary connection.
        main.expect_hex("0d");
        let mut nonce = [0; 4];
        main.0.read_exact(&mut nonce).unwrap();
        main.send(&nonce);
        side.expect_hex("12 02 00 00 00 00 00 00 00 2f 62 01 00 00 00 00 00 00 00");
        side.send_hex("00");
    };
    with_script(script, |mut store| {
        store.assume_all_capabilities();
        store.set(b"k", b"v1", &test_deadline()).unwrap();
        assert_eq!(store.get(b"k", &test_deadline()).unwrap(), b"v1");
        store.set(b"k", b"v1", &test_deadline()).unwrap();
        store.barrier(b"b", 1, &test_deadline()).unwrap();
    });
}

#[test]
fn key_set_at_the_timeout_is_returned() {
    let script = |listener: &TcpListener, mut main: RawPeer| {
        main.expect_hex(GET_K);
        main.send_hex(NOTHING);
        main.expect_hex(CHECK_K);
        main.expect_hex(GET_K);
        main.send_hex("01");
        main.send_hex(NOTHING);
        let mut side = accept_side_connection(listener);
        side.expect_hex(WAIT_K);
        side.expect_hex("0c");
        side.send_hex("00 01");
        side.expect_hex(GET_K);
        side.send_hex(V1);
    };
    with_script(script, |store| {
        assert_eq!(store.get(b"k", &Deadline::after_ms(50)).unwrap(), b"v1");
    });
}

#[test]
fn get_waits_again_after_a_spurious_wakeup() {
    let script = |listener: &TcpListener, mut main: RawPeer| {
        main.expect_hex(GET_K);
        main.send_hex(NOTHING);
        main.expect_hex(CHECK_K);
        main.expect_hex(GET_K);
        main.send_hex("01");
        main.send_hex(NOTHING);
        let mut side = accept_side_connection(listener);
        // In the first round, the client is woken but the key is missing, so it waits again. In the
        // second round, the key exists with an empty value, so the client returns.
        for answer in ["01", "00"] {
            side.expect_hex(WAIT_K);
            side.send_hex("00");
            side.expect_hex(GET_K);
            side.send_hex(NOTHING);
            side.expect_hex(CHECK_K);
            side.expect_hex(GET_K);
            side.send_hex(answer);
            side.send_hex(NOTHING);
        }
    };
    with_script(script, |store| assert_eq!(store.get(b"k", &test_deadline()).unwrap(), b""));
}

#[test]
fn older_server_is_detected_by_a_separate_probe() {
    // The server closes the connection on an unknown operation; other connections continue.
    let probes = ["10 0d 00 00 00 00 00 00 00 6c 69 62 64 69 73 74 2f 70 72 6f 62 65", "11"];
    let script = move |listener: &TcpListener, mut main: RawPeer| {
        for probe in probes {
            let mut probe_connection = accept_side_connection(listener);
            probe_connection.expect_hex(probe);
        }
        main.expect_hex("07");
        main.send_hex("03 00 00 00 00 00 00 00");
    };
    with_script(script, |store| {
        let pool = &store.pool;
        let capabilities = ServerCapabilities::default();
        assert!(!capabilities.has(ServerCapability::Queues, pool, &test_deadline()).unwrap());
        // The client probes only once.
        assert!(!capabilities.has(ServerCapability::Queues, pool, &test_deadline()).unwrap());
        let error = store.list_keys(&test_deadline()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert_eq!(store.num_keys(&test_deadline()).unwrap(), 3);
    });
}

#[test]
fn missing_key_is_checked_first_on_older_servers() {
    let script = |listener: &TcpListener, mut raw: RawPeer| {
        raw.expect_hex(GET_K);
        drop(raw);
        let mut reconnected = accept_side_connection(listener);
        reconnected.expect_hex(CHECK_K);
        reconnected.send_hex("00");
        reconnected.expect_hex(GET_K);
        reconnected.send_hex(V1);
        // From here on the client knows the capability.
        reconnected.expect_hex(CHECK_K);
        reconnected.send_hex("00");
        reconnected.expect_hex(GET_K);
        reconnected.send_hex(V1);
    };
    with_script(script, |store| {
        for _ in 0..2 {
            assert_eq!(store.get(b"k", &test_deadline()).unwrap(), b"v1");
        }
    });
}

#[test]
fn refused_add_reports_the_reason() {
    let value = "02 00 00 00 00 00 00 00";
    for (text, kind) in [("76 31", ErrorKind::NotANumber), ("31 32", ErrorKind::Connection)] {
        let script = move |listener: &TcpListener, mut raw: RawPeer| {
            raw.expect_hex(ADD_K);
            drop(raw);
            let mut reconnected = accept_side_connection(listener);
            reconnected.expect_hex(GET_K);
            reconnected.send_hex(&format!("{value} {text}"));
        };
        let error = with_script(script, |store| store.add(b"k", 1, &test_deadline()).unwrap_err());
        assert_eq!(error.kind(), kind, "{error}");
    }
}

#[test]
fn negative_count_is_a_protocol_error() {
    let lines = &[("07", "ff ff ff ff ff ff ff ff")];
    let error = with_exchange(lines, |store| store.num_keys(&test_deadline()).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Connection);
    assert!(error.message().contains("sent -1 as a count"), "{error}");
}

#[test]
fn lost_connection_is_retried_for_read_only_calls() {
    let script = |listener: &TcpListener, mut raw: RawPeer| {
        raw.expect_hex(CHECK_K);
        drop(raw);
        let mut reconnected = accept_side_connection(listener);
        reconnected.expect_hex(CHECK_K);
        reconnected.send_hex("00");
    };
    with_script(script, |store| store.wait(&[b"k"], &test_deadline()).unwrap());
}

#[test]
fn lost_connection_is_reported_for_changing_calls() {
    let script = |_: &TcpListener, mut raw: RawPeer| raw.expect_hex(ADD_K);
    let error = with_script(script, |store| store.add(b"k", 1, &test_deadline()).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Connection);
    assert!(error.message().contains("lost") && error.message().contains("unknown"), "{error}");
}

#[test]
fn lost_set_fails_the_next_call() {
    let script = |listener: &TcpListener, mut raw: RawPeer| {
        raw.expect_hex("01 02 00 00 00 00 00 00 00 2f 6b");
        drop(raw);
        let mut reconnected = accept_side_connection(listener);
        reconnected.expect_hex("07");
        reconnected.send_hex("00 00 00 00 00 00 00 00");
    };
    with_script(script, |store| {
        store.set(b"k", b"v1", &test_deadline()).unwrap();
        let error = store.num_keys(&test_deadline()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Connection);
        assert!(error.message().contains("1 earlier call (set"), "{error}");
        // The error was reported once; further calls use a new connection.
        assert_eq!(store.num_keys(&test_deadline()).unwrap(), 0);
    });
}

#[test]
fn connection_closed_while_idle_is_replaced() {
    let script = |listener: &TcpListener, raw: RawPeer| {
        drop(raw);
        let mut reconnected = accept_side_connection(listener);
        reconnected.expect_hex(ADD_K);
        reconnected.send_hex("01 00 00 00 00 00 00 00");
    };
    with_script(script, |store| {
        // Wait until the client sees that the first connection is closed.
        while store.pool.is_main_usable() {
            std::thread::yield_now();
        }
        // Wait longer than the idle time after which the client checks a connection before it uses
        // it.
        crate::wait::pause(std::time::Duration::from_millis(20), &test_deadline());
        assert_eq!(store.add(b"k", 1, &test_deadline()).unwrap(), 1);
    });
}

#[test]
fn stopped_server_is_reported_immediately() {
    let server = start_server();
    let store = connect_store(server.address());
    let port = server.port();
    drop(server);
    for outcome in [
        store.num_keys(&test_deadline()).map(drop),
        store.set(b"k", b"v", &test_deadline()),
        store.get(b"k", &test_deadline()).map(drop),
        store.wait(&[b"k"], &test_deadline()),
    ] {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Connection, "{error}");
        assert!(error.message().contains(&format!("127.0.0.1:{port}")), "{error}");
    }
}

#[test]
fn a_client_with_a_world_size_counts_itself() {
    let server = start_server();
    let store = connect_store(server.address());
    let (host, port) = ("127.0.0.1".to_owned(), server.port());
    // This client does not wait for the other client. Only the process that hosts the server waits.
    let options = ClientOptions {
        host,
        port,
        world_size: Some(2),
        wait_for_workers: true,
        ..ClientOptions::default()
    };
    TcpStore::connect(options, &test_deadline()).unwrap();
    // The number of workers is under a key without "/" in front. `num_keys` counts this key.
    assert_eq!(store.num_keys(&test_deadline()).unwrap(), 1);
    assert_eq!(store.worker_count(&test_deadline()).unwrap(), 1);
    assert!(!store.check(&[b"init/"], &test_deadline()).unwrap());
}

#[test]
fn expired_deadline_sends_no_request() {
    let server = start_server();
    let store = connect_store(server.address());
    let error = store.set(b"k", b"v", &Deadline::after_ms(0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(!store.check(&[b"k"], &test_deadline()).unwrap());
}

#[test]
fn stuck_server_times_out_at_the_deadline() {
    let script = |_: &TcpListener, mut raw: RawPeer| {
        raw.expect_hex("07");
        raw.expect_closed();
    };
    let error = with_script(script, |store| store.num_keys(&Deadline::after_ms(100)).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(hex_bytes("07"), [7]);
}
