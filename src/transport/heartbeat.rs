//! Heartbeats and activity texts: how ranks show that they are alive, and how they report their
//! activity. Each rank publishes both in a [`HeartbeatState`] in the region (the memory that the
//! ranks of a host share). Each rank has a [`HeartbeatMonitor`] that evaluates the heartbeats of
//! its peers.
//!
//! The heartbeat is a counter that the service thread of the rank's process increments, so the
//! counter also changes while the rank is in a long computation. If a peer's counter does not
//! change for the *limit*, the monitor reports the peer as stopped. If the monitor itself runs too
//! late, its own process was stopped or got no processor time. The monitor did not watch its peers
//! during that time, so it restarts the limit for each of them and reports no peer.
//!
//! The activity text describes the activity of the rank's process outside the collectives of this
//! group. The rank publishes the text with each heartbeat, and when a peer requests it. The text
//! has a stamp (a sequence lock), so that a reader that reads during a write notices this and reads
//! again.
//!
//! The monitor is pure: its caller passes the time and the counters. This module does not depend on
//! the mechanism that wakes the owner, or on the meaning of the texts.

use super::shared_text::SharedText;
use crate::base::ids::GroupId;
use crate::base::sequence_stamp::SequenceStamp;
use crate::base::sync::{AtomicU64, Ordering};
use crate::wait::policy::yield_until;
use std::time::{Duration, Instant};

/// The maximum length of an activity text in bytes. With this length, a [`HeartbeatState`] has 256
/// bytes.
pub const ACTIVITY_BYTES: usize = 224;

/// The time that a rank waits for the answer to an activity query.
pub const ACTIVITY_QUERY_TIMEOUT: Duration = Duration::from_millis(50);

/// The shortest and the longest heartbeat interval.
const HEARTBEAT_INTERVAL_RANGE: (Duration, Duration) =
    (Duration::from_millis(20), Duration::from_millis(250));
/// The number of heartbeat intervals in the limit, if this gives an interval within the range.
const HEARTBEATS_PER_LIMIT: u32 = 8;

/// The time for which a rank waits for a failure reason after it has seen that another rank left.
///
/// The rank may have left because the leader of some node (the rank that communicates for the
/// node) stopped. Another leader may notice this one heartbeat interval later than the ranks on
/// the node of the stopped leader. The wait is therefore longer than the longest interval of 250
/// ms.
pub const DEPARTURE_GRACE: Duration = Duration::from_millis(400);

/// The number of times that a reader tries again to read a text that is being written.
const MAX_READ_ATTEMPTS: u32 = 1000;

/// A function that describes the activity of this process outside the collectives of a group.
pub type ActivityFn = fn(GroupId) -> String;

/// The heartbeat configuration of a group's ranks.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeartbeatConfig {
    /// The heartbeat timing; `None` if no rank monitors heartbeats.
    pub timing: Option<HeartbeatTiming>,
    /// The function that describes this process's activity.
    pub activity_fn: Option<ActivityFn>,
}

impl HeartbeatConfig {
    /// Returns the activity of this process outside the collectives of a group, or an empty text if
    /// there is no `activity_fn`.
    pub fn describe_activity(&self, group: GroupId) -> String {
        self.activity_fn.map(|describe| describe(group)).unwrap_or_default()
    }
}

/// The limit and the interval of heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatTiming {
    limit: Duration,
}

impl HeartbeatTiming {
    /// Returns the timing for a limit in milliseconds, or `None` for 0, which turns heartbeats
    /// off.
    pub fn from_limit_ms(limit_ms: u64) -> Option<Self> {
        (limit_ms != 0).then(|| Self { limit: Duration::from_millis(limit_ms) })
    }

    /// Returns the time after which a peer without a new heartbeat counts as stopped.
    pub fn limit(self) -> Duration {
        self.limit
    }

    /// Returns the time between two heartbeats.
    pub fn interval(self) -> Duration {
        let (least, most) = HEARTBEAT_INTERVAL_RANGE;
        (self.limit / HEARTBEATS_PER_LIMIT).clamp(least, most)
    }
}

/// The monitor by which one rank watches the heartbeats of its peers.
#[derive(Debug)]
pub struct HeartbeatMonitor {
    timing: HeartbeatTiming,
    /// The time of the next check.
    next_check: Instant,
    /// For each watched peer, its last heartbeat counter and the time at which the monitor first
    /// saw this value.
    observed: Vec<Option<(u64, Instant)>>,
}

impl HeartbeatMonitor {
    /// Creates a monitor for this number of peers. The first check is due at `now`.
    pub fn new(timing: HeartbeatTiming, peers: usize, now: Instant) -> Self {
        Self { timing, next_check: now, observed: vec![None; peers] }
    }

    /// Returns the time of the next check.
    pub fn next_check(&self) -> Instant {
        self.next_check
    }

    /// Checks the heartbeats of all peers, and sets the time of the next check. `heartbeat` returns
    /// the counter of a peer, or `None` for a peer that is not watched. Returns the peers whose
    /// counter has not changed for the limit, each with the time since its last change.
    pub fn check_peers(
        &mut self,
        now: Instant,
        heartbeat: impl Fn(usize) -> Option<u64>,
    ) -> Vec<(usize, Duration)> {
        let limit = self.timing.limit;
        let is_restart = now.saturating_duration_since(self.next_check) > limit / 2;
        let mut silent = Vec::new();
        self.next_check = now + self.timing.interval();
        for (other, seen) in self.observed.iter_mut().enumerate() {
            let Some(beats) = heartbeat(other) else {
                *seen = None;
                continue;
            };
            let since = match *seen {
                Some((known, since)) if known == beats && !is_restart => since,
                _ => now,
            };
            *seen = Some((beats, since));
            let silence = now.saturating_duration_since(since);
            if silence < limit {
                self.next_check = self.next_check.min(since + limit);
            } else {
                silent.push((other, silence));
            }
        }
        silent
    }
}

/// One rank's heartbeat counter and activity text. A zeroed state has no heartbeat yet.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct HeartbeatState {
    beats: AtomicU64,
    /// Not zero if a rank has requested a new activity text and the owner has not taken the request
    /// yet.
    is_activity_requested: AtomicU64,
    activity: ActivityText,
}

/// The activity text of a rank. Only the owner's service thread writes it.
#[derive(Debug, Default)]
#[repr(C)]
struct ActivityText {
    /// The stamp. It is odd while the owner writes the text, and each write increases it by 2.
    stamp: SequenceStamp,
    text: SharedText<{ ACTIVITY_BYTES / 8 }>,
}

impl HeartbeatState {
    /// Increments the heartbeat counter. Called by the owner.
    pub fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Release);
    }

    /// Returns the heartbeat counter; `None` before the first heartbeat.
    pub fn beats(&self) -> Option<u64> {
        Some(self.beats.load(Ordering::Acquire)).filter(|&beats| beats != 0)
    }

    /// Publishes an activity text. Called by the owner. A text that is longer than
    /// [`ACTIVITY_BYTES`] is truncated.
    pub fn publish_activity(&self, text: &str) {
        let activity = &self.activity;
        let stamp = activity.stamp.own() | 1;
        activity.stamp.begin_write(stamp);
        activity.text.store(text);
        activity.stamp.end_write(stamp.wrapping_add(1));
    }

    /// Returns the last activity text. Returns an empty text if the owner is still writing after
    /// 1000 attempts.
    pub fn last_activity(&self) -> String {
        let read = || self.activity.read();
        read().or_else(|| yield_until(MAX_READ_ATTEMPTS, read)).unwrap_or_default()
    }

    /// Requests a new activity text. The caller must then wake the owner. Returns the current
    /// stamp. Once [`HeartbeatState::stamp`] returns another value, the new text is complete.
    pub fn request_activity(&self) -> u64 {
        let stamp = self.stamp();
        self.is_activity_requested.store(1, Ordering::Release);
        stamp
    }

    /// Returns whether a rank has requested the text since the last call, and clears the request.
    /// Called by the owner.
    pub fn take_activity_request(&self) -> bool {
        self.is_activity_requested.swap(0, Ordering::AcqRel) != 0
    }

    /// Returns the stamp of the text. It changes with each published text.
    pub fn stamp(&self) -> u64 {
        self.activity.stamp.begin_read() & !1
    }
}

impl ActivityText {
    /// Returns the text, or `None` while the owner writes it.
    fn read(&self) -> Option<String> {
        let stamp = self.stamp.begin_read();
        if stamp & 1 == 1 {
            return None;
        }
        let text = self.text.load();
        self.stamp.is_unchanged(stamp).then_some(text)
    }
}

/// The beginning of the activity text of a process that is in no operation.
pub const IDLE_ACTIVITY: &str = "has been idle for ";

/// The activity text of a process that has started no operation yet.
pub const NO_OPERATION_ACTIVITY: &str = "has started no operation yet";

/// Returns the activity text of a rank, but an empty text if it contradicts that the rank is in an
/// operation of the group. The rank has then published the text before it began the operation.
pub fn without_contradiction(activity: String, is_in_operation: bool) -> String {
    let is_idle = activity.starts_with(IDLE_ACTIVITY) || activity == NO_OPERATION_ACTIVITY;
    if is_idle && is_in_operation { String::new() } else { activity }
}

/// Formats the answer to an activity query. The result is a continuation of an error message that
/// names a rank and its last operation in the group.
pub fn format_activity_answer(answer: Option<&str>) -> String {
    match answer {
        None => {
            let timeout_ms = ACTIVITY_QUERY_TIMEOUT.as_millis();
            format!(" and whose process did not answer an activity query within {timeout_ms} ms")
        }
        Some("") => String::new(),
        Some(words) => format!(" and whose process {words}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn timing(limit_ms: u64) -> HeartbeatTiming {
        HeartbeatTiming::from_limit_ms(limit_ms).unwrap()
    }

    /// Calls `check_peers` at each due time until it returns a silent peer. Returns the silent
    /// peers and the time since `began`, or no peer after 1000 checks.
    fn check_until_silent(
        monitor: &mut HeartbeatMonitor,
        began: Instant,
        heartbeat: impl Fn(usize, Duration) -> Option<u64>,
    ) -> (Vec<usize>, Duration) {
        for _ in 0..1000 {
            let now = monitor.next_check();
            let silent = monitor.check_peers(now, |other| heartbeat(other, now - began));
            if !silent.is_empty() {
                return (silent.iter().map(|&(other, _)| other).collect(), now - began);
            }
        }
        (Vec::new(), Duration::ZERO)
    }

    #[test]
    fn heartbeat_interval_is_clamped() {
        assert_eq!(HeartbeatTiming::from_limit_ms(0), None);
        for (limit, interval) in [(100, 20), (160, 20), (1000, 125), (5000, 250), (3_600_000, 250)]
        {
            assert_eq!(timing(limit).interval(), interval * MS, "{limit}");
        }
    }

    #[test]
    fn stopped_peer_is_detected_within_limit_and_interval() {
        for limit in [100, 333, 1000, 5000, 60_000] {
            let (timing, began) = (timing(limit), Instant::now());
            let mut monitor = HeartbeatMonitor::new(timing, 3, began);
            let stopped_at = timing.limit() * 2 + timing.interval() / 3;
            let beats = |time: Duration| {
                u64::try_from(1 + time.as_nanos() / timing.interval().as_nanos()).ok()
            };
            let (silent, after) =
                check_until_silent(&mut monitor, began, |other, time| match other {
                    1 => beats(time.min(stopped_at)),
                    _ => beats(time),
                });
            assert_eq!(silent, [1]);
            let detected_after = after - stopped_at;
            let limits = timing.limit() - timing.interval()..=timing.limit() + timing.interval();
            assert!(limits.contains(&detected_after), "{limit}: {detected_after:?}");
        }
    }

    #[test]
    fn unwatched_peers_are_not_reported_as_silent() {
        let began = Instant::now();
        let mut monitor = HeartbeatMonitor::new(timing(1000), 2, began);
        let (silent, _) = check_until_silent(&mut monitor, began, |other, time| match other {
            0 => None,
            _ => (time < 900 * MS).then_some(1),
        });
        assert!(silent.is_empty());
    }

    #[test]
    fn late_monitor_restarts_instead_of_accusing() {
        let began = Instant::now();
        let mut monitor = HeartbeatMonitor::new(timing(1000), 1, began);
        assert!(monitor.check_peers(began, |_| Some(5)).is_empty());
        let woken = began + 2000 * MS;
        assert!(monitor.check_peers(woken, |_| Some(5)).is_empty());
        let (silent, after) = check_until_silent(&mut monitor, began, |_, _| Some(5));
        assert_eq!((silent, after), (vec![0], 3000 * MS));
    }

    #[test]
    fn activity_text_is_read_back_and_truncated() {
        let heartbeat = HeartbeatState::default();
        assert_eq!((heartbeat.last_activity(), heartbeat.beats()), (String::new(), None));
        let before = heartbeat.request_activity();
        assert_eq!(heartbeat.stamp(), before);
        assert!(heartbeat.take_activity_request() && !heartbeat.take_activity_request());
        heartbeat.publish_activity("is in barrier #1");
        assert_ne!(heartbeat.stamp(), before);
        assert_eq!(heartbeat.last_activity(), "is in barrier #1");
        heartbeat.publish_activity(&format!("{}é", "x".repeat(ACTIVITY_BYTES - 1)));
        assert_eq!(heartbeat.last_activity(), "x".repeat(ACTIVITY_BYTES - 1));
        heartbeat.beat();
        assert_eq!(heartbeat.beats(), Some(1));
    }

    #[test]
    fn idle_text_of_a_rank_in_an_operation_is_dropped() {
        let idle = format!("{IDLE_ACTIVITY}3.0 s, since barrier #1 of group a (rank 0)");
        for text in [idle.as_str(), NO_OPERATION_ACTIVITY] {
            assert_eq!(without_contradiction(text.to_owned(), true), "");
            assert_eq!(without_contradiction(text.to_owned(), false), text);
        }
        let busy = "is in barrier #5 of group b (rank 1)";
        assert_eq!(without_contradiction(busy.to_owned(), true), busy);
    }

    #[test]
    fn corrupt_activity_text_is_bounded() {
        let heartbeat = HeartbeatState::default();
        heartbeat.activity.text.corrupt();
        assert!(heartbeat.last_activity().len() <= 3 * ACTIVITY_BYTES);
        // The stamp of a writer that died while it wrote the text.
        heartbeat.activity.stamp.begin_write(7);
        assert_eq!(heartbeat.last_activity(), "");
    }
}
