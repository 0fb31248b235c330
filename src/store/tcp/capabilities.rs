//! What a server can do that not every server can.
//!
//! A server of an older torch closes the connection on an operation that it does not know, or
//! ignores it, and cannot be asked. So the first time that one is needed it is tried on a
//! connection of its own, in a way that leaves nothing behind.

use super::connection::{GRACE_PERIOD, RequestFailure, StoreConnection};
use super::connection_pool::ConnectionPool;
use super::proto::{Bytes, StoreRequest};
use crate::base::{Deadline, Result};
use std::sync::atomic::{AtomicU8, Ordering};

/// A name that no user's key has, since those begin with "/".
const PROBE_KEY: Bytes<'static> = Bytes::Borrowed(b"libdist/probe");

/// What some servers lack: the first three are operations that came to torch together.
#[derive(Clone, Copy, Debug)]
pub(super) enum ServerCapability {
    /// 14 to 16.
    Queues,
    /// 17.
    KeyList,
    /// 18.
    Barrier,
    /// GET and `MULTI_GET` of a missing key have an answer. Torch's older server closes the
    /// connection.
    MissingKeyGets,
}

const UNKNOWN: u8 = 0;
const PRESENT: u8 = 1;
const ABSENT: u8 = 2;

/// What is known of one server; indexed by [`ServerCapability`].
#[derive(Debug, Default)]
pub(super) struct ServerCapabilities([AtomicU8; 4]);

impl ServerCapabilities {
    /// Those of a server of libdist.
    pub(super) fn all() -> Self {
        Self([PRESENT; 4].map(AtomicU8::new))
    }

    /// Whether the server has this ability, where that is known already.
    pub(super) fn cached(&self, capability: ServerCapability) -> Option<bool> {
        match self.0[capability as usize].load(Ordering::Relaxed) {
            UNKNOWN => None,
            state => Some(state == PRESENT),
        }
    }

    /// The server was seen to have this ability, or not to have it.
    pub(super) fn record(&self, capability: ServerCapability, is_present: bool) {
        let state = if is_present { PRESENT } else { ABSENT };
        self.0[capability as usize].store(state, Ordering::Relaxed);
    }

    /// Whether the server behind `pool` has this ability.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub(super) fn has(
        &self,
        capability: ServerCapability,
        pool: &ConnectionPool,
        deadline: &Deadline,
    ) -> Result<bool> {
        if let Some(known) = self.cached(capability) {
            return Ok(known);
        }
        let mut connection = pool.connect_new(deadline)?;
        let limit = Deadline::after(deadline.remaining().min(GRACE_PERIOD));
        let is_present = probe(capability, &mut connection, &limit).is_ok();
        // Where the caller's own time was too short, nothing has been learnt.
        if is_present || !deadline.has_passed() {
            self.record(capability, is_present);
        }
        Ok(is_present)
    }
}

fn probe(
    capability: ServerCapability,
    connection: &mut StoreConnection,
    deadline: &Deadline,
) -> std::result::Result<i64, RequestFailure> {
    match capability {
        ServerCapability::Queues => {
            connection.send(&[StoreRequest::QueueLen(PROBE_KEY)], deadline)?;
            connection.read_i64(deadline)
        }
        // The keys that follow are never read: the connection ends here.
        ServerCapability::KeyList => {
            connection.send(&[StoreRequest::ListKeys], deadline)?;
            connection.read_i64(deadline)
        }
        ServerCapability::Barrier => {
            connection.barrier(&PROBE_KEY, 0, deadline)?;
            connection.send(&[StoreRequest::DeleteKey(PROBE_KEY)], deadline)?;
            connection.read_i64(deadline)
        }
        ServerCapability::MissingKeyGets => {
            connection.send(&[StoreRequest::Get(PROBE_KEY)], deadline)?;
            connection.read_bytes(deadline).map(|_| 0)
        }
    }
}
