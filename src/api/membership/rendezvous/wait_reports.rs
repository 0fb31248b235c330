//! The errors and the log lines about long waits in a rendezvous.

use super::entry::format_ranks;
use super::{JOIN, Rendezvous, WaitDescription};
use crate::base::error::{Error, ErrorKind};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::wait::slow_wait::DisplaySeconds;

/// The points to check if ranks do not come, as the end of an error text about them.
const ABSENT_RANKS_ADVICE: &str = ": check that they have started, and that they use this address, this group name and the same \
     world size";

impl Rendezvous<'_> {
    /// Returns the error at the deadline of a wait for the ranks whose keys are missing. `keys` has
    /// one key for each rank.
    pub(super) fn absence_error(&self, keys: &[String], wait_for: WaitDescription<'_>) -> Error {
        let waited_ms = self.deadline.elapsed().as_millis();
        let (waited_for, advice) = match self.absent_ranks(keys) {
            Ok(absent) => (format_ranks(&absent, |_| None), ABSENT_RANKS_ADVICE),
            Err(_) => ("all ranks".to_owned(), ", which does not answer"),
        };
        let (rank, name, store) = (self.rank, self.name, self.store_location());
        let message = format!(
            "rank {rank} of group {name} waited {waited_ms} ms for {waited_for} to {}; they meet at \
             {store}{advice}",
            wait_for.action
        );
        Error::new(ErrorKind::Timeout, message)
    }

    /// Returns the host and port of the store, or its description if it has none.
    fn store_location(&self) -> String {
        let address = self.store.address();
        address.map_or_else(|| self.store.describe(), |(host, port)| format!("{host}:{port}"))
    }

    /// Logs a long wait for rank 0. If other ranks are missing, the log line names them instead,
    /// because then rank 0 waits for them.
    #[cold]
    pub(super) fn log_wait_for_rank_0(&self, waited: DisplaySeconds) {
        let absent = self.absent_ranks(&self.rank_keys()).unwrap_or_default();
        match absent.is_empty() {
            false => self.log_wait(&absent, JOIN, waited),
            true => {
                let name = self.name;
                crate::log!(LogLevel::Warn, "group {name}: rank 0 has not answered for {waited}");
            }
        }
    }

    /// Logs a long wait for some ranks.
    #[cold]
    pub(super) fn log_wait(
        &self,
        ranks: &[Rank],
        wait_for: WaitDescription<'_>,
        waited: DisplaySeconds,
    ) {
        if ranks.is_empty() {
            // The last missing rank has just arrived.
            return;
        }
        let store_address = self.store_location();
        crate::log!(
            LogLevel::Warn,
            "group {}: {} (of {}) {} not {} after {waited}; rendezvous at {store_address}",
            self.name,
            format_ranks(ranks, |rank| self.process_of(rank)),
            self.size,
            if ranks.len() > 1 { "have" } else { "has" },
            wait_for.completed
        );
    }

    /// Returns the process id and the host of a rank. Returns `None` if the rank has not arrived.
    fn process_of(&self, rank: Rank) -> Option<String> {
        Some(self.entry_of(rank)?.process)
    }
}
