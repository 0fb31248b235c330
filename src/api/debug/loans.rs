//! Which buffers are lent to operations that have not ended, so that a call that uses one of them
//! otherwise is found: it writes what another one uses, or uses what another one writes.
//!
//! Collectives of one group run one after another, in the order of issue, and may use each other's
//! buffers. Whatever else is outstanding has no order. Memory is each rank's own, so a clash is
//! nothing that the others could know: it fails the groups of both calls, as one in a batch does
//! (`independence`).
//!
//! Noted under the debug level DETAIL only; what was noted is given back at any level.

use crate::api::callbacks;
use crate::api::group::Group;
use crate::api::work::{Work, WorkKind};
use crate::base::buffer::Src;
use crate::base::debug::{self, Level};
use crate::base::error::Error;
use crate::base::ids::GroupId;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    from: usize,
    end: usize,
    is_written: bool,
}

impl Span {
    fn clashes(&self, other: &Self) -> bool {
        (self.is_written || other.is_written) && self.from < other.end && other.from < self.end
    }
}

/// Memory that an operation uses, and what may not use it meanwhile.
#[derive(Debug)]
struct Use {
    group: GroupId,
    is_collective: bool,
    spans: Vec<Span>,
}

/// An operation that has not ended.
#[derive(Clone, Debug)]
struct Holder {
    what: String,
    group: Weak<Group>,
    work: Weak<Work>,
}

/// By the address of the work, which it has to itself for as long as it lives.
type Loans = BTreeMap<usize, (Use, Holder)>;

static LOANS: Mutex<Loans> = Mutex::new(BTreeMap::new());
/// How many there are, for those who only ask.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn lock() -> MutexGuard<'static, Loans> {
    LOANS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells of memory, and whether it is written.
pub(in crate::api) type Note<'n> = &'n mut dyn FnMut(Src<'_>, bool);

/// Looks at the memory of a collective that blocks.
pub(in crate::api) fn check(group: &Group, what: &dyn Display, each_buffer: impl FnOnce(Note<'_>)) {
    if debug::level() < Level::Detail || COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    let of = Use::new(group, true, each_buffer);
    let clash = of.clash(&lock());
    clash.into_iter().for_each(|holder| accuse(group, what, &holder));
}

/// Notes what an operation is lent until its work ends.
pub(in crate::api) fn lend(
    group: &Arc<Group>,
    work: &Arc<Work>,
    each_buffer: impl FnOnce(Note<'_>),
) {
    if debug::level() < Level::Detail {
        return;
    }
    let (what, is_collective) = match work.kind() {
        WorkKind::Collective(kind) => (kind.name().to_owned(), true),
        WorkKind::Message(message) => (message.to_string(), false),
        WorkKind::Batch => return,
    };
    let of = Use::new(group, is_collective, each_buffer);
    if of.spans.is_empty() {
        return;
    }
    let (weak, weak_work) = (Arc::downgrade(group), Arc::downgrade(work));
    let holder = Holder { what: what.clone(), group: weak, work: weak_work };
    let clash = {
        let mut loans = lock();
        let clash = of.clash(&loans);
        loans.insert(Arc::as_ptr(work).addr(), (of, holder));
        COUNT.store(loans.len(), Ordering::Relaxed);
        clash
    };
    clash.into_iter().for_each(|holder| accuse(group, &what, &holder));
}

/// An operation has ended, or was not issued. Called before anybody can see that.
pub(in crate::api) fn give_back(work: &Work) {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    let mut loans = lock();
    loans.remove(&std::ptr::from_ref(work).addr());
    COUNT.store(loans.len(), Ordering::Relaxed);
}

impl Use {
    fn new(group: &Group, is_collective: bool, each_buffer: impl FnOnce(Note<'_>)) -> Self {
        let mut spans = Vec::new();
        each_buffer(&mut |buffer, is_written| {
            let from = buffer.as_ptr().addr();
            if !buffer.is_empty() {
                spans.push(Span { from, end: from + buffer.len(), is_written });
            }
        });
        Self { group: group.id(), is_collective, spans }
    }

    fn clash(&self, loans: &Loans) -> Option<Holder> {
        let found = loans.values().find(|(other, _)| self.clashes(other));
        found.map(|(_, holder)| holder.clone())
    }

    fn clashes(&self, other: &Self) -> bool {
        let is_ordered = self.group == other.group && self.is_collective && other.is_collective;
        let clashes = |span: &Span| other.spans.iter().any(|old| span.clashes(old));
        !is_ordered && self.spans.iter().any(clashes)
    }
}

/// Fails the groups of two calls. No lock is held.
fn accuse(group: &Group, what: &dyn Display, holder: &Holder) {
    let other = holder.group.upgrade();
    let number = holder.work.upgrade().and_then(|work| work.sequence());
    let number = number.map(|number| format!(" (operation #{number})")).unwrap_or_default();
    let place = other.as_ref().map_or_else(|| "a group".to_owned(), |other| other.whom());
    let message = format!(
        "{what} on {} uses memory that {} on {place}{number}, which has not ended, uses too, and one of the two \
         writes it: wait for that one first",
        group.whom(),
        holder.what
    );
    let fail = |group: &Group| {
        let error = Error::invalid(message.as_str()).with_culprit(group.rank());
        group.fail(&error);
    };
    fail(group);
    if let Some(other) = other {
        // Of one group, the second time does nothing.
        fail(&other);
        // This may be a thread that must not be the one to end it.
        callbacks::let_go(other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::Nonce;

    fn of(group: u8, is_collective: bool, from: usize, is_written: bool) -> Use {
        let spans = vec![Span { from, end: from + 10, is_written }];
        Use { group: Nonce([group; 16]), is_collective, spans }
    }

    #[test]
    fn what_is_written_is_used_by_one_unless_there_is_an_order() {
        let outstanding = of(1, true, 100, true);
        // Of another group, or a message; written or only read; in a part or beside.
        for (group, is_collective) in [(2, true), (1, false), (2, false)] {
            for is_written in [true, false] {
                for from in [91, 100, 109] {
                    let new = of(group, is_collective, from, is_written);
                    assert!(new.clashes(&outstanding) && outstanding.clashes(&new), "{from}");
                }
                for from in [90, 110] {
                    assert!(!of(group, is_collective, from, is_written).clashes(&outstanding));
                }
            }
        }
        assert!(!of(1, true, 100, true).clashes(&outstanding));
        // What is only read may be so by several.
        assert!(!of(2, false, 100, false).clashes(&of(1, true, 100, false)));
    }
}
