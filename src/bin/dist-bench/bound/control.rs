//! The words by which the two ranks of a bound agree: a small segment that both map. Rank 0 makes
//! it, and says in a file where it is; rank 1 opens it through /proc. Waiting is spinning, as the
//! quickest does, with an end.
#![allow(unsafe_code, reason = "memory that another process writes is reached by pointers alone")]

use dist::base::deadline::Deadline;
use dist::sys::{host, shm::Segment};
use std::fs::{self, File};
use std::hint::spin_loop;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long one rank waits for the other; and how long it spins before it looks at a clock.
const PATIENCE: Duration = Duration::from_secs(60);
const SPINS: u32 = 1 << 16;

/// Bytes from one word to the next, so that no two are in lines that are fetched together.
const APART: usize = 128;
const BYTES: usize = 4096;

/// The words of each rank.
#[derive(Clone, Copy, Debug)]
pub(super) enum Word {
    /// How often it has come to a barrier.
    Arrived,
    /// How many pieces of results it has made.
    Made,
    /// Its process.
    Process,
    /// Where its buffer is: its address, or its descriptor.
    Place,
    /// What it thinks.
    Opinion,
}

/// How many there are.
const WORDS: usize = 5;

/// The words of both ranks, seen by one of them.
#[derive(Debug)]
pub(super) struct Control {
    rank: usize,
    segment: Segment,
    /// How often this rank has come to a barrier.
    barriers: u64,
}

impl Control {
    /// Both ranks come together at a place.
    pub(super) fn meet(rank: usize, place: &str) -> Result<Self, String> {
        let path = format!("{place}.control");
        let segment = if rank == 0 { offered(&path)? } else { found(Path::new(&path))? };
        let mut control = Self { rank, segment, barriers: 0 };
        control.set(Word::Process, u64::from(host::pid()));
        control.barrier()?;
        Ok(control)
    }

    fn word(&self, rank: usize, word: Word) -> &AtomicU64 {
        let at = APART * (rank * WORDS + word as usize);
        let ptr = self.segment.as_mut_ptr().wrapping_add(at).cast();
        // SAFETY: aligned, inside the segment, which lives as long as `self`, and only ever used as
        // an atomic.
        unsafe { AtomicU64::from_ptr(ptr) }
    }

    /// Sets a word of this rank; what was written before is seen by whoever sees it.
    pub(super) fn set(&self, word: Word, value: u64) {
        self.word(self.rank, word).store(value, Ordering::Release);
    }

    /// A word of the other rank.
    pub(super) fn others(&self, word: Word) -> u64 {
        self.word(1 - self.rank, word).load(Ordering::Acquire)
    }

    /// Waits until a word of the other rank is that large.
    pub(super) fn wait_for(&self, word: Word, value: u64) -> Result<(), String> {
        let word = self.word(1 - self.rank, word);
        let mut deadline = None;
        loop {
            for _ in 0..SPINS {
                if word.load(Ordering::Acquire) >= value {
                    return Ok(());
                }
                spin_loop();
            }
            if deadline.get_or_insert_with(|| Deadline::after(PATIENCE)).has_passed() {
                return Err("the other rank does not come".to_owned());
            }
        }
    }

    /// Both come here before either goes on.
    pub(super) fn barrier(&mut self) -> Result<(), String> {
        self.barriers += 1;
        self.set(Word::Arrived, self.barriers);
        self.wait_for(Word::Arrived, self.barriers)
    }
}

/// Makes the segment and says where it is.
fn offered(path: &str) -> Result<Segment, String> {
    let segment = Segment::create(BYTES).map_err(|error| error.to_string())?;
    let text = format!("{} {}", host::pid(), segment.as_fd().as_raw_fd());
    let fresh = format!("{path}.new");
    let told = fs::write(&fresh, text).and_then(|()| fs::rename(&fresh, path));
    told.map_err(|cause| format!("{path}: {cause}"))?;
    Ok(segment)
}

/// Waits until it is said where the segment is.
fn found(path: &Path) -> Result<Segment, String> {
    let deadline = Deadline::after(PATIENCE);
    let text = loop {
        match fs::read_to_string(path) {
            Ok(text) => break text,
            Err(_) if !deadline.has_passed() => std::thread::sleep(Duration::from_millis(1)),
            Err(cause) => return Err(format!("{}: {cause}", path.display())),
        }
    };
    let numbers: Vec<u64> = text.split(' ').filter_map(|word| word.parse().ok()).collect();
    match numbers[..] {
        [process, descriptor] => opened(process, descriptor, BYTES),
        _ => Err(format!("{}: {text}", path.display())),
    }
}

/// Maps a segment of another process.
pub(super) fn opened(process: u64, descriptor: u64, len: usize) -> Result<Segment, String> {
    let path = format!("/proc/{process}/fd/{descriptor}");
    let file = File::options().read(true).write(true).open(&path);
    let file = file.map_err(|cause| format!("{path}: {cause}"))?;
    Segment::open(file.into(), len).map_err(|error| error.to_string())
}
