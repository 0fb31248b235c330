//! Starting and ending servers, and stores that host their own.

use super::{Raw, connect, soon, start};
use crate::base::{Deadline, ErrorKind};
use crate::store::tcp::{ClientOptions, Server, ServerOptions};
use crate::store::{Store as _, TcpStore};
use crate::sys::thread;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

fn options(bind: &str, port: u16) -> ServerOptions {
    ServerOptions { bind: bind.to_owned(), port, ..ServerOptions::default() }
}

fn works(address: SocketAddr) {
    let store = connect(address);
    store.set(b"k", b"v", &soon()).unwrap();
    assert_eq!(store.get(b"k", &soon()).unwrap(), b"v");
}

fn has_ipv6() -> bool {
    TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
}

#[test]
fn all_interfaces_means_both_families() {
    let server = Server::start(options("", 0)).unwrap();
    works((Ipv4Addr::LOCALHOST, server.port()).into());
    if has_ipv6() {
        works((Ipv6Addr::LOCALHOST, server.port()).into());
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
        works(server.address());
    }
}

#[test]
fn a_name_is_served_at_all_its_addresses() {
    let server = Server::start(options("localhost", 0)).unwrap();
    works((Ipv4Addr::LOCALHOST, server.port()).into());
    let host = "localhost".to_owned();
    let client = ClientOptions { host, port: server.port(), ..ClientOptions::default() };
    let store = TcpStore::connect(client, &soon()).unwrap();
    assert_eq!(store.address(), Some(("localhost".to_owned(), server.port())));
    assert_eq!(store.describe(), format!("the store at localhost:{}", server.port()));
}

#[test]
fn a_port_in_use_is_named_with_a_remedy() {
    let first = start();
    let error = Server::start(options("127.0.0.1", first.port())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::System);
    let text = error.message();
    assert!(text.contains(&format!("127.0.0.1:{}", first.port())), "{text}");
    assert!(text.contains("port 0"), "{text}");
}

#[test]
fn a_port_is_free_again_after_its_server() {
    let server = start();
    let port = server.port();
    let mut client = Raw::introduced(&server);
    drop(server);
    client.is_dropped();
    // Unless another test was quicker.
    if let Err(error) = Server::start(options("127.0.0.1", port)) {
        assert!(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_err(), "{error}");
    }
}

#[test]
fn an_address_of_another_host_is_refused() {
    // Reserved for documentation; no host has it.
    let error = Server::start(options("192.0.2.1", 0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::System);
    assert!(error.message().contains("no such address"), "{error}");
    let error = Server::start(options("no-such-host.invalid", 0)).unwrap_err();
    assert!(error.message().contains("no-such-host.invalid"), "{error}");
}

#[test]
fn a_socket_may_be_handed_over() {
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
        works(server.address());
    }
    let fd = Some(bound().into());
    let wrong = ServerOptions { port, listen_fd: fd, ..ServerOptions::default() };
    let error = Server::start(wrong).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains(&port.to_string()), "{error}");
}

#[test]
fn ending_a_server_ends_its_clients_waits() {
    let server = start();
    let mut waiter = Raw::introduced(&server);
    waiter.sends("06 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b");
    waiter.gets_nothing_more();
    drop(server);
    waiter.is_dropped();
}

#[test]
fn a_hosting_store_keeps_its_server() {
    let client = ClientOptions {
        host: "a-name-that-only-others-can-resolve.invalid".to_owned(),
        world_size: Some(1),
        wait_for_workers: true,
        ..ClientOptions::default()
    };
    let store = TcpStore::host(options("", 0), client, &soon()).unwrap();
    let (host, port) = store.address().unwrap();
    assert_eq!(host, "a-name-that-only-others-can-resolve.invalid");
    works((Ipv4Addr::LOCALHOST, port).into());
    assert_eq!(store.get(b"k", &soon()).unwrap(), b"v");
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
        TcpStore::connect(world(port), &soon()).unwrap();
    });
    TcpStore::host(server, world(port), &soon()).unwrap();
    worker.unwrap().join().unwrap();
}

#[test]
fn clients_of_this_host_come_over_a_unix_socket() {
    for bind in ["127.0.0.1", "", "localhost"] {
        let server = Server::start(options(bind, 0)).unwrap();
        let store = connect((Ipv4Addr::LOCALHOST, server.port()).into());
        assert!(store.link().is_shortcut(), "bound to \"{bind}\"");
    }
    let server = start();
    let (host, port) = ("127.0.0.1".to_owned(), server.port());
    let client = ClientOptions { host, port, tcp_only: true, ..ClientOptions::default() };
    assert!(!TcpStore::connect(client, &soon()).unwrap().link().is_shortcut());
}

#[test]
fn tenants_share_a_server() {
    let tenant = |port| ServerOptions { multi_tenant: true, ..options("127.0.0.1", port) };
    let first = Server::start(tenant(0)).unwrap();
    let second = Server::start(tenant(first.port())).unwrap();
    assert!(std::sync::Arc::ptr_eq(&first, &second));
    // Not with those who did not ask for it.
    assert!(Server::start(options("127.0.0.1", first.port())).is_err());
    let port = first.port();
    drop(first);
    works(second.address());
    drop(second);
    assert_eq!(Server::start(tenant(port)).unwrap().port(), port);
}

#[test]
fn a_taken_port_is_joined_if_a_store_holds_it_and_that_is_wanted() {
    let holder = start();
    let join = |port| ServerOptions { join_if_taken: true, ..options("127.0.0.1", port) };
    let client =
        |port| ClientOptions { host: "127.0.0.1".to_owned(), port, ..ClientOptions::default() };
    let port = holder.port();
    let store = TcpStore::host(join(port), client(port), &soon()).unwrap();
    assert!(store.server().is_none());
    store.set(b"k", b"v", &soon()).unwrap();
    assert_eq!(connect(holder.address()).get(b"k", &soon()).unwrap(), b"v");
    // Not what else may listen there.
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = stranger.local_addr().unwrap().port();
    let error = TcpStore::host(join(port), client(port), &Deadline::after_ms(300)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::System);
    let text = error.message();
    assert!(text.contains("in use") && text.contains("nor is it this job's store"), "{text}");
}

#[test]
fn a_long_row_of_sets_goes_over_tcp_and_stays_in_order() {
    let server = start();
    let store = connect(server.address());
    let other = connect(server.address());
    assert!(!store.link().has_bulk());
    for round in 0..3_u8 {
        store.link().assume_shared_core();
        for number in 0..100_u8 {
            store.set(b"k", &[round, number], &soon()).unwrap();
            assert_eq!(store.link().has_bulk(), round > 0 || number >= 8);
            if number % 40 == 20 {
                assert_eq!(store.get(b"k", &soon()).unwrap(), [round, number]);
            }
        }
        // What may wait has a connection of its own, and finds all of it done; so does everybody
        // else then.
        store.append(b"k", b"!", &soon()).unwrap();
        store.barrier(&[b'b', round], 1, &soon()).unwrap();
        assert_eq!(other.get(b"k", &soon()).unwrap(), [round, 99, b'!']);
    }
}
