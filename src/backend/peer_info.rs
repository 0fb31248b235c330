//! The exchange of peer infos at the bootstrap of a group. A peer info is a JSON object that one
//! rank publishes about itself. The other ranks validate it when they read it.
//!
//! This module does not know the meaning of the fields.

use super::context::BootstrapExchange;
use super::interface::RankLocation;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::nodes::NodeMap;
use crate::transport::PeerName;
use serde_json::Value;
use std::sync::Arc;

/// The fields that one rank has published. They are not validated.
#[derive(Debug)]
pub(super) struct PeerInfoFields(Value);

impl PeerInfoFields {
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.0.get(name)?.as_str().map(str::to_owned)
    }

    pub(super) fn integer<T: TryFrom<i64>>(&self, name: &str) -> Option<T> {
        T::try_from(self.0.get(name)?.as_i64()?).ok()
    }

    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        self.0.get(name)?.as_bool()
    }
}

/// Publishes the peer info of this rank, and returns the peer infos of all ranks in rank order.
/// `read` validates and converts the fields of one rank.
///
/// # Errors
/// `Mismatch` with the first rank whose fields `read` rejects; the errors of
/// [`BootstrapExchange::all_gather`].
pub(super) fn exchange_peer_info<T>(
    exchange: &dyn BootstrapExchange,
    phase: &str,
    own_info: &Value,
    check_cancelled: &dyn Fn() -> Option<Error>,
    read: impl Fn(&PeerInfoFields) -> Option<T>,
) -> Result<Vec<T>> {
    let infos = exchange.all_gather(phase, own_info.to_string().as_bytes(), check_cancelled)?;
    let decode_info = |(rank, bytes): (usize, &Vec<u8>)| {
        let fields = serde_json::from_slice(bytes).ok().map(PeerInfoFields);
        fields.and_then(|fields| read(&fields)).ok_or_else(|| {
            let message = format!(
                "the peer info of rank {rank} cannot be decoded: use the same back end, in the \
                 same version, on all ranks"
            );
            Error::new(ErrorKind::Mismatch, message).with_culprit(rank)
        })
    };
    infos.iter().enumerate().map(decode_info).collect()
}

/// Checks that all ranks request the same back ends. `maps` contains the device maps of all ranks
/// in rank order.
///
/// # Errors
/// `Mismatch` with the first rank whose device map differs from the device map of rank 0.
pub(super) fn check_device_maps<'c>(maps: impl IntoIterator<Item = &'c str>) -> Result<()> {
    let mut maps = maps.into_iter().enumerate();
    let Some((_, first)) = maps.next() else { return Ok(()) };
    let Some((rank, other)) = maps.find(|(_, map)| *map != first) else { return Ok(()) };
    let message =
        format!("rank {rank} requests the back ends {other}, and rank 0 requests {first}");
    Err(Error::new(ErrorKind::Mismatch, message).with_culprit(rank))
}

/// Returns the locations of all ranks. `hosts` assigns the ranks to hosts. `shown_ranks` is the
/// field of the [`super::GroupContext`]. `process_of` returns the process id and the host name of a
/// rank.
pub(super) fn rank_locations<'a>(
    hosts: &NodeMap,
    shown_ranks: Option<&[Rank]>,
    process_of: impl Fn(Rank) -> (u32, &'a str),
) -> Vec<RankLocation> {
    // The ranks of a host share one copy of the host name.
    let first_name = |host: usize| process_of(hosts.members(host)[0]).1.into();
    let shared: Vec<Arc<str>> = (0..hosts.node_count()).map(first_name).collect();
    let location = |rank: Rank| {
        let (host_index, (pid, name)) = (hosts.node_of(rank), process_of(rank));
        let known = &shared[host_index];
        let host = if **known == *name { Arc::clone(known) } else { name.into() };
        let shown_rank = shown_ranks.map_or(rank, |shown| shown[rank]);
        let name = PeerName::new(rank, pid, host).shown_as(shown_rank);
        RankLocation { name, host_index, local_rank: hosts.local_rank(rank) }
    };
    (0..hosts.rank_count()).map(location).collect()
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use serde_json::json;

    /// An exchange that returns fixed contributions, independent of the contribution of this rank.
    struct CannedExchange(Vec<Vec<u8>>);

    impl BootstrapExchange for CannedExchange {
        fn all_gather(
            &self,
            _: &str,
            _: &[u8],
            _: &dyn Fn() -> Option<Error>,
        ) -> Result<Vec<Vec<u8>>> {
            Ok(self.0.clone())
        }

        fn publish_failure(&self, _: &Error) {}

        fn peer_failure(&self) -> Option<Error> {
            None
        }
    }

    fn exchange_canned(infos: &[&str]) -> Result<Vec<(String, u32, bool)>> {
        let canned = CannedExchange(infos.iter().map(|info| info.as_bytes().to_vec()).collect());
        let read =
            |of: &PeerInfoFields| Some((of.text("name")?, of.integer("pid")?, of.flag("shares")?));
        exchange_peer_info(&canned, "test", &json!({}), &|| None, read)
    }

    #[test]
    fn unreadable_peer_info_names_the_rank() {
        let good = r#"{"name": "a", "pid": 7, "shares": true}"#;
        assert_eq!(exchange_canned(&[good, good]).unwrap()[1], ("a".to_owned(), 7, true));
        let bad = [
            "",
            "[]",
            "\u{1}",
            r#"{"name": 1, "pid": 7, "shares": true}"#,
            r#"{"name": "a", "pid": -1, "shares": true}"#,
            r#"{"name": "a", "pid": 4294967296, "shares": true}"#,
            r#"{"name": "a", "pid": 7}"#,
        ];
        for bad in bad {
            let error = exchange_canned(&[good, bad]).unwrap_err();
            assert_eq!((error.kind(), error.culprit()), (ErrorKind::Mismatch, Some(1)), "{bad}");
        }
    }

    #[test]
    fn different_device_map_names_the_rank() {
        assert!(check_device_maps(["a", "a"]).is_ok() && check_device_maps([]).is_ok());
        assert_eq!(check_device_maps(["a", "a", "b", "c"]).unwrap_err().culprit(), Some(2));
    }
}
