//! The abort record of a domain: the first fatal error, readable by all ranks of the domain.
//!
//! The first rank that reports an error claims the record, writes the reason (kind, culprit and
//! text of the error), and marks the record complete ([`AbortRecord::set`]). Later reasons are
//! dropped. If the claiming rank dies before it has marked the record complete, the record never
//! becomes complete. A reader yields its core a bounded number of times while it waits for the
//! completion, and then returns an `Aborted` error without a reason.

use super::shared_text::SharedText;
use crate::base::error::{Error, ErrorKind};
use crate::base::sync::{AtomicU32, Ordering};
use crate::wait::policy::yield_until;

const CLEAR: u32 = 0;
const CLAIMED: u32 = 1;
const COMPLETE: u32 = 2;

/// The maximum length of a stored reason, in bytes.
pub const TEXT_BYTES: usize = 1024;

/// The maximum number of times that a reader yields its core while another rank writes the reason.
const MAX_READ_YIELDS: u32 = 1000;

/// The abort record. A zeroed record is clear.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct AbortRecord {
    state: AtomicU32,
    /// The code of the error kind in bits 0 to 7, and the fault code in bits 8 to 15.
    kind: AtomicU32,
    /// The blamed rank plus one; 0 if no rank is blamed.
    culprit: AtomicU32,
    text: SharedText<{ TEXT_BYTES / 8 }>,
}

impl AbortRecord {
    /// Writes the reason if the record is clear. Returns true if this call wrote the reason.
    pub fn set(&self, error: &Error) -> bool {
        let claim =
            self.state.compare_exchange(CLEAR, CLAIMED, Ordering::Acquire, Ordering::Relaxed);
        if claim.is_err() {
            return false;
        }
        let codes = u16::from_le_bytes([error.kind().code(), error.fault_code()]);
        self.kind.store(u32::from(codes), Ordering::Relaxed);
        let culprit = error.culprit().and_then(|rank| u32::try_from(rank + 1).ok());
        self.culprit.store(culprit.unwrap_or(0), Ordering::Relaxed);
        self.text.store(error.message());
        self.state.store(COMPLETE, Ordering::Release);
        true
    }

    /// Returns true once a rank has claimed the record. The reason may not be complete yet.
    pub fn is_set(&self) -> bool {
        self.state.load(Ordering::Relaxed) != CLEAR
    }

    /// Returns the reason, or `None` if the record is clear.
    pub fn get(&self) -> Option<Error> {
        if !self.is_set() {
            return None;
        }
        let is_complete = || (self.state.load(Ordering::Acquire) == COMPLETE).then_some(());
        if is_complete().or_else(|| yield_until(MAX_READ_YIELDS, is_complete)).is_some() {
            return Some(self.read());
        }
        let message = "the group was aborted by a rank that died before it wrote the reason";
        Some(Error::new(ErrorKind::Aborted, message))
    }

    fn read(&self) -> Error {
        let [code, fault, ..] = self.kind.load(Ordering::Relaxed).to_le_bytes();
        let error = Error::new(ErrorKind::from_code(code), self.text.load());
        let error = error.with_fault_code(fault);
        match self.culprit.load(Ordering::Relaxed) {
            0 => error,
            rank => error.with_culprit(usize::try_from(rank - 1).unwrap_or(usize::MAX)),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::base::error::RankFault;

    #[test]
    fn first_abort_reason_is_kept() {
        let record = AbortRecord::default();
        assert_eq!(record.get(), None);
        let first = Error::new(ErrorKind::PeerFailed, "rank 2 died").with_culprit(2);
        let first = first.with_fault(RankFault::Died);
        assert!(record.set(&first));
        assert!(!record.set(&Error::new(ErrorKind::Timeout, "late")));
        assert_eq!(record.get(), Some(first));
    }

    #[test]
    fn long_abort_reason_is_cut_at_a_char_boundary() {
        let record = AbortRecord::default();
        record.set(&Error::new(ErrorKind::Aborted, format!("{}é", "x".repeat(TEXT_BYTES - 1))));
        assert_eq!(record.get().unwrap().message(), "x".repeat(TEXT_BYTES - 1));
    }

    #[test]
    fn incomplete_abort_record_still_yields_an_error() {
        let record = AbortRecord::default();
        record.state.store(CLAIMED, Ordering::Relaxed);
        assert_eq!(record.get().unwrap().kind(), ErrorKind::Aborted);
    }
}
