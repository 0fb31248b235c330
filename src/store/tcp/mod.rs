//! A store behind TCP: one process runs the [`Server`], all connect to it as clients.
//!
//! Both sides speak the protocol of torch's TCPStore ([`proto`]), so that either can be torch's.
//! Client: `client` (the operations) over `link` (all connections), `connection` (one of them) and
//! `connect` (finding the server); `abilities` (what an older server lacks). Server: `server` over
//! `listen`, `event_loop` (one thread for all), `conversation` (one client), `intake` (its bytes to
//! requests), `session` (what requests mean) and `waiters` (who waits for what). On one host both
//! use a Unix socket (`shortcut`) with the same bytes. A store may have a secret (`secret`), which
//! both prove to know before anything else ([`handshake`]).

mod abilities;
mod client;
mod connect;
mod connection;
mod conversation;
mod decoder;
mod event_loop;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod handshake;
mod intake;
mod link;
mod listen;
pub mod local;
mod names;
pub mod proto;
mod secret;
mod server;
mod session;
mod shortcut;
mod slow;
mod waiters;

#[cfg(test)]
mod tests;

pub use client::{ClientOptions, TcpStore};
pub use event_loop::MAX_CONNECTIONS;
pub use secret::{MAX_SECRET_BYTES, Secret};
pub use server::{DEFAULT_MAX_BYTES, Server, ServerOptions};
