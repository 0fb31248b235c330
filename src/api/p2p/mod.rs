//! Messages between two ranks: send, receive, probe, and the exchange of both.

pub mod point_to_point;
pub mod probe;
pub mod sendrecv;
