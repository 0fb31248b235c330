//! The inputs from which the back end of a group is created: the description of the group, the
//! exchange of bootstrap data between its ranks, and its keys in the store. The callers of
//! [`super::create`] implement the traits of this file, and the back ends use them.

use crate::algo::rules::AlgorithmRule;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::ids::{GroupId, Rank, WorldSize};
use crate::security::LinkSecurity;
use crate::transport::heartbeat::ActivityFn;
use std::sync::Arc;

/// The exchange of bootstrap data between the ranks of a group that is being created.
pub trait BootstrapExchange {
    /// Gathers the contributions of all ranks in rank order. All ranks must call this function with
    /// the same phases in the same order. The function polls `check_cancelled` periodically; if
    /// that returns an error, the wait is cancelled.
    ///
    /// # Errors
    /// The error of `check_cancelled`; the failure that another rank published; `Timeout` with the
    /// missing ranks; `Connection`.
    fn all_gather(
        &self,
        phase: &str,
        contribution: &[u8],
        check_cancelled: &dyn Fn() -> Option<Error>,
    ) -> Result<Vec<Vec<u8>>>;

    /// Publishes that this rank fails to join the group, and the reason. If several ranks publish a
    /// reason, the first reason is kept. If this rank may be serving the store, the function waits
    /// briefly, so that the other ranks can read their data.
    fn publish_failure(&self, reason: &Error);

    /// Returns the failure that another rank published, if any.
    fn peer_failure(&self) -> Option<Error>;

    /// Returns the error about a rank whose process has certainly ended; `None` if it is unknown
    /// whether the process has ended.
    fn death_of(&self, rank: Rank) -> Option<Error> {
        let _ = rank;
        None
    }
}

/// Keys and values that the ranks of one group share while the group exists. No other group sees
/// the keys. Any thread may call the functions; a thread that waits for a key does not block other
/// threads.
pub trait GroupKeyStore: Send + Sync {
    /// Stores a value under a key, and replaces the previous value.
    ///
    /// # Errors
    /// `Timeout`, `Connection`.
    fn set(&self, key: &str, value: &[u8], deadline: &Deadline) -> Result<()>;

    /// Waits until a key exists, and returns its value.
    ///
    /// # Errors
    /// `Timeout` naming the key, `Connection`.
    fn get(&self, key: &str, deadline: &Deadline) -> Result<Vec<u8>>;

    /// Adds `amount` to a counter and returns the sum. A counter that does not exist starts at 0.
    ///
    /// # Errors
    /// `NotANumber`, `Timeout`, `Connection`.
    fn add(&self, key: &str, amount: i64, deadline: &Deadline) -> Result<i64>;

    /// Returns true if the key exists.
    ///
    /// # Errors
    /// `Timeout`, `Connection`.
    fn contains_key(&self, key: &str, deadline: &Deadline) -> Result<bool>;

    /// Removes a key; returns true if it existed.
    ///
    /// # Errors
    /// `Timeout`, `Connection`.
    fn delete(&self, key: &str, deadline: &Deadline) -> Result<bool>;
}

crate::base::trait_object_debug::impl_debug_of_objects!(GroupKeyStore);

/// The properties of a parent group that its child group inherits. All ranks of the child group
/// know these properties.
#[derive(Clone, Copy, Debug)]
pub struct ParentGroup<'a> {
    /// The algorithm overrides of the parent.
    pub algorithm_overrides: &'a [AlgorithmRule],
    /// True if the child has no options of its own and inherits the options of the parent.
    pub inherits_options: bool,
}

/// The description of a group for the back end that is created for it.
#[derive(Clone, Copy, Debug)]
pub struct GroupContext<'a> {
    /// The identifier of this incarnation of the group.
    pub group: GroupId,
    /// The name of the group.
    pub name: &'a str,
    /// The timeout, in milliseconds, of operations that do not specify a timeout.
    pub timeout_ms: u64,
    /// The number of times that the group was shrunk to its surviving ranks.
    pub epoch: u32,
    /// The rank of this process.
    pub rank: Rank,
    /// The number of ranks.
    pub size: WorldSize,
    /// The number of each rank that texts show, if it is not the rank of this group. See
    /// [`PeerName::shown_rank`](crate::transport::PeerName::shown_rank).
    pub shown_ranks: Option<&'a [Rank]>,
    /// The host and port of the store through which the ranks bootstrap, if there is a store. Back
    /// ends use the address as a hint to select the network interface.
    pub store_address: Option<(&'a str, u16)>,
    /// The protection of the connections between the ranks.
    pub security: &'a LinkSecurity,
    /// The keys of the group in this store, if there is a store. The keys are usable while a rank
    /// serves the store.
    pub group_keys: Option<&'a Arc<dyn GroupKeyStore>>,
    /// The options of the caller for the back end: "key=value;key=value".
    pub options: &'a str,
    /// The GPU of this rank, if the options name one.
    pub device: Option<usize>,
    /// The parent group, if any.
    pub parent: Option<ParentGroup<'a>>,
    /// A function that describes what this process does outside the group's collectives. Error
    /// messages of ranks that wait for this rank contain the description.
    pub activity: Option<ActivityFn>,
    /// The deadline for the creation of the group.
    pub deadline: &'a Deadline,
}
