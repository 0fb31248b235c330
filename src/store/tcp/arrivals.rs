//! How many clients of a job have joined its store: for programs that look on from outside.
//!
//! Clients that were told a world size count themselves under a key of the protocol's own, which no
//! [`Store`](crate::store::Store) method reaches.

use super::client::ClientOptions;
use super::connect::{self, Peer};
use super::connection::Failure;
use super::proto::{Bytes, Request};
use crate::base::{Deadline, Error, ErrorKind, Result};
use crate::store::table::parse_number;

/// Where clients count themselves.
const ARRIVALS: &[u8] = b"init/";

/// How many clients have counted themselves; `None` where none has.
///
/// # Errors
/// Those of [`TcpStore::connect`](super::TcpStore::connect).
pub fn arrivals(options: &ClientOptions, deadline: &Deadline) -> Result<Option<i64>> {
    let peer = Peer { host: options.host.clone(), port: options.port, local: None };
    let mut connection = connect::persistently(&peer, deadline)?;
    let key = Bytes::Borrowed(ARRIVALS);
    let mut ask = || {
        if !connection.check(std::slice::from_ref(&key), deadline)? {
            return Ok(None);
        }
        connection.send(&[Request::Get(key.clone())], deadline)?;
        Ok(parse_number(&connection.bytes(deadline)?))
    };
    ask().map_err(|failure: Failure| {
        let kind = match failure {
            Failure::Timeout => ErrorKind::Timeout,
            Failure::Lost { .. } | Failure::Garbled(_) => ErrorKind::Connection,
        };
        Error::new(kind, format!("the store at {peer} did not say how many clients have joined"))
    })
}
