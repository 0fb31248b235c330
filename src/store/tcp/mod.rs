//! A store behind TCP: one process runs the [`Server`], all connect to it as clients.
//!
//! Both sides speak the protocol of torch's TCPStore ([`proto`]), so that either can be torch's.
//! Client: `client` (the operations) over `connection` (one socket) and `connect` (finding the
//! server). Server: `server` over `event_loop` (sockets, one thread) and `session` (meaning)
//! and `waiters` (who waits for what). A store of libdist's on both sides may have a secret
//! (`secret`, [`handshake`]).

mod client;
mod connect;
mod connection;
mod decoder;
mod event_loop;
pub mod handshake;
mod listen;
pub mod local;
pub mod proto;
mod secret;
mod server;
mod session;
mod waiters;

#[cfg(test)]
mod tests;

pub use client::{ClientOptions, TcpStore};
pub use secret::{MAX_SECRET_BYTES, Secret};
pub use server::{DEFAULT_MAX_BYTES, Server, ServerOptions};
