//! Creation of new groups whose members are ranks of a parent group. There are three ways: all
//! ranks of the parent create one group, only the members create the group, or all ranks split the
//! parent into several groups.
//!
//! * **All ranks** ([`Group::new_group`], [`Group::split`]): the call takes a place in the order of
//!   the parent's collectives. It gathers a record of fixed size from each rank with one all_gather
//!   ([`agreement`]). From the records, all ranks compute the same groups, or detect that they
//!   disagree.
//! * **Members only** ([`SubgroupOptions::members_only`]): the members find each other by the
//!   group's name ([`join_attempt`]).
//!
//! In both cases, the members then have an id that no other group has ever had. To create the back
//! end of the new group, they exchange data under this id ([`exchange`]). They use control
//! messages, which are messages of the parent under a tag that the library reserves
//! ([`control_channel`], [`message`], [`fragment`]). The store is not used.
//!
//! A new group and its parent hold no references to each other, so they may be released in any
//! order. While both exist, an abort of the parent also aborts the new group
//! (`api::group::abort_propagation`).
//!
//! This module does not depend on the data that back ends exchange or on how messages travel.

mod agreement;
mod control_channel;
mod definition;
mod exchange;
mod fragment;
mod join_attempt;
mod join_needs;
mod message;
mod queues;
mod quota;
mod send_window;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use crate::api::group::create::{check_distinct, check_name, connect_deadline};
use crate::api::group::process_group::{Group, GroupIdentity, GroupOrigin};
use crate::api::membership::bootstrap::SoloExchange;
use crate::api::membership::derived_group::{create_backend, derived_origin};
use crate::api::work::callbacks;
use crate::backend::{self, BootstrapExchange};
use crate::base::config;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorContext as _, Result};
use crate::base::ids::Rank;
use crate::process::this_process;
use agreement::{AgreedGroup, default_name, ranks_in_name};
use control_channel::{ControlChannel, GroupNumber};
use definition::{CreationCall, GroupDefinition};
use exchange::{MemberExchange, NewMembers};
use std::any::Any;
use std::sync::Arc;

/// The options of a group that is created from a parent group.
#[derive(Clone, Debug, Default)]
pub struct SubgroupOptions {
    /// The group's name. `None` derives the name from the parent's name, the ranks and a number.
    pub name: Option<String>,
    /// The name of the back end. `None` selects the parent's back end.
    pub backend: Option<String>,
    /// The options of the back end. `None` selects the parent's options.
    pub backend_options: Option<String>,
    /// The time limit of operations in milliseconds. 0 selects the parent's time limit.
    pub timeout_ms: u64,
    /// The time limit for the creation of the group in milliseconds. 0 selects the default.
    pub connect_timeout_ms: u64,
    /// If true, only the members create the group, and the parent's other ranks do not take part.
    pub members_only: bool,
}

impl Group {
    /// Creates a group with the members `ranks`, which are ranks of this group in the order of
    /// their new ranks. An empty list means all ranks. Returns `None` on ranks that are not
    /// members.
    ///
    /// # Errors
    /// * `InvalidArgument` for invalid arguments, before any communication.
    /// * `Mismatch` if ranks define the group differently. The error names all definitions.
    /// * `Timeout`, `PeerFailed`.
    /// * Any error that prevents the creation of the back end.
    ///
    /// After an error, this group can still be used, with one exception: if all ranks must call
    /// this method and a rank does not, this group fails, as with any collective.
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
            agreement::agree_on_ranks(self, ranks, backend, options.name.as_deref(), &deadline)
                .map(Some)
        };
        self.create_subgroup(agreed, options, &deadline)
            .context(|| format!("a new group of {}", self.describe_rank()))
    }

    /// Splits this group into one group for each colour. All ranks call this method, and ranks with
    /// the same colour become members of the same group. Their new ranks are ordered by key, then
    /// by rank in this group. A rank with the colour `None` gets no group.
    ///
    /// # Errors
    /// The same errors as [`Group::new_group`].
    pub fn split(
        self: &Arc<Self>,
        color: Option<u32>,
        key: i32,
        options: &SubgroupOptions,
    ) -> Result<Option<Self>> {
        let deadline = self.check_subgroup_args(&[], options).context(|| "a split")?;
        if options.members_only {
            let message = "use_local_synchronization is only for dist_group_new: all ranks of a group split it together";
            return Err(Error::invalid(message));
        }
        let backend = self.backend_of(options);
        let name = options.name.as_deref();
        let agreed = agreement::agree_on_colors(self, color, key, backend, name, &deadline);
        self.create_subgroup(agreed, options, &deadline)
            .context(|| format!("a split of {}", self.describe_rank()))
    }

    /// Checks the arguments without communication, and returns the deadline for the creation of the
    /// group.
    fn check_subgroup_args(&self, ranks: &[Rank], options: &SubgroupOptions) -> Result<Deadline> {
        callbacks::reject_blocking_in_callback("creating a group")?;
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

    /// Returns the control channel of this group. Opens the channel if it is not open.
    fn open_control_channel(self: &Arc<Self>) -> Result<Arc<ControlChannel>> {
        let engine = send_window::message_engine(self)?;
        let channel = self.extensions.get_or_init(|| ControlChannel::new(self));
        channel.drop_partial_messages(|rank| engine.departure_error(rank).is_some());
        channel.open();
        Ok(channel)
    }

    /// Agrees on a group with the other members only.
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
        let unnamed = |number: &GroupNumber| {
            default_name(self.name(), &ranks_in_name(ranks), "~", number.get())
        };
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

    /// Creates the group on which the ranks have agreed, if this rank is a member.
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
        let inherited = derived_origin(self, &members);
        let origin = GroupOrigin {
            backend: self.backend_of(options).to_owned(),
            backend_options: options.backend_options.clone().unwrap_or(inherited.backend_options),
            _name_lease: lease.map(|lease| Box::new(lease) as Box<dyn Any + Send + Sync>),
            ..inherited
        };
        let timeout_ms =
            if options.timeout_ms == 0 { self.timeout_ms() } else { options.timeout_ms };
        let identity = GroupIdentity { id, name, rank, timeout_ms };
        let inherits_options = options.backend_options.is_none();
        let create = |exchange: &dyn BootstrapExchange| {
            create_backend(self, &identity, &origin, inherits_options, exchange, deadline)
        };
        let backend = if members.len() == 1 {
            create(&SoloExchange)?
        } else {
            let channel = self.open_control_channel()?;
            let new = NewMembers { id, name: &identity.name, members: &members, me: rank };
            create(&MemberExchange::new(self, channel, new, deadline))?
        };
        // The number is committed only after the back end was created. A failed attempt must not
        // use up its number, because not all members might count the attempt.
        number.into_iter().for_each(GroupNumber::commit);
        let group = Self::assemble(identity, origin, backend);
        self.abort_propagator.add_child(&group.abort_propagator)?;
        group.log_creation(deadline.elapsed());
        Ok(Some(group))
    }
}
