//! Byte streams between hosts: [`Endpoint`](super::Endpoint) over TCP.
//!
//! * [`interface`] chooses the addresses of this host, and [`advert`] tells them;
//! * [`door`] listens, for all groups of the process, and [`dial`] connects; both exchange a
//!   [`hello`] first, and [`introduction`] says who may come in;
//! * [`mesh`] has the streams of one group and how their ends are understood, [`endpoint`] what is
//!   called, and [`messages`] the point-to-point streams, which the service thread attends to;
//! * [`arrival`] puts a connection into its place in the mesh;
//! * [`control`] are the connections between the leaders of the nodes, which carry [`frame`]s;
//!   [`heart`] watches them, and [`inquiry`] asks over them; [`last_words`] are the same frames on
//!   the streams to one that leaves;
//! * [`gate`] is where ranks of a group that has failed find each other;
//! * [`join`] puts it together.
//!
//! Must not know: what the bytes mean.

mod advert;
mod arrival;
mod control;
mod dial;
mod door;
mod endpoint;
mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod gate;
mod heart;
mod hello;
mod inquiry;
mod interface;
mod introduction;
mod join;
mod last_words;
mod mesh;
mod messages;
mod standing;
#[cfg(test)]
mod tests;

pub use advert::Advert;
pub use endpoint::Mesh;
pub use gate::{Gate, Ringing};
pub use join::{Member, Opening, Party, open};
