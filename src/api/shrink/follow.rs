//! A rank that has another below it: it joins that one, and agrees to what it proposes.

use super::{Agreed, BETWEEN_TRIES, Effort, Halt, LOOK_AGAIN, may_come_again};
use crate::api::shrink::words::{Proposal, Word};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::transport::reunion::{Called, Link};
use crate::wait::pause;
use std::time::Duration;

/// How much longer than the leader's own limits its words are waited for.
const GRACE: Duration = Duration::from_secs(1);

/// What came of following a candidate.
#[derive(Debug)]
pub(super) enum Followed {
    /// There is an agreement.
    Agreed(Agreed),
    /// The candidate does not lead, which is noted.
    Nobody,
    /// It has ended the connection: it has died, or begins again.
    Again,
}

/// What came of joining it once.
enum Joined {
    Ended(Followed),
    /// It has given up, for this reason.
    GaveUp(Error),
}

/// What was heard.
enum Heard {
    Word(Word),
    Ended,
    Late,
}

impl Effort<'_> {
    /// Joins a candidate and stays with it until there is an agreement.
    ///
    /// # Errors
    /// Why there will be no other group for this rank.
    pub(super) fn follow(&mut self, candidate: Rank) -> std::result::Result<Followed, Halt> {
        let patience = self.deadline.capped(self.window);
        loop {
            match self.join(candidate, &patience)? {
                Joined::Ended(followed) => return Ok(followed),
                Joined::GaveUp(why)
                    if may_come_again(candidate, &why) && !patience.has_passed() =>
                {
                    pause(LOOK_AGAIN, &patience);
                }
                Joined::GaveUp(why) => {
                    self.note_absent(candidate, format!("it has given up: {why}"));
                    return Ok(Followed::Nobody);
                }
            }
        }
    }

    fn join(&mut self, candidate: Rank, patience: &Deadline) -> std::result::Result<Joined, Halt> {
        let ended = |followed| Ok(Joined::Ended(followed));
        let Some(mut link) = self.reach(candidate, patience) else {
            return ended(Followed::Nobody);
        };
        if link.send(&Word::Join.encode(), patience).is_err() {
            return ended(Followed::Again);
        }
        let (mut limit, mut agreed) = (*patience, None::<Proposal>);
        loop {
            let word = match self.hear(&mut link, &limit)? {
                Heard::Word(word) => word,
                Heard::Ended => return ended(Followed::Again),
                Heard::Late => {
                    let ms = limit.allowed().as_millis();
                    self.note_absent(candidate, format!("it did not answer within {ms} ms"));
                    return ended(Followed::Nobody);
                }
            };
            match word {
                // It is there, and may lead once it knows that nobody below it does.
                Word::Wait => limit = self.deadline.capped(self.window),
                // It waits for the others, and then for all to agree.
                Word::Welcome => limit = self.deadline.capped(self.window * 2 + GRACE),
                Word::Propose(proposal) if proposal.members.contains(&self.me()) => {
                    if link.send(&Word::Agree(proposal.id).encode(), &limit).is_err() {
                        return ended(Followed::Again);
                    }
                    limit = self.deadline.capped(self.window * 2 + GRACE);
                    agreed = Some(proposal);
                }
                Word::Commit(id) => {
                    if let Some(proposal) = agreed.take_if(|proposal| proposal.id == id) {
                        let links = vec![(0, link)];
                        return ended(Followed::Agreed(Agreed { proposal, links }));
                    }
                }
                Word::Refuse(why) => return Err(why.into()),
                Word::Closed(closed) => return Err(self.closed(candidate, &closed)),
                Word::GaveUp(why) => return Ok(Joined::GaveUp(why)),
                _ => {
                    self.note_absent(candidate, "it says what does not fit");
                    return ended(Followed::Nobody);
                }
            }
        }
    }

    /// Connects with a candidate; `None` where that cannot be done, which is noted.
    fn reach(&mut self, candidate: Rank, limit: &Deadline) -> Option<Link> {
        let calling = self.session.call(candidate);
        loop {
            match calling.poll() {
                Some(Called::Reached(link)) => return Some(link),
                Some(called) => {
                    self.note_unreached(candidate, &called);
                    return None;
                }
                None if limit.has_passed() => {
                    let ms = limit.allowed().as_millis();
                    self.note_absent(candidate, format!("no connection with it within {ms} ms"));
                    return None;
                }
                None => {
                    self.quiet.ask_to_wait(self.session, self.window);
                    pause(BETWEEN_TRIES, limit);
                }
            }
        }
    }

    /// Waits for the next word, and asks those who come meanwhile to wait.
    fn hear(&mut self, link: &mut Link, limit: &Deadline) -> Result<Heard> {
        loop {
            match link.poll() {
                Ok(Some(frame)) => {
                    return Ok(Word::decode(&frame).map_or(Heard::Ended, Heard::Word));
                }
                Ok(None) if limit.has_passed() => return Ok(Heard::Late),
                Ok(None) => {
                    let until = self.quiet.ask_to_wait(self.session, self.window);
                    self.session.wait([&*link], &limit.capped(until.left()))?;
                }
                Err(_) => return Ok(Heard::Ended),
            }
        }
    }
}
