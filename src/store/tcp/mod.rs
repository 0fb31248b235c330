//! A store behind TCP: one process runs the [`Server`], all connect to it as clients.
//!
//! Both sides speak the protocol of torch's TCPStore ([`proto`]), so that either can be torch's.
//! Client: `client` (the operations) over `connection` (one socket) and `connect` (finding the
//! server). Server: `server` over `event_loop` (sockets, one thread) and `session` (meaning)
//! and `waiters` (who waits for what).

mod arrivals;
mod client;
mod connect;
mod connection;
mod decoder;
mod event_loop;
mod listen;
pub mod local;
pub mod proto;
mod server;
mod session;
mod waiters;

#[cfg(test)]
mod tests;

pub use arrivals::arrivals;
pub use client::{ClientOptions, TcpStore};
pub use server::{DEFAULT_MAX_BYTES, Server, ServerOptions};
