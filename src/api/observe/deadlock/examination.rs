//! The examination of one blocked call: the edges from its wait to the waits of other processes,
//! and the confirmation of a cycle.

use super::awaited_ranks::AwaitedRanks;
use super::blocked_calls::{self, RegisteredCall};
use super::blocked_record::{BlockedRecord, WaitBranch, WaitEdge, WaitId};
use super::needs::{Need, NeededCall, RankNeed};
use super::own_state::{OwnCall, OwnState};
use super::wait_graph::{ClosedWait, describe_deadlock, find_deadlock};
use crate::base::deadline::Deadline;
use crate::base::error::{ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::store::Store;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A process does not fail a call because of a deadlock if the deadline of the call is nearer.
const MIN_REMAINING: Duration = Duration::from_secs(2);

/// The maximum number of processes whose records one step reads in search of edges.
const MAX_READS: usize = 16;

/// The time limit of a request to the store.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// The time limit of a request for a record that was there a moment ago.
const GET_TIMEOUT: Duration = Duration::from_millis(200);

/// The time within which the counter of another process must change, so that the confirmation of
/// that process is valid.
const CONFIRMATION_LIFETIME: Duration = Duration::from_secs(1);

/// What the detector must do after a step of an examination.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StepOutcome {
    /// There are no edges.
    Idle,
    /// There are edges.
    Active,
    /// There is a cycle, which this process has confirmed.
    Confirmed,
    /// The wait belongs to a deadlock.
    Deadlock(Deadlock),
}

/// A deadlock that all of its processes have confirmed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Deadlock {
    /// The description of the cycle.
    pub(super) text: String,
    /// The short ids of the groups that must fail: first the groups in which other processes wait
    /// for this one, and then the group of the call. The other processes thus get the deadlock as
    /// the reason, even if this process leaves the groups immediately.
    pub(super) groups: Vec<u64>,
}

/// The confirmations of another process.
#[derive(Clone, Copy, Debug)]
struct SeenConfirmations {
    count: u64,
    /// The time at which the counter was seen to change; `None` before that.
    changed: Option<Instant>,
}

/// The examination of one blocked call.
#[derive(Debug)]
pub(super) struct Examination {
    pub(super) registered: RegisteredCall,
    /// The record as it was last stored, and the key of this process.
    stored: Option<(String, BlockedRecord)>,
    confirmations: u64,
    /// The confirmations of other waits.
    seen: HashMap<WaitId, SeenConfirmations>,
    /// The times at which the records of other waits were first read.
    first_reads: HashMap<WaitId, Instant>,
    /// The times at which the waits of other ranks' algorithms were first read.
    first_reads_of_awaited: HashMap<(WaitId, u64), Instant>,
    /// The position in the lists of needs at which the next step begins to read.
    next_need: usize,
    is_logged: bool,
    /// The store with the record.
    record_store: Option<Weak<dyn Store>>,
}

/// The records of other processes, each read at most once per step.
struct RecordReader<'a> {
    store: &'a dyn Store,
    records: HashMap<String, Option<BlockedRecord>>,
}

impl RecordReader<'_> {
    /// Returns the record of a process, if it has one.
    fn read(&mut self, process: &str) -> Result<Option<&BlockedRecord>> {
        if !self.records.contains_key(process) {
            let record = self.fetch(record_key(process).as_bytes())?;
            self.records.insert(process.to_owned(), record);
        }
        Ok(self.records.get(process).and_then(Option::as_ref))
    }

    fn fetch(&self, key: &[u8]) -> Result<Option<BlockedRecord>> {
        if !self.store.check(&[key], &Deadline::after(REQUEST_TIMEOUT))? {
            return Ok(None);
        }
        match self.store.get(key, &Deadline::after(GET_TIMEOUT)) {
            Ok(bytes) => Ok(BlockedRecord::decode(&bytes)),
            // The process has removed the record since the check.
            Err(error) if error.kind() == ErrorKind::Timeout => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn record_of_wait(&mut self, id: &WaitId) -> Option<&BlockedRecord> {
        self.read(&id.process).ok().flatten().filter(|record| record.wait == id.wait)
    }
}

fn record_key(process: &str) -> String {
    format!("dist/blocked/{process}")
}

impl Examination {
    pub(super) fn new(registered: RegisteredCall) -> Self {
        Self {
            registered,
            stored: None,
            confirmations: 0,
            seen: HashMap::new(),
            first_reads: HashMap::new(),
            first_reads_of_awaited: HashMap::new(),
            next_need: 0,
            is_logged: false,
            record_store: None,
        }
    }

    /// Makes one step. `is_single` tells whether only the thread of the blocked call makes calls.
    ///
    /// # Errors
    /// The errors of the store.
    pub(super) fn step(&mut self, is_single: bool) -> Result<StepOutcome> {
        let published = blocked_calls::published_needs(self.registered.wait);
        let Some(own) = OwnState::read(&self.registered.branches, published.as_deref()) else {
            return Ok(StepOutcome::Idle);
        };
        // The state must have been read during the wait.
        if !blocked_calls::is_blocked(self.registered.wait) {
            return Ok(StepOutcome::Idle);
        }
        let mut reader = RecordReader { store: own.store.as_ref(), records: HashMap::new() };
        let mut record = BlockedRecord {
            wait: self.registered.wait,
            may_fail: is_single && own.remaining > MIN_REMAINING,
            joining: own.joining.clone(),
            groups: own.groups.clone(),
            branches: self.find_branches(&own, &mut reader)?,
            confirmations: self.confirmations,
            has_failed: false,
        };
        let branches_of =
            |id: &WaitId| reader.record_of_wait(id).map(|record| record.branches.clone());
        let before = record.confirmations;
        let own_wait = WaitId { process: own.process.clone(), wait: record.wait };
        let waits = find_deadlock(&own_wait, &record.branches, branches_of);
        let verdict = waits.and_then(|waits| {
            let text = self.check_deadlock(&waits, &mut record, &mut reader)?;
            let edges = waits.iter().flat_map(|wait| &wait.edges);
            let to_own = edges.filter(|edge| edge.targets.contains(&own_wait));
            let of_own = waits.first().into_iter().flat_map(|wait| &wait.edges);
            Some(Deadlock { text, groups: to_own.chain(of_own).map(|edge| edge.group).collect() })
        });
        self.record_store = Some(Arc::downgrade(&own.store));
        self.store(own.store.as_ref(), own.process.clone(), &record)?;
        Ok(match verdict {
            Some(deadlock) => StepOutcome::Deadlock(deadlock),
            None if record.branches.is_empty() => StepOutcome::Idle,
            None if record.confirmations > before => StepOutcome::Confirmed,
            None => StepOutcome::Active,
        })
    }

    /// Returns the branches of the wait; none if a branch has no edges. Reads the records of some
    /// of the needed processes; the next step continues with other processes.
    fn find_branches(
        &mut self,
        own: &OwnState,
        reader: &mut RecordReader<'_>,
    ) -> Result<Vec<WaitBranch>> {
        let mut branches = Vec::with_capacity(own.branches.len());
        for calls in &own.branches {
            let needs: Vec<(&OwnCall, &Need)> =
                calls.iter().flat_map(|call| call.needs.iter().map(move |it| (call, it))).collect();
            let mut edges = Vec::new();
            for step in 0..needs.len().min(MAX_READS) {
                let (call, need) = needs[(self.next_need + step) % needs.len()];
                for need in self.expand(need, call, reader)? {
                    edges.extend(self.edge_of(&need, call, reader)?);
                }
            }
            if edges.is_empty() {
                // The next step looks at other processes.
                self.next_need += if needs.len() > MAX_READS { MAX_READS } else { 0 };
                return Ok(Vec::new());
            }
            branches.push(edges);
        }
        Ok(branches)
    }

    /// Replaces the need that a rank takes part in a collective, if the algorithm of this rank
    /// waits for other ranks itself. The need is then that these ranks take part. For example, a
    /// root waits for the leader of its host, and the leader waits for the leader of another host.
    ///
    /// The call of this process still waited for the rank after the wait of the rank was known. So
    /// the rank has done all that it does before the end of its own wait.
    fn expand(
        &mut self,
        need: &Need,
        call: &OwnCall,
        reader: &mut RecordReader<'_>,
    ) -> Result<Vec<Need>> {
        let [RankNeed { rank, call: NeededCall::Participation { sequence, reported } }] =
            need.alternatives.as_slice()
        else {
            return Ok(vec![need.clone()]);
        };
        let (mut open, mut visited, mut expanded) =
            (vec![(*rank, *sequence)], Vec::new(), Vec::new());
        while let Some((rank, sequence)) = open.pop() {
            if rank == call.caller.rank || visited.len() >= MAX_READS || visited.contains(&rank) {
                continue;
            }
            visited.push(rank);
            match self.awaited_by(rank, call, reader)? {
                Some((awaited, first_read)) if awaited.sequence <= sequence => {
                    if *reported > first_read {
                        open.extend(awaited.ranks.iter().map(|&rank| (rank, awaited.sequence)));
                    }
                }
                _ => {
                    let call = NeededCall::Participation { sequence, reported: *reported };
                    expanded.push(RankNeed { rank, call }.into());
                }
            }
        }
        Ok(expanded)
    }

    /// Returns for which ranks the algorithm of a rank waits, and when this wait was read first.
    fn awaited_by(
        &mut self,
        rank: Rank,
        call: &OwnCall,
        reader: &mut RecordReader<'_>,
    ) -> Result<Option<(AwaitedRanks, Instant)>> {
        let Some(process) = call.processes.get(rank) else { return Ok(None) };
        let Some(record) = reader.read(process)? else { return Ok(None) };
        let state = record.groups.get(&call.caller.group).filter(|state| state.rank == rank);
        let Some(awaited) = state.and_then(|state| state.awaited.clone()) else { return Ok(None) };
        let id = WaitId { process: process.clone(), wait: record.wait };
        let key = (id, awaited.number);
        let first_read = *self.first_reads_of_awaited.entry(key).or_insert_with(Instant::now);
        Ok(Some((awaited, first_read)))
    }

    /// Returns the edge for something that the call needs, if no process has done it.
    fn edge_of(
        &mut self,
        need: &Need,
        call: &OwnCall,
        reader: &mut RecordReader<'_>,
    ) -> Result<Option<WaitEdge>> {
        let mut targets = Vec::with_capacity(need.alternatives.len());
        for alternative in &need.alternatives {
            let Some(target) = self.target_of(alternative, call, reader)? else { return Ok(None) };
            targets.push(target);
        }
        let global = |rank: usize| call.global_ranks.get(rank).copied().unwrap_or(rank);
        let whom = match need.alternatives.as_slice() {
            [one] => format!("rank {}", global(one.rank)),
            _ => "any rank".to_owned(),
        };
        Ok(Some(WaitEdge {
            from: global(call.caller.rank),
            targets,
            group: call.caller.group,
            text: format!("{whom} in {}", call.text),
        }))
    }

    /// Returns the wait of a process that has not made the needed call.
    fn target_of(
        &mut self,
        need: &RankNeed,
        call: &OwnCall,
        reader: &mut RecordReader<'_>,
    ) -> Result<Option<WaitId>> {
        let Some(process) = call.processes.get(need.rank).cloned() else { return Ok(None) };
        if need.rank == call.caller.rank {
            return Ok(Some(WaitId { process, wait: self.registered.wait }));
        }
        let Some(record) = reader.read(&process)? else { return Ok(None) };
        let id = WaitId { process, wait: record.wait };
        let first_read = *self.first_reads.entry(id.clone()).or_insert_with(Instant::now);
        Ok(need.is_unmet(call.caller, record, first_read).then_some(id))
    }

    /// Confirms a deadlock, or logs it if its calls may not fail. Returns the text of the deadlock
    /// if all of its processes have confirmed it. The first wait is that of this process.
    fn check_deadlock(
        &mut self,
        waits: &[ClosedWait],
        record: &mut BlockedRecord,
        reader: &mut RecordReader<'_>,
    ) -> Option<String> {
        let text = describe_deadlock(waits);
        let mut may_fail = record.may_fail;
        let mut is_confirmed = true;
        for ClosedWait { wait, .. } in waits.get(1..)? {
            let other = reader.record_of_wait(wait)?;
            may_fail &= other.may_fail || other.has_failed;
            is_confirmed &= other.has_failed || self.sees_confirmation(wait, other);
        }
        if !may_fail {
            self.log_once(waits, &text);
            return None;
        }
        self.confirmations += 1;
        record.confirmations = self.confirmations;
        record.has_failed = is_confirmed;
        is_confirmed.then_some(text)
    }

    /// Returns whether the counter of another process has changed within a short time, during its
    /// present wait.
    fn sees_confirmation(&mut self, wait: &WaitId, record: &BlockedRecord) -> bool {
        let count = record.confirmations;
        let new = SeenConfirmations { count, changed: None };
        let seen = self.seen.entry(wait.clone()).or_insert(new);
        if seen.count != count {
            *seen = SeenConfirmations { count, changed: Some(Instant::now()) };
        }
        seen.changed.is_some_and(|changed| changed.elapsed() < CONFIRMATION_LIFETIME)
    }

    /// Logs a deadlock whose calls do not fail. Of its processes, the one with the lowest rank logs
    /// it.
    fn log_once(&mut self, waits: &[ClosedWait], text: &str) {
        let own = waits.first().map(ClosedWait::rank);
        if own == waits.iter().map(ClosedWait::rank).min()
            && !std::mem::replace(&mut self.is_logged, true)
        {
            crate::log!(
                LogLevel::Warn,
                "possible {text} (another thread or a deadline may still end it)"
            );
        }
    }

    fn store(&mut self, store: &dyn Store, process: String, record: &BlockedRecord) -> Result<()> {
        if self.stored.as_ref().is_some_and(|(_, stored)| stored == record) {
            return Ok(());
        }
        let deadline = Deadline::after(REQUEST_TIMEOUT);
        store.set(record_key(&process).as_bytes(), &record.encode(), &deadline)?;
        self.stored = Some((process, record.clone()));
        Ok(())
    }

    /// Removes the record, unless the other processes of a deadlock may still have to read it.
    pub(super) fn finish(self) {
        let Some((process, record)) = self.stored else { return };
        if record.has_failed {
            return;
        }
        let store = self.record_store.as_ref().and_then(Weak::upgrade);
        if let Some(store) = store {
            let deadline = Deadline::after(REQUEST_TIMEOUT);
            // Without the store, the record is not read either.
            drop(store.delete_key(record_key(&process).as_bytes(), &deadline));
        }
    }
}
