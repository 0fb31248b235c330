//! A rank that has nobody below it: it waits for the others, proposes a group, and commits to it
//! once all have agreed.

use super::survey::Standing;
use super::words::{Proposal, Word};
use super::{Agreed, Effort, Halt, LOOK_AGAIN, SAYING, may_come_again};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::Level;
use crate::process::this;
use crate::transport::reunion::{Called, Calling, Link, Session};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long those who were lost are looked at, where the time for coming is over.
const GLANCE: Duration = Duration::from_millis(200);

/// What the leader knows of the connections with one that has not joined.
#[derive(Debug)]
enum Probe {
    Calling(Calling),
    /// It is alive, or something holds its socket; the end of this tells when that is over.
    Open(Link),
    /// Nothing more is to be learnt.
    Over,
}

/// Those around a leader.
#[derive(Debug, Default)]
struct Assembly {
    joined: BTreeMap<Rank, Link>,
    /// They have connected and said nothing.
    quiet: BTreeMap<Rank, Link>,
    probes: BTreeMap<Rank, Probe>,
}

impl Assembly {
    fn links(&self) -> impl Iterator<Item = &Link> {
        let open = self.probes.values().filter_map(|probe| match probe {
            Probe::Open(link) => Some(link),
            Probe::Calling(_) | Probe::Over => None,
        });
        self.joined.values().chain(self.quiet.values()).chain(open)
    }

    fn is_calling(&self) -> bool {
        self.probes.values().any(|probe| matches!(probe, Probe::Calling(_)))
    }

    /// Whether it may still turn out that somebody has died who has not come.
    fn is_learning(&self) -> bool {
        self.probes.values().any(|probe| !matches!(probe, Probe::Over))
    }
}

impl Effort<'_> {
    /// Brings those together who come.
    ///
    /// # Errors
    /// `PeerFailed` where they are too few, which all of them are told; `Aborted` where others have
    /// gone on already.
    pub(super) fn lead(&mut self) -> std::result::Result<Agreed, Halt> {
        let mut assembly = Assembly { quiet: self.quiet.take(), ..Assembly::default() };
        let until = self.deadline.capped(self.window);
        loop {
            self.gather(&mut assembly, &until)?;
            let members = self.members(&assembly);
            if !self.survey.may_go_on(&members) {
                let why = self.too_few(&members);
                let word = Word::Refuse(why.clone()).encode();
                let limit = Deadline::after(SAYING);
                // Whoever does not hear it finds out by itself.
                assembly.joined.values().for_each(|link| drop(link.send(&word, &limit)));
                return Err(why.into());
            }
            if let Some(agreed) = self.propose(&mut assembly, members)? {
                return Ok(agreed);
            }
        }
    }

    fn members(&self, assembly: &Assembly) -> Vec<Rank> {
        [self.me()].into_iter().chain(assembly.joined.keys().copied()).collect()
    }

    /// Waits until all who may come have joined, or the time is over.
    fn gather(
        &mut self,
        assembly: &mut Assembly,
        until: &Deadline,
    ) -> std::result::Result<(), Halt> {
        let until = if until.left() < GLANCE { self.deadline.capped(GLANCE) } else { *until };
        loop {
            self.hear_those_who_come(assembly);
            assembly.joined.retain(|_, link| link.poll().is_ok());
            self.probe(assembly)?;
            let missing: Vec<Rank> = (0..self.group.size())
                .filter(|&rank| rank != self.me() && self.survey.is_awaited(rank))
                .filter(|rank| !assembly.joined.contains_key(rank))
                .collect();
            let enough = || self.survey.may_go_on(&self.members(assembly));
            if missing.is_empty() && (!assembly.is_learning() || enough()) {
                return Ok(());
            }
            if until.has_passed() {
                let ms = self.window.as_millis();
                let why = format!("it did not call dist_group_shrink within {ms} ms");
                missing.into_iter().for_each(|rank| self.note_absent(rank, why.clone()));
                return Ok(());
            }
            let slice = if assembly.is_calling() { until.capped(LOOK_AGAIN) } else { until };
            self.session.wait(assembly.links(), &slice)?;
        }
    }

    /// Takes those who have come and welcomes those who join.
    fn hear_those_who_come(&mut self, assembly: &mut Assembly) {
        // One that comes again has lost its earlier connection.
        assembly.quiet.extend(self.session.arrivals());
        for (rank, mut link) in std::mem::take(&mut assembly.quiet) {
            match link.poll().map(|frame| frame.as_deref().map(Word::decode)) {
                Ok(Some(Some(Word::Join))) if rank > self.me() => {
                    self.answer_join(assembly, rank, link);
                }
                Ok(Some(_)) => crate::log!(Level::Warn, "rank {rank} says what does not fit"),
                Ok(None) => drop(assembly.quiet.insert(rank, link)),
                Err(_) => {}
            }
        }
    }

    fn answer_join(&mut self, assembly: &mut Assembly, rank: Rank, link: Link) {
        let limit = Deadline::after(SAYING);
        if !self.survey.welcome(rank) {
            let message = format!(
                "rank {rank} is not taken into epoch {}: the group has failed because of it",
                self.epoch()
            );
            let why = Error::new(ErrorKind::PeerFailed, message).with_culprit(rank);
            drop(link.send(&Word::Refuse(why).encode(), &limit));
        } else if link.send(&Word::Welcome.encode(), &limit).is_ok() {
            assembly.probes.remove(&rank);
            assembly.joined.insert(rank, link);
        }
    }

    /// Looks after those who have not joined: whether they are there at all.
    fn probe(&mut self, assembly: &mut Assembly) -> std::result::Result<(), Halt> {
        let me = self.me();
        for rank in (0..self.group.size()).filter(|&rank| rank != me) {
            if assembly.joined.contains_key(&rank) || self.survey.is_dead(rank) {
                assembly.probes.remove(&rank);
                continue;
            }
            let known = assembly.probes.remove(&rank);
            let known = known.unwrap_or_else(|| Probe::Calling(self.session.call(rank)));
            let probe = self.look_at(rank, known)?;
            assembly.probes.insert(rank, probe);
        }
        Ok(())
    }

    /// What has become of a probe. One that was lost is made anew, and so is that of a rank that
    /// may call again.
    fn look_at(&mut self, rank: Rank, probe: Probe) -> std::result::Result<Probe, Halt> {
        let mut link = match probe {
            Probe::Over => return Ok(Probe::Over),
            Probe::Calling(calling) => match calling.poll() {
                None => return Ok(Probe::Calling(calling)),
                Some(Called::Reached(link)) => link,
                Some(called) => {
                    self.note_unreached(rank, &called);
                    return Ok(Probe::Over);
                }
            },
            Probe::Open(link) => link,
        };
        match link.poll().map(|frame| frame.as_deref().map(Word::decode)) {
            Ok(None | Some(Some(Word::Wait))) => Ok(Probe::Open(link)),
            Ok(Some(Some(Word::Closed(closed)))) => Err(self.closed(rank, &closed)),
            Ok(Some(Some(Word::GaveUp(why)))) if !may_come_again(rank, &why) => {
                self.note_absent(rank, format!("it has given up: {why}"));
                Ok(Probe::Over)
            }
            Err(_) | Ok(Some(Some(Word::GaveUp(_)))) => Ok(Probe::Calling(self.session.call(rank))),
            Ok(Some(_)) => {
                self.note_absent(rank, "it says what does not fit");
                Ok(Probe::Over)
            }
        }
    }

    /// Proposes a group; `None` where one of its members was lost.
    fn propose(&mut self, assembly: &mut Assembly, members: Vec<Rank>) -> Result<Option<Agreed>> {
        let (id, epoch) = (this::fresh_nonce()?, self.epoch());
        let proposal = Proposal { id, epoch, members };
        let limit = self.deadline.capped(self.window.max(SAYING));
        let word = Word::Propose(proposal.clone()).encode();
        let joined = &mut assembly.joined;
        let before = joined.len();
        joined.retain(|_, link| link.send(&word, &limit).is_ok());
        let mut waiting: Vec<Rank> = joined.keys().copied().collect();
        while joined.len() == before && !waiting.is_empty() {
            waiting.retain(|rank| !has_agreed(joined, *rank, &proposal));
            if joined.len() < before || waiting.is_empty() {
                break;
            }
            if limit.has_passed() {
                let why = format!("it did not agree within {} ms", limit.allowed().as_millis());
                for rank in &waiting {
                    joined.remove(rank);
                    self.survey.note(*rank, Standing::Absent(why.clone()));
                }
                break;
            }
            Session::attend(waiting.iter().filter_map(|rank| joined.get(rank)), &limit)?;
        }
        if joined.len() < before {
            return Ok(None);
        }
        let word = Word::Commit(proposal.id).encode();
        // One that does not hear it is missed when the members meet.
        joined.values().for_each(|link| drop(link.send(&word, &limit)));
        let joined = std::mem::take(joined);
        let links = joined.into_values().enumerate().map(|(at, link)| (at + 1, link)).collect();
        Ok(Some(Agreed { proposal, links }))
    }

    /// Those who have come cannot go on.
    fn too_few(&self, members: &[Rank]) -> Error {
        let absent = self.survey.absent(members);
        let names = absent.iter().map(|&(rank, why)| format!("{}: {why}", self.session.name(rank)));
        let names: Vec<String> = names.collect();
        let failed = self.after_what();
        let message = format!(
            "only ranks {members:?} have come{failed}, which is no majority of those that are not proven dead (of two \
             equal halves, the one with the lowest rank goes on): the others may be going on by themselves. {}",
            names.join("; ")
        );
        let error = Error::new(ErrorKind::PeerFailed, message);
        absent.first().map(|&(rank, _)| rank).into_iter().fold(error, Error::with_culprit)
    }
}

/// Whether a member has agreed to the proposal. One that has ended the connection is no longer
/// joined.
fn has_agreed(joined: &mut BTreeMap<Rank, Link>, rank: Rank, proposal: &Proposal) -> bool {
    let Some(link) = joined.get_mut(&rank) else { return false };
    loop {
        match link.poll() {
            Ok(Some(frame)) => {
                if Word::decode(&frame) == Some(Word::Agree(proposal.id)) {
                    return true;
                }
                // To an earlier proposal.
            }
            Ok(None) => return false,
            Err(_) => {
                joined.remove(&rank);
                return false;
            }
        }
    }
}
