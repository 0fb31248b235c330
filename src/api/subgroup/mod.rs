//! Groups made from a group: by all of its ranks, by the members only, or by splitting it.
//!
//! * All ranks ([`Group::new_group`], [`Group::split`]): the call takes its place among the
//!   parent's collectives and exchanges a fixed record by one of them ([`agreement`]), from which
//!   all compute the same or see that they disagree.
//! * The members only: they find each other by the group's name ([`invitation`]).
//!
//! Either way the members then have an id that no other group ever had, and meet under it
//! ([`exchange`]). What they write to each other are messages of the parent under a tag of the
//! library's own ([`mailbox`], [`letter`], [`parcel`]). The store is not asked.
//!
//! A group keeps nothing of the one that it was made from, and the other way round: they may be
//! released in any order. While both are there, an abort of the older is one of the newer
//! ([`lineage`](super::lineage)).
//!
//! Must not know: how a back end's ranks meet, or how messages travel.

mod agreement;
mod definition;
mod dispatch;
mod exchange;
mod inbox;
mod invitation;
mod letter;
mod mailbox;
mod parcel;
mod shares;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

pub(super) use letter::{Reader, Writer};
pub(super) use mailbox::{Lease, Mailbox};

use super::group::{
    Group, Identity, LONGEST_NAME, Origin, check_distinct, check_name, connect_deadline,
};
use super::{activity, callbacks, keys};
use crate::backend::{self, Context, Exchange, Parent};
use crate::base::config;
use crate::base::deadline::Deadline;
use crate::base::error::{Context as _, Error, Result};
use crate::base::ids::{GroupId, Rank};
use crate::process::this;
use definition::{Definition, How};
use exchange::MemberExchange;
use mailbox::Number;
use std::sync::Arc;

/// What a group made from another may have of its own.
#[derive(Clone, Debug, Default)]
pub struct SubgroupOptions {
    /// Its name; `None` for one made from the parent's, the ranks and a count.
    pub name: Option<String>,
    /// The back end by name; `None` for the parent's.
    pub backend: Option<String>,
    /// What is asked of the back end; `None` for what the parent's was asked.
    pub backend_options: Option<String>,
    /// The deadline of operations in milliseconds; 0 for the parent's.
    pub timeout_ms: u64,
    /// The deadline of making the group in milliseconds; 0 for the default.
    pub connect_timeout_ms: u64,
    /// Only the members make the group, and the parent's other ranks do not hear of it.
    pub members_only: bool,
}

/// What all members know once they have agreed.
#[derive(Debug)]
struct Agreed {
    id: GroupId,
    name: String,
    /// Ranks in the parent, in the order of the new ranks.
    members: Vec<Rank>,
    lease: Option<Lease>,
    /// In its name, if its members alone have made it and were told none.
    number: Option<Number>,
}

impl Group {
    /// Makes a group of some ranks of this one, in the order given; none for all. `None` on ranks
    /// that are not in it.
    ///
    /// # Errors
    /// `InvalidArgument` before anything has happened; `Mismatch` with all definitions where ranks
    /// define it differently; `Timeout`, `PeerFailed`, and what keeps the back end's ranks from
    /// meeting. All of them leave this group as it was, except that ranks who do not come to a call
    /// of all ranks fail it, as with any collective.
    pub fn new_group(
        self: &Arc<Self>,
        ranks: &[Rank],
        options: &SubgroupOptions,
    ) -> Result<Option<Self>> {
        let everyone: Vec<Rank>;
        let ranks = if ranks.is_empty() {
            everyone = (0..self.size()).collect();
            &everyone
        } else {
            ranks
        };
        let deadline = self.check_birth(ranks, options).context(|| "a new group")?;
        let backend = self.backend_of(options);
        let agreed = if options.members_only {
            if !ranks.contains(&self.rank()) {
                return Ok(None);
            }
            self.agree_by_members(ranks, backend, options, &deadline)
        } else {
            agreement::on_list(self, ranks, backend, options, &deadline).map(Some)
        };
        self.bear(agreed, options, &deadline).context(|| format!("a new group of {}", self.whom()))
    }

    /// Splits this group into one group for each colour; in it, ranks are ordered by key, then by
    /// their rank here. `None` as colour takes part in no group, and gets none.
    ///
    /// # Errors
    /// As [`Group::new_group`].
    pub fn split(
        self: &Arc<Self>,
        color: Option<u32>,
        key: i32,
        options: &SubgroupOptions,
    ) -> Result<Option<Self>> {
        let deadline = self.check_birth(&[], options).context(|| "a split")?;
        if options.members_only {
            let message =
                "use_local_synchronization is for dist_group_new: all ranks split a group together";
            return Err(Error::invalid(message));
        }
        let backend = self.backend_of(options);
        let agreed = agreement::on_colors(self, (color, key), backend, options, &deadline);
        self.bear(agreed, options, &deadline).context(|| format!("a split of {}", self.whom()))
    }

    /// What can be checked alone; when the group must be there.
    fn check_birth(&self, ranks: &[Rank], options: &SubgroupOptions) -> Result<Deadline> {
        callbacks::refuse_to_block("making a group")?;
        config::refuse_former_names()?;
        if let Some(&rank) = ranks.iter().find(|&&rank| rank >= self.size()) {
            let message = format!("rank {rank} does not exist in a group of {}", self.size());
            return Err(Error::invalid(message));
        }
        check_distinct(ranks)?;
        options.name.as_deref().map_or(Ok(()), check_name)?;
        backend::check_name(self.backend_of(options))?;
        connect_deadline(options.connect_timeout_ms)
    }

    fn backend_of<'a>(&'a self, options: &'a SubgroupOptions) -> &'a str {
        options.backend.as_deref().unwrap_or(&self.origin.backend)
    }

    /// Where the letters of this group's ranks come.
    fn open_mailbox(self: &Arc<Self>) -> Result<Arc<Mailbox>> {
        let engine = mailbox::engine(self)?;
        let mailbox = self.mailbox.get_or_init(|| Mailbox::new(self));
        mailbox.forget(|rank| engine.departed(rank).is_some());
        mailbox.open();
        Ok(Arc::clone(mailbox))
    }

    fn agree_by_members(
        self: &Arc<Self>,
        ranks: &[Rank],
        backend: &str,
        options: &SubgroupOptions,
        deadline: &Deadline,
    ) -> Result<Option<Agreed>> {
        let mailbox = self.open_mailbox()?;
        let list = Definition::new(How::Local, "", ranks, "").fingerprint();
        let number = options.name.is_none().then(|| mailbox.number(list));
        let unnamed = |number: &Number| default_name(self, &list_in_name(ranks), "~", number.get());
        let name = number.as_ref().map(unnamed).or_else(|| options.name.clone());
        let name = name.unwrap_or_default();
        let definition = Definition::new(How::Local, &name, ranks, &backend::canonical(backend));
        let meeting = mailbox.begin(self, &definition)?;
        let id = if ranks.len() == 1 {
            this::fresh_nonce()?
        } else {
            invitation::meet(self, &mailbox, &definition, deadline)?
        };
        let (lease, members) = (Some(meeting.keep()), ranks.to_vec());
        Ok(Some(Agreed { id, name, members, lease, number }))
    }

    /// Makes the group that was agreed on, where this rank is in it.
    fn bear(
        self: &Arc<Self>,
        agreed: Result<Option<Agreed>>,
        options: &SubgroupOptions,
        deadline: &Deadline,
    ) -> Result<Option<Self>> {
        let Some(Agreed { id, name, members, lease, number }) = agreed? else { return Ok(None) };
        let Some(rank) = members.iter().position(|&member| member == self.rank()) else {
            return Ok(None);
        };
        let origin = Origin {
            ranks: members.iter().map(|&member| self.origin.ranks[member]).collect(),
            parent: Some(self.name().to_owned()),
            backend: self.backend_of(options).to_owned(),
            backend_options: options
                .backend_options
                .clone()
                .unwrap_or_else(|| self.origin.backend_options.clone()),
            device: self.origin.device,
            store: self.origin.store.clone(),
            meeting: self.origin.meeting.clone(),
            epoch: 0,
            former: Vec::new(),
            _lease: lease,
        };
        let timeout_ms =
            if options.timeout_ms == 0 { self.timeout_ms() } else { options.timeout_ms };
        let keys = keys::of(&origin.meeting, id);
        let context = Context {
            group: id,
            name: &name,
            timeout_ms,
            epoch: 0,
            rank,
            size: members.len(),
            store: origin.store.as_ref().map(|(host, port)| (host.as_str(), *port)),
            keys: keys.as_ref(),
            options: &origin.backend_options,
            device: origin.device,
            parent: Some(Parent {
                overrides: self.backend.overrides(),
                same_options: options.backend_options.is_none(),
            }),
            activity: Some(activity::elsewhere),
            deadline,
        };
        let backend = if members.len() == 1 {
            backend::create(&origin.backend, &context, &Alone)?
        } else {
            let mailbox = self.open_mailbox()?;
            let of = (id, name.as_str());
            let exchange = MemberExchange::new(self, mailbox, &members, rank, of, deadline);
            backend::create(&origin.backend, &context, &exchange)?
        };
        let identity = Identity { id, name, rank, timeout_ms };
        // An attempt that failed does not count: the members would not all count it.
        number.into_iter().for_each(Number::use_up);
        let group = Self::assemble(identity, origin, backend);
        self.lineage.adopt(&group.lineage)?;
        group.tell_birth(deadline.elapsed());
        Ok(Some(group))
    }
}

/// The exchange of a group of one rank.
#[derive(Debug)]
pub(super) struct Alone;

impl Exchange for Alone {
    fn all(&self, _: &str, mine: &[u8], _: &dyn Fn() -> Option<Error>) -> Result<Vec<Vec<u8>>> {
        Ok(vec![mine.to_vec()])
    }

    fn give_up(&self, _: &Error) {}

    fn given_up(&self) -> Option<Error> {
        None
    }
}

/// A name that all who make the group come to alike.
fn default_name(parent: &Group, what: &str, mark: &str, count: u64) -> String {
    let name = format!("{}{what}{mark}{count}", parent.name());
    if name.len() <= LONGEST_NAME {
        return name;
    }
    // Descendants of descendants: what is long is told apart by its fingerprint.
    let short = &blake3::hash(name.as_bytes()).to_hex()[..16];
    let start: String = parent.name().chars().take(LONGEST_NAME / 8).collect();
    format!("{start}~{short}{mark}{count}")
}

/// How many ranks a name shows.
const RANKS_IN_NAME: usize = 8;

fn list_in_name(ranks: &[Rank]) -> String {
    if ranks.len() <= RANKS_IN_NAME {
        let ranks: Vec<String> = ranks.iter().map(ToString::to_string).collect();
        return format!("[{}]", ranks.join(","));
    }
    let list = Definition::new(How::Local, "", ranks, "").fingerprint();
    let short: String = list[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("[{} ranks {short}]", ranks.len())
}
