//! Decides which ranks of a host share memory. Ranks with the same host identity usually can, but
//! the identity is only a hint. Before the ranks set up a segment, they try:
//!
//! 1. Each process makes the links to the processes of the other ranks of the host.
//! 2. The lowest rank of each host creates a segment.
//! 3. The ranks exchange the failures ([`SharingReport`]). All ranks thus know all failures, and
//!    compute the same nodes: each node is a set of ranks in which no pair has failed.
//!
//! Ranks of different nodes use TCP. With `transport=shm`, a failure is an error.

use super::malformed_peer_info;
use super::peer_info::NativePeerInfo;
use crate::backend::{BootstrapExchange, GroupContext};
use crate::base::error::{Error, ErrorKind, RankFault, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::base::nodes::NodeMap;
use crate::sys::host;
use crate::sys::shm::Segment;
use crate::transport::neighbour::NeighbourMember;
use crate::transport::shm::{self, ShmMember};
use crate::transport::{PeerName, RegionGeometry};
use serde_json::{Value, json};
use std::io::ErrorKind as Io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The failures that one rank has found.
#[derive(Debug, Default, PartialEq, Eq)]
struct SharingReport {
    /// The ranks to which this rank has no link, with the reasons.
    unreachable: Vec<(Rank, String)>,
    /// Why this rank, the lowest of its host, cannot create a segment.
    no_segment: Option<String>,
}

impl SharingReport {
    fn encode(&self) -> Vec<u8> {
        json!({ "unreachable": self.unreachable, "no_segment": self.no_segment })
            .to_string()
            .into_bytes()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let json: Value = serde_json::from_slice(bytes).ok()?;
        let pair = |entry: &Value| {
            let rank = Rank::try_from(entry.get(0)?.as_u64()?).ok()?;
            Some((rank, entry.get(1)?.as_str()?.to_owned()))
        };
        Some(Self {
            unreachable: json
                .get("unreachable")?
                .as_array()?
                .iter()
                .map(pair)
                .collect::<Option<_>>()?,
            no_segment: json.get("no_segment")?.as_str().map(str::to_owned),
        })
    }
}

/// The ranks that share memory, and the segment that this rank has created for its node.
#[derive(Debug)]
pub(super) struct MemorySharing {
    pub(super) nodes: NodeMap,
    pub(super) segment: Option<Segment>,
}

/// The data of one trial.
pub(super) struct SharingTrial<'a> {
    pub(super) context: &'a GroupContext<'a>,
    pub(super) infos: &'a [NativePeerInfo],
    /// The ranks with the same host identity.
    pub(super) hosts: &'a NodeMap,
    pub(super) names: &'a [PeerName],
    pub(super) registration: &'a Arc<NeighbourMember>,
    /// The geometry of the segment of this rank's host.
    pub(super) geometry: RegionGeometry,
}

impl SharingTrial<'_> {
    /// Returns whether ranks of several processes would share memory. All ranks return the same.
    pub(super) fn is_needed(infos: &[NativePeerInfo], hosts: &NodeMap) -> bool {
        let is_possible = !matches!(infos[0].transport.as_str(), "tcp" | "inproc");
        is_possible && (0..hosts.node_count()).any(|host| shares_segment(infos, hosts, host))
    }

    /// Runs the trial with the other ranks.
    ///
    /// # Errors
    /// `Unsupported` if ranks cannot share memory and the transport is shm; `PeerFailed` for a rank
    /// that has ended; `OutOfMemory`; the errors of the exchange.
    pub(super) fn run(&self, exchange: &dyn BootstrapExchange) -> Result<MemorySharing> {
        let others = self.others();
        let (own_report, segment) = self.try_sharing(&others)?;
        let check_lost = || {
            let rank = shm::find_lost_link(self.registration, &others)?;
            exchange.peer_failure().or_else(|| Some(self.death_error(rank)))
        };
        let reports = exchange.all_gather("neighbours", &own_report.encode(), &check_lost)?;
        let decode = |(rank, bytes): (Rank, &Vec<u8>)| {
            SharingReport::decode(bytes).ok_or_else(|| malformed_peer_info(rank))
        };
        let reports: Vec<_> = reports.iter().enumerate().map(decode).collect::<Result<_>>()?;
        let nodes = split_hosts(self.hosts, &reports);
        self.check_failures(&reports)?;
        let is_whole = nodes == *self.hosts;
        Ok(MemorySharing { nodes, segment: segment.filter(|_| is_whole) })
    }

    /// Returns the other ranks of this rank's host.
    fn others(&self) -> Vec<(Rank, ShmMember)> {
        let own = self.context.rank;
        let members = self.hosts.members(self.hosts.node_of(own));
        let member = |rank: Rank| ShmMember {
            socket: self.infos[rank].socket.clone(),
            nonce: self.infos[rank].rank_nonce,
        };
        members.iter().filter(|&&rank| rank != own).map(|&rank| (rank, member(rank))).collect()
    }

    fn try_sharing(
        &self,
        others: &[(Rank, ShmMember)],
    ) -> Result<(SharingReport, Option<Segment>)> {
        let mut report = SharingReport::default();
        for (rank, error) in shm::try_links(self.registration, others, self.context.deadline)? {
            // In one network name space the name of a living process is known.
            let is_refused =
                error.io_cause().is_some_and(|cause| cause.kind() == Io::ConnectionRefused);
            if is_refused && self.has_same_network(rank) {
                let what = format_args!("cannot reach {} over its Unix socket", self.names[rank]);
                return Err(error.context(what).with_culprit(rank));
            }
            report.unreachable.push((rank, error.message().to_owned()));
        }
        let (own, hosts) = (self.context.rank, self.hosts);
        let is_creator = hosts.local_rank(own) == 0;
        if !is_creator || !shares_segment(self.infos, hosts, hosts.node_of(own)) {
            return Ok((report, None));
        }
        let created = shm::create_segment(self.geometry);
        match created {
            Ok(segment) => Ok((report, Some(segment))),
            Err(error)
                if error.kind() == ErrorKind::System || shm::exceeds_file_limit(self.geometry)? =>
            {
                report.no_segment = Some(error.message().to_owned());
                Ok((report, None))
            }
            Err(error) => Err(error),
        }
    }

    fn has_same_network(&self, rank: Rank) -> bool {
        let own = host::network_namespace();
        !own.is_empty() && self.infos[rank].network == own
    }

    fn death_error(&self, rank: Rank) -> Error {
        let name = &self.names[rank];
        let message = format!("{name} died while the ranks of its host set up their shared memory");
        let error = Error::new(ErrorKind::PeerFailed, message).with_culprit(name.rank);
        error.with_fault(RankFault::Died)
    }

    /// Refuses failures if the transport is shm; otherwise logs the failures that concern this
    /// rank. The first group of the process with failures logs a warning.
    fn check_failures(&self, reports: &[SharingReport]) -> Result<()> {
        static HAS_WARNED: AtomicBool = AtomicBool::new(false);
        let all =
            || reports.iter().enumerate().flat_map(|(rank, report)| self.describe(rank, report));
        let Some((_, first)) = all().next() else { return Ok(()) };
        if self.infos[0].transport == "shm" {
            let message = format!("transport=shm: {first}; use transport=auto for TCP");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let own_host = self.hosts.node_of(self.context.rank);
        if let Some((_, reason)) = all().find(|&(rank, _)| self.hosts.node_of(rank) == own_host) {
            let is_first = !HAS_WARNED.swap(true, Ordering::Relaxed);
            let level = if is_first { LogLevel::Warn } else { LogLevel::Info };
            crate::log!(
                level,
                "group {}: {reason}; ranks of this host that cannot share memory use TCP, which is \
                 slower",
                self.context.group
            );
        }
        Ok(())
    }

    /// Returns the failures that a rank has found, as text.
    fn describe(&self, rank: Rank, report: &SharingReport) -> Vec<(Rank, String)> {
        let name = &self.names[rank];
        let link = |(other, why): &(Rank, String)| {
            let Some(peer) = self.names.get(*other) else {
                return (rank, format!("{name} reports a failure of no rank"));
            };
            let networks = match self.infos[rank].network == self.infos[*other].network {
                true => "",
                false => " (they have different network name spaces)",
            };
            (rank, format!("{name} and {peer} cannot share memory: {why}{networks}"))
        };
        let segment = |why: &String| (rank, format!("{name} cannot create shared memory: {why}"));
        report.unreachable.iter().map(link).chain(report.no_segment.iter().map(segment)).collect()
    }
}

/// Returns whether the ranks of a host share a segment, if they can: they are several, and not all
/// threads of one process that share its heap.
fn shares_segment(infos: &[NativePeerInfo], hosts: &NodeMap, host: usize) -> bool {
    let members = hosts.members(host);
    let first = &infos[members[0]].process_cookie;
    let has_processes = members.iter().any(|&rank| infos[rank].process_cookie != *first);
    members.len() > 1 && (has_processes || infos[0].transport == "shm")
}

/// Splits the hosts into nodes, so that no pair of ranks of a node has failed. A rank joins the
/// first node of its host in which no pair with it has failed. If the lowest rank of a host cannot
/// create a segment, each rank of the host is a node.
fn split_hosts(hosts: &NodeMap, reports: &[SharingReport]) -> NodeMap {
    let has_found = |rank: Rank, other: Rank| {
        reports[rank].unreachable.iter().any(|&(unreachable, _)| unreachable == other)
    };
    let has_failed = |one: Rank, other: Rank| has_found(one, other) || has_found(other, one);
    // The label of a rank is the lowest rank of its node.
    let mut labels: Vec<Rank> = (0..hosts.rank_count()).collect();
    for host in 0..hosts.node_count() {
        let members = hosts.members(host);
        if reports[members[0]].no_segment.is_some() {
            continue;
        }
        for (position, &rank) in members.iter().enumerate() {
            let before = &members[..position];
            let fits = |&leader: &Rank| {
                let mut on_node = before.iter().filter(|&&other| labels[other] == leader);
                labels[leader] == leader && on_node.all(|&other| !has_failed(rank, other))
            };
            if let Some(&leader) = before.iter().find(|leader| fits(leader)) {
                labels[rank] = leader;
            }
        }
    }
    NodeMap::by_label(&labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(unreachable: &[Rank]) -> SharingReport {
        let reason = |&rank: &Rank| (rank, "refused".to_owned());
        SharingReport { unreachable: unreachable.iter().map(reason).collect(), no_segment: None }
    }

    #[test]
    fn failed_pairs_are_on_different_nodes() {
        let hosts = NodeMap::by_label(&["a", "a", "b", "a", "a"]);
        let split = |found: [&[Rank]; 5]| {
            let reports: Vec<_> = found.into_iter().map(report).collect();
            split_hosts(&hosts, &reports)
        };
        assert_eq!(split([&[], &[], &[], &[], &[]]), hosts);
        // Two containers, with the ranks 0 and 3, and 1 and 4.
        let containers = NodeMap::by_label(&["a", "c", "b", "a", "c"]);
        assert_eq!(split([&[1, 4], &[], &[], &[1], &[3]]), containers);
        // Rank 3 reaches no other rank.
        let alone = NodeMap::by_label(&["a", "a", "b", "c", "a"]);
        assert_eq!(split([&[3], &[3], &[], &[4], &[]]), alone);
        let mut reports: Vec<_> = (0..5).map(|_| report(&[])).collect();
        reports[0].no_segment = Some("memfd_create".to_owned());
        assert_eq!(split_hosts(&hosts, &reports), NodeMap::one_per_rank(5));
    }

    #[test]
    fn reports_are_encoded_completely() {
        let mut whole = report(&[1, 7]);
        assert_eq!(SharingReport::decode(&whole.encode()), Some(report(&[1, 7])));
        whole.no_segment = Some("a \"reason\"".to_owned());
        assert_eq!(SharingReport::decode(&whole.encode()), Some(whole));
        for wrong in ["", "{}", r#"{"unreachable":[[1]],"no_segment":null}"#] {
            assert_eq!(SharingReport::decode(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
