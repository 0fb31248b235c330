//! A run queue as the counter of issued collectives, for the flight recorder.

use super::RunQueue;
use crate::api::observe::recorder::IssueCounter;

impl IssueCounter for RunQueue {
    fn issued(&self) -> u64 {
        Self::issued(self)
    }

    fn is_idle(&self) -> bool {
        Self::is_idle(self)
    }
}
