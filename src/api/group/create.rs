//! Creation of a group whose ranks meet in a store.
//!
//! [`Group::create`] checks the options, brings the ranks together in the store (rendezvous),
//! creates the back end and assembles the group. Derived groups (subgroups, shrunk groups) are
//! created in `membership` and use only the checks of this file.

use crate::api::group::activity;
use crate::api::group::group_keys;
use crate::api::group::process_group::{Group, GroupIdentity, GroupOrigin, operation_timeout_ms};
use crate::api::membership::rendezvous::{LostMemberFn, Rendezvous, StoreExchange};
use crate::api::observe::{recorder, trace};
use crate::api::work::callbacks;
use crate::backend::{self, DeviceBackend, GroupContext};
use crate::base::config;
use crate::base::deadline::Deadline;
use crate::base::debug;
use crate::base::error::{Culprit, Error, ErrorContext as _, ErrorKind, RankFault, Result};
use crate::base::ids::{MAX_WORLD_SIZE, Rank, WorldSize};
use crate::process::this_process;
use crate::security::{LinkSecurity, Secret, SecuritySetting};
use crate::store::Store;
use std::collections::HashSet;
use std::sync::Arc;

/// The default time limit for the creation of a group: 5 minutes.
const DEFAULT_CONNECT_TIMEOUT_MS: u64 = 300_000;

/// The maximum length of a group's name.
pub(in crate::api) const MAX_NAME_BYTES: usize = 200;

/// The arguments of [`Group::create`].
#[derive(Debug)]
pub struct GroupOptions {
    /// The rendezvous store.
    pub store: Arc<dyn Store>,
    /// The rank of this process.
    pub rank: Rank,
    /// The number of ranks.
    pub size: WorldSize,
    /// The name of the back end; `None` selects the native back end.
    pub backend: Option<String>,
    /// The options of the back end, as "key=value;key=value"; may be empty.
    pub backend_options: String,
    /// The GPU of this rank; `None` if the group has no GPU.
    pub device: Option<usize>,
    /// The group's name. All ranks of the group pass the same name.
    pub name: String,
    /// The deadline of operations in milliseconds; 0 selects the default.
    pub timeout_ms: u64,
    /// The time limit for the creation of the group in milliseconds; 0 selects the default.
    pub connect_timeout_ms: u64,
    /// The rank of each member in the outermost group, in the order of this group's ranks. `None`
    /// if this group is the outermost.
    pub global_ranks: Option<Vec<Rank>>,
    /// The job's secret, for a store that has no secret of its own.
    pub job_secret: Option<Secret>,
}

impl Group {
    /// Creates a group. All ranks of the group call this function and wait for each other.
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid rank, size or name; `NotFound` for an unknown back end; any
    /// failure of the rendezvous or of the back end; `Timeout` at the deadline.
    pub fn create(options: GroupOptions) -> Result<Self> {
        Self::create_within(options, None)
    }

    /// As [`Self::create`]. `outermost` is the group to whose ranks `options.global_ranks` refers.
    /// If it knows that a member of the new group has died, the creation fails at once.
    ///
    /// # Errors
    /// As [`Self::create`]; `PeerFailed` naming the member.
    pub fn create_within(options: GroupOptions, outermost: Option<&Self>) -> Result<Self> {
        prepare(&options)?;
        let (setting, security) = requested_security(&options)?;
        let GroupOptions { store, rank, size, name, .. } = options;
        let global_rank = options.global_ranks.as_ref().and_then(|ranks| ranks.get(rank).copied());
        trace::start_from_environment(global_rank.unwrap_or(rank))?;
        let timeout_ms = operation_timeout_ms(options.timeout_ms)?;
        let deadline = connect_deadline(options.connect_timeout_ms)?;
        let process = format!("pid {}, host {}", this_process::pid(), this_process::host_name());
        let nonce = this_process::random_nonce()?;
        let address = store.address();
        let weak_store = Arc::downgrade(&store);
        let members = options.global_ranks.as_deref();
        let find_lost_member = || lost_member(outermost?, members?);
        let rendezvous = Rendezvous {
            store,
            name: &name,
            rank,
            size,
            security: setting,
            problem: security.as_ref().err().cloned(),
            nonce,
            process,
            deadline: &deadline,
            find_lost_member: LostMemberFn(&find_lost_member),
        };
        // A group of one rank needs no rendezvous. If the setting is unusable, the other ranks meet
        // nevertheless, so that all of them get the error.
        let (id, security) = match size {
            1 => (nonce, LinkSecurity::None),
            _ => (rendezvous.meet()?, security?),
        };
        let keys = group_keys::open_group_keys(&weak_store, id);
        let context = GroupContext {
            group: id,
            name: &name,
            timeout_ms,
            epoch: 0,
            rank,
            size,
            shown_ranks: None,
            store_address: address.as_ref().map(|(host, port)| (host.as_str(), *port)),
            security: &security,
            group_keys: keys.as_ref(),
            options: &options.backend_options,
            device: options.device,
            parent: None,
            activity: Some(activity::describe_other_activity),
            deadline: &deadline,
        };
        let exchange = StoreExchange { rendezvous: &rendezvous, id };
        let default_name = backend::default_name(options.device);
        let backend_name = options.backend.as_deref().unwrap_or(default_name);
        let backend = backend::create(backend_name, &context, &exchange)?;
        let origin = GroupOrigin {
            global_ranks: options.global_ranks.map_or_else(|| (0..size).collect(), Into::into),
            parent: None,
            backend: backend_name.to_owned(),
            backend_options: options.backend_options,
            device: backend.device().map(DeviceBackend::device).or(options.device),
            store_address: address,
            security,
            rendezvous_store: weak_store,
            epoch: 0,
            former_endpoints: Vec::new(),
            _name_lease: None,
        };
        let group = Self::assemble(GroupIdentity { id, name, rank, timeout_ms }, origin, backend);
        group.log_creation(deadline.elapsed());
        Ok(group)
    }
}

/// Checks the options and the environment, and whether this process and thread may create a group.
fn prepare(options: &GroupOptions) -> Result<()> {
    callbacks::reject_blocking_in_callback("creating a group")?;
    config::refuse_former_names()?;
    check_options(options)?;
    recorder::read_dump_environment()?;
    debug::read_environment()?;
    this_process::mark_used()
}

/// Returns the error about a member of a new group whose death is known in the outermost group.
/// `members` has the ranks of the members in that group.
fn lost_member(outermost: &Group, members: &[Rank]) -> Option<Error> {
    // A rank that has noticed the death first may have aborted the outermost group.
    let known = [outermost.first_death(), outermost.culprit()];
    known.into_iter().flatten().find_map(|culprit| member_error(culprit, members))
}

fn member_error(culprit: Culprit, members: &[Rank]) -> Option<Error> {
    let Culprit { rank, fault, process } = culprit;
    let what = match fault {
        RankFault::Died => "died",
        RankFault::Unreachable | RankFault::Silent => "became unreachable",
        _ => return None,
    };
    let member = members.iter().position(|&global| global == rank)?;
    let process = process.map_or(String::new(), |(pid, host)| format!(" (pid {pid}, host {host})"));
    let message = format!("rank {member}{process} {what} while the group was created");
    let error = Error::new(ErrorKind::PeerFailed, message);
    Some(error.with_culprit(member).with_fault(fault))
}

/// Returns the security setting that this process requests, and the protection of the group's
/// connections or the reason why the setting is unusable.
fn requested_security(options: &GroupOptions) -> Result<(SecuritySetting, Result<LinkSecurity>)> {
    let secret = options.store.secret().or(options.job_secret.as_ref());
    let setting = SecuritySetting::requested(secret.is_some())?;
    let security = LinkSecurity::new(setting, secret).and_then(|security| {
        match setting == SecuritySetting::Encrypt && options.store.is_unencrypted() {
            true => Err(unencrypted_store_error(options.store.as_ref())),
            false => Ok(security),
        }
    });
    Ok((setting, security))
}

fn unencrypted_store_error(store: &dyn Store) -> Error {
    let message = format!(
        "{name}=encrypt, but the connections of {} are not encrypted, which is the setting \
         {name}=none or {name}=auth: create the store with the job's secret in a process with \
         {name}=encrypt",
        store.describe(),
        name = config::SECURITY.name
    );
    Error::new(ErrorKind::Auth, message)
}

fn check_options(options: &GroupOptions) -> Result<()> {
    let GroupOptions { rank, size, name, global_ranks, .. } = options;
    if *size == 0 || *size > MAX_WORLD_SIZE {
        return Err(Error::invalid(format!(
            "world size {size} is out of range: pass 1 to {MAX_WORLD_SIZE}"
        )));
    }
    if rank >= size {
        return Err(Error::invalid(format!("rank {rank} does not exist in a group of {size}")));
    }
    check_name(name)?;
    if let Some(ranks) = global_ranks {
        if ranks.len() != *size {
            let message =
                format!("global_ranks has {} ranks, but the group has {size}", ranks.len());
            return Err(Error::invalid(message));
        }
        check_distinct(ranks).context(|| "global_ranks")?;
    }
    options.backend.as_deref().map_or(Ok(()), backend::check_name)
}

/// Checks that this is a valid group name.
pub(in crate::api) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains('/') {
        let message = format!(
            "\"{name}\" is not a valid group name: pass 1 to {MAX_NAME_BYTES} bytes without \"/\""
        );
        return Err(Error::invalid(message));
    }
    Ok(())
}

/// Checks that no rank is in the list twice.
pub(in crate::api) fn check_distinct(ranks: &[Rank]) -> Result<()> {
    let mut known = HashSet::with_capacity(ranks.len());
    match ranks.iter().find(|&&rank| !known.insert(rank)) {
        Some(rank) => Err(Error::invalid(format!("rank {rank} is in the list twice"))),
        None => Ok(()),
    }
}

/// Returns the deadline for the creation of a group that starts now. If `option_ms` is 0, the
/// environment's time limit applies. If that is not set, the default applies.
pub(in crate::api) fn connect_deadline(option_ms: u64) -> Result<Deadline> {
    let timeout_ms = match option_ms {
        0 => config::read_timeout_ms(config::CONNECT_TIMEOUT_MS, DEFAULT_CONNECT_TIMEOUT_MS)?,
        _ => option_ms,
    };
    Ok(Deadline::after_ms(timeout_ms))
}
