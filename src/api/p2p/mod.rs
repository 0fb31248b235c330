//! Messages between two ranks: send, receive, probe, and the exchange of both.

mod checks;
pub(in crate::api) mod message_buffer;
pub mod message_descriptor;
pub mod point_to_point;
pub mod post;
pub mod probe;
pub mod sendrecv;
