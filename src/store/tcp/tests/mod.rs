//! Tests of the server and the client: with captured traffic of torch, and with misbehaving peers.
//! All tests use free ports of the loopback interface, and deadlines.

mod client;
mod connecting;
mod handshake;
mod hostile;
mod hosting;
mod limits;
mod local_job;
mod proto;
mod traces;

use super::{ClientOptions, Server, ServerOptions, TcpStore};
use crate::base::Deadline;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// Returns a deadline that is long enough for every call that succeeds.
fn test_deadline() -> Deadline {
    Deadline::after_ms(60_000)
}

/// VALIDATE and PING, as torch sends them.
const HELLO: &str = "00 ce f7 85 3c 0d 63 23 00 00";
/// The reply to the PING in [`HELLO`].
const HELLO_ANSWER: &str = "63 23 00 00";

fn start_server() -> Arc<Server> {
    let options = ServerOptions { bind: "127.0.0.1".to_owned(), ..ServerOptions::default() };
    Server::start(options).unwrap()
}

fn connect_store(address: SocketAddr) -> TcpStore {
    let host = address.ip().to_string();
    let options = ClientOptions { host, port: address.port(), ..ClientOptions::default() };
    TcpStore::connect(options, &test_deadline()).unwrap()
}

/// Parses a line of hexadecimal bytes.
fn hex_bytes(hex: &str) -> Vec<u8> {
    hex.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

/// A TCP peer that sends and receives raw bytes.
struct RawPeer(TcpStream);

impl RawPeer {
    fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(test_deadline().remaining())).unwrap();
        stream.set_write_timeout(Some(test_deadline().remaining())).unwrap();
        Self(stream)
    }

    fn connect(server: &Server) -> Self {
        Self::new(TcpStream::connect(server.address()).unwrap())
    }

    /// Connects and validates.
    fn connect_validated(server: &Server) -> Self {
        let mut raw = Self::connect(server);
        raw.send_hex(HELLO);
        raw.expect_hex(HELLO_ANSWER);
        raw
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    fn send_hex(&mut self, hex: &str) {
        self.send(&hex_bytes(hex));
    }

    fn expect_hex(&mut self, hex: &str) {
        let expected = hex_bytes(hex);
        let mut got = vec![0; expected.len()];
        self.0.read_exact(&mut got).unwrap();
        assert_eq!(got, expected);
    }

    /// Asserts that the other side has sent no further bytes: sends a PING, and expects its reply
    /// as the next bytes.
    fn expect_nothing_more(&mut self) {
        self.send_hex("0d 01 02 03 04");
        self.expect_hex("01 02 03 04");
    }

    /// Asserts that the other side has closed or reset the connection.
    fn expect_closed(&mut self) {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => assert_eq!(rest, b"", "bytes before the end"),
            Err(cause) => assert_eq!(cause.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }

    fn is_closed_within(&mut self, limit: Duration) -> bool {
        self.0.set_read_timeout(Some(limit)).unwrap();
        match self.0.read(&mut [0]) {
            Ok(count) => count == 0,
            Err(cause) => cause.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}
