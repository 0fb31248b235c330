//! Byte streams between hosts: [`Endpoint`](super::Endpoint) over TCP.
//!
//! * [`interface`] chooses the addresses of this host; [`advert`] publishes them.
//! * [`listener_registry`] accepts connections for all groups of the process; [`peer_connect`]
//!   connects to peers. Both exchange a [`hello`] first; [`hello_reader`] checks it.
//! * [`mesh`] contains the streams of one group and classifies their ends. [`endpoint`] implements
//!   the calls. [`message_streams`] contains the point-to-point streams, on which the service
//!   thread makes progress.
//! * [`connection_handlers`] adds new connections to the mesh.
//! * [`control`] contains the connections between the node leaders, which carry [`control_frame`]s.
//!   [`heartbeat_monitor`] monitors these connections, and [`liveness_query`] sends queries over
//!   them. [`failure_notice`] sends the same frames on the streams of a rank that leaves.
//! * [`peer_state`] tracks whether each peer is present, has left, or has died.
//! * [`reconnect`] accepts and makes connections between ranks of a failed group.
//! * [`join`] creates the mesh.
//!
//! This module does not depend on the content of the streams.

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
