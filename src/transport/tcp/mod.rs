//! Byte streams between hosts: the trait [`Endpoint`](super::Endpoint) over TCP.
//!
//! A *link* is one TCP connection from a process to another, which all groups of both processes
//! share. The *mesh* of a group is its channels on these links. A rank creates its end of the mesh
//! ([`TcpMesh`]) in three steps:
//!
//! 1. [`listen`] opens the listening sockets and returns a [`TcpListening`].
//! 2. The rank publishes the addresses of the `TcpListening` and receives the addresses of all
//!    other ranks ([`TcpMember`]).
//! 3. [`TcpListening::join`] creates the mesh. The *node leaders* (the first rank of each node)
//!    greet each other. A link connects at its first use.
//!
//! The files, from the addresses to the mesh:
//!
//! * Addresses: [`interface`] chooses the addresses of this host, and [`advert`] is the message
//!   that publishes them. [`members`] has the addresses of all ranks.
//! * Connections: [`listener_registry`] accepts connections for all groups of the process, on the
//!   ports of [`port_range`], and [`incoming_connection`] verifies each of them.
//!   [`peer_connect`] connects to a peer, whose addresses [`connect_target`] selects;
//!   [`address_connect`] is one of its attempts. Both sides first verify each other by a
//!   [`hello`] with a proof of the job's secret ([`link_proof`]).
//! * Links: [`link_table`] has the links of the process, and lists their files.
//! * Streams: [`mesh`] has the channels of one group. [`endpoint`] implements the functions of
//!   `Endpoint` that send, receive and wait; [`mesh_waker`] ends a wait. [`message_streams`] lists
//!   the peers whose point-to-point messages can make progress.
//! * Control: [`control`] has the channels between the node leaders. They carry
//!   [`control_frame`]s, for example the report that a rank has left or that the group has failed.
//!   [`leadership`] chooses the leaders: a leader that leaves has a successor.
//!   [`heartbeat_monitor`] detects a leader that is silent, and [`liveness_query`] asks other nodes
//!   for the activity of their ranks.
//! * [`connection_handlers`] handles new links, and what happens on links. [`former_rank`] answers
//!   for ranks that have left.
//! * [`peer_state`] has the state of each peer (present, left or dead) and the grace periods
//!   before a change takes effect. [`late_link`] finds out whether bytes of a departed rank
//!   are on their way.
//! * [`reconnect`] connects ranks after their group has failed, so that the survivors can agree on
//!   a new group. A [`ReconnectEndpoint`] accepts such connections, and a [`PendingConnect`] is an
//!   attempt to make one.
//! * [`join`] creates the mesh.
//!
//! This module transfers the bytes of a stream without interpreting them.

mod address_connect;
mod advert;
mod byte_queue;
mod connect_target;
mod connection_handlers;
mod control;
mod control_frame;
mod endpoint;
mod former_rank;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod heartbeat_monitor;
mod hello;
mod incoming_channel;
mod incoming_connection;
mod incoming_link;
mod interface;
mod join;
mod kept_bytes;
mod late_link;
mod leadership;
mod link_events;
mod link_frame;
mod link_hold;
mod link_owner;
mod link_ownership;
mod link_proof;
mod link_reader;
mod link_reading;
mod link_registration;
mod link_resume;
mod link_table;
mod link_user;
mod link_watchdog;
mod listener_registry;
mod liveness_query;
mod members;
mod mesh;
mod mesh_waker;
mod message_input;
mod message_streams;
mod outgoing_channel;
mod outgoing_link;
mod outgoing_resume;
mod peer_connect;
mod peer_state;
mod port_range;
mod published_address;
mod reconnect;
mod registered_users;
mod suspended_link;
#[cfg(test)]
mod tests;

pub use advert::AddressAdvert;
pub use endpoint::TcpMesh;
pub use join::{TcpListening, listen};
pub use link_hold::LinkHold;
pub use members::{TcpJoinConfig, TcpMember};
pub use reconnect::{PendingConnect, ReconnectEndpoint};
