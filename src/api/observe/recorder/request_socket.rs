//! The socket at which this process gives the dump of its flight recorder to `dist-doctor --pid`.
//! It is open while the process is in a group with several ranks.

use super::dump::{DumpReason, dump};
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::process::request_socket::RequestSocket;
use std::sync::Mutex;

/// The socket, and the number of its users.
#[derive(Debug)]
struct SharedSocket {
    users: usize,
    socket: Option<RequestSocket>,
}

static SHARED_SOCKET: Mutex<SharedSocket> = Mutex::new(SharedSocket { users: 0, socket: None });

/// A group for which the socket is open. When the last one is dropped, the socket closes.
#[derive(Debug)]
pub(super) struct RequestSocketUse;

impl RequestSocketUse {
    pub(super) fn new() -> Self {
        let mut shared = lock(&SHARED_SOCKET);
        shared.users += 1;
        if shared.users == 1 {
            // Without the socket, all else works: another process may have taken the name, or
            // there may be no free descriptor.
            match RequestSocket::open(|| dump(None, DumpReason::Request).to_string()) {
                Ok(socket) => shared.socket = Some(socket),
                Err(error) => crate::log!(
                    LogLevel::Info,
                    "dist-doctor --pid cannot ask this process: {error}"
                ),
            }
        }
        Self
    }
}

impl Drop for RequestSocketUse {
    fn drop(&mut self) {
        let mut shared = lock(&SHARED_SOCKET);
        shared.users -= 1;
        if shared.users == 0 {
            shared.socket = None;
        }
    }
}
