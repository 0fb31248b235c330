//! System calls behind safe functions. This layer contains no policy: no function decides, retries,
//! or waits longer than its caller requests.
#![allow(unsafe_code, reason = "this layer calls the operating system")]

pub mod child;
pub mod clock;
pub mod cma;
pub mod descriptor;
mod encrypted_stream;
pub mod eventfd;
pub mod file;
pub mod fork;
pub mod fork_descriptors;
pub mod futex;
pub mod host;
pub mod library;
pub mod limits;
pub mod netif;
pub mod peer_mapping;
pub mod pidfd;
pub mod poll;
pub mod process_status;
pub mod quiet_child;
pub mod record_layer;
pub mod shm;
pub mod signal;
pub mod small_file;
pub mod socket;
pub mod sparse_mapping;
pub mod stream;
pub mod tcp_state;
pub mod thread;
pub mod unix;
