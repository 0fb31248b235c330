//! The inner groups of a two-level group, and their creation.
//!
//! An inner group is a complete group of a back end, with its own group id and its own bootstrap
//! ([`super::member_exchange`]). Its ranks have other numbers than in the two-level group, but its
//! texts show the numbers of the two-level group.

use super::member_exchange::InnerGroupExchange;
use super::spec::TwoLevelSpec;
use crate::backend::device_factory::split_prefixed_options;
use crate::backend::linked_failures::{LinkedGroup, renumber_outwards};
use crate::backend::registry::{self, DEFAULT_HOST_BACKEND};
use crate::backend::{Backend, BootstrapExchange, GroupContext, GroupFailureState, GroupKeyStore};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorContext as _, Result};
use crate::base::ids::{GroupId, Nonce, Rank};
use crate::base::nodes::NodeMap;
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The two levels of a two-level group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Inside,
    Between,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inside => "inside the host",
            Self::Between => "between hosts",
        })
    }
}

/// An inner group.
#[derive(Debug)]
pub(super) struct InnerGroup {
    pub(super) level: Level,
    pub(super) backend: Arc<dyn Backend>,
    /// The number in the two-level group of each rank of this group.
    pub(super) ranks: Vec<Rank>,
    /// The number of operations that this rank has run in this group.
    operations: AtomicU64,
}

impl InnerGroup {
    /// Returns the sequence number of the next operation.
    pub(super) fn next_sequence(&self) -> u64 {
        self.operations.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// The options of a two-level group, divided by their receivers.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::backend) struct TwoLevelOptions {
    /// The options without a prefix.
    pub(in crate::backend) general: String,
    inside: String,
    between: String,
}

impl TwoLevelOptions {
    /// Separates the options `inside.KEY=VALUE` and `between.KEY=VALUE` from the others.
    ///
    /// # Errors
    /// None at present.
    pub(in crate::backend) fn split(options: &str) -> Result<Self> {
        let collect = |options: &str, prefix: &str| {
            let mut own = Vec::new();
            let rest = split_prefixed_options(options, prefix, |_, option| {
                own.push(option.to_owned());
                Ok(())
            })?;
            Ok::<_, Error>((own.join(";"), rest))
        };
        let (inside, rest) = collect(options, "inside.")?;
        let (between, general) = collect(&rest, "between.")?;
        Ok(Self { general, inside, between })
    }

    /// Returns the options of an inner group whose host back end has this name. The native back end
    /// also gets the options without a prefix. It needs no heartbeats, because the host back end of
    /// the two-level group already detects silent ranks.
    fn of_level(&self, level: Level, host_backend: &str) -> String {
        let own = match level {
            Level::Inside => &self.inside,
            Level::Between => &self.between,
        };
        match registry::is_native(host_backend) {
            true => format!("{};heartbeat_ms=-1;{own}", self.general),
            false => own.clone(),
        }
    }
}

/// A function that creates the back end of an inner group by its name.
pub(in crate::backend) type CreateInnerBackend =
    dyn Fn(&str, &GroupContext<'_>, &dyn BootstrapExchange) -> Result<Arc<dyn Backend>>;

/// The arguments for the creation of the inner groups of this rank.
pub(super) struct InnerGroupSetup<'a> {
    pub(super) spec: &'a TwoLevelSpec,
    pub(super) options: &'a TwoLevelOptions,
    pub(super) context: &'a GroupContext<'a>,
    pub(super) exchange: &'a dyn BootstrapExchange,
    /// The host back end of the two-level group.
    pub(super) host: &'a dyn Backend,
    pub(super) failure_state: &'a dyn GroupFailureState,
    /// The device of this rank, if the inner groups run operations on device memory.
    pub(super) device: Option<usize>,
    pub(super) create: &'a CreateInnerBackend,
}

/// The inner groups of this rank.
#[derive(Debug)]
pub(super) struct InnerGroups {
    /// The hosts of the two-level group.
    pub(super) hosts: NodeMap,
    pub(super) rank: Rank,
    /// The ranks of this host.
    pub(super) inside: InnerGroup,
    /// Ranks of different hosts. If all hosts have the same number of ranks, these are the ranks
    /// with the same local rank as this rank. Otherwise, these are the leaders of the hosts, and
    /// the field is `None` on other ranks. It is also `None` if there is only one host.
    pub(super) between: Option<InnerGroup>,
    /// True if all hosts have the same number of ranks.
    pub(super) is_even: bool,
}

impl InnerGroups {
    /// Creates the inner groups. All ranks of the two-level group must call this function.
    ///
    /// # Errors
    /// Any error of the bootstrap of an inner group.
    pub(super) fn create(setup: &InnerGroupSetup<'_>) -> Result<Self> {
        let locations = setup.host.rank_locations();
        let labels: Vec<usize> = locations.iter().map(|location| location.host_index).collect();
        let hosts = NodeMap::by_label(&labels);
        let (rank, is_even) =
            (setup.context.rank, hosts.min_ranks_per_node() == hosts.max_ranks_per_node());
        let (host, local) = (hosts.node_of(rank), hosts.local_rank(rank));
        let exchange = setup.exchange(Level::Inside, hosts.members(host));
        let inside = setup.create_group(Level::Inside, host, &exchange)?;
        exchange.finish()?;
        let rail = if is_even { local } else { 0 };
        let mut ranks: Vec<Rank> = Vec::new();
        if hosts.node_count() > 1 && local == rail {
            ranks.extend((0..hosts.node_count()).map(|host| hosts.members(host)[rail]));
        }
        let have_all_groups = is_even && hosts.node_count() > 1;
        if !have_all_groups {
            setup.try_between_alone()?;
        }
        let exchange = setup.exchange(Level::Between, &ranks);
        let between = match ranks.is_empty() {
            true => None,
            false => Some(setup.create_group(Level::Between, rail, &exchange)?),
        };
        exchange.finish()?;
        Ok(Self { hosts, rank, inside, between, is_even })
    }

    /// Returns the inner groups of this rank.
    pub(super) fn groups(&self) -> impl Iterator<Item = &InnerGroup> {
        std::iter::once(&self.inside).chain(&self.between)
    }

    /// Returns the links to the failures of the inner groups.
    pub(super) fn links(&self) -> Result<Vec<LinkedGroup>> {
        self.groups()
            .map(|group| LinkedGroup::new(group.backend.as_ref(), group.ranks.clone()))
            .collect()
    }
}

impl InnerGroupSetup<'_> {
    /// Returns the exchange of the inner group with these ranks. All ranks of the two-level group
    /// must finish it.
    fn exchange<'r>(&'r self, level: Level, members: &'r [Rank]) -> InnerGroupExchange<'r> {
        let kind = if self.device.is_some() { "device" } else { "host" };
        InnerGroupExchange {
            members,
            name: format!("two-level-{kind}-{level:?}"),
            group_exchange: self.exchange,
            failure_state: self.failure_state,
            rounds: Cell::new(0),
        }
    }

    /// Creates the inner group with these ranks. `index` distinguishes the groups of a level.
    fn create_group(
        &self,
        level: Level,
        index: usize,
        exchange: &InnerGroupExchange<'_>,
    ) -> Result<InnerGroup> {
        let ranks = exchange.members;
        let Self { context, spec, .. } = self;
        let me = ranks.iter().position(|&member| member == context.rank);
        let me = me.ok_or_else(|| Error::internal("the rank is not in its inner group"))?;
        let (host_backend, name) = self.backend_names(level);
        let options = self.options.of_level(level, &host_backend);
        let keys = context.group_keys.map(|keys| {
            let keys =
                InnerKeyStore { keys: Arc::clone(keys), prefix: format!("{level:?}/{index}/") };
            Arc::new(keys) as Arc<dyn GroupKeyStore>
        });
        let shown = |&rank: &Rank| context.shown_ranks.map_or(rank, |shown| shown[rank]);
        let shown_ranks: Vec<Rank> = ranks.iter().map(shown).collect();
        let context = GroupContext {
            group: inner_id(context.group, level, index),
            name: &format!("{} {level}", context.name),
            rank: me,
            size: ranks.len(),
            shown_ranks: Some(&shown_ranks),
            group_keys: keys.as_ref(),
            options: &options,
            device: self.device,
            ..**context
        };
        let created = (self.create)(&name, &context, exchange);
        let backend = created
            .context(|| format!("{spec}, {level}"))
            .map_err(|error| renumber_outwards(error, ranks))?;
        Ok(InnerGroup { level, backend, ranks: ranks.to_vec(), operations: AtomicU64::new(0) })
    }

    /// Creates and releases a group of this rank alone with the back end between hosts. If some
    /// ranks create no group there, all ranks call this function first. It checks the options, and
    /// makes the back end ready in this process. This may need all processes of the job at the same
    /// time: MPI_Init does, for example.
    fn try_between_alone(&self) -> Result<()> {
        let own = [self.context.rank];
        let exchange = self.exchange(Level::Between, &own);
        // Rail 0 has the index 0.
        self.create_group(Level::Between, 1 + self.context.rank, &exchange).map(drop)
    }

    /// Returns the name of the host back end of a level, and the name of the level's back end.
    fn backend_names(&self, level: Level) -> (String, String) {
        let TwoLevelSpec { inside, between } = self.spec;
        let is_device_backend = registry::find_device_factory(inside).is_some();
        match (level, self.device) {
            (Level::Inside, Some(_)) if is_device_backend => {
                let host = DEFAULT_HOST_BACKEND.to_owned();
                (host.clone(), format!("cpu:{host},cuda:{inside}"))
            }
            (Level::Inside, None) => (inside.clone(), inside.clone()),
            (Level::Inside, Some(_)) => (inside.clone(), format!("cpu:{inside},cuda:{inside}")),
            (Level::Between, None) => (between.clone(), between.clone()),
            (Level::Between, Some(_)) => (between.clone(), format!("cpu:{between},cuda:{between}")),
        }
    }
}

/// Returns the id of an inner group. All its ranks compute the same id from the id of the group.
fn inner_id(group: GroupId, level: Level, index: usize) -> GroupId {
    let (high, low) = group.0.split_at(8);
    let word = |bytes: &[u8]| bytes.iter().fold(0_u64, |word, &byte| word << 8 | u64::from(byte));
    let salt = (index as u64) << 1 | u64::from(level == Level::Between);
    // The finaliser of MurmurHash3 (Appleby).
    let mix = |mut word: u64| {
        word = (word ^ word >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        word = (word ^ word >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        word ^ word >> 33
    };
    let high = mix(word(high) ^ mix(salt ^ 0x9e37_79b9_7f4a_7c15));
    let low = mix(word(low) ^ high);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&high.to_be_bytes());
    bytes[8..].copy_from_slice(&low.to_be_bytes());
    Nonce(bytes)
}

/// The keys of an inner group: the keys of the two-level group with a prefix.
#[derive(Debug)]
struct InnerKeyStore {
    keys: Arc<dyn GroupKeyStore>,
    prefix: String,
}

impl InnerKeyStore {
    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }
}

impl GroupKeyStore for InnerKeyStore {
    fn set(&self, key: &str, value: &[u8], deadline: &Deadline) -> Result<()> {
        self.keys.set(&self.key(key), value, deadline)
    }

    fn get(&self, key: &str, deadline: &Deadline) -> Result<Vec<u8>> {
        self.keys.get(&self.key(key), deadline)
    }

    fn add(&self, key: &str, amount: i64, deadline: &Deadline) -> Result<i64> {
        self.keys.add(&self.key(key), amount, deadline)
    }

    fn contains_key(&self, key: &str, deadline: &Deadline) -> Result<bool> {
        self.keys.contains_key(&self.key(key), deadline)
    }

    fn delete(&self, key: &str, deadline: &Deadline) -> Result<bool> {
        self.keys.delete(&self.key(key), deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn options_are_divided_by_prefix() {
        let options = "transport=shm;inside.cma=0; between.slot_bytes=4096;staging.chunk_bytes=9";
        let options = TwoLevelOptions::split(options).unwrap();
        assert_eq!(options.general, "transport=shm;staging.chunk_bytes=9");
        let inside = options.of_level(Level::Inside, "Gloo");
        assert_eq!(inside, "transport=shm;staging.chunk_bytes=9;heartbeat_ms=-1;cma=0");
        assert_eq!(options.of_level(Level::Between, "some-plug-in"), "slot_bytes=4096");
    }

    #[test]
    fn inner_groups_have_distinct_ids() {
        let mut ids = HashSet::new();
        for group in [Nonce([0; 16]), Nonce([7; 16])] {
            for index in 0..100 {
                for level in [Level::Inside, Level::Between] {
                    let id = inner_id(group, level, index);
                    assert_eq!(id, inner_id(group, level, index));
                    assert!(id != group && ids.insert(id));
                }
            }
        }
    }
}
