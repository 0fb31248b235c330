//! How ranks show that they live, and tell what they are doing: the pulse that each keeps in the
//! region, and the arithmetic of those who watch it. Pure, but for the words in shared memory.
//!
//! A pulse is a number that its owner's service thread raises, so that a rank in a long computation
//! has one too. Whoever sees it stand still for the *limit* takes its owner for stopped. Who looks
//! too late was stopped itself, or starved, and begins anew rather than accuse those whom it has
//! not watched.
//!
//! Beside it the owner says in words what its process does beside the collectives of this group,
//! with each beat and when it is asked. Words are stamped: whoever reads them while they are
//! written reads them again.
//!
//! Must not know: who knocks for whom, and what the words mean.

use super::abort::truncate_utf8;
use crate::base::ids::GroupId;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

/// The most bytes that a rank says of what it does: with all that is beside them, a pulse has 256.
pub const ACTIVITY_BYTES: usize = 224;

/// How long whoever asks waits for an answer.
pub const ACTIVITY_QUERY_TIMEOUT: Duration = Duration::from_millis(50);

/// The shortest and the longest time from one beat to the next, and how many there are in the
/// limit.
const HEARTBEAT_INTERVAL_RANGE: (Duration, Duration) =
    (Duration::from_millis(20), Duration::from_millis(250));
const HEARTBEATS_PER_LIMIT: u32 = 8;

/// For how long the reason for which a rank has left may be on its way: longer than one leader may
/// notice the silence of another later than that one's own node does, which is an interval.
pub const DEPARTURE_GRACE: Duration = Duration::from_millis(400);

/// How often a reader tries again that meets a writer.
const MAX_READ_ATTEMPTS: u32 = 1000;

/// Says what this process does beside the collectives of a group.
pub type ActivityFn = fn(GroupId) -> String;

/// What ranks of a group tell of themselves while it lasts.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeartbeatConfig {
    /// How often they beat; `None` where nobody watches.
    pub timing: Option<HeartbeatTiming>,
    /// What they say.
    pub activity_fn: Option<ActivityFn>,
}

impl HeartbeatConfig {
    /// What this process does beside the collectives of a group; nothing where nobody can tell.
    pub fn describe_activity(&self, group: GroupId) -> String {
        self.activity_fn.map(|describe| describe(group)).unwrap_or_default()
    }
}

/// For how long a pulse may stand still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatTiming {
    limit: Duration,
}

impl HeartbeatTiming {
    /// The one with this limit; none for 0.
    pub fn from_limit_ms(limit_ms: u64) -> Option<Self> {
        (limit_ms != 0).then(|| Self { limit: Duration::from_millis(limit_ms) })
    }

    /// For how long a pulse may stand still.
    pub fn limit(self) -> Duration {
        self.limit
    }

    /// The time from one beat to the next.
    pub fn interval(self) -> Duration {
        let (least, most) = HEARTBEAT_INTERVAL_RANGE;
        (self.limit / HEARTBEATS_PER_LIMIT).clamp(least, most)
    }
}

/// The watch that one rank keeps over others.
#[derive(Debug)]
pub struct HeartbeatMonitor {
    timing: HeartbeatTiming,
    /// When the next look is due.
    next_check: Instant,
    /// For each of the others that is watched: its pulse, and since when that stands still.
    observed: Vec<Option<(u64, Instant)>>,
}

impl HeartbeatMonitor {
    /// Over so many, from now on.
    pub fn new(timing: HeartbeatTiming, peers: usize, now: Instant) -> Self {
        Self { timing, next_check: now, observed: vec![None; peers] }
    }

    /// When to look next.
    pub fn next_check(&self) -> Instant {
        self.next_check
    }

    /// Looks at all pulses (`None` for one that is not watched); those who have been silent for the
    /// limit, and for how long.
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

/// One rank's pulse, and what it says. All zero bytes are one that has not begun.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct HeartbeatState {
    beats: AtomicU64,
    /// Not zero where somebody waits for fresh words.
    is_activity_requested: AtomicU64,
    activity: ActivityText,
}

/// What a rank says. Only its owner's service thread writes.
#[derive(Debug, Default)]
#[repr(C)]
struct ActivityText {
    /// Odd while they are written; higher each time.
    stamp: AtomicU64,
    len: AtomicU64,
    text: [AtomicU64; ACTIVITY_BYTES / 8],
}

impl HeartbeatState {
    /// The owner lives.
    pub fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Release);
    }

    /// How often it has beaten; `None` for not at all so far.
    pub fn beats(&self) -> Option<u64> {
        Some(self.beats.load(Ordering::Acquire)).filter(|&beats| beats != 0)
    }

    /// The owner says something; what is too long is cut.
    pub fn publish_activity(&self, text: &str) {
        let activity = &self.activity;
        let bytes = truncate_utf8(text, ACTIVITY_BYTES).as_bytes();
        let stamp = activity.stamp.load(Ordering::Relaxed) | 1;
        activity.stamp.store(stamp, Ordering::Relaxed);
        fence(Ordering::Release);
        activity.len.store(bytes.len() as u64, Ordering::Relaxed);
        for (cell, bytes) in activity.text.iter().zip(bytes.chunks(8)) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            cell.store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
        activity.stamp.store(stamp.wrapping_add(1), Ordering::Release);
    }

    /// What it said last; nothing where it is in the middle of saying something for long.
    pub fn last_activity(&self) -> String {
        (0..MAX_READ_ATTEMPTS).find_map(|_| self.activity.read()).unwrap_or_default()
    }

    /// Asks for fresh words: they are there once the stamp differs from the one returned. The owner
    /// must be knocked for.
    pub fn request_activity(&self) -> u64 {
        let stamp = self.stamp();
        self.is_activity_requested.store(1, Ordering::Release);
        stamp
    }

    /// Whether somebody has asked since this was called last.
    pub fn take_activity_request(&self) -> bool {
        self.is_activity_requested.swap(0, Ordering::AcqRel) != 0
    }

    /// Different whenever something was said.
    pub fn stamp(&self) -> u64 {
        self.activity.stamp.load(Ordering::Acquire) & !1
    }
}

impl ActivityText {
    /// The words, unless they are being written.
    fn read(&self) -> Option<String> {
        let stamp = self.stamp.load(Ordering::Acquire);
        if stamp & 1 == 1 {
            std::thread::yield_now();
            return None;
        }
        let len =
            usize::try_from(self.len.load(Ordering::Relaxed)).unwrap_or(0).min(ACTIVITY_BYTES);
        let mut bytes = Vec::with_capacity(ACTIVITY_BYTES);
        for cell in &self.text[..len.div_ceil(8)] {
            bytes.extend_from_slice(&cell.load(Ordering::Relaxed).to_le_bytes());
        }
        bytes.truncate(len);
        fence(Ordering::Acquire);
        let is_consistent = self.stamp.load(Ordering::Relaxed) == stamp;
        is_consistent.then(|| String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// How a message goes on about a rank that was asked what it does, after what it did last in the
/// group.
pub fn format_activity_answer(answer: Option<&str>) -> String {
    match answer {
        None => {
            let timeout_ms = ACTIVITY_QUERY_TIMEOUT.as_millis();
            format!(" and whose process did not say within {timeout_ms} ms what it does")
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

    /// Looks whenever it is due until somebody is silent; who, and after how long.
    fn check_until_silent(
        vigil: &mut HeartbeatMonitor,
        began: Instant,
        pulse: impl Fn(usize, Duration) -> Option<u64>,
    ) -> (Vec<usize>, Duration) {
        for _ in 0..1000 {
            let now = vigil.next_check();
            let silent = vigil.check_peers(now, |other| pulse(other, now - began));
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
            let mut vigil = HeartbeatMonitor::new(timing, 3, began);
            let stopped_at = timing.limit() * 2 + timing.interval() / 3;
            let beats = |time: Duration| {
                u64::try_from(1 + time.as_nanos() / timing.interval().as_nanos()).ok()
            };
            let (silent, after) =
                check_until_silent(&mut vigil, began, |other, time| match other {
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
        let mut vigil = HeartbeatMonitor::new(timing(1000), 2, began);
        let (silent, _) = check_until_silent(&mut vigil, began, |other, time| match other {
            0 => None,
            _ => (time < 900 * MS).then_some(1),
        });
        assert!(silent.is_empty());
    }

    #[test]
    fn late_monitor_restarts_instead_of_accusing() {
        let began = Instant::now();
        let mut vigil = HeartbeatMonitor::new(timing(1000), 1, began);
        assert!(vigil.check_peers(began, |_| Some(5)).is_empty());
        let woken = began + 2000 * MS;
        assert!(vigil.check_peers(woken, |_| Some(5)).is_empty());
        let (silent, after) = check_until_silent(&mut vigil, began, |_, _| Some(5));
        assert_eq!((silent, after), (vec![0], 3000 * MS));
    }

    #[test]
    fn activity_text_is_read_back_and_truncated() {
        let pulse = HeartbeatState::default();
        assert_eq!((pulse.last_activity(), pulse.beats()), (String::new(), None));
        let before = pulse.request_activity();
        assert_eq!(pulse.stamp(), before);
        assert!(pulse.take_activity_request() && !pulse.take_activity_request());
        pulse.publish_activity("is in barrier #1");
        assert_ne!(pulse.stamp(), before);
        assert_eq!(pulse.last_activity(), "is in barrier #1");
        pulse.publish_activity(&format!("{}é", "x".repeat(ACTIVITY_BYTES - 1)));
        assert_eq!(pulse.last_activity(), "x".repeat(ACTIVITY_BYTES - 1));
        pulse.beat();
        assert_eq!(pulse.beats(), Some(1));
    }

    #[test]
    fn corrupt_activity_text_is_bounded() {
        let pulse = HeartbeatState::default();
        pulse.activity.len.store(u64::MAX, Ordering::Relaxed);
        pulse.activity.text[0].store(u64::MAX, Ordering::Relaxed);
        assert!(pulse.last_activity().len() <= 3 * ACTIVITY_BYTES);
        // A writer that died in the middle.
        pulse.activity.stamp.store(7, Ordering::Relaxed);
        assert_eq!(pulse.last_activity(), "");
    }
}
