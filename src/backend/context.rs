//! The inputs from which the back end of a group is created: the description of the group, the
//! exchange of bootstrap data between its ranks, and its keys in the store. The callers of
//! [`super::create`] implement the traits; back ends use them.

use crate::algo::rules::AlgorithmRule;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::ids::{GroupId, Rank, WorldSize};
use crate::transport::heartbeat::ActivityFn;
use std::fmt::Debug;
use std::sync::Arc;

/// The exchange of bootstrap data between the ranks of a group that is being created.
pub trait BootstrapExchange {
    /// Gathers the contributions of all ranks in rank order. All ranks call it with the same phases
    /// in the same order. `check_cancelled` is polled periodically; returning an error cancels the
    /// wait.
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

    /// Publishes that this rank fails to join, and why. The first published reason stays. If this
    /// rank may be serving the store, it waits briefly until the other ranks have read their data.
    fn publish_failure(&self, reason: &Error);

    /// Returns the failure that another rank published, if any.
    fn peer_failure(&self) -> Option<Error>;
}

/// Keys and values that the ranks of one group share while the group exists. No other group sees
/// them. Any thread may use them; a waiting thread does not block the other threads.
pub trait GroupKeyStore: Send + Sync + Debug {
    /// Stores a value and replaces the previous value of the key.
    ///
    /// # Errors
    /// `Timeout`, `Connection`.
    fn set(&self, key: &str, value: &[u8], deadline: &Deadline) -> Result<()>;

    /// Returns the value of a key; waits until the key exists.
    ///
    /// # Errors
    /// `Timeout` naming the key, `Connection`.
    fn get(&self, key: &str, deadline: &Deadline) -> Result<Vec<u8>>;

    /// Adds to a counter and returns the sum. A missing counter starts at 0.
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

/// The properties of a parent group that its child group inherits. All ranks of the child know
/// them.
#[derive(Clone, Copy, Debug)]
pub struct ParentGroup<'a> {
    /// The algorithm overrides of the parent.
    pub algorithm_overrides: &'a [AlgorithmRule],
    /// True if the child has no options of its own and inherits those of the parent.
    pub inherits_options: bool,
}

/// The description of a group for the back end that is created for it.
#[derive(Clone, Copy, Debug)]
pub struct GroupContext<'a> {
    /// The identifier of this incarnation of the group.
    pub group: GroupId,
    /// The name of the group.
    pub name: &'a str,
    /// The timeout in milliseconds of operations that name none.
    pub timeout_ms: u64,
    /// The number of times that the group was shrunk to its surviving ranks.
    pub epoch: u32,
    /// The rank of this process.
    pub rank: Rank,
    /// The number of ranks.
    pub size: WorldSize,
    /// The host and port of the store where the ranks bootstrap, if there is one. Back ends use it
    /// as a hint to select the network interface.
    pub store_address: Option<(&'a str, u16)>,
    /// The keys of the group in this store, if there is one. They work while a rank serves the
    /// store.
    pub group_keys: Option<&'a Arc<dyn GroupKeyStore>>,
    /// The options of the caller for the back end: "key=value;key=value".
    pub options: &'a str,
    /// The GPU of this rank, if the options name one.
    pub device: Option<usize>,
    /// The parent group, if any.
    pub parent: Option<ParentGroup<'a>>,
    /// Describes the activity of this process outside the group's collectives, for error messages
    /// of ranks that wait for it.
    pub activity: Option<ActivityFn>,
    /// The deadline for the creation of the group.
    pub deadline: &'a Deadline,
}
