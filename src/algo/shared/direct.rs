//! Buffers in arenas (`dist_mem_alloc`), which the ranks of a host read, and write where that saves
//! a hop, where they lie, by loads and stores.
//!
//! * **Asking.** Whether a buffer lies in an arena is known to its rank alone. A rank whose buffers
//!   do *asks* with the first step of an operation: it says where they lie, and stages nothing. Any
//!   other begins as ever, and has [`NOTHING`] in its first line. If all have asked, the operation
//!   goes directly. If some have, everybody begins anew with the next step: nobody uses anything of
//!   the first one before it has seen the lines of all. If none has, that word is all it has cost.
//! * **Meeting.** When all ask for the first time, each maps the arenas of the others and says
//!   whether it could; if one could not, nobody asks again.
//! * **Writing.** A rank writes to others' memory only while its
//!   [`Progress`](crate::transport::progress::Progress) says so, and looks before each chunk
//!   whether the domain has failed.
//! * **Ending.** An operation ends when all have published that they are through: nobody reads or
//!   writes another's memory any more.
//! * **Failing.** How a rank that gives up gets its memory back is in [`super::withdrawal`].

use super::steps::Steps;
use crate::algo::Operation;
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::base::log::Level;
use crate::transport::OpKind;
use crate::transport::arena::{self, Identity, Window};
use crate::transport::progress::Purpose;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// From how many bytes on two hops without any copy pay: where each rank has a core, and where a
/// hop costs a context switch.
const LEAST: usize = 4 << 10;
const LEAST_CROWDED: usize = 64 << 10;

/// Whether a call of so many bytes is long enough to be asked for.
pub fn may_be_asked(bytes: usize, crowded: bool) -> bool {
    bytes >= if crowded { LEAST_CROWDED } else { LEAST }
}

/// What the first line of a rank begins with that does not ask.
pub(super) const NOTHING: [u8; 8] = [0; 8];

/// What a rank remembers between operations.
#[derive(Debug, Default)]
pub struct Direct {
    arenas: Arenas,
    /// Where the vectors of all ranks lie, in the operation that goes directly.
    places: Vec<Places>,
    calls: Arc<AtomicU64>,
}

impl Direct {
    /// How many operations have gone directly.
    pub fn calls(&self) -> &Arc<AtomicU64> {
        &self.calls
    }
}

/// The arenas of all ranks, as far as this one knows; all ranks know the same.
#[derive(Debug, Default)]
enum Arenas {
    #[default]
    Unknown,
    /// One of them cannot be had.
    OutOfReach,
    /// Its own is not there.
    Mapped(Vec<Option<Arc<Window>>>),
}

/// What an operation does to the memory of other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Touches {
    /// It reads what they send.
    Sent,
    /// It also writes what they receive.
    Received,
}

/// Where the buffers of a rank lie in its arena.
#[derive(Clone, Copy, Debug)]
struct Places {
    identity: Identity,
    send: u64,
    /// 0 where nobody writes to it.
    recv: u64,
}

impl Places {
    fn of(operation: &Operation<'_>, touches: Touches) -> Option<Self> {
        let send = arena::locate(operation.send)?;
        let recv = match touches {
            Touches::Sent => 0,
            Touches::Received => arena::locate(operation.recv.as_src())?.offset,
        };
        Some(Self { identity: send.identity, send: send.offset, recv })
    }

    /// Begins with the number of a file, which is not 0.
    fn encode(self) -> [[u8; 8]; 4] {
        let Identity { descriptor, inode } = self.identity;
        [inode, u64::from(descriptor), self.send, self.recv].map(u64::to_le_bytes)
    }

    fn decode(words: [[u8; 8]; 4]) -> Option<Self> {
        let [inode, descriptor, send, recv] = words.map(u64::from_le_bytes);
        let descriptor = u32::try_from(descriptor).ok()?;
        (inode != 0).then_some(Self { identity: Identity { descriptor, inode }, send, recv })
    }
}

impl Steps<'_> {
    /// Has `work` done directly, if the buffers of all ranks lie in arenas; whether it has. What it
    /// does to others' memory is complete once all ranks' work is done.
    ///
    /// # Errors
    /// As [`Steps::await_all`], and what `work` returns.
    pub(super) fn directly(
        &mut self,
        operation: &Operation<'_>,
        touches: Touches,
        work: impl FnOnce(&Self) -> Result<()>,
    ) -> Result<bool> {
        let may_ask = operation.algorithm.is_none() && self.may_be_asked(operation);
        let Some(places) = may_ask.then(|| Places::of(operation, touches)).flatten() else {
            return Ok(false);
        };
        self.settle();
        let outcome = self.ask(places).and_then(|all| match all {
            true => self.reach(work).and_then(|()| self.close()).map(|()| true),
            false => Ok(false),
        });
        match touches {
            Touches::Sent => outcome,
            Touches::Received => self.or_withdraw(operation.recv, outcome),
        }
    }

    /// Once this rank has published a step: whether that was the first one, and another rank has
    /// asked with it, so that all begin anew.
    ///
    /// # Errors
    /// As [`Steps::await_all`].
    pub(super) fn is_asked(&mut self, operation: &Operation<'_>) -> Result<bool> {
        if !self.may_be_asked(operation) {
            return Ok(false);
        }
        self.settle();
        self.await_all()?;
        let mut word = NOTHING;
        Ok(self.others().any(|rank| {
            self.payload(rank, &mut word);
            word != NOTHING
        }))
    }

    /// Whether any rank may ask, or have asked, in this step, which all agree on.
    fn may_be_asked(&self, operation: &Operation<'_>) -> bool {
        use OpKind::{AllGather, AllReduce, AllToAll, ReduceScatter};
        !self.is_settled()
            && may_be_asked(operation.bytes(), self.is_crowded())
            && matches!(operation.descriptor.kind, AllReduce | AllGather | ReduceScatter | AllToAll)
            && !matches!(self.direct().arenas, Arenas::OutOfReach)
    }

    /// Part of what another rank sends.
    ///
    /// # Errors
    /// `Connection` where its arena does not have it; `System`.
    pub(super) fn sent_by(&self, rank: Rank, offset: usize, len: usize) -> Result<Src<'_>> {
        let (window, places) = self.theirs(rank)?;
        self.part_of(rank, window.part(places.send.saturating_add(offset as u64), len))
            .map(Dst::as_src)
    }

    /// The same of what it receives.
    ///
    /// # Errors
    /// As above.
    pub(super) fn received_by(&self, rank: Rank, offset: usize, len: usize) -> Result<Dst<'_>> {
        let (window, places) = self.theirs(rank)?;
        self.part_of(rank, window.part(places.recv.saturating_add(offset as u64), len))
    }

    fn part_of<'w>(&self, rank: Rank, part: Result<Dst<'w>>) -> Result<Dst<'w>> {
        part.map_err(|error| {
            let peer = self.peer(rank);
            self.fail(error.context(format_args!("memory of {peer}")).with_culprit(peer.rank))
        })
    }

    /// Why the domain has failed, if it has: asked before each chunk that is written to others'
    /// memory.
    ///
    /// # Errors
    /// That.
    pub(super) fn check(&self) -> Result<()> {
        self.domain().failure().map_or(Ok(()), Err)
    }

    fn theirs(&self, rank: Rank) -> Result<(&Window, Places)> {
        let Direct { arenas, places, .. } = self.direct();
        let window = match arenas {
            Arenas::Mapped(windows) => windows.get(rank).and_then(Option::as_deref),
            Arenas::Unknown | Arenas::OutOfReach => None,
        };
        let missing = || Error::internal(format!("no arena of rank {rank} of the node"));
        window.zip(places.get(rank).copied()).ok_or_else(missing)
    }

    /// Says where this rank's vectors lie; whether all have, and can reach them.
    fn ask(&mut self, own: Places) -> Result<bool> {
        self.publish(own.encode().as_flattened())?;
        self.await_all()?;
        let mut places = std::mem::take(&mut self.direct_mut().places);
        places.clear();
        places.extend((0..self.size()).map_while(|rank| {
            let mut words = own.encode();
            if rank != self.rank() {
                self.payload(rank, words.as_flattened_mut());
            }
            Places::decode(words)
        }));
        let have_all = places.len() == self.size();
        let is_met = have_all && self.meet(&places)?;
        self.direct_mut().places = places;
        Ok(is_met)
    }

    /// Maps the arenas of the others, the first time; whether all ranks could.
    fn meet(&mut self, places: &[Places]) -> Result<bool> {
        match self.direct().arenas {
            Arenas::Mapped(_) => return Ok(true),
            Arenas::OutOfReach => return Ok(false),
            Arenas::Unknown => {}
        }
        let map = |rank: Rank| {
            let of = || arena::open(self.peer(rank).pid, places[rank].identity);
            (rank != self.rank()).then(of).transpose()
        };
        let mapped: Result<Vec<_>> = (0..self.size()).map(map).collect();
        if let Err(error) = &mapped {
            crate::log!(Level::Info, "memory of dist_mem_alloc is used as any other: {error}");
        }
        self.publish(&[u8::from(mapped.is_ok())])?;
        self.await_all()?;
        let could = |rank| {
            let mut word = [0];
            self.payload(rank, &mut word);
            word == [1]
        };
        let all_could = self.others().all(could);
        self.direct_mut().arenas = match mapped {
            Ok(windows) if all_could => Arenas::Mapped(windows),
            _ => Arenas::OutOfReach,
        };
        Ok(matches!(self.direct().arenas, Arenas::Mapped(_)))
    }

    fn reach(&self, work: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        let _reaching = self.domain().region().progress(self.rank()).reach(Purpose::Collective);
        self.check()?;
        self.direct().calls.fetch_add(1, Ordering::Relaxed);
        work(self)
    }
}
