//! Why a wait lasts or is in vain, in words: who is missing, who has left, and where ranks have
//! parted.

use super::Steps;
use crate::algo::conflict::DifferingCall;
use crate::algo::select::beside;
use crate::base::error::{Error, ErrorKind, Fault};
use crate::base::ids::Rank;
use crate::base::log::Level;
use crate::transport::Descriptor;
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
            let doing = self.hand.region.doing(rank);
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
            let (name, doing) = (self.hand.domain.peer(rank), region.doing(rank));
            format!("{name}, which {doing}{}", whereabouts(answer.as_deref()))
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
        let called = |rank: Rank, line: &Line| {
            line.descriptor().map(|descriptor| region.with_label(rank, descriptor))
        };
        let (one, other) = (called(self.hand.rank, ours), called(rank, theirs));
        let say = |one: Option<Descriptor>, other: Option<Descriptor>| match one {
            None => "something unreadable".to_owned(),
            Some(one) => beside(&one, &other.unwrap_or(one)),
        };
        let (me, peer) = (self.hand.domain.peer(self.hand.rank), self.hand.domain.peer(rank));
        let (said, they_said) = (say(one, other), say(other, one));
        // What parted them is older than any line.
        let message = if said == they_said {
            format!(
                "ranks called different operations: {me} and {peer} agree on {said}, but not on what came before it"
            )
        } else {
            let calls = match one.filter(|it| !it.label.is_none()) {
                Some(Descriptor { sequence, .. }) => {
                    let labels = |rank| region.labels(rank).all(sequence);
                    DifferingCall::of(&labels(self.hand.rank), &labels(rank)).to_string()
                }
                None => String::new(),
            };
            format!(
                "ranks called different operations: {me} called {said}, but {peer} called {they_said}{calls}"
            )
        };
        Error::new(ErrorKind::Mismatch, message).with_culprit(self.hand.domain.peer(rank).rank)
    }
}
