//! A store behind TCP: one process runs the [`Server`], all connect to it as clients.
//!
//! Both sides speak the protocol of torch's TCPStore ([`proto`]), so that either can be torch's.
//! Client: `client` (the operations) over `connection_pool` (all connections), `connection` (one of
//! them) and `connect_slot` (finding the server); `capabilities` (what an older server lacks).
//! Server: `server` over `listener`, `event_loop` (one thread for all), `client_connection` (one
//! client), `request_reader` (its bytes to requests), `request_handler` (what requests mean) and
//! `waiters` (who waits for what). On one host both use a Unix socket (`unix_socket`) with the same
//! bytes. A store may have a secret (`secret`), which both prove to know before anything else
//! ([`handshake`]).

mod capabilities;
mod client;
mod client_connection;
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
mod logged_wait;
pub mod proto;
mod request_handler;
mod request_reader;
mod secret;
mod server;
mod unix_socket;
mod waiters;

#[cfg(test)]
mod tests;

pub use client::{ClientOptions, TcpStore};
pub use event_loop::MAX_CONNECTIONS;
pub use secret::{MAX_SECRET_BYTES, Secret};
pub use server::{DEFAULT_MAX_BYTES, Server, ServerOptions};
