//! A new group of what is left of one that has failed, without its streams and without the store.
//!
//! All survivors call it, as a star around the lowest of them. Each tries the ranks below its own
//! in ascending order ([`follow`]): one that is dead, or says nothing for a window, is passed over;
//! one that follows another meanwhile says so again and again ([`quiet`]), since it leads if that
//! one falls silent. A rank with nobody below it leads ([`lead`]): it waits until all who are not
//! known to be dead have joined, or for the window, and proposes them as the members; all must
//! agree, and be a majority of those not proven dead ([`survey`]). Then they meet over their links
//! to the leader ([`exchange`]). Whoever dies before the group is there ends the round, and the
//! rest begin another one.
//!
//! A member keeps the old group's [`Port`], so that a rank that comes too late is told, for as long
//! as the new group or one made of what is left of it exists. The leader's very last word is that
//! all members are [`Ready`]. Where it dies while it says that, one that has not heard it keeps
//! what it has ready while it looks for the others: whom it finds has heard the word, and says so,
//! or takes part in another round.
//!
//! Must not know: how ranks reach each other, and how a back end's ranks meet.

mod exchange;
mod follow;
mod lead;
mod quiet;
mod survey;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
mod words;

use super::group::{Group, Identity, LONGEST_NAME, Origin, connect_deadline};
use super::subgroup::Alone;
use super::{activity, callbacks, error_file, keys};
use crate::backend::{self, Backend, Context, Exchange, Keys, Parent};
use crate::base::deadline::Deadline;
use crate::base::error::{Context as _, Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::Level;
use crate::process::this;
use crate::transport::reunion::{Called, Link, Port, Session};
use crate::wait::pause;
use exchange::LinkExchange;
use quiet::Quiet;
use std::sync::Arc;
use std::time::Duration;
use survey::{Standing, Survey};
use words::{Proposal, Word};

/// How long the others may take to call it, where nothing else is said.
const DEFAULT_WINDOW_MS: u64 = 10_000;

/// How long members that have agreed may take to meet, at least.
const MEETING: Duration = Duration::from_secs(10);

/// How long a word may take into a connection.
const SAYING: Duration = Duration::from_secs(1);

/// How long to wait between two tries of something that nobody announces.
const BETWEEN_TRIES: Duration = Duration::from_millis(2);

/// How long to wait before a rank is asked again that has given up and may call again, or was lost.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// How long a round that has failed is left alone, so that all who were in it hear of it.
const BETWEEN_ROUNDS: Duration = Duration::from_millis(10);

/// How a group is made of what is left of another.
#[derive(Clone, Debug, Default)]
pub struct ShrinkOptions {
    /// How long each rank may take to come, in milliseconds; 0 for the default.
    pub timeout_ms: u64,
    /// The deadline of all of it in milliseconds; 0 for the default.
    pub connect_timeout_ms: u64,
}

/// A group that is ready on this rank; whether it is on all others is not known yet.
#[derive(Debug)]
struct Ready {
    proposal: Proposal,
    rank: Rank,
    origin: Origin,
    backend: Arc<dyn Backend>,
}

/// Members that have agreed.
#[derive(Debug)]
struct Agreed {
    proposal: Proposal,
    /// By rank in the new group: of the leader to all others, of the others to the leader.
    links: Vec<(Rank, Link)>,
}

/// Why there is no group yet.
#[derive(Debug)]
enum Failed {
    /// Somebody was lost; the rest may try again.
    Round(Error),
    /// This rank cannot go on.
    Here(Error),
}

/// Why a round has come to nothing, and there is no other.
#[derive(Debug)]
enum Halt {
    /// The group that this rank has ready is there: another member has heard that all are.
    Made,
    /// There will be no group for this rank.
    Failed(Error),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// One call, on one rank.
#[derive(Debug)]
struct Effort<'a> {
    group: &'a Group,
    session: &'a Session<'a>,
    port: &'a Arc<Port>,
    window: Duration,
    deadline: Deadline,
    survey: Survey,
    /// They have connected, and what they say is not read before this rank leads.
    quiet: Quiet,
    ready: Option<Ready>,
}

impl Group {
    /// Makes a group of those of this one's ranks that are left and call this, in their order.
    /// Fails the group first where it has not failed.
    ///
    /// # Errors
    /// `Aborted` where the others have gone on without this rank; `PeerFailed` where the group has
    /// failed because of this rank, or where too few have come; `Timeout`; what keeps a back end
    /// from being made here.
    pub fn shrink(self: &Arc<Self>, options: &ShrinkOptions) -> Result<Self> {
        callbacks::refuse_to_block("shrinking a group")?;
        let deadline = connect_deadline(options.connect_timeout_ms)?;
        let window_ms =
            if options.timeout_ms == 0 { DEFAULT_WINDOW_MS } else { options.timeout_ms };
        if self.size() > 1 && self.backend.port().is_none() {
            let message =
                format!("the ranks of back end {} cannot meet again", self.backend.name());
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if self.failure().is_none() {
            let message = format!("rank {} shrinks group {}", self.rank(), self.name());
            self.fail(&Error::new(ErrorKind::Aborted, message));
        }
        let Some(port) = self.backend.port() else { return self.shrink_alone(&deadline) };
        let failure = self.failure().unwrap_or_else(|| Error::internal("no failure"));
        let session = port.open().context(|| format!("shrinking {}", self.whom()))?;
        let outcome = self.check_blame(&failure).and_then(|()| {
            let (window, survey) =
                (Duration::from_millis(window_ms), Survey::new(self.size(), &failure));
            let session = &session;
            let (quiet, ready) = (Quiet::default(), None);
            Effort { group: self, session, port, window, deadline, survey, quiet, ready }.run()
        });
        let last_word = match &outcome {
            Ok((_, proposal)) => Word::Closed(proposal.clone()),
            Err(why) => Word::GaveUp(why.clone()),
        };
        if let Err(error) = session.answer(&last_word.encode()) {
            crate::log!(Level::Warn, "ranks that are late will not be told: {error}");
        }
        if outcome.is_ok() {
            // What has failed the group ends nobody.
            error_file::take_back();
        }
        outcome.map(|(group, _)| group).context(|| format!("shrinking {}", self.whom()))
    }

    /// What is left of one rank is that rank.
    fn shrink_alone(&self, deadline: &Deadline) -> Result<Self> {
        let (id, epoch) = (this::fresh_nonce()?, self.origin.epoch + 1);
        let proposal = Proposal { id, epoch, members: vec![0] };
        let origin = self.origin_of(&proposal, self.origin.former.clone());
        let (identity, keys) =
            (self.identity_of(&proposal, 0), keys::of(&origin.meeting, proposal.id));
        let with = (&origin, keys.as_ref());
        let context = self.context_of(&proposal, with, &identity, deadline);
        let backend = backend::create(&origin.backend, &context, &Alone)?;
        Ok(Self::assemble(identity, origin, backend))
    }

    /// Whether the others take this rank for one that is gone.
    fn check_blame(&self, failure: &Error) -> Result<()> {
        if failure.kind() != ErrorKind::PeerFailed || failure.culprit() != Some(self.rank()) {
            return Ok(());
        }
        let message = format!(
            "the group has failed because of this very rank, so the others go on without it ({failure}): end this \
             process, or start it anew"
        );
        Err(Error::new(ErrorKind::PeerFailed, message).with_culprit(self.rank()))
    }

    fn origin_of(&self, proposal: &Proposal, former: Vec<Arc<Port>>) -> Origin {
        Origin {
            ranks: proposal.members.iter().map(|&member| self.origin.ranks[member]).collect(),
            parent: Some(self.name().to_owned()),
            backend: self.origin.backend.clone(),
            backend_options: self.origin.backend_options.clone(),
            device: self.origin.device,
            store: self.origin.store.clone(),
            meeting: self.origin.meeting.clone(),
            epoch: proposal.epoch,
            former,
            _lease: None,
        }
    }

    fn context_of<'a>(
        &'a self,
        proposal: &Proposal,
        (origin, keys): (&'a Origin, Option<&'a Arc<dyn Keys>>),
        identity: &'a Identity,
        deadline: &'a Deadline,
    ) -> Context<'a> {
        Context {
            group: proposal.id,
            name: &identity.name,
            timeout_ms: identity.timeout_ms,
            epoch: proposal.epoch,
            rank: identity.rank,
            size: proposal.members.len(),
            store: origin.store.as_ref().map(|(host, port)| (host.as_str(), *port)),
            keys,
            options: &origin.backend_options,
            device: origin.device,
            parent: Some(Parent { overrides: self.backend.overrides(), same_options: true }),
            activity: Some(activity::elsewhere),
            deadline,
        }
    }

    fn identity_of(&self, proposal: &Proposal, rank: Rank) -> Identity {
        let name = name_of(self.name(), self.origin.epoch, proposal.epoch);
        Identity { id: proposal.id, name, rank, timeout_ms: self.timeout_ms() }
    }
}

/// The old name with the epoch behind it, in the place of an earlier one.
fn name_of(name: &str, old_epoch: u32, epoch: u32) -> String {
    let earlier = format!("#{old_epoch}");
    let base = if old_epoch == 0 { name } else { name.strip_suffix(&earlier).unwrap_or(name) };
    let mark = format!("#{epoch}");
    let mut end = base.len().min(LONGEST_NAME - mark.len());
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{mark}", &base[..end])
}

impl Effort<'_> {
    fn run(&mut self) -> Result<(Group, Proposal)> {
        let mut last = None;
        while !self.deadline.has_passed() {
            match self.round() {
                Ok(Some(agreed)) => match self.build(agreed) {
                    Ok(()) => return self.take_ready(),
                    Err(Failed::Here(error)) => return Err(error),
                    Err(Failed::Round(error)) => {
                        crate::log!(Level::Info, "beginning again: {error}");
                        last = Some(error);
                    }
                },
                Ok(None) => {}
                Err(Halt::Made) => return self.take_ready(),
                Err(Halt::Failed(error)) => return Err(error),
            }
            pause(BETWEEN_ROUNDS, &self.deadline);
        }
        let message = format!(
            "the ranks that are left have made no group within {} ms{}",
            self.deadline.allowed().as_millis(),
            last.map_or_else(String::new, |error| format!("; the last try: {error}"))
        );
        Err(Error::new(ErrorKind::Timeout, message))
    }

    /// Comes to an agreement, with one below this rank or as the leader; `None` where that may be
    /// tried again.
    fn round(&mut self) -> std::result::Result<Option<Agreed>, Halt> {
        for candidate in 0..self.me() {
            if !self.survey.is_awaited(candidate) {
                continue;
            }
            match self.follow(candidate)? {
                follow::Followed::Agreed(agreed) => return Ok(Some(agreed)),
                follow::Followed::Again => return Ok(None),
                follow::Followed::Nobody => {}
            }
        }
        self.lead().map(Some)
    }

    /// Makes the group that was agreed on, until all members have theirs ready.
    fn build(&mut self, agreed: Agreed) -> std::result::Result<(), Failed> {
        // Nobody of these members has heard that an earlier one is there.
        self.ready = None;
        let Agreed { proposal, links } = agreed;
        let rank = proposal.members.iter().position(|&member| member == self.me());
        let rank = rank.ok_or_else(|| Failed::Here(Error::internal("not a member")))?;
        let limit = self.deadline.capped(self.window.max(MEETING));
        if proposal.members.len() == 1 {
            return self.prepare(proposal, rank, &Alone, &limit).map_err(Failed::Here);
        }
        let members = proposal.members.clone();
        let exchange = LinkExchange::new(self.session, &members, rank, links, &limit);
        let outcome = self.prepare(proposal, rank, &exchange, &limit);
        outcome.and_then(|()| exchange.seal()).map_err(|error| exchange.judge(error))
    }

    /// Makes this rank's part of a group.
    fn prepare(
        &mut self,
        proposal: Proposal,
        rank: Rank,
        exchange: &dyn Exchange,
        limit: &Deadline,
    ) -> Result<()> {
        let mut former = self.group.origin.former.clone();
        former.push(Arc::clone(self.port));
        let origin = self.group.origin_of(&proposal, former);
        let keys = keys::of(&origin.meeting, proposal.id);
        let identity = self.group.identity_of(&proposal, rank);
        let with = (&origin, keys.as_ref());
        let context = self.group.context_of(&proposal, with, &identity, limit);
        let backend = backend::create(&origin.backend, &context, exchange)?;
        self.ready = Some(Ready { proposal, rank, origin, backend });
        Ok(())
    }

    fn take_ready(&mut self) -> Result<(Group, Proposal)> {
        let ready = self.ready.take().ok_or_else(|| Error::internal("nothing is ready"))?;
        let Ready { proposal, rank, origin, backend } = ready;
        let identity = self.group.identity_of(&proposal, rank);
        Ok((Group::assemble(identity, origin, backend), proposal))
    }

    fn me(&self) -> Rank {
        self.group.rank()
    }

    fn epoch(&self) -> u32 {
        self.group.origin.epoch + 1
    }

    /// What it means that nobody is there.
    fn note_gone(&mut self, rank: Rank) {
        // One that left in order may have gone on without this rank. The one that the failure names
        // is gone either way.
        let standing = match self.group.backend.has_left(rank) && !self.survey.is_blamed(rank) {
            true => Standing::Absent("it has left the group".to_owned()),
            false => Standing::Dead,
        };
        self.survey.note(rank, standing);
    }

    fn note_absent(&mut self, rank: Rank, why: impl Into<String>) {
        let why = why.into();
        crate::log!(Level::Info, "{} is not waited for: {why}", self.session.name(rank));
        self.survey.note(rank, Standing::Absent(why));
    }

    fn note_unreached(&mut self, rank: Rank, called: &Called) {
        match called {
            Called::Reached(_) => {}
            Called::Gone(_) => self.note_gone(rank),
            Called::Unreachable(why) => self.note_absent(rank, why.message()),
        }
    }

    /// Whether this rank has this very group ready.
    fn is_ready(&self, closed: &Proposal) -> bool {
        self.ready.as_ref().is_some_and(|ready| ready.proposal.id == closed.id)
    }

    /// What everybody shrinks the group for, in words.
    fn after_what(&self) -> String {
        let failure = self.group.failure();
        failure.map_or_else(String::new, |why| format!(" after the group had failed ({why})"))
    }

    /// The others have a group: this rank's too, or they have gone on without it.
    fn closed(&self, from: Rank, closed: &Proposal) -> Halt {
        if self.is_ready(closed) {
            return Halt::Made;
        }
        let Proposal { epoch, members, .. } = closed;
        let (me, name) = (self.me(), self.session.name(from));
        let message = if members.contains(&me) {
            format!(
                "ranks {members:?} are the group's epoch {epoch} already, says {name}, and this rank's part in it has \
                 ended: the group has been shrunk before"
            )
        } else {
            format!(
                "rank {me} is excluded from epoch {epoch}, which is ranks {members:?}, says {name}: it did not call \
                 dist_group_shrink in time{}, or could not be reached; end this process, or start it anew",
                self.after_what()
            )
        };
        Halt::Failed(Error::new(ErrorKind::Aborted, message))
    }
}

/// Whether a rank that has given up for this reason may call again: others were late, and not
/// itself at fault.
fn may_come_again(rank: Rank, why: &Error) -> bool {
    match why.kind() {
        ErrorKind::Timeout => true,
        ErrorKind::PeerFailed => why.culprit() != Some(rank),
        _ => false,
    }
}
