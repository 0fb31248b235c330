//! The messages between the ranks of a monitored barrier (a barrier that names the missing ranks),
//! and their encoding. The encoding is little endian. Received bytes are checked, because they come
//! from another process.

use crate::backend::RankLocation;
use crate::base::error::{Error, ErrorKind};
use crate::base::ids::{MAX_WORLD_SIZE, Rank};
use std::time::Duration;

/// The failure of a barrier, with the ranks that are known to be missing.
#[derive(Clone, Debug)]
pub struct BarrierFailure {
    /// The reason of the failure.
    pub error: Error,
    /// The missing ranks, in ascending order.
    pub missing: Vec<Rank>,
}

/// A notice from a rank to the coordinator (rank 0), with the number of the barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::api) enum BarrierNotice {
    /// The rank has entered the barrier.
    Arrived(u64),
    /// The rank has reached its deadline and no longer waits for the end of the barrier.
    GaveUp(u64),
}

impl BarrierNotice {
    pub(in crate::api) fn encode(self) -> Vec<u8> {
        let (code, number) = match self {
            Self::Arrived(number) => (0, number),
            Self::GaveUp(number) => (1, number),
        };
        let mut bytes = vec![code];
        bytes.extend(number.to_le_bytes());
        bytes
    }

    /// Decodes a notice; `None` for invalid bytes.
    pub(in crate::api) fn decode(bytes: &[u8]) -> Option<Self> {
        let (code, number) = bytes.split_first()?;
        let number = u64::from_le_bytes(number.try_into().ok()?);
        match code {
            0 => Some(Self::Arrived(number)),
            1 => Some(Self::GaveUp(number)),
            _ => None,
        }
    }
}

/// The result of a barrier, which the coordinator sends to every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BarrierResult {
    number: u64,
    /// The timeout that the coordinator used.
    allowed_ms: u64,
    /// The kind of error; `None` if all ranks arrived.
    kind: Option<ErrorKind>,
    missing: Vec<Rank>,
}

/// The code for success, in place of the code of an error kind.
const SUCCESS_CODE: u8 = u8::MAX;

const HEADER_BYTES: usize = 17;

impl BarrierResult {
    /// The maximum encoded length in bytes.
    pub(super) const MAX_BYTES: usize = HEADER_BYTES + 4 * MAX_WORLD_SIZE;

    pub(super) fn from_outcome(
        number: u64,
        allowed: Duration,
        outcome: &Result<(), BarrierFailure>,
    ) -> Self {
        let allowed_ms = u64::try_from(allowed.as_millis()).unwrap_or(u64::MAX);
        let failed = outcome.as_ref().err();
        let kind = failed.map(|failed| failed.error.kind());
        let missing = failed.map_or(Vec::new(), |failed| failed.missing.clone());
        Self { number, allowed_ms, kind, missing }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns whether a rank that enters barrier `number` now can take its outcome from this
    /// result. This is so if the result is for barrier `number`. It is also so if the result says
    /// that a later barrier failed: then barrier `number` ended before this rank entered it, and a
    /// barrier that ends without a rank has failed.
    pub(super) fn decides(&self, number: u64) -> bool {
        self.number == number || self.number > number && self.kind.is_some()
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.kind.map_or(SUCCESS_CODE, ErrorKind::code)];
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(self.allowed_ms.to_le_bytes());
        for &rank in &self.missing {
            bytes.extend(u32::try_from(rank).unwrap_or(u32::MAX).to_le_bytes());
        }
        bytes
    }

    /// Decodes a result; `None` for invalid bytes.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, list) = bytes.split_at_checked(HEADER_BYTES)?;
        let word = |from: usize| Some(u64::from_le_bytes(head[from..from + 8].try_into().ok()?));
        let kind = (head[0] != SUCCESS_CODE).then(|| ErrorKind::from_code(head[0]));
        let (ranks, rest) = list.as_chunks::<4>();
        let rank = |&bytes: &[u8; 4]| usize::try_from(u32::from_le_bytes(bytes)).ok();
        let missing: Option<Vec<Rank>> = ranks.iter().map(rank).collect();
        let missing = missing.filter(|all| all.iter().all(|&rank| rank < MAX_WORLD_SIZE))?;
        let (number, allowed_ms) = (word(1)?, word(9)?);
        rest.is_empty().then_some(Self { number, allowed_ms, kind, missing })
    }

    /// Converts the result to the outcome on a rank that has received it from the coordinator.
    pub(super) fn into_outcome(self, locations: &[RankLocation]) -> Result<(), BarrierFailure> {
        let Some(kind) = self.kind else { return Ok(()) };
        let message = format!(
            "{} reports that the barrier failed (allowed: {} ms), missing: {}",
            rank_names(&[0], locations),
            self.allowed_ms,
            rank_names(&self.missing, locations)
        );
        let error = Error::new(kind, message);
        let error = self.missing.first().map_or(error.clone(), |&rank| error.with_culprit(rank));
        Err(BarrierFailure { error, missing: self.missing })
    }
}

/// Returns the names of ranks with their processes and hosts.
pub(in crate::api) fn rank_names(ranks: &[Rank], locations: &[RankLocation]) -> String {
    let name = |&rank: &Rank| match locations.get(rank) {
        Some(location) => location.name.to_string(),
        None => format!("rank {rank}"),
    };
    ranks.iter().map(name).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn barrier_messages_round_trip_and_reject_bad_bytes() {
        for notice in [BarrierNotice::Arrived(7), BarrierNotice::GaveUp(u64::MAX)] {
            assert_eq!(BarrierNotice::decode(&notice.encode()), Some(notice));
        }
        for bad in [&[][..], &[0; 8], &[2; 9], &[0; 10]] {
            assert_eq!(BarrierNotice::decode(bad), None);
        }
        let error = Error::new(ErrorKind::Timeout, "late");
        let failed = BarrierFailure { error, missing: vec![1, 65_535] };
        for outcome in [Ok(()), Err(failed)] {
            let result = BarrierResult::from_outcome(3, Duration::from_millis(9), &outcome);
            assert_eq!(BarrierResult::decode(&result.encode()), Some(result.clone()));
            assert!(result.decides(3) && !result.decides(4));
            assert_eq!(result.decides(2), outcome.is_err());
            let decoded = result.into_outcome(&[]);
            assert_eq!(decoded.is_ok(), outcome.is_ok());
            if let Err(BarrierFailure { error, missing }) = decoded {
                assert_eq!((error.kind(), missing), (ErrorKind::Timeout, vec![1, 65_535]));
                assert!(error.message().contains("rank 1; rank 65535"), "{error}");
            }
        }
        for bad in [&[0; 16][..], &[0; 18], &[255; 21]] {
            assert_eq!(BarrierResult::decode(bad), None);
        }
    }
}
