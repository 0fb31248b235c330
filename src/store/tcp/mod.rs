//! A store over TCP: one process runs the [`Server`], and all processes connect to it as clients.
//!
//! Both sides use the protocol of torch's TCPStore ([`proto`]), so that libdist's clients can use
//! torch's server, and torch's clients can use libdist's server.
//!
//! - Client: `client` (creation, requests), `client_operations` (the operations of a store),
//!   `connection_pool` (all connections of a client), `connection` (one connection),
//!   `request_failure`, `connect` (finding the server), `capabilities` (missing operations of older
//!   servers).
//! - Server: `server`, `listener`, `event_loop` (one thread for all clients), `client_connection`
//!   (one client), `request_reader` (bytes to requests), `request_handler` (the effect of requests)
//!   and `waiters` (the pending waits).
//!
//! On one host, both sides use a Unix socket (`unix_socket`) with the same bytes. A store may have
//! a secret (`secret`). Before the first request, both sides then prove to each other that they
//! hold the secret ([`handshake`]).
//!
//! [`local_job`] is the store of a job on one host whose launcher gives no address.

mod capabilities;
mod client;
mod client_connection;
mod client_io;
mod client_operations;
mod connect;
mod connection;
mod connection_pool;
mod decoder;
mod event_loop;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod handshake;
mod key_encoding;
mod listener;
pub mod local_job;
mod local_job_search;
mod local_job_service;
pub mod proto;
mod request_failure;
mod request_handler;
mod request_reader;
mod server;
mod unix_socket;
mod waiters;

#[cfg(test)]
mod tests;

pub use crate::security::secret::{MAX_SECRET_BYTES, Secret};
pub use client::TcpStore;
pub use connect::ClientOptions;
pub use event_loop::MAX_CONNECTIONS;
pub use handshake::StoreSecurity;
pub use listener::ServerOptions;
pub use server::{DEFAULT_MAX_BYTES, Server};

/// The key of the secret that rank 0 has made for the ranks of a job on one host.
pub const JOB_SECRET_KEY: &[u8] = b"dist/job_secret";
