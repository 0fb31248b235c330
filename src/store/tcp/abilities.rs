//! Which of the newer operations a server knows.
//!
//! A server of an older torch closes the connection on an operation that it does not know, or ignores it, and
//! cannot be asked. So the first time that one is needed it is tried on a connection of its own, in a way that
//! leaves nothing behind.

use super::connection::{Connection, Failure, GRACE};
use super::link::Link;
use super::proto::{Bytes, Request};
use crate::base::{Deadline, Result};
use std::sync::atomic::{AtomicU8, Ordering};

/// A name that no user's key has, since those begin with "/".
const PROBE: Bytes<'static> = Bytes::Borrowed(b"libdist/probe");

/// Operations that came to torch together.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ability {
    /// 14 to 16.
    Queues,
    /// 17.
    KeyList,
    /// 18.
    Barrier,
}

const UNKNOWN: u8 = 0;
const PRESENT: u8 = 1;
const ABSENT: u8 = 2;

/// What is known of one server; indexed by [`Ability`].
#[derive(Debug, Default)]
pub(super) struct Abilities([AtomicU8; 3]);

impl Abilities {
    /// Those of a server of libdist.
    pub(super) fn all() -> Self {
        Self([PRESENT, PRESENT, PRESENT].map(AtomicU8::new))
    }

    /// Whether the server behind `link` has this ability.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub(super) fn has(&self, ability: Ability, link: &Link, deadline: &Deadline) -> Result<bool> {
        let known = &self.0[ability as usize];
        match known.load(Ordering::Relaxed) {
            UNKNOWN => {
                let mut connection = link.fresh(deadline)?;
                let limit = Deadline::after(deadline.left().min(GRACE));
                let answered = probe(ability, &mut connection, &limit).is_ok();
                // Where the caller's own time was too short, nothing has been learnt.
                if answered || !deadline.has_passed() {
                    known.store(if answered { PRESENT } else { ABSENT }, Ordering::Relaxed);
                }
                Ok(answered)
            }
            state => Ok(state == PRESENT),
        }
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
    }
}
