//! Groups made from a group: by all of its ranks, by the members only, or by splitting it.
//!
//! * All ranks ([`Group::new_group`], [`Group::split`]): the call takes its place among the
//!   parent's collectives and exchanges a fixed record by one of them ([`agreement`]), from which
//!   all compute the same or see that they disagree.
//! * The members only: they find each other by the group's name ([`join_attempt`]).
//!
//! Either way the members then have an id that no other group ever had, and meet under it
//! ([`exchange`]). What they write to each other are messages of the parent under a tag of the
//! library's own ([`control_channel`], [`message`], [`fragment`]). The store is not asked.
//!
//! A group keeps nothing of the one that it was made from, and the other way round: they may be
//! released in any order. While both are there, an abort of the older is one of the newer
//! ([`abort_propagator`](super::lineage)).
//!
//! Must not know: how a back end's ranks meet, or how messages travel.

mod agreement;
mod control_channel;
mod definition;
mod exchange;
mod fragment;
mod join_attempt;
mod message;
mod queues;
mod quota;
mod send_window;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

pub(super) use control_channel::{ControlChannel, NameLease};
pub(super) use message::{WireReader, WireWriter};

use super::group::{
    Group, GroupIdentity, GroupOrigin, MAX_NAME_BYTES, check_distinct, check_name, connect_deadline,
};
use super::{activity, callbacks, group_keys};
use crate::backend::{self, BootstrapExchange, GroupContext, ParentGroup};
use crate::base::config;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorContext as _, Result};
use crate::base::ids::{GroupId, Rank};
use crate::process::this_process;
use control_channel::GroupNumber;
use definition::{CreationCall, GroupDefinition};
use exchange::MemberExchange;
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
struct AgreedGroup {
    id: GroupId,
    name: String,
    /// Ranks in the parent, in the order of the new ranks.
    members: Vec<Rank>,
    name_lease: Option<NameLease>,
    /// In its name, if its members alone have made it and were told none.
    number: Option<GroupNumber>,
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
        let deadline = self.check_subgroup_args(ranks, options).context(|| "a new group")?;
        let backend = self.backend_of(options);
        let agreed = if options.members_only {
            if !ranks.contains(&self.rank()) {
                return Ok(None);
            }
            self.agree_by_members(ranks, backend, options, &deadline)
        } else {
            agreement::agree_on_ranks(self, ranks, backend, options, &deadline).map(Some)
        };
        self.create_subgroup(agreed, options, &deadline)
            .context(|| format!("a new group of {}", self.describe_rank()))
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
        let deadline = self.check_subgroup_args(&[], options).context(|| "a split")?;
        if options.members_only {
            let message =
                "use_local_synchronization is for dist_group_new: all ranks split a group together";
            return Err(Error::invalid(message));
        }
        let backend = self.backend_of(options);
        let agreed = agreement::agree_on_colors(self, (color, key), backend, options, &deadline);
        self.create_subgroup(agreed, options, &deadline)
            .context(|| format!("a split of {}", self.describe_rank()))
    }

    /// What can be checked alone; when the group must be there.
    fn check_subgroup_args(&self, ranks: &[Rank], options: &SubgroupOptions) -> Result<Deadline> {
        callbacks::reject_blocking_in_callback("making a group")?;
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
    fn open_control_channel(self: &Arc<Self>) -> Result<Arc<ControlChannel>> {
        let engine = control_channel::message_engine(self)?;
        let channel = self.control_channel.get_or_init(|| ControlChannel::new(self));
        channel.drop_partial_messages(|rank| engine.departure_error(rank).is_some());
        channel.open();
        Ok(Arc::clone(channel))
    }

    fn agree_by_members(
        self: &Arc<Self>,
        ranks: &[Rank],
        backend: &str,
        options: &SubgroupOptions,
        deadline: &Deadline,
    ) -> Result<Option<AgreedGroup>> {
        let channel = self.open_control_channel()?;
        let ranks_fingerprint =
            GroupDefinition::new(CreationCall::MembersOnly, "", ranks, "").fingerprint();
        let number = options.name.is_none().then(|| channel.reserve_number(ranks_fingerprint));
        let unnamed =
            |number: &GroupNumber| default_name(self, &ranks_in_name(ranks), "~", number.get());
        let name = number.as_ref().map(unnamed).or_else(|| options.name.clone());
        let name = name.unwrap_or_default();
        let definition = GroupDefinition::new(
            CreationCall::MembersOnly,
            &name,
            ranks,
            &backend::canonical_name(backend),
        );
        let reservation = channel.begin_join(self, &definition)?;
        let id = if ranks.len() == 1 {
            this_process::random_nonce()?
        } else {
            join_attempt::join_by_name(self, &channel, &definition, deadline)?
        };
        let (lease, members) = (Some(reservation.into_lease()), ranks.to_vec());
        Ok(Some(AgreedGroup { id, name, members, name_lease: lease, number }))
    }

    /// Makes the group that was agreed on, where this rank is in it.
    fn create_subgroup(
        self: &Arc<Self>,
        agreed: Result<Option<AgreedGroup>>,
        options: &SubgroupOptions,
        deadline: &Deadline,
    ) -> Result<Option<Self>> {
        let Some(AgreedGroup { id, name, members, name_lease: lease, number }) = agreed? else {
            return Ok(None);
        };
        let Some(rank) = members.iter().position(|&member| member == self.rank()) else {
            return Ok(None);
        };
        let origin = GroupOrigin {
            global_ranks: members.iter().map(|&member| self.origin.global_ranks[member]).collect(),
            parent: Some(self.name().to_owned()),
            backend: self.backend_of(options).to_owned(),
            backend_options: options
                .backend_options
                .clone()
                .unwrap_or_else(|| self.origin.backend_options.clone()),
            device: self.origin.device,
            store_address: self.origin.store_address.clone(),
            rendezvous_store: self.origin.rendezvous_store.clone(),
            epoch: 0,
            former_endpoints: Vec::new(),
            _name_lease: lease,
        };
        let timeout_ms =
            if options.timeout_ms == 0 { self.timeout_ms() } else { options.timeout_ms };
        let keys = group_keys::open_group_keys(&origin.rendezvous_store, id);
        let context = GroupContext {
            group: id,
            name: &name,
            timeout_ms,
            epoch: 0,
            rank,
            size: members.len(),
            store_address: origin.store_address.as_ref().map(|(host, port)| (host.as_str(), *port)),
            group_keys: keys.as_ref(),
            options: &origin.backend_options,
            device: origin.device,
            parent: Some(ParentGroup {
                algorithm_overrides: self.backend.algorithm_overrides(),
                inherits_options: options.backend_options.is_none(),
            }),
            activity: Some(activity::describe_other_activity),
            deadline,
        };
        let backend = if members.len() == 1 {
            backend::create(&origin.backend, &context, &SoloExchange)?
        } else {
            let channel = self.open_control_channel()?;
            let id_and_name = (id, name.as_str());
            let exchange =
                MemberExchange::new(self, channel, &members, rank, id_and_name, deadline);
            backend::create(&origin.backend, &context, &exchange)?
        };
        let identity = GroupIdentity { id, name, rank, timeout_ms };
        // An attempt that failed does not count: the members would not all count it.
        number.into_iter().for_each(GroupNumber::commit);
        let group = Self::assemble(identity, origin, backend);
        self.abort_propagator.add_child(&group.abort_propagator)?;
        group.log_creation(deadline.elapsed());
        Ok(Some(group))
    }
}

/// The exchange of a group of one rank.
#[derive(Debug)]
pub(super) struct SoloExchange;

impl BootstrapExchange for SoloExchange {
    fn all_gather(
        &self,
        _: &str,
        mine: &[u8],
        _: &dyn Fn() -> Option<Error>,
    ) -> Result<Vec<Vec<u8>>> {
        Ok(vec![mine.to_vec()])
    }

    fn publish_failure(&self, _: &Error) {}

    fn peer_failure(&self) -> Option<Error> {
        None
    }
}

/// A name that all who make the group come to alike.
fn default_name(parent: &Group, members: &str, mark: &str, count: u64) -> String {
    let name = format!("{}{members}{mark}{count}", parent.name());
    if name.len() <= MAX_NAME_BYTES {
        return name;
    }
    // Descendants of descendants: what is long is told apart by its fingerprint.
    let short = &blake3::hash(name.as_bytes()).to_hex()[..16];
    let start: String = parent.name().chars().take(MAX_NAME_BYTES / 8).collect();
    format!("{start}~{short}{mark}{count}")
}

/// How many ranks a name shows.
const RANKS_IN_NAME: usize = 8;

fn ranks_in_name(ranks: &[Rank]) -> String {
    if ranks.len() <= RANKS_IN_NAME {
        let ranks: Vec<String> = ranks.iter().map(ToString::to_string).collect();
        return format!("[{}]", ranks.join(","));
    }
    let fingerprint = GroupDefinition::new(CreationCall::MembersOnly, "", ranks, "").fingerprint();
    let short: String = fingerprint[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("[{} ranks {short}]", ranks.len())
}
