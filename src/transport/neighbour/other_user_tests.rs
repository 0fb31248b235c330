//! Tests of the listening socket of a process, and of links, with a process of another user and
//! with connections that send nothing.

use super::frame::{LinkHello, ProcessAddress, SurvivorHello};
use super::registry::NeighbourRegistry;
use crate::base::deadline::Deadline;
use crate::base::error::ErrorKind;
use crate::base::ids::Nonce;
use crate::sys::{host, unix};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The longest delay by an attack.
const MAX_DELAY: Duration = Duration::from_secs(1);

fn test_deadline() -> Deadline {
    Deadline::after_ms(20_000)
}

/// Asserts that the other end of a connection closes it without sending a byte.
fn assert_closed_without_answer(mut stream: UnixStream) {
    let began = Instant::now();
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(test_deadline().remaining())).unwrap();
    match stream.read(&mut [0; 8]) {
        Ok(received) => assert_eq!(received, 0),
        Err(cause) => assert_eq!(cause.kind(), std::io::ErrorKind::ConnectionReset),
    }
    assert!(began.elapsed() < MAX_DELAY, "{:?}", began.elapsed());
}

#[test]
fn link_to_a_socket_of_another_user_is_refused_unsent() {
    let registry = NeighbourRegistry::new().unwrap();
    let process = host::random_nonce().unwrap();
    let name = ProcessAddress::socket_name(process);
    let Some(squatter) = unix::run_as_other_user(|| unix::listen(&name).unwrap()) else { return };
    let error = registry.connect(process, &test_deadline()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Auth, "{error}");
    let mut victim = unix::accept(&squatter).unwrap();
    victim.set_read_timeout(Some(test_deadline().remaining())).unwrap();
    assert_eq!(victim.read(&mut [0; 64]).unwrap(), 0);
}

#[test]
fn connection_of_another_user_is_closed_unread() {
    let registry = NeighbourRegistry::new().unwrap();
    let to = registry.inner.name;
    let link = LinkHello { from: Nonce([1; 16]), to }.encode();
    let survivor = SurvivorHello { group: to, from_nonce: to, to_nonce: to, from: 1, to: 0 };
    let connect = || unix::connect(&ProcessAddress::socket_name(to)).unwrap();
    for hello in [&[][..], &link, &survivor.encode()] {
        let connect_and_send = || {
            let mut stream = connect();
            // The listener may close the connection before the bytes arrive.
            drop(stream.write_all(hello));
            stream
        };
        let Some(stranger) = unix::run_as_other_user(connect_and_send) else { return };
        assert_closed_without_answer(stranger);
    }
    assert!(registry.find_link(Nonce([1; 16])).is_none());
}

#[test]
fn silent_connections_do_not_delay_a_link() {
    let [registry, other] = [NeighbourRegistry::new().unwrap(), NeighbourRegistry::new().unwrap()];
    let name = ProcessAddress::socket_name(registry.inner.name);
    let silent: Vec<_> = (0..100).filter_map(|_| unix::connect(&name).ok()).collect();
    assert!(silent.len() > 10);
    let began = Instant::now();
    other.connect(registry.inner.name, &test_deadline()).unwrap();
    let is_there = || registry.find_link(other.inner.name).is_some();
    while !is_there() {
        assert!(began.elapsed() < MAX_DELAY, "{:?}", began.elapsed());
        std::thread::yield_now();
    }
}
