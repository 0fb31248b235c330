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

use super::abort::clip;
use crate::base::ids::GroupId;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

/// The most bytes that a rank says of what it does: with all that is beside them, a pulse has 256.
pub const WORDS_BYTES: usize = 224;

/// How long whoever asks waits for an answer.
pub const PATIENCE: Duration = Duration::from_millis(50);

/// The shortest and the longest time from one beat to the next, and how many there are in the
/// limit.
const INTERVAL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));
const BEATS: u32 = 8;

/// For how long the reason for which a rank has left may be on its way: longer than one leader may
/// notice the silence of another later than that one's own node does, which is an interval.
pub const PARTING: Duration = Duration::from_millis(400);

/// How often a reader tries again that meets a writer.
const TRIES: u32 = 1000;

/// Says what this process does beside the collectives of a group.
pub type Activity = fn(GroupId) -> String;

/// What ranks of a group tell of themselves while it lasts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Vitals {
    /// How often they beat; `None` where nobody watches.
    pub rhythm: Option<Rhythm>,
    /// What they say.
    pub activity: Option<Activity>,
}

impl Vitals {
    /// What this process does beside the collectives of a group; nothing where nobody can tell.
    pub fn activity(&self, group: GroupId) -> String {
        self.activity.map(|tell| tell(group)).unwrap_or_default()
    }
}

/// For how long a pulse may stand still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rhythm {
    limit: Duration,
}

impl Rhythm {
    /// The one with this limit; none for 0.
    pub fn of_ms(limit_ms: u64) -> Option<Self> {
        (limit_ms != 0).then(|| Self { limit: Duration::from_millis(limit_ms) })
    }

    /// For how long a pulse may stand still.
    pub fn limit(self) -> Duration {
        self.limit
    }

    /// The time from one beat to the next.
    pub fn interval(self) -> Duration {
        let (least, most) = INTERVAL;
        (self.limit / BEATS).clamp(least, most)
    }
}

/// The watch that one rank keeps over others.
#[derive(Debug)]
pub struct Vigil {
    rhythm: Rhythm,
    /// When the next look is due.
    due: Instant,
    /// For each of the others that is watched: its pulse, and since when that stands still.
    seen: Vec<Option<(u64, Instant)>>,
}

impl Vigil {
    /// Over so many, from now on.
    pub fn new(rhythm: Rhythm, others: usize, now: Instant) -> Self {
        Self { rhythm, due: now, seen: vec![None; others] }
    }

    /// When to look next.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Looks at all pulses (`None` for one that is not watched); those who have been silent for the
    /// limit, and for how long.
    pub fn look(
        &mut self,
        now: Instant,
        pulse: impl Fn(usize) -> Option<u64>,
    ) -> Vec<(usize, Duration)> {
        let limit = self.rhythm.limit;
        let anew = now.saturating_duration_since(self.due) > limit / 2;
        let mut silent = Vec::new();
        self.due = now + self.rhythm.interval();
        for (other, seen) in self.seen.iter_mut().enumerate() {
            let Some(pulse) = pulse(other) else {
                *seen = None;
                continue;
            };
            let since = match *seen {
                Some((known, since)) if known == pulse && !anew => since,
                _ => now,
            };
            *seen = Some((pulse, since));
            let silence = now.saturating_duration_since(since);
            if silence < limit {
                self.due = self.due.min(since + limit);
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
pub struct Pulse {
    beats: AtomicU64,
    /// Not zero where somebody waits for fresh words.
    asked: AtomicU64,
    words: Words,
}

/// What a rank says. Only its owner's service thread writes.
#[derive(Debug, Default)]
#[repr(C)]
struct Words {
    /// Odd while they are written; higher each time.
    stamp: AtomicU64,
    len: AtomicU64,
    text: [AtomicU64; WORDS_BYTES / 8],
}

impl Pulse {
    /// The owner lives.
    pub fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Release);
    }

    /// How often it has beaten; `None` for not at all so far.
    pub fn beats(&self) -> Option<u64> {
        Some(self.beats.load(Ordering::Acquire)).filter(|&beats| beats != 0)
    }

    /// The owner says something; what is too long is cut.
    pub fn say(&self, text: &str) {
        let words = &self.words;
        let bytes = clip(text, WORDS_BYTES).as_bytes();
        let stamp = words.stamp.load(Ordering::Relaxed) | 1;
        words.stamp.store(stamp, Ordering::Relaxed);
        fence(Ordering::Release);
        words.len.store(bytes.len() as u64, Ordering::Relaxed);
        for (cell, bytes) in words.text.iter().zip(bytes.chunks(8)) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            cell.store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
        words.stamp.store(stamp.wrapping_add(1), Ordering::Release);
    }

    /// What it said last; nothing where it is in the middle of saying something for long.
    pub fn said(&self) -> String {
        (0..TRIES).find_map(|_| self.words.read()).unwrap_or_default()
    }

    /// Asks for fresh words: they are there once the stamp differs from the one returned. The owner
    /// must be knocked for.
    pub fn ask(&self) -> u64 {
        let stamp = self.stamp();
        self.asked.store(1, Ordering::Release);
        stamp
    }

    /// Whether somebody has asked since this was called last.
    pub fn was_asked(&self) -> bool {
        self.asked.swap(0, Ordering::AcqRel) != 0
    }

    /// Different whenever something was said.
    pub fn stamp(&self) -> u64 {
        self.words.stamp.load(Ordering::Acquire) & !1
    }
}

impl Words {
    /// The words, unless they are being written.
    fn read(&self) -> Option<String> {
        let stamp = self.stamp.load(Ordering::Acquire);
        if stamp & 1 == 1 {
            std::thread::yield_now();
            return None;
        }
        let len = usize::try_from(self.len.load(Ordering::Relaxed)).unwrap_or(0).min(WORDS_BYTES);
        let mut bytes = Vec::with_capacity(WORDS_BYTES);
        for cell in &self.text[..len.div_ceil(8)] {
            bytes.extend_from_slice(&cell.load(Ordering::Relaxed).to_le_bytes());
        }
        bytes.truncate(len);
        fence(Ordering::Acquire);
        let is_whole = self.stamp.load(Ordering::Relaxed) == stamp;
        is_whole.then(|| String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// How a message goes on about a rank that was asked what it does, after what it did last in the
/// group.
pub fn whereabouts(answer: Option<&str>) -> String {
    match answer {
        None => {
            let patience = PATIENCE.as_millis();
            format!(" and whose process did not say within {patience} ms what it does")
        }
        Some("") => String::new(),
        Some(words) => format!(" and whose process {words}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn rhythm(limit_ms: u64) -> Rhythm {
        Rhythm::of_ms(limit_ms).unwrap()
    }

    /// Looks whenever it is due until somebody is silent; who, and after how long.
    fn until_silent(
        vigil: &mut Vigil,
        began: Instant,
        pulse: impl Fn(usize, Duration) -> Option<u64>,
    ) -> (Vec<usize>, Duration) {
        for _ in 0..1000 {
            let now = vigil.due();
            let silent = vigil.look(now, |other| pulse(other, now - began));
            if !silent.is_empty() {
                return (silent.iter().map(|&(other, _)| other).collect(), now - began);
            }
        }
        (Vec::new(), Duration::ZERO)
    }

    #[test]
    fn there_are_beats_enough_and_none_too_many() {
        assert_eq!(Rhythm::of_ms(0), None);
        for (limit, interval) in [(100, 20), (160, 20), (1000, 125), (5000, 250), (3_600_000, 250)]
        {
            assert_eq!(rhythm(limit).interval(), interval * MS, "{limit}");
        }
    }

    #[test]
    fn who_stands_still_is_found_within_the_limit_and_an_interval() {
        for limit in [100, 333, 1000, 5000, 60_000] {
            let (rhythm, began) = (rhythm(limit), Instant::now());
            let mut vigil = Vigil::new(rhythm, 3, began);
            let stopped_at = rhythm.limit() * 2 + rhythm.interval() / 3;
            let beats = |time: Duration| {
                u64::try_from(1 + time.as_nanos() / rhythm.interval().as_nanos()).ok()
            };
            let (silent, after) = until_silent(&mut vigil, began, |other, time| match other {
                1 => beats(time.min(stopped_at)),
                _ => beats(time),
            });
            assert_eq!(silent, [1]);
            let told = after - stopped_at;
            let limits = rhythm.limit() - rhythm.interval()..=rhythm.limit() + rhythm.interval();
            assert!(limits.contains(&told), "{limit}: {told:?}");
        }
    }

    #[test]
    fn who_has_left_or_not_begun_is_not_missed() {
        let began = Instant::now();
        let mut vigil = Vigil::new(rhythm(1000), 2, began);
        let (silent, _) = until_silent(&mut vigil, began, |other, time| match other {
            0 => None,
            _ => (time < 900 * MS).then_some(1),
        });
        assert!(silent.is_empty());
    }

    #[test]
    fn who_was_stopped_itself_accuses_nobody_and_watches_on() {
        let began = Instant::now();
        let mut vigil = Vigil::new(rhythm(1000), 1, began);
        assert!(vigil.look(began, |_| Some(5)).is_empty());
        let woken = began + 2000 * MS;
        assert!(vigil.look(woken, |_| Some(5)).is_empty());
        let (silent, after) = until_silent(&mut vigil, began, |_, _| Some(5));
        assert_eq!((silent, after), (vec![0], 3000 * MS));
    }

    #[test]
    fn what_is_said_is_read_and_cut_between_characters() {
        let pulse = Pulse::default();
        assert_eq!((pulse.said(), pulse.beats()), (String::new(), None));
        let before = pulse.ask();
        assert_eq!(pulse.stamp(), before);
        assert!(pulse.was_asked() && !pulse.was_asked());
        pulse.say("is in barrier #1");
        assert_ne!(pulse.stamp(), before);
        assert_eq!(pulse.said(), "is in barrier #1");
        pulse.say(&format!("{}é", "x".repeat(WORDS_BYTES - 1)));
        assert_eq!(pulse.said(), "x".repeat(WORDS_BYTES - 1));
        pulse.beat();
        assert_eq!(pulse.beats(), Some(1));
    }

    #[test]
    fn whatever_stands_there_is_bounded() {
        let pulse = Pulse::default();
        pulse.words.len.store(u64::MAX, Ordering::Relaxed);
        pulse.words.text[0].store(u64::MAX, Ordering::Relaxed);
        assert!(pulse.said().len() <= 3 * WORDS_BYTES);
        // A writer that died in the middle.
        pulse.words.stamp.store(7, Ordering::Relaxed);
        assert_eq!(pulse.said(), "");
    }
}
