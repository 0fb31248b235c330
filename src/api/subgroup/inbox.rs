//! What has come for the meetings of one rank, and for those to come; and which names it uses.
//!
//! What is filed is bounded, for each sender by itself. Where that is too little, its oldest
//! letters go: they are for meetings that this rank has not come to for longest, and may never come
//! to.
//!
//! Must not know: how letters come and go.

use super::definition::{Definition, conflict};
use super::letter::{Key, Letter};
use super::parcel::{Assembly, LONGEST_LETTER};
use super::shares::Shares;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Nonce, Rank};
use crate::base::log::Level;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

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
    /// Of the groups without names that lists of ranks were made by themselves.
    numbers: HashMap<[u8; 16], Numbers>,
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
            numbers: HashMap::new(),
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

    /// A meeting by name is over, and the group keeps the name where there is one. What came for it
    /// and was not read is sorted as if it came now; what is to be answered.
    pub(super) fn finish(
        &mut self,
        owner: &Owner,
        name: &str,
        group: Option<Definition>,
    ) -> Vec<(Rank, Key, Letter)> {
        self.meeting.remove(name);
        if let Some(definition) = group {
            self.live.insert(name.to_owned(), definition);
        }
        let key = Key::Name(name.to_owned());
        let mut answers = Vec::new();
        for Filed { from, letter, bytes, .. } in self.filed.remove(&key).unwrap_or_default() {
            self.shares.give_back(from, bytes);
            let answer = self.file(owner, from, (key.clone(), letter), bytes);
            answers.extend(answer.map(|(key, letter)| (from, key, letter)));
        }
        answers
    }

    /// A group's name is free again.
    pub(super) fn release(&mut self, name: &str) {
        self.live.remove(name);
    }

    /// The first number that no group of a list of ranks has, or just gets. It is taken until it is
    /// settled.
    pub(super) fn take_number(&mut self, list: [u8; 16]) -> u64 {
        self.numbers.entry(list).or_default().take()
    }

    /// Whether a number has become that of a group.
    pub(super) fn settle_number(&mut self, list: [u8; 16], number: u64, is_made: bool) {
        self.numbers.entry(list).or_default().settle(number, is_made);
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
            // A conflict is something to know for whoever comes late, unless this rank has come, or
            // knows. Other attempts that came to nothing do not concern it.
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

/// The numbers of groups of one list of ranks.
#[derive(Debug, Default)]
struct Numbers {
    /// All up to this one were given to groups.
    made: u64,
    /// Later ones that are taken, and whether a group has them.
    taken: BTreeMap<u64, bool>,
}

impl Numbers {
    fn take(&mut self) -> u64 {
        let mut number = self.made + 1;
        while self.taken.contains_key(&number) {
            number += 1;
        }
        self.taken.insert(number, false);
        number
    }

    fn settle(&mut self, number: u64, is_made: bool) {
        if !is_made {
            self.taken.remove(&number);
            return;
        }
        self.taken.insert(number, true);
        while self.taken.get(&(self.made + 1)) == Some(&true) {
            self.made += 1;
            self.taken.remove(&self.made);
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

#[cfg(test)]
mod tests {
    use super::super::definition::How;
    use super::*;

    fn owner() -> Owner {
        Owner { group: "world".into(), rank: 0 }
    }

    fn hello(byte: u8, ranks: &[Rank]) -> (Key, Letter) {
        let definition = Definition::new(How::Local, "g", ranks, "native");
        let (nonce, seen) = (Nonce([byte; 16]), None);
        (Key::Name("g".into()), Letter::Hello { nonce, seen, definition })
    }

    #[test]
    fn a_number_is_used_up_by_a_group_and_not_by_an_attempt() {
        let mut numbers = Numbers::default();
        assert_eq!(numbers.take(), 1);
        numbers.settle(1, false);
        assert_eq!((numbers.take(), numbers.take(), numbers.take()), (1, 2, 3));
        numbers.settle(2, true);
        numbers.settle(1, false);
        assert_eq!((numbers.take(), numbers.take()), (1, 4));
        numbers.settle(1, true);
        numbers.settle(3, true);
        assert_eq!((numbers.made, numbers.taken.len()), (3, 1));
        assert_eq!(numbers.take(), 5);
    }

    #[test]
    fn a_name_is_taken_from_the_meeting_to_the_end_of_its_group() {
        let mut inbox = Inbox::new(2);
        inbox.begin("g").unwrap();
        assert_eq!(inbox.begin("g").unwrap_err().kind(), ErrorKind::InvalidArgument);
        // It comes while the meeting lasts, and is for another group of the name.
        assert_eq!(inbox.file(&owner(), 1, hello(1, &[1, 0]), 100), None);
        let group = Definition::new(How::Local, "g", &[0], "native");
        let answers = inbox.finish(&owner(), "g", Some(group));
        let [(1, _, Letter::Fail { to, why, .. })] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!((*to, why.kind()), (Some(Nonce([1; 16])), ErrorKind::Mismatch));
        assert_eq!(inbox.begin("g").unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(inbox.shares.total(), 0);
        inbox.release("g");
        inbox.begin("g").unwrap();
        assert_eq!(inbox.finish(&owner(), "g", None), []);
        inbox.begin("g").unwrap();
    }

    #[test]
    fn who_is_called_after_giving_up_says_so_and_hears_no_more_of_it() {
        let mut inbox = Inbox::new(2);
        let (key, id) = (Key::Name("g".into()), Nonce([9; 16]));
        inbox.begin("g").unwrap();
        let go = Letter::Go { nonce: Nonce([1; 16]), id };
        assert_eq!(inbox.file(&owner(), 1, (key, go), 50), None);
        let answers = inbox.finish(&owner(), "g", None);
        assert!(
            matches!(&answers[..], [(1, Key::Id(of), Letter::GaveUp(_))] if *of == id),
            "{answers:?}"
        );
        let over = Letter::GaveUp(Error::invalid("over"));
        assert_eq!(inbox.file(&owner(), 1, (Key::Id(id), over), 50), None);
        assert_eq!((inbox.take(&Key::Id(id)), inbox.shares.total()), (None, 0));
    }

    #[test]
    fn the_oldest_letters_of_who_writes_too_many_go() {
        let mut inbox = Inbox { shares: Shares::new(1000, 2), ..Inbox::new(2) };
        let part = |byte| {
            let letter = Letter::Part { phase: "p".into(), bytes: vec![byte] };
            (Key::Id(Nonce([byte; 16])), letter)
        };
        inbox.file(&owner(), 1, part(100), 10);
        for byte in 1..=10 {
            inbox.file(&owner(), 0, part(byte), 10);
        }
        // Each counts 266 of 1256.
        let kept: Vec<u8> = (1..=10).filter(|&byte| inbox.take(&part(byte).0).is_some()).collect();
        assert_eq!(kept, [7, 8, 9, 10]);
        assert!(inbox.take(&part(100).0).is_some());
        assert_eq!(inbox.shares.total(), 0);
    }
}
