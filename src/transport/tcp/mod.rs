//! Byte streams between hosts: [`Endpoint`](super::Endpoint) over TCP.
//!
//! * [`interface`] chooses the addresses of this host, and [`advert`] tells them;
//! * [`listener_registry`] listens, for all groups of the process, and [`peer_connect`] connects;
//!   both exchange a [`hello`] first, and [`hello_reader`] says who may come in;
//! * [`mesh`] has the streams of one group and how their ends are understood, [`endpoint`] what is
//!   called, and [`message_streams`] the point-to-point streams, which the service thread attends
//!   to;
//! * [`connection_handlers`] puts a connection into its place in the mesh;
//! * [`control`] are the connections between the leaders of the nodes, which carry
//!   [`control_frame`]s; [`heartbeat`] watches them, and [`liveness_query`] asks over them;
//!   [`failure_notice`] are the same frames on the streams to one that leaves;
//! * [`reconnect`] is where ranks of a group that has failed find each other;
//! * [`join`] puts it together.
//!
//! Must not know: what the bytes mean.

mod advert;
mod connection_handlers;
mod control;
mod control_frame;
mod endpoint;
mod failure_notice;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod heartbeat_monitor;
mod hello;
mod hello_reader;
mod interface;
mod join;
mod listener_registry;
mod liveness_query;
mod mesh;
mod message_streams;
mod peer_connect;
mod peer_state;
mod reconnect;
#[cfg(test)]
mod tests;

pub use advert::AddressAdvert;
pub use endpoint::TcpMesh;
pub use join::{TcpJoinConfig, TcpListening, TcpMember, listen};
pub use reconnect::{PendingConnect, ReconnectEndpoint};
