//! What a server can do that not every server can.
//!
//! A server of an older torch closes the connection on an operation that it does not know, or
//! ignores it, and cannot be asked. So the first time that one is needed it is tried on a
//! connection of its own, in a way that leaves nothing behind.

use super::connection::{Connection, Failure, GRACE};
use super::link::Link;
use super::proto::{Bytes, Request};
use crate::base::{Deadline, Result};
use std::sync::atomic::{AtomicU8, Ordering};

/// A name that no user's key has, since those begin with "/".
const PROBE: Bytes<'static> = Bytes::Borrowed(b"libdist/probe");

/// What some servers lack: the first three are operations that came to torch together.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ability {
    /// 14 to 16.
    Queues,
    /// 17.
    KeyList,
    /// 18.
    Barrier,
    /// GET and `MULTI_GET` of a missing key have an answer. Torch's older server closes the
    /// connection.
    EmptyGets,
}

const UNKNOWN: u8 = 0;
const PRESENT: u8 = 1;
const ABSENT: u8 = 2;

/// What is known of one server; indexed by [`Ability`].
#[derive(Debug, Default)]
pub(super) struct Abilities([AtomicU8; 4]);

impl Abilities {
    /// Those of a server of libdist.
    pub(super) fn all() -> Self {
        Self([PRESENT; 4].map(AtomicU8::new))
    }

    /// Whether the server has this ability, where that is known already.
    pub(super) fn known(&self, ability: Ability) -> Option<bool> {
        match self.0[ability as usize].load(Ordering::Relaxed) {
            UNKNOWN => None,
            state => Some(state == PRESENT),
        }
    }

    /// The server was seen to have this ability, or not to have it.
    pub(super) fn learn(&self, ability: Ability, is_present: bool) {
        let state = if is_present { PRESENT } else { ABSENT };
        self.0[ability as usize].store(state, Ordering::Relaxed);
    }

    /// Whether the server behind `link` has this ability.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub(super) fn has(&self, ability: Ability, link: &Link, deadline: &Deadline) -> Result<bool> {
        if let Some(known) = self.known(ability) {
            return Ok(known);
        }
        let mut connection = link.fresh(deadline)?;
        let limit = Deadline::after(deadline.left().min(GRACE));
        let answered = probe(ability, &mut connection, &limit).is_ok();
        // Where the caller's own time was too short, nothing has been learnt.
        if answered || !deadline.has_passed() {
            self.learn(ability, answered);
        }
        Ok(answered)
    }
}

fn probe(
    ability: Ability,
    connection: &mut Connection,
    deadline: &Deadline,
) -> std::result::Result<i64, Failure> {
    match ability {
        Ability::Queues => {
            connection.send(&[Request::QueueLen(PROBE)], deadline)?;
            connection.number(deadline)
        }
        // The keys that follow are never read: the connection ends here.
        Ability::KeyList => {
            connection.send(&[Request::ListKeys], deadline)?;
            connection.number(deadline)
        }
        Ability::Barrier => {
            connection.barrier(&PROBE, 0, deadline)?;
            connection.send(&[Request::DeleteKey(PROBE)], deadline)?;
            connection.number(deadline)
        }
        Ability::EmptyGets => {
            connection.send(&[Request::Get(PROBE)], deadline)?;
            connection.bytes(deadline).map(|_| 0)
        }
    }
}
