//! Finding a server: late, full, silent, absent, or something else.

use super::client::{accept, introduce, listener};
use super::soon;
use crate::base::{Deadline, Error, ErrorKind, Result};
use crate::store::TcpStore;
use crate::store::tcp::ClientOptions;
use crate::sys::thread;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

fn refusal(options: ClientOptions, ms: u64) -> Error {
    TcpStore::connect(options, &Deadline::after_ms(ms)).unwrap_err()
}

#[test]
fn a_port_without_a_server_is_refused_until_the_deadline() {
    let (listener, options) = listener();
    drop(listener);
    let port = options.port;
    let error = refusal(options, 300);
    assert_eq!(error.kind(), ErrorKind::Connection);
    let text = error.message();
    assert!(text.contains("refused") && text.contains(&format!("127.0.0.1:{port}")), "{text}");
}

#[test]
fn a_host_without_an_address_is_named() {
    let host = "no-such-host.invalid".to_owned();
    let error = refusal(ClientOptions { host, port: 1, ..ClientOptions::default() }, 300);
    assert!(error.message().contains("no-such-host.invalid:1"), "{error}");
}

#[test]
fn a_peer_that_answers_something_else_is_no_store() {
    let (listener, options) = listener();
    let server = thread::spawn("test-no-store", move || {
        let mut raw = accept(&listener);
        raw.gets("00 ce f7 85 3c");
        raw.send(b"SSH-2.0-x\r\n");
    });
    let error = refusal(options, 60_000);
    server.unwrap().join().unwrap();
    assert_eq!(error.kind(), ErrorKind::Connection);
    assert!(error.message().contains("not a store"), "{error}");
    assert!(error.message().contains("SSH-"), "{error}");
}

#[test]
fn a_server_that_is_full_is_asked_again() {
    let (listener, options) = listener();
    let server = thread::spawn("test-full", move || {
        for _ in 0..2 {
            accept(&listener).send(b"FULL");
        }
        introduce(&mut accept(&listener));
    });
    TcpStore::connect(options, &soon()).unwrap();
    server.unwrap().join().unwrap();
}

#[test]
fn a_server_that_stays_full_says_what_to_do() {
    let (listener, options) = listener();
    let address = listener.local_addr().unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&over);
    let server = thread::spawn("test-full", move || {
        while !is_over.load(Ordering::Relaxed) {
            accept(&listener).send(b"FULL");
        }
    });
    let error = refusal(options, 1000);
    assert_eq!(error.kind(), ErrorKind::Connection);
    assert!(error.message().contains("ulimit -n"), "{error}");
    over.store(true, Ordering::Relaxed);
    // Ends the wait for another client, unless one had been waiting still.
    drop(TcpStream::connect(address));
    server.unwrap().join().unwrap();
}

#[test]
fn a_peer_that_closes_is_not_reached() {
    let (listener, options) = listener();
    let server = thread::spawn("test-closing", move || drop(accept(&listener)));
    let error = refusal(options, 1000);
    server.unwrap().join().unwrap();
    assert_eq!(error.kind(), ErrorKind::Connection);
}

#[test]
fn a_silent_peer_is_given_up_at_the_deadline() {
    let (listener, options) = listener();
    let error = refusal(options, 200);
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
        drop(sender.send(TcpStore::connect(options, &soon()).map(drop)));
    });
    let bind = || super::ServerOptions {
        bind: "127.0.0.1".to_owned(),
        port,
        ..super::ServerOptions::default()
    };
    let server: Result<_> = super::Server::start(bind());
    // Another test may have got the port meanwhile; then there is nothing to be seen.
    if server.is_ok() {
        receiver.recv_timeout(soon().left()).unwrap().unwrap();
        client.unwrap().join().unwrap();
    }
}
