//! The comparison of the calls of all ranks at the end of a job or of a group.
//!
//! Each rank stores its calls in each group, or compares them with the calls of the rank that
//! stored them first:
//!
//! - `dist/calls/<group>/all` has the calls of the first rank whose group has not failed. All such
//!   ranks must have the same number of calls with the same hash.
//! - After a failure, the ranks stop at different calls. The history of a rank ends at the first
//!   call after the failure. `dist/calls/<group>/failed/<number>` has
//!   the calls of the first rank that stopped after this number of calls, and `<group>/failed`
//!   lists the numbers. Ranks with equal numbers compare their hashes. Other ranks compare only the
//!   calls that both have made and that both still know.
//!
//! If the group of a rank has failed because of a mismatch, its error is the difference. So it also
//! reaches ranks that were not involved. This includes counts that only two ranks compare.
//!
//! If a receive of a rank has refused a message, the rank stores the error for the sender under
//! `dist/calls/<group>/refused/<sender>`. `dist_finalize` of the sender returns this error, unless
//! a message call of the sender has returned it.
//!
//! A rank that finds a difference stores it under `dist/calls/<group>/difference`. `dist_finalize`
//! waits until all ranks have compared their calls (`<world>/all_compared`), and then the ranks of
//! the group return the difference. The comparison at the release of a group waits for no other
//! rank. A rank does not return the difference if a call of this rank has already returned the
//! failure of the group.

use crate::api::group::process_group::Group;
use crate::api::observe::recorder::{self, CallSummary, RecordedCall};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::base::plural::Plural;
use crate::base::sort::sort_by;
use crate::store::Store;
use crate::transport::RefusedMessage;
use serde_json::{Value, json};
use std::fmt::Display;
use std::time::Duration;

/// The time limit of the comparison at the release of a group, and the minimum time limit of the
/// last requests of the comparison in `dist_finalize`.
const MIN_REQUEST_TIMEOUT: Duration = Duration::from_millis(300);

/// The name of the keys of ranks whose group has failed.
const FAILED: &str = "failed";

/// The maximum number of ranks with which a rank compares its calls after a failure.
const MAX_NUMBERS: usize = 64;

/// The name of the keys with the differences.
const DIFFERENCE: &str = "difference";

/// The calls of one rank in one group, as they are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StoredCalls {
    rank: Rank,
    calls: u64,
    hash: u64,
    /// The last operations, in the order of their issue.
    last_calls: Vec<RecordedCall>,
}

impl StoredCalls {
    fn of(summary: &CallSummary) -> Self {
        let CallSummary { rank, sum, ref last_calls, .. } = *summary;
        Self { rank, calls: sum.calls, hash: sum.hash, last_calls: last_calls.clone() }
    }

    fn encode(&self) -> Vec<u8> {
        let Self { rank, calls, hash, last_calls } = self;
        let call = |call: &RecordedCall| json!([call.sequence, call.hash, call.description]);
        let last: Vec<Value> = last_calls.iter().map(call).collect();
        json!({ "rank": rank, "calls": calls, "hash": hash, "last": last }).to_string().into_bytes()
    }

    /// Decodes the calls of another rank; `None` for invalid bytes.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(bytes).ok()?;
        let call = |call: &Value| {
            let (sequence, hash) = (call[0].as_u64()?, call[1].as_u64()?);
            Some(RecordedCall { sequence, hash, description: call[2].as_str()?.to_owned() })
        };
        Some(Self {
            rank: usize::try_from(value["rank"].as_u64()?).ok()?,
            calls: value["calls"].as_u64()?,
            hash: value["hash"].as_u64()?,
            last_calls: value["last"].as_array()?.iter().map(call).collect::<Option<_>>()?,
        })
    }

    /// Describes the first difference to the calls of another rank, if there is one.
    fn find_difference(&self, other: &Self) -> Option<String> {
        if (self.calls, self.hash) == (other.calls, other.hash) {
            return None;
        }
        let found = self.find_difference_in_common_calls(other);
        found.or_else(|| Some(self.describe_numbers(other)))
    }

    /// Describes the first difference to the calls of another rank, if there is one in the calls
    /// that both ranks have made and still know.
    fn find_difference_in_common_calls(&self, other: &Self) -> Option<String> {
        let pairs = self.last_calls.iter().filter_map(|own| {
            let theirs = other.last_calls.iter().find(|it| it.sequence == own.sequence)?;
            (theirs.hash != own.hash).then_some((own, theirs))
        });
        let (own, theirs) = pairs.min_by_key(|(own, _)| own.sequence)?;
        let mut texts = [(self.rank, own), (other.rank, theirs)]
            .map(|(rank, call)| (rank, format!("rank {rank} called {}", call.description)));
        sort_by(&mut texts, Ord::cmp);
        let [(_, first), (_, second)] = texts;
        Some(format!("{first}, but {second}"))
    }

    /// Describes a difference that is not in the calls that both ranks still know.
    fn describe_numbers(&self, other: &Self) -> String {
        let (more, fewer) = if self.calls > other.calls { (self, other) } else { (other, self) };
        let numbers = format!(
            "rank {} made {}, and rank {} made {}",
            more.rank,
            Plural(more.calls, "call"),
            fewer.rank,
            fewer.calls
        );
        if more.calls == fewer.calls {
            return format!("{numbers}; an earlier call differs");
        }
        let last_common = fewer.last_calls.last().map_or(0, |call| call.sequence);
        match more.last_calls.iter().find(|call| call.sequence > last_common) {
            Some(call) => format!("{numbers}; only rank {} called {}", more.rank, call.description),
            None => numbers,
        }
    }
}

/// Returns the key of one group, whose short id is `group`.
fn group_key(group: u64, name: impl Display) -> String {
    format!("dist/calls/{group:016x}/{name}")
}

/// The comparison of the calls of this rank in one group.
struct GroupComparison<'a> {
    store: &'a dyn Store,
    summary: &'a CallSummary,
    own: StoredCalls,
    deadline: &'a Deadline,
}

impl GroupComparison<'_> {
    fn key(&self, name: impl Display) -> Vec<u8> {
        group_key(self.summary.group, name).into_bytes()
    }

    fn decode(bytes: &[u8]) -> Result<StoredCalls> {
        let invalid = || Error::internal("a value in the store is not a list of calls");
        StoredCalls::decode(bytes).ok_or_else(invalid)
    }

    /// Stores the calls of this rank under `key`, or returns the calls that are stored there.
    fn store_or_get(&self, key: &[u8]) -> Result<StoredCalls> {
        Self::decode(&self.store.compare_set(key, b"", &self.own.encode(), self.deadline)?)
    }

    /// Returns the difference to the calls of the earlier ranks.
    fn run(&self) -> Result<Option<String>> {
        let difference = match &self.summary.failure {
            None => self.own.find_difference(&self.store_or_get(&self.key("all"))?),
            Some(failure) => self.compare_after_failure(failure)?,
        };
        match difference {
            Some(difference) => Ok(Some(difference)),
            None => self.compare_with_failed_ranks(),
        }
    }

    /// Compares the calls of this rank, whose group has failed, with the ranks that stopped after
    /// the same number of calls and with the ranks that did not fail.
    fn compare_after_failure(&self, failure: &Error) -> Result<Option<String>> {
        let calls = self.own.calls;
        let stopped = self.store_or_get(&self.key(format_args!("{FAILED}/{calls}")))?;
        if stopped == self.own {
            self.store.append(&self.key(FAILED), &calls.to_le_bytes(), self.deadline)?;
        }
        if failure.kind() == ErrorKind::Mismatch {
            return Ok(Some(failure.message().to_owned()));
        }
        if let Some(difference) = self.own.find_difference(&stopped) {
            return Ok(Some(difference));
        }
        let Some(all) = get_if_present(self.store, &self.key("all"), self.deadline)? else {
            return Ok(None);
        };
        Ok(self.own.find_difference_in_common_calls(&Self::decode(&all)?))
    }

    fn compare_with_failed_ranks(&self) -> Result<Option<String>> {
        let numbers = get_if_present(self.store, &self.key(FAILED), self.deadline)?;
        let Some(numbers) = numbers else { return Ok(None) };
        let (numbers, _) = numbers.as_chunks::<8>();
        for &number in numbers.iter().take(MAX_NUMBERS) {
            let key = self.key(format_args!("{FAILED}/{}", u64::from_le_bytes(number)));
            let stopped = get_if_present(self.store, &key, self.deadline)?;
            let Some(stopped) = stopped else { continue };
            let difference = self.own.find_difference_in_common_calls(&Self::decode(&stopped)?);
            if difference.is_some() {
                return Ok(difference);
            }
        }
        Ok(None)
    }
}

/// Compares the calls of this rank in one group with the calls of earlier ranks. Returns the
/// difference.
fn compare_group(
    store: &dyn Store,
    summary: &CallSummary,
    deadline: &Deadline,
) -> Result<Option<String>> {
    let own = StoredCalls::of(summary);
    let difference = GroupComparison { store, summary, own, deadline }.run()?;
    let name = &summary.name;
    Ok(difference.map(|text| format!("the ranks of group {name} made different calls: {text}")))
}

fn mismatch_error(difference: &str) -> Error {
    let message =
        format!("{difference}; all ranks must call the same collectives in the same order");
    Error::new(ErrorKind::Mismatch, message)
}

/// The comparison of the calls in all groups of a world.
#[derive(Debug)]
pub(in crate::api) struct CallComparison {
    prefix: String,
    size: usize,
    /// True if all ranks are expected to compare their calls.
    waits: bool,
    summaries: Vec<CallSummary>,
    /// The first error of the store, after which this rank no longer takes part.
    store_error: Option<Error>,
}

impl CallComparison {
    /// Compares the calls of this rank with the calls of the ranks that came before. Does not wait
    /// for other ranks.
    pub(in crate::api) fn begin(store: &dyn Store, world: &Group, deadline: &Deadline) -> Self {
        let failure = world.failure_or_death();
        // After another failure, some ranks never come here, or they made other numbers of calls.
        let waits = failure.as_ref().is_none_or(|error| error.kind() == ErrorKind::Mismatch);
        let prefix = format!("dist/calls/{}/{}", world.name(), world.id());
        let mut summaries = recorder::take_call_summaries(world.id());
        if let Some(failure) = failure.filter(|_| !waits) {
            // The ranks also stop at different calls of the other groups.
            let stopped = summaries.iter_mut().filter(|summary| summary.failure.is_none());
            stopped.for_each(|summary| summary.failure = Some(failure.clone()));
        }
        let mut comparison =
            Self { prefix, size: world.size(), waits, summaries, store_error: None };
        comparison.store_error = comparison.compare(store, deadline).err();
        comparison
    }

    fn key(&self, name: &str) -> Vec<u8> {
        format!("{}/{name}", self.prefix).into_bytes()
    }

    fn compare(&self, store: &dyn Store, deadline: &Deadline) -> Result<()> {
        for summary in &self.summaries {
            for RefusedMessage { message, text } in &summary.refused.by_this_rank {
                let key = group_key(summary.group, refused_key(message.from));
                store.set(key.as_bytes(), text.as_bytes(), deadline)?;
                store.set(&self.key(DIFFERENCE), b"", deadline)?;
            }
            let Some(difference) = compare_group(store, summary, deadline)? else { continue };
            let key = group_key(summary.group, DIFFERENCE);
            store.set(key.as_bytes(), difference.as_bytes(), deadline)?;
            store.set(&self.key(DIFFERENCE), b"", deadline)?;
        }
        let compared = store.add(&self.key("compared"), 1, deadline)?;
        if usize::try_from(compared).is_ok_and(|compared| compared >= self.size) {
            store.set(&self.key("all_compared"), b"", deadline)?;
        }
        Ok(())
    }

    /// Waits until all ranks have compared their calls, and returns a difference in a group of this
    /// rank as an error. If some ranks have not compared their calls at the deadline, they are not
    /// waited for.
    ///
    /// # Errors
    /// `Mismatch`.
    pub(in crate::api) fn finish(self, store: &dyn Store, deadline: &Deadline) -> Result<()> {
        let found = match &self.store_error {
            None => self.await_difference(store, deadline),
            Some(error) => Err(error.clone()),
        };
        match found {
            Ok(Some(difference)) => Err(difference),
            Ok(None) => Ok(()),
            Err(error) => {
                let level = if self.waits { LogLevel::Warn } else { LogLevel::Info };
                crate::log!(level, "dist_finalize cannot compare the calls of all ranks: {error}");
                Ok(())
            }
        }
    }

    fn await_difference(&self, store: &dyn Store, deadline: &Deadline) -> Result<Option<Error>> {
        let waited = match self.waits {
            true => store.wait(&[&self.key("all_compared")], deadline),
            false => Ok(()),
        };
        // The deadline may have passed, and the requests below still need some time.
        let limit = Deadline::after(deadline.remaining().max(MIN_REQUEST_TIMEOUT));
        if store.check(&[&self.key(DIFFERENCE)], &limit)? {
            for summary in &self.summaries {
                let difference = find_difference(store, summary, &limit)?;
                if difference.is_some() {
                    return Ok(difference);
                }
            }
        }
        waited.map(|()| None)
    }
}

/// Returns the stored difference of a group, or the stored error of a refused message of this rank,
/// unless the program already knows it.
fn find_difference(
    store: &dyn Store,
    summary: &CallSummary,
    deadline: &Deadline,
) -> Result<Option<Error>> {
    let read = |name: &str| {
        let key = group_key(summary.group, name);
        let text = get_if_present(store, key.as_bytes(), deadline)?;
        Ok(text.map(|text| String::from_utf8_lossy(&text).into_owned()))
    };
    if summary.is_failure_known {
        return Ok(None);
    }
    if let Some(difference) = read(DIFFERENCE)? {
        return Ok(Some(mismatch_error(&difference)));
    }
    if summary.refused.is_reported {
        return Ok(None);
    }
    let refused = read(&refused_key(summary.rank))?;
    Ok(refused.map(|text| Error::new(ErrorKind::Mismatch, text)))
}

fn get_if_present(store: &dyn Store, key: &[u8], deadline: &Deadline) -> Result<Option<Vec<u8>>> {
    match store.check(&[key], deadline)? {
        true => store.get(key, deadline).map(Some),
        false => Ok(None),
    }
}

/// Returns the name of the key for the refused messages of `sender`.
fn refused_key(sender: Rank) -> String {
    format!("refused/{sender}")
}

impl Group {
    /// Compares the calls of this rank with the calls of the ranks that have released the group
    /// before, through the group's own store. Does nothing if the store was closed.
    ///
    /// # Errors
    /// `Mismatch`.
    pub(in crate::api) fn compare_calls_at_release(&self) -> Result<()> {
        let store = self.origin.rendezvous_store.upgrade().filter(|_| self.size() > 1);
        let summary = recorder::take_call_summary(self.id(), self.rank());
        let (Some(store), Some(summary)) = (store, summary) else { return Ok(()) };
        match compare_group(store.as_ref(), &summary, &Deadline::after(MIN_REQUEST_TIMEOUT)) {
            Ok(Some(difference)) if !summary.is_failure_known => Err(mismatch_error(&difference)),
            Ok(_) => summary.refused.unreported.map_or(Ok(()), Err),
            Err(error) => {
                let name = self.name();
                crate::log!(LogLevel::Info, "cannot compare the calls of group {name}: {error}");
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(rank: Rank, calls: u64, last_calls: &[(u64, u64, &str)]) -> StoredCalls {
        let call = |&(sequence, hash, description): &(u64, u64, &str)| RecordedCall {
            sequence,
            hash,
            description: description.to_owned(),
        };
        let last_calls: Vec<RecordedCall> = last_calls.iter().map(call).collect();
        let hash = last_calls.iter().map(|call| call.hash).sum();
        StoredCalls { rank, calls, hash, last_calls }
    }

    #[test]
    fn first_difference_is_described() {
        let one = stored(0, 3, &[(1, 1, "a #1"), (2, 2, "b #2"), (3, 3, "c #3")]);
        let other = stored(2, 3, &[(1, 1, "a #1"), (2, 5, "d #2"), (3, 3, "c #3")]);
        let text = other.find_difference(&one).unwrap();
        assert_eq!(text, "rank 0 called b #2, but rank 2 called d #2");
        assert_eq!(one.find_difference(&StoredCalls { rank: 9, ..one.clone() }), None);
        let short = stored(1, 2, &[(1, 1, "a #1"), (2, 2, "b #2")]);
        let text = short.find_difference(&one).unwrap();
        assert_eq!(text, "rank 0 made 3 calls, and rank 1 made 2; only rank 0 called c #3");
        let early = stored(1, 9, &[(8, 8, "h #8"), (9, 9, "i #9")]);
        let same_end = StoredCalls { hash: 1, rank: 3, ..early.clone() };
        let text = early.find_difference(&same_end).unwrap();
        assert!(text.ends_with("an earlier call differs"), "{text}");
    }

    #[test]
    fn only_common_calls_count_after_a_failure() {
        let one = stored(0, 3, &[(1, 1, "a #1"), (2, 2, "b #2"), (3, 3, "c #3")]);
        let short = stored(1, 2, &[(1, 1, "a #1"), (2, 2, "b #2")]);
        assert_eq!(short.find_difference_in_common_calls(&one), None);
        let other = stored(2, 2, &[(1, 1, "a #1"), (2, 9, "x #2")]);
        let text = one.find_difference_in_common_calls(&other).unwrap();
        assert_eq!(text, "rank 0 called b #2, but rank 2 called x #2");
        let late = stored(1, 30, &[(29, 7, "y #29"), (30, 8, "z #30")]);
        assert_eq!(late.find_difference_in_common_calls(&one), None);
    }

    #[test]
    fn stored_calls_round_trip_and_bad_bytes_are_refused() {
        let own = stored(7, 2, &[(1, u64::MAX - 1, "all_reduce #1 \"x\" (f32)")]);
        assert_eq!(StoredCalls::decode(&own.encode()), Some(own));
        for bad in ["", "{}", "[1]", r#"{"rank":0,"calls":1,"hash":2,"last":[[1]]}"#] {
            assert_eq!(StoredCalls::decode(bad.as_bytes()), None, "{bad}");
        }
    }
}
