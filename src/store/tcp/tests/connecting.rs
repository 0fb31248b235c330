//! Tests of connecting to a server that starts late, is full, does not reply, is missing, or is no
//! store.

use super::client::{accept, answer_validation, listener};
use super::test_deadline;
use crate::base::{Deadline, Error, ErrorKind, Result};
use crate::store::TcpStore;
use crate::store::tcp::ClientOptions;
use crate::sys::thread;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

fn connect_error(options: ClientOptions, ms: u64) -> Error {
    TcpStore::connect(options, &Deadline::after_ms(ms)).unwrap_err()
}

#[test]
fn a_port_without_a_server_is_refused_until_the_deadline() {
    let (listener, options) = listener();
    drop(listener);
    let port = options.port;
    let error = connect_error(options, 300);
    assert_eq!(error.kind(), ErrorKind::Connection);
    let text = error.message();
    assert!(text.contains("refused") && text.contains(&format!("127.0.0.1:{port}")), "{text}");
}

#[test]
fn a_host_without_an_address_is_named() {
    let host = "no-such-host.invalid".to_owned();
    let error = connect_error(ClientOptions { host, port: 1, ..ClientOptions::default() }, 300);
    assert!(error.message().contains("no-such-host.invalid:1"), "{error}");
}

#[test]
fn peer_with_other_protocol_is_not_a_store() {
    let (listener, options) = listener();
    let server = thread::spawn("test-no-store", move || {
        let mut raw = accept(&listener);
        raw.expect_hex("00 ce f7 85 3c");
        raw.send(b"SSH-2.0-x\r\n");
    });
    let error = connect_error(options, 60_000);
    server.unwrap().join().unwrap();
    assert_eq!(error.kind(), ErrorKind::Connection);
    assert!(error.message().contains("not a store"), "{error}");
    assert!(error.message().contains("SSH-"), "{error}");
}

#[test]
fn full_server_is_retried() {
    let (listener, options) = listener();
    let server = thread::spawn("test-full", move || {
        for _ in 0..2 {
            accept(&listener).send(b"FULL");
        }
        answer_validation(&mut accept(&listener));
    });
    TcpStore::connect(options, &test_deadline()).unwrap();
    server.unwrap().join().unwrap();
}

#[test]
fn server_that_stays_full_is_reported_with_a_remedy() {
    let (listener, options) = listener();
    let address = listener.local_addr().unwrap();
    let stop_flag = Arc::new(AtomicBool::new(false));
    let stop_flag_for_server = Arc::clone(&stop_flag);
    let server = thread::spawn("test-full", move || {
        while !stop_flag_for_server.load(Ordering::Relaxed) {
            accept(&listener).send(b"FULL");
        }
    });
    let error = connect_error(options, 1000);
    assert_eq!(error.kind(), ErrorKind::Connection);
    assert!(error.message().contains("ulimit -n"), "{error}");
    stop_flag.store(true, Ordering::Relaxed);
    // Unblock the wait for another client, if it has not ended.
    drop(TcpStream::connect(address));
    server.unwrap().join().unwrap();
}

#[test]
fn peer_that_closes_is_a_connection_error() {
    let (listener, options) = listener();
    let server = thread::spawn("test-closing", move || drop(accept(&listener)));
    let error = connect_error(options, 1000);
    server.unwrap().join().unwrap();
    assert_eq!(error.kind(), ErrorKind::Connection);
}

#[test]
fn silent_peer_times_out_at_the_deadline() {
    let (listener, options) = listener();
    let error = connect_error(options, 200);
    drop(listener);
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.message().contains("did not answer"), "{error}");
}

#[test]
fn a_server_that_starts_late_is_found() {
    let (listener, options) = listener();
    drop(listener);
    let port = options.port;
    let (sender, receiver) = mpsc::channel();
    let client = thread::spawn("test-early", move || {
        drop(sender.send(TcpStore::connect(options, &test_deadline()).map(drop)));
    });
    let bind = || super::ServerOptions {
        bind: "127.0.0.1".to_owned(),
        port,
        ..super::ServerOptions::default()
    };
    let server: Result<_> = super::Server::start(bind());
    // Another test may have taken the port; then there is nothing to check.
    if server.is_ok() {
        receiver.recv_timeout(test_deadline().remaining()).unwrap().unwrap();
        client.unwrap().join().unwrap();
    }
}
