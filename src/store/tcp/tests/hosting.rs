//! Tests of starting and stopping servers, and of stores that host their own server.

use super::{HELLO, RawPeer, connect_store, hex_bytes, start_server, test_deadline};
use crate::base::{Deadline, ErrorKind};
use crate::store::tcp::{ClientOptions, Server, ServerOptions};
use crate::store::{Store as _, TcpStore};
use crate::sys::{thread, unix};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

fn options(bind: &str, port: u16) -> ServerOptions {
    ServerOptions { bind: bind.to_owned(), port, ..ServerOptions::default() }
}

fn assert_serves(address: SocketAddr) {
    let store = connect_store(address);
    store.set(b"k", b"v", &test_deadline()).unwrap();
    assert_eq!(store.get(b"k", &test_deadline()).unwrap(), b"v");
}

fn has_ipv6() -> bool {
    TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
}

#[test]
fn empty_bind_listens_on_ipv4_and_ipv6() {
    let server = Server::start(options("", 0)).unwrap();
    assert_serves((Ipv4Addr::LOCALHOST, server.port()).into());
    if has_ipv6() {
        assert_serves((Ipv6Addr::LOCALHOST, server.port()).into());
    }
}

#[test]
fn an_ipv6_address_is_served() {
    if !has_ipv6() {
        return;
    }
    for bind in ["::1", "[::1]"] {
        let server = Server::start(options(bind, 0)).unwrap();
        assert_eq!(server.address().ip(), IpAddr::V6(Ipv6Addr::LOCALHOST));
        assert_serves(server.address());
    }
}

#[test]
fn a_name_is_served_at_all_its_addresses() {
    let server = Server::start(options("localhost", 0)).unwrap();
    assert_serves((Ipv4Addr::LOCALHOST, server.port()).into());
    let host = "localhost".to_owned();
    let client = ClientOptions { host, port: server.port(), ..ClientOptions::default() };
    let store = TcpStore::connect(client, &test_deadline()).unwrap();
    assert_eq!(store.address(), Some(("localhost".to_owned(), server.port())));
    assert_eq!(store.describe(), format!("the store at localhost:{}", server.port()));
}

#[test]
fn a_port_in_use_is_named_with_a_remedy() {
    let first = start_server();
    let error = Server::start(options("127.0.0.1", first.port())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::System);
    let text = error.message();
    assert!(text.contains(&format!("127.0.0.1:{}", first.port())), "{text}");
    assert!(text.contains("port 0"), "{text}");
}

#[test]
fn port_is_released_when_the_server_stops() {
    let server = start_server();
    let port = server.port();
    let mut client = RawPeer::connect_validated(&server);
    drop(server);
    client.expect_closed();
    // Another test may have taken the port.
    if let Err(error) = Server::start(options("127.0.0.1", port)) {
        assert!(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_err(), "{error}");
    }
}

#[test]
fn an_address_of_another_host_is_refused() {
    // This address is reserved for documentation, so no host has it.
    let error = Server::start(options("192.0.2.1", 0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::System);
    assert!(error.message().contains("no such address"), "{error}");
    let error = Server::start(options("no-such-host.invalid", 0)).unwrap_err();
    assert!(error.message().contains("no-such-host.invalid"), "{error}");
}

#[test]
fn server_uses_an_inherited_listening_socket() {
    let bound = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let listener = bound();
    let port = listener.local_addr().unwrap().port();
    for wanted in [0, port] {
        let fd = Some(listener.try_clone().unwrap().into());
        let server = Server::start(ServerOptions {
            port: wanted,
            listen_fd: fd,
            ..ServerOptions::default()
        });
        let server = server.unwrap();
        assert_eq!(server.port(), port);
        assert_serves(server.address());
    }
    let fd = Some(bound().into());
    let wrong = ServerOptions { port, listen_fd: fd, ..ServerOptions::default() };
    let error = Server::start(wrong).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains(&port.to_string()), "{error}");
}

#[test]
fn stopping_the_server_ends_client_waits() {
    let server = start_server();
    let mut waiter = RawPeer::connect_validated(&server);
    waiter.send_hex("06 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b");
    waiter.expect_nothing_more();
    drop(server);
    waiter.expect_closed();
}

#[test]
fn a_hosting_store_keeps_its_server() {
    let client = ClientOptions {
        host: "a-name-that-only-others-can-resolve.invalid".to_owned(),
        world_size: Some(1),
        wait_for_workers: true,
        ..ClientOptions::default()
    };
    let store = TcpStore::host(options("", 0), client, &test_deadline()).unwrap();
    let (host, port) = store.address().unwrap();
    assert_eq!(host, "a-name-that-only-others-can-resolve.invalid");
    assert_serves((Ipv4Addr::LOCALHOST, port).into());
    assert_eq!(store.get(b"k", &test_deadline()).unwrap(), b"v");
    assert_eq!(store.server().unwrap().port(), port);
}

#[test]
fn a_hosting_store_waits_for_its_workers() {
    let world = |port| ClientOptions {
        host: "127.0.0.1".to_owned(),
        port,
        world_size: Some(2),
        wait_for_workers: true,
        ..ClientOptions::default()
    };
    let short = Deadline::after_ms(100);
    let error = TcpStore::host(options("", 0), world(0), &short).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.message().contains("1 of 2 have joined"), "{error}");

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = ServerOptions { listen_fd: Some(listener.into()), ..ServerOptions::default() };
    let worker = thread::spawn("test-worker", move || {
        TcpStore::connect(world(port), &test_deadline()).unwrap();
    });
    TcpStore::host(server, world(port), &test_deadline()).unwrap();
    worker.unwrap().join().unwrap();
}

#[test]
fn local_clients_use_the_unix_socket() {
    for bind in ["127.0.0.1", "", "localhost"] {
        let server = Server::start(options(bind, 0)).unwrap();
        let store = connect_store((Ipv4Addr::LOCALHOST, server.port()).into());
        assert!(store.pool.is_shortcut(), "bound to \"{bind}\"");
    }
    let server = start_server();
    let (host, port) = ("127.0.0.1".to_owned(), server.port());
    let client = ClientOptions { host, port, tcp_only: true, ..ClientOptions::default() };
    assert!(!TcpStore::connect(client, &test_deadline()).unwrap().pool.is_shortcut());
}

/// Another user can take the name of the Unix socket before the server does.
#[test]
fn unix_socket_of_another_user_is_not_used() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let name = format!("libdist-store-127.0.0.1-{port}");
    let Some(squatter) = unix::run_as_other_user(|| unix::listen(&name).unwrap()) else { return };
    let _server = Server::start(options("127.0.0.1", port)).unwrap();
    let store = connect_store((Ipv4Addr::LOCALHOST, port).into());
    // The server listens on a second name.
    assert!(store.pool.is_shortcut());
    let mut victim = unix::accept(&squatter).unwrap();
    victim.set_read_timeout(Some(test_deadline().remaining())).unwrap();
    assert_eq!(victim.read(&mut [0; 8]).unwrap(), 0);
}

#[test]
fn client_of_another_user_is_refused_on_the_unix_socket() {
    let server = start_server();
    let name = format!("libdist-store-127.0.0.1-{}", server.port());
    let connect = || {
        let mut stream = unix::connect(&name).unwrap();
        // The server may close the connection before the bytes arrive.
        drop(stream.write_all(&hex_bytes(HELLO)));
        stream
    };
    let Some(mut stranger) = unix::run_as_other_user(connect) else { return };
    stranger.set_nonblocking(false).unwrap();
    stranger.set_read_timeout(Some(test_deadline().remaining())).unwrap();
    match stranger.read(&mut [0; 8]) {
        Ok(received) => assert_eq!(received, 0),
        Err(cause) => assert_eq!(cause.kind(), std::io::ErrorKind::ConnectionReset),
    }
    // A store without a secret serves other users over TCP.
    let store = unix::run_as_other_user(|| connect_store(server.address())).unwrap();
    assert!(!store.pool.is_shortcut());
}

#[test]
fn multi_tenant_servers_on_one_port_are_shared() {
    let tenant = |port| ServerOptions { multi_tenant: true, ..options("127.0.0.1", port) };
    let first = Server::start(tenant(0)).unwrap();
    let second = Server::start(tenant(first.port())).unwrap();
    assert!(std::sync::Arc::ptr_eq(&first, &second));
    // A server without `multi_tenant` does not share the port.
    assert!(Server::start(options("127.0.0.1", first.port())).is_err());
    let port = first.port();
    drop(first);
    assert_serves(second.address());
    drop(second);
    assert_eq!(Server::start(tenant(port)).unwrap().port(), port);
}

#[test]
fn port_in_use_by_a_store_is_joined_if_allowed() {
    let holder = start_server();
    let join = |port| ServerOptions { join_if_port_in_use: true, ..options("127.0.0.1", port) };
    let client =
        |port| ClientOptions { host: "127.0.0.1".to_owned(), port, ..ClientOptions::default() };
    let port = holder.port();
    let store = TcpStore::host(join(port), client(port), &test_deadline()).unwrap();
    assert!(store.server().is_none());
    store.set(b"k", b"v", &test_deadline()).unwrap();
    assert_eq!(connect_store(holder.address()).get(b"k", &test_deadline()).unwrap(), b"v");
    // A process does not join a listener that is not a store.
    let other_listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other_listener.local_addr().unwrap().port();
    let error = TcpStore::host(join(port), client(port), &Deadline::after_ms(300)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::System);
    let text = error.message();
    assert!(text.contains("in use") && text.contains("is not this job's store"), "{text}");
}

#[test]
fn long_series_of_sets_uses_tcp_and_stays_in_order() {
    let server = start_server();
    let store = connect_store(server.address());
    let other = connect_store(server.address());
    assert!(!store.pool.has_bulk());
    for round in 0..3_u8 {
        store.pool.assume_shared_core();
        for number in 0..100_u8 {
            store.set(b"k", &[round, number], &test_deadline()).unwrap();
            assert_eq!(store.pool.has_bulk(), round > 0 || number >= 8);
            if number % 40 == 20 {
                assert_eq!(store.get(b"k", &test_deadline()).unwrap(), [round, number]);
            }
        }
        // BARRIER runs on a side connection, after all earlier requests are confirmed. So other
        // clients see the changes too.
        store.append(b"k", b"!", &test_deadline()).unwrap();
        store.barrier(&[b'b', round], 1, &test_deadline()).unwrap();
        assert_eq!(other.get(b"k", &test_deadline()).unwrap(), [round, 99, b'!']);
    }
}
