//! What has come for the meetings of one rank, and for those to come; and which names it uses.
//!
//! What is filed is bounded, for each sender by itself. Where that is too little, its oldest letters go: they are for
//! meetings that this rank has not come to for longest, and may never come to.
//!
//! Must not know: how letters come and go.

use super::definition::{Definition, conflict};
use super::letter::{Key, Letter};
use super::parcel::{Assembly, LONGEST_LETTER};
use super::shares::Shares;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Nonce, Rank};
use crate::base::log::Level;
use std::collections::{HashMap, HashSet, VecDeque};

/// Of how many meetings by id it is known that they are over.
const MOST_ENDED: usize = 4096;

/// Whose mailbox it is, for letters.
#[derive(Debug)]
pub(super) struct Owner {
    pub(super) group: String,
    pub(super) rank: Rank,
}

/// What a mailbox keeps.
#[derive(Debug)]
pub(super) struct Inbox {
    pub(super) is_open: bool,
    pub(super) assembly: Assembly,
    filed: HashMap<Key, VecDeque<Filed>>,
    shares: Shares,
    /// How many were ever filed.
    count: u64,
    /// Names under which this rank just makes a group.
    meeting: HashSet<String>,
    /// Groups that their members made by themselves, and that there still are.
    live: HashMap<String, Definition>,
    /// How often a list of ranks was made a group by its members, for names.
    made: HashMap<[u8; 16], u64>,
    ended: VecDeque<GroupId>,
    /// Why nothing comes any more.
    pub(super) stopped: Option<Error>,
}

#[derive(Debug)]
struct Filed {
    number: u64,
    from: Rank,
    letter: Letter,
    bytes: usize,
}

impl Inbox {
    /// Of a rank of a group of so many.
    pub(super) fn new(size: usize) -> Self {
        Self {
            is_open: false,
            assembly: Assembly::new(size),
            filed: HashMap::new(),
            shares: Shares::new(LONGEST_LETTER, size),
            count: 0,
            meeting: HashSet::new(),
            live: HashMap::new(),
            made: HashMap::new(),
            ended: VecDeque::new(),
            stopped: None,
        }
    }

    /// Files a letter; or gives what is to be answered at once, where nobody will read it.
    pub(super) fn file(
        &mut self,
        owner: &Owner,
        from: Rank,
        (key, letter): (Key, Letter),
        bytes: usize,
    ) -> Option<(Key, Letter)> {
        match &key {
            Key::Id(id) if self.ended.contains(id) => return None,
            Key::Name(name) if !self.meeting.contains(name) => {
                let name = name.clone();
                match self.sort(owner, from, &name, &letter) {
                    Sorted::Keep => {}
                    Sorted::Drop => return None,
                    Sorted::Answer(letter) => return Some((key, letter)),
                    Sorted::Refuse(id) => return Some(too_late(id, owner.rank)),
                }
            }
            _ => {}
        }
        self.keep(from, (key, letter), bytes);
        None
    }

    fn keep(&mut self, from: Rank, (key, letter): (Key, Letter), bytes: usize) {
        let filed = &mut self.filed;
        if !self.shares.make_room(from, bytes, || drop_oldest(filed, from)) {
            let text = "too many letters for groups to come";
            crate::log!(Level::Warn, "{text}; one of rank {from} is dropped");
            return;
        }
        self.count += 1;
        let filed = Filed { number: self.count, from, letter, bytes };
        self.filed.entry(key).or_default().push_back(filed);
    }

    /// A letter for a meeting.
    pub(super) fn take(&mut self, key: &Key) -> Option<(Rank, Letter)> {
        let Filed { from, letter, bytes, .. } = self.filed.get_mut(key)?.pop_front()?;
        self.shares.give_back(from, bytes);
        Some((from, letter))
    }

    /// A meeting by id is over, for this rank: what still comes for it is dropped.
    pub(super) fn end(&mut self, id: GroupId) {
        for Filed { from, bytes, .. } in self.filed.remove(&Key::Id(id)).into_iter().flatten() {
            self.shares.give_back(from, bytes);
        }
        self.ended.push_back(id);
        if self.ended.len() > MOST_ENDED {
            self.ended.pop_front();
        }
    }

    /// Begins a meeting by name.
    ///
    /// # Errors
    /// `InvalidArgument` where this rank has a group of the name, or just makes one.
    pub(super) fn begin(&mut self, name: &str) -> Result<()> {
        let why = if self.live.contains_key(name) {
            "this rank is in a group of that name, which has not been released"
        } else if self.meeting.contains(name) {
            "another thread of this rank is making a group of that name"
        } else {
            self.meeting.insert(name.to_owned());
            return Ok(());
        };
        Err(Error::invalid(format!("group name \"{name}\": {why}")))
    }

    /// A meeting by name is over. What came for it and was not read is sorted as if it came now.
    pub(super) fn finish(&mut self, owner: &Owner, name: &str) {
        self.meeting.remove(name);
        let key = Key::Name(name.to_owned());
        for Filed { from, letter, bytes, .. } in self.filed.remove(&key).unwrap_or_default() {
            self.shares.give_back(from, bytes);
            // Nobody waits for an answer: those who do are told by this attempt.
            drop(self.file(owner, from, (key.clone(), letter), bytes));
        }
    }

    /// Keeps a name for a group.
    pub(super) fn lease(&mut self, definition: &Definition) {
        self.live.insert(definition.name().to_owned(), definition.clone());
    }

    /// A group's name is free again.
    pub(super) fn release(&mut self, name: &str) {
        self.live.remove(name);
    }

    /// How often, this time included, a list of ranks was made a group by its members.
    pub(super) fn count(&mut self, ranks: [u8; 16]) -> u64 {
        let count = self.made.entry(ranks).or_default();
        *count += 1;
        *count
    }

    /// What becomes of a letter for a meeting by name that this rank does not hold just now.
    fn sort(&mut self, owner: &Owner, from: Rank, name: &str, letter: &Letter) -> Sorted {
        match letter {
            Letter::Hello { nonce, definition, .. } => {
                // Its writer has begun anew.
                self.forget(from, name, |_| true);
                match self.live.get(name).filter(|live| *live != definition) {
                    None => Sorted::Keep,
                    Some(live) => {
                        let claims = [(owner.rank, live.clone()), (from, definition.clone())];
                        let why = conflict(&owner.group, &claims);
                        let (of, to, echo) = (Nonce::default(), Some(*nonce), false);
                        Sorted::Answer(Letter::Fail { of, to, echo, why })
                    }
                }
            }
            // A conflict is something to know for whoever comes late, unless this rank has come, or knows. Other
            // attempts that came to nothing do not concern it.
            Letter::Fail { of, to: None, echo: false, why }
                if why.kind() == ErrorKind::Mismatch && self.has_hello(from, name, *of) =>
            {
                Sorted::Keep
            }
            Letter::Fail { of, .. } => {
                self.forget(from, name, |nonce| nonce == *of);
                Sorted::Drop
            }
            Letter::Go { id, .. } => {
                self.end(*id);
                Sorted::Refuse(*id)
            }
            _ => Sorted::Drop,
        }
    }

    fn has_hello(&self, from: Rank, name: &str, of: Nonce) -> bool {
        let filed = self.filed.get(&Key::Name(name.to_owned()));
        filed.into_iter().flatten().any(|filed| {
            filed.from == from && matches!(filed.letter, Letter::Hello { nonce, .. } if nonce == of)
        })
    }

    /// Drops what one rank has written in some of its attempts.
    fn forget(&mut self, from: Rank, name: &str, which: impl Fn(Nonce) -> bool) {
        let key = Key::Name(name.to_owned());
        let Some(filed) = self.filed.get_mut(&key) else { return };
        let shares = &mut self.shares;
        filed.retain(|filed| {
            let of = match filed.letter {
                Letter::Hello { nonce, .. } => nonce,
                Letter::Fail { of, .. } => of,
                _ => return true,
            };
            let is_kept = filed.from != from || !which(of);
            if !is_kept {
                shares.give_back(from, filed.bytes);
            }
            is_kept
        });
        if filed.is_empty() {
            self.filed.remove(&key);
        }
    }
}

/// Drops the first letter of a rank that is still filed; its bytes.
fn drop_oldest(filed: &mut HashMap<Key, VecDeque<Filed>>, from: Rank) -> Option<usize> {
    let of = filed.iter().flat_map(|(key, letters)| letters.iter().map(move |it| (key, it)));
    let oldest = of.filter(|(_, it)| it.from == from).min_by_key(|(_, it)| it.number);
    let (key, number) = oldest.map(|(key, it)| (key.clone(), it.number))?;
    let letters = filed.get_mut(&key)?;
    let dropped = letters.iter().position(|it| it.number == number);
    let dropped = dropped.and_then(|place| letters.remove(place))?;
    if letters.is_empty() {
        filed.remove(&key);
    }
    Some(dropped.bytes)
}

/// What becomes of a letter that nobody waits for.
enum Sorted {
    /// It is for a meeting to come.
    Keep,
    /// It is for one that is over.
    Drop,
    /// It is answered.
    Answer(Letter),
    /// It takes this rank for a member of a group that it gave up.
    Refuse(GroupId),
}

/// That a rank has given up before it heard of the group that it was to be in.
pub(super) fn too_late(id: GroupId, rank: Rank) -> (Key, Letter) {
    let text = format!("rank {rank} of the parent had given up making the group");
    (Key::Id(id), Letter::GaveUp(Error::new(ErrorKind::PeerFailed, text)))
}
