//! Why a wait lasts or is in vain, in words: who is missing, who has left, and where ranks have parted.

use super::Steps;
use crate::algo::select::beside;
use crate::base::error::{Error, ErrorKind, Fault};
use crate::base::ids::Rank;
use crate::base::log::Level;
use crate::transport::line::Line;
use crate::transport::pulse::whereabouts;
use crate::transport::region::LINES;
use crate::wait::watch::Seconds;

impl Steps<'_> {
    /// Whether a rank's line of a step and this rank's are both there, and not alike.
    pub(super) fn differs(&self, rank: Rank, step: u64) -> bool {
        let region = self.hand.region;
        let (ours, theirs) = (region.line(self.hand.rank, step), region.line(rank, step));
        let both = || ours.step() == step && theirs.step() == step;
        both() && ours.chain() != theirs.chain() && both()
    }

    pub(super) fn departed(&self, rank: Rank) -> Option<Error> {
        self.hand.domain.has_left(rank).then(|| {
            let name = self.hand.domain.peer(rank);
            let doing = self.hand.region.progress(rank).describe();
            let message = format!("{name} has left the group; it {doing}");
            let error = Error::new(ErrorKind::PeerFailed, message).with_culprit(name.rank);
            error.with_fault(Fault::Left)
        })
    }

    /// A long wait, for the log.
    #[cold]
    pub(super) fn tell(&self, lasted: Seconds, arrived: &impl Fn(Rank) -> bool) {
        let missing: Vec<Rank> = self.others().filter(|&rank| !arrived(rank)).collect();
        crate::log!(
            Level::Warn,
            "{} of group {}: {} has waited {lasted} for {}",
            self.operation.descriptor,
            self.operation.group,
            self.hand.domain.peer(self.hand.rank),
            self.names(&missing)
        );
    }

    /// Who ranks are, and what each did last.
    fn names(&self, ranks: &[Rank]) -> String {
        let region = self.hand.region;
        let name = |(&rank, answer): (&Rank, Option<String>)| {
            let (name, progress) = (self.hand.domain.peer(rank), region.progress(rank));
            format!("{name}, which {}{}", progress.describe(), whereabouts(answer.as_deref()))
        };
        ranks.iter().zip(self.hand.domain.ask(ranks)).map(name).collect::<Vec<_>>().join("; ")
    }

    pub(super) fn late(&self, arrived: impl Fn(Rank) -> bool) -> Error {
        let missing: Vec<Rank> = self.others().filter(|&rank| !arrived(rank)).collect();
        let deadline = self.operation.deadline();
        let message = format!(
            "{} of {} timed out after {} ms (allowed: {} ms) waiting for {}",
            self.operation.descriptor,
            self.hand.domain.peer(self.hand.rank),
            deadline.elapsed().as_millis(),
            deadline.allowed().as_millis(),
            self.names(&missing)
        );
        let error = Error::new(ErrorKind::Timeout, message);
        match missing.first() {
            Some(&rank) => error.with_culprit(self.hand.domain.peer(rank).rank),
            None => error,
        }
    }

    /// Where this rank and another parted, as far back as both remember.
    pub(super) fn mismatch(&self, rank: Rank) -> Error {
        let region = self.hand.region;
        let first = self.hand.lane.step.saturating_sub(LINES - 1).max(1);
        let parted = (first..=self.hand.lane.step).find(|&step| self.differs(rank, step));
        let step = parted.unwrap_or(self.hand.lane.step);
        let (ours, theirs) = (region.line(self.hand.rank, step), region.line(rank, step));
        let say = |line: &Line, other: &Line| match (line.descriptor(), other.descriptor()) {
            (None, _) => "something unreadable".to_owned(),
            (Some(one), other) => beside(&one, &other.unwrap_or(one)),
        };
        let (me, peer) = (self.hand.domain.peer(self.hand.rank), self.hand.domain.peer(rank));
        let (said, they_said) = (say(ours, theirs), say(theirs, ours));
        // What parted them is older than any line.
        let message = if said == they_said {
            format!(
                "ranks called different operations: {me} and {peer} agree on {said}, but not on what came before it"
            )
        } else {
            format!(
                "ranks called different operations: {me} called {said}, but {peer} called {they_said}"
            )
        };
        Error::new(ErrorKind::Mismatch, message).with_culprit(self.hand.domain.peer(rank).rank)
    }
}
