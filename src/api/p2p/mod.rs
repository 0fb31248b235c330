//! Messages between two ranks: send, receive, sendrecv (both at the same time), and probe.

mod checks;
pub(in crate::api) mod message_buffer;
pub mod message_descriptor;
pub mod point_to_point;
pub mod post;
pub mod probe;
pub mod sendrecv;
