//! Byte streams between hosts: [`Endpoint`](super::Endpoint) over TCP.
//!
//! * [`interface`] chooses the addresses of this host; [`advert`] publishes them. [`members`] lists
//!   the addresses of all ranks.
//! * [`listener_registry`] accepts connections for all groups of the process on the ports of
//!   [`port_range`]. [`peer_connect`] connects to a [`connect_target`]. Both exchange a [`hello`]
//!   first.
//! * [`mesh`] contains the streams of one group and classifies their ends. [`endpoint`] implements
//!   the calls. [`message_streams`] contains the point-to-point streams, on which the service
//!   thread makes progress.
//! * [`connection_handlers`] adds new connections to the mesh, and handles the control frames.
//! * [`control`] contains the connections between the node leaders, which carry [`control_frame`]s.
//!   [`heartbeat_monitor`] monitors these connections, and [`liveness_query`] sends queries over
//!   them. [`failure_notice`] sends the same frames on the streams of a rank that leaves.
//! * [`peer_state`] tracks whether each peer is present, has left, or has died.
//! * [`reconnect`] accepts and makes connections between ranks of a failed group.
//! * [`join`] creates the mesh.
//!
//! This module does not depend on the content of the streams.

mod advert;
mod connect_target;
mod connection_handlers;
mod control;
mod control_frame;
mod endpoint;
mod failure_notice;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod heartbeat_monitor;
mod hello;
mod interface;
mod join;
mod listener_registry;
mod liveness_query;
mod members;
mod mesh;
mod message_streams;
mod peer_connect;
mod peer_state;
mod port_range;
mod reconnect;
#[cfg(test)]
mod tests;

pub use advert::AddressAdvert;
pub use endpoint::TcpMesh;
pub use join::{TcpListening, listen};
pub use members::{TcpJoinConfig, TcpMember};
pub use reconnect::{PendingConnect, ReconnectEndpoint};
