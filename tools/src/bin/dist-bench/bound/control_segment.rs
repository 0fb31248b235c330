//! The control segment: a small shared memory segment with control words, by which the two ranks of
//! the lower bound synchronise. Rank 0 creates the segment, and writes its process id and
//! descriptor into a file. Rank 1 reads the file and opens the segment through /proc. A rank that
//! waits for a word spins, because this is the fastest way to wait. The wait has a timeout.
#![allow(unsafe_code, reason = "raw pointers access memory that another process writes")]

use dist::base::deadline::Deadline;
use dist::sys::{host, shm::Segment};
use std::fs::{self, File};
use std::hint::spin_loop;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The timeout of a wait for the peer.
const PEER_TIMEOUT: Duration = Duration::from_secs(60);
/// The number of spins between two checks of the clock.
const SPINS_PER_CHECK: u32 = 1 << 16;

/// The distance of two words in bytes. It is two cache lines, because processors may fetch the
/// neighbour of a cache line too, and two words must not disturb each other.
const WORD_STRIDE: usize = 128;
const SEGMENT_BYTES: usize = 4096;

/// The words that each rank has in the segment. Only the rank itself writes its words.
#[derive(Clone, Copy, Debug)]
pub(super) enum ControlWord {
    /// The number of barriers that the rank has entered.
    BarrierCount,
    /// The number of result pieces that the rank has reduced.
    PiecesReduced,
    /// The rank's process id.
    ProcessId,
    /// The location of the rank's buffer: its address, or the descriptor of its segment.
    BufferLocation,
    /// A value that the rank proposes to the other rank: whether it can read the other process, or
    /// the piece size.
    Proposal,
}

/// The number of words per rank.
const WORDS_PER_RANK: usize = 5;

/// The control segment, as one rank uses it.
#[derive(Debug)]
pub(super) struct ControlSegment {
    rank: usize,
    segment: Segment,
    /// The number of barriers that this rank has entered.
    barriers: u64,
}

impl ControlSegment {
    /// Connects the two ranks through the file `path_prefix`.control.
    pub(super) fn connect(rank: usize, path_prefix: &str) -> Result<Self, String> {
        let path = format!("{path_prefix}.control");
        let segment =
            if rank == 0 { create_segment(&path)? } else { await_segment(Path::new(&path))? };
        let mut control = Self { rank, segment, barriers: 0 };
        control.set_word(ControlWord::ProcessId, u64::from(host::pid()));
        control.barrier()?;
        Ok(control)
    }

    fn word_of(&self, rank: usize, word: ControlWord) -> &AtomicU64 {
        let offset = WORD_STRIDE * (rank * WORDS_PER_RANK + word as usize);
        let ptr = self.segment.as_mut_ptr().wrapping_add(offset).cast();
        // SAFETY: the pointer is aligned and inside the segment, which lives as long as `self`. All
        // accesses to the word are atomic.
        unsafe { AtomicU64::from_ptr(ptr) }
    }

    /// Sets a word of this rank. If the other rank reads the new value with `peer_word` or
    /// `wait_for`, it also sees everything that this rank wrote before.
    pub(super) fn set_word(&self, word: ControlWord, value: u64) {
        self.word_of(self.rank, word).store(value, Ordering::Release);
    }

    /// Returns a word of the other rank.
    pub(super) fn peer_word(&self, word: ControlWord) -> u64 {
        self.word_of(1 - self.rank, word).load(Ordering::Acquire)
    }

    /// Waits until a word of the other rank is at least `value`.
    pub(super) fn wait_for(&self, word: ControlWord, value: u64) -> Result<(), String> {
        let word = self.word_of(1 - self.rank, word);
        let mut deadline = None;
        loop {
            for _ in 0..SPINS_PER_CHECK {
                if word.load(Ordering::Acquire) >= value {
                    return Ok(());
                }
                spin_loop();
            }
            if deadline.get_or_insert_with(|| Deadline::after(PEER_TIMEOUT)).has_passed() {
                return Err(format!(
                    "no signal from the other rank within {} s",
                    PEER_TIMEOUT.as_secs()
                ));
            }
        }
    }

    /// Waits until both ranks have entered the barrier.
    pub(super) fn barrier(&mut self) -> Result<(), String> {
        self.barriers += 1;
        self.set_word(ControlWord::BarrierCount, self.barriers);
        self.wait_for(ControlWord::BarrierCount, self.barriers)
    }
}

/// Creates the segment and writes its location into a file.
fn create_segment(path: &str) -> Result<Segment, String> {
    let segment = Segment::create(SEGMENT_BYTES).map_err(|error| error.to_string())?;
    let text = format!("{} {}", host::pid(), segment.as_fd().as_raw_fd());
    let temporary_path = format!("{path}.new");
    let renamed = fs::write(&temporary_path, text).and_then(|()| fs::rename(&temporary_path, path));
    renamed.map_err(|cause| format!("{path}: {cause}"))?;
    Ok(segment)
}

/// Waits for the file with the segment's location, and opens the segment.
fn await_segment(path: &Path) -> Result<Segment, String> {
    let deadline = Deadline::after(PEER_TIMEOUT);
    let text = loop {
        match fs::read_to_string(path) {
            Ok(text) => break text,
            Err(_) if !deadline.has_passed() => std::thread::sleep(Duration::from_millis(1)),
            Err(cause) => return Err(format!("{}: {cause}", path.display())),
        }
    };
    let numbers: Vec<u64> = text.split(' ').filter_map(|word| word.parse().ok()).collect();
    match numbers[..] {
        [process, descriptor] => open_segment(process, descriptor, SEGMENT_BYTES),
        _ => Err(format!("{}: not a process id and a descriptor: {text}", path.display())),
    }
}

/// Maps a segment that another process has created.
pub(super) fn open_segment(process: u64, descriptor: u64, len: usize) -> Result<Segment, String> {
    let path = format!("/proc/{process}/fd/{descriptor}");
    let file = File::options().read(true).write(true).open(&path);
    let file = file.map_err(|cause| format!("{path}: {cause}"))?;
    Segment::open(file.into(), len).map_err(|error| error.to_string())
}
