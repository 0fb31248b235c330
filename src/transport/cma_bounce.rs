//! Kernel copies between processes whose speed does not depend on the addresses.
//!
//! The kernel copies with `rep movsb`. On AMD's Zen 3, a CMA read falls from 8 GB/s to 1.5 GB/s if
//! the destination is 1 to 31 bytes after the source, modulo 4096. For such a pair of addresses,
//! this module divides the copy. The kernel copies between the memory of the other process and a
//! bounce buffer, which has the same offset in its page as that memory. This process copies between
//! the bounce buffer and its own memory with a vector loop ([`crate::base::copy`]), while the bytes
//! are in the L2 cache:
//!
//! ```text
//! other process                 this process
//! source at page offset 0  ---> bounce buffer at page offset 0 ---> destination at page offset 16
//!                       kernel                             vector loop
//! ```
//!
//! A divided copy needs no agreement with the other process. A measurement decides once per process
//! whether its processor is affected; `DIST_CMA_BOUNCE` overrides the decision.
//! `docs/copies.md` has the measurements.

use crate::base::buffer::{Dst, Src};
use crate::base::copy::{copy, copy_part};
use crate::sys;
use std::cell::RefCell;
use std::io;
use std::ops::RangeInclusive;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The size of a page for `rep movsb`.
pub(super) const PAGE_BYTES: usize = 4096;

/// The slow distances: the destination minus the source, modulo [`PAGE_BYTES`].
const SLOW_DISTANCES: RangeInclusive<u64> = 1..=31;

/// The minimum size of a divided copy. A shorter copy gains less than the system call costs.
const MIN_BOUNCE_BYTES: usize = 2048;

/// The size of the bounce buffer. Half of it and twice as much are slower by 10 %: a smaller buffer
/// needs more system calls, and a larger one leaves less of the L2 cache to source and destination.
const BOUNCE_BYTES: usize = 128 << 10;

/// The size, the number and the slow distance of the samples by which a process finds that slow
/// distances exist. All samples together take 50 us.
const SAMPLE_BYTES: usize = 8 << 10;
const SAMPLE_COUNT: usize = 4;
const SAMPLE_DISTANCE: usize = 16;

static IS_ENABLED: OnceLock<bool> = OnceLock::new();

/// Forces the decision, instead of a measurement. Has no effect after the first decision of the
/// process.
pub fn force(is_enabled: bool) {
    IS_ENABLED.get_or_init(|| is_enabled);
}

/// Returns whether this process divides copies at slow distances.
pub fn is_enabled() -> bool {
    *IS_ENABLED.get_or_init(has_slow_distance)
}

/// Measures whether CMA reads at a slow distance take more than twice the time of other CMA reads.
fn has_slow_distance() -> bool {
    let mut memory = vec![1_u8; 2 * SAMPLE_BYTES + 2 * PAGE_BYTES];
    let memory = page_start(Dst::from(memory.as_mut_slice()));
    let address = memory.as_mut_ptr().addr() as u64;
    let best_time = |distance: usize| {
        let into = memory.slice(SAMPLE_BYTES + distance, SAMPLE_BYTES);
        let sample = |_| {
            let began = Instant::now();
            let got = sys::cma::read(std::process::id(), address, into).ok();
            got.filter(|&got| got == SAMPLE_BYTES).map(|_| began.elapsed())
        };
        (0..SAMPLE_COUNT).map(sample).collect::<Option<Vec<Duration>>>()?.into_iter().min()
    };
    let (fast, slow) = (best_time(0), best_time(SAMPLE_DISTANCE));
    fast.zip(slow).is_some_and(|(fast, slow)| slow > 2 * fast)
}

/// Returns the part of a buffer from the first page boundary on.
pub(super) fn page_start(buffer: Dst<'_>) -> Dst<'_> {
    let offset = buffer.as_mut_ptr().align_offset(PAGE_BYTES).min(buffer.len());
    buffer.slice(offset, buffer.len() - offset)
}

/// Returns whether this process divides the long copies from `from` to `to`, because the kernel
/// copies slowly between these two addresses.
pub(super) fn is_slow_pair(to: usize, from: u64) -> bool {
    SLOW_DISTANCES.contains(&((to as u64).wrapping_sub(from) % PAGE_BYTES as u64)) && is_enabled()
}

/// Returns whether a copy between these addresses is divided.
fn needs_bounce(to: usize, from: usize, len: usize) -> bool {
    len >= MIN_BOUNCE_BYTES && is_slow_pair(to, from as u64)
}

/// Returns the length of the first part of a divided copy. The next parts begin at page boundaries
/// of the other process.
fn part_len(address: usize, len: usize) -> usize {
    len.min(BOUNCE_BYTES - address % PAGE_BYTES)
}

/// Calls `action` with the thread's bounce buffer, from the given offset in its first page on.
/// Returns `None` while the thread ends.
fn with_bounce_buffer<T>(page_offset: usize, action: impl FnOnce(Dst<'_>) -> T) -> Option<T> {
    thread_local! {
        static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    let use_buffer = |buffer: &RefCell<Vec<u8>>| {
        let mut buffer = buffer.try_borrow_mut().ok()?;
        buffer.resize(BOUNCE_BYTES + PAGE_BYTES, 0);
        let whole = page_start(Dst::from(buffer.as_mut_slice())).slice(0, BOUNCE_BYTES);
        Some(action(whole.slice(page_offset, BOUNCE_BYTES - page_offset)))
    };
    BUFFER.try_with(use_buffer).ok().flatten()
}

/// Reads as [`sys::cma::read_pieces`]. If the distance of the first piece is slow, reads only the
/// beginning of this piece, and the other pieces with its end. `total_bytes` is the length of the
/// whole vector or message.
///
/// # Errors
/// As [`sys::cma::read_pieces`].
pub(super) fn read_pieces<const N: usize>(
    pid: u32,
    pieces: [(u64, Dst<'_>); N],
    total_bytes: usize,
) -> io::Result<usize> {
    let (address, into) = pieces[0];
    let from = usize::try_from(address).unwrap_or(0);
    if !needs_bounce(into.as_mut_ptr().addr(), from, into.len()) {
        return sys::cma::read_pieces(pid, pieces);
    }
    let read = |bounce: Dst<'_>| {
        let part = bounce.slice(0, part_len(from, into.len()));
        let got = if part.len() == into.len() {
            let mut pieces = pieces;
            pieces[0].1 = part;
            sys::cma::read_pieces(pid, pieces)?
        } else {
            sys::cma::read(pid, address, part)?
        };
        let arrived = got.min(part.len());
        copy_part(total_bytes, into.slice(0, arrived), part.as_src().slice(0, arrived));
        Ok(got)
    };
    with_bounce_buffer(from % PAGE_BYTES, read)
        .unwrap_or_else(|| sys::cma::read_pieces(pid, pieces))
}

/// Returns the beginning of `from` that one call of [`write_pieces`] writes to `address`.
pub(super) fn first_part(address: u64, from: Src<'_>) -> Src<'_> {
    let to = usize::try_from(address).unwrap_or(0);
    if needs_bounce(to, from.as_ptr().addr(), from.len()) {
        from.slice(0, part_len(to, from.len()))
    } else {
        from
    }
}

/// Writes as [`sys::cma::write_pieces`]. The first piece is a [`first_part`].
///
/// # Errors
/// As [`sys::cma::write_pieces`].
pub(super) fn write_pieces<const N: usize>(
    pid: u32,
    pieces: [(u64, Src<'_>); N],
) -> io::Result<usize> {
    let (address, from) = pieces[0];
    let to = usize::try_from(address).unwrap_or(0);
    let is_divided = needs_bounce(to, from.as_ptr().addr(), from.len());
    if !is_divided || part_len(to, from.len()) < from.len() {
        return sys::cma::write_pieces(pid, pieces);
    }
    let write = |bounce: Dst<'_>| {
        let part = bounce.slice(0, from.len());
        copy(part, from);
        let mut pieces = pieces;
        pieces[0].1 = part.as_src();
        sys::cma::write_pieces(pid, pieces)
    };
    with_bounce_buffer(to % PAGE_BYTES, write)
        .unwrap_or_else(|| sys::cma::write_pieces(pid, pieces))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address_of(bytes: Src<'_>) -> u64 {
        bytes.as_ptr().expose_provenance() as u64
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0_u8..251).cycle().step_by(7).take(len).collect()
    }

    /// Lengths below, at and above the limits of a divided copy.
    const LENGTHS: [usize; 7] =
        [2047, 2048, 65_536, BOUNCE_BYTES - 1, BOUNCE_BYTES, BOUNCE_BYTES + 1, 400_003];

    #[test]
    fn slow_distances_are_found_in_both_directions_of_a_page() {
        force(true);
        let is_slow = |to: usize, from: usize| needs_bounce(to, from, MIN_BOUNCE_BYTES);
        assert!(is_slow(16, 0) && is_slow(4096 + 31, 0) && is_slow(0, 4095) && is_slow(8193, 8192));
        assert!(!is_slow(0, 0) && !is_slow(32, 0) && !is_slow(0, 16) && !is_slow(4096, 0));
        assert!(!needs_bounce(16, 0, MIN_BOUNCE_BYTES - 1));
    }

    #[test]
    fn divided_reads_get_the_bytes_and_then_the_trailer() {
        force(true);
        let mut source = pattern(500_000);
        let source = page_start(Dst::from(source.as_mut_slice())).as_src();
        let trailer = [9_u8; 16];
        for len in LENGTHS {
            for (from, to) in [(0, 16), (16, 32), (5, 36), (4090, 4091), (0, 0), (16, 0)] {
                let mut memory = vec![0_u8; len + 3 * PAGE_BYTES];
                let target = page_start(Dst::from(memory.as_mut_slice()));
                let (whole, mut found) = (target.slice(to, len), [0_u8; 16]);
                let (mut done, mut calls) = (0, 0);
                while done < len {
                    assert_eq!(found, [0; 16], "the trailer comes with the last part");
                    let part = whole.slice(done, len - done);
                    let pieces = [
                        (address_of(source.slice(from + done, 1)), part),
                        (address_of(Src::from(&trailer[..])), Dst::from(&mut found[..])),
                    ];
                    let Ok(got) = read_pieces(std::process::id(), pieces, len) else { return };
                    let has_trailer = got > part.len();
                    assert_eq!(has_trailer, done + got.min(part.len()) == len);
                    done += got.min(part.len());
                    calls += 1;
                }
                assert_eq!(found, trailer);
                let is_divided = needs_bounce(to, from, len) && len > BOUNCE_BYTES - from;
                assert_eq!(calls > 1, is_divided, "{len} {from} {to}");
                let mut read = vec![0_u8; len];
                Dst::from(read.as_mut_slice()).copy_from(whole.as_src());
                let mut sent = vec![0_u8; len];
                Dst::from(sent.as_mut_slice()).copy_from(source.slice(from, len));
                assert!(read == sent, "{len} {from} {to}");
            }
        }
    }

    #[test]
    fn divided_writes_put_the_bytes_and_the_trailer() {
        force(true);
        let mut source = pattern(500_000);
        let source = page_start(Dst::from(source.as_mut_slice())).as_src();
        for len in LENGTHS {
            for (from, to) in [(0, 16), (16, 32), (5, 36), (4090, 4091), (0, 0), (16, 0)] {
                let mut memory = vec![0_u8; len + 3 * PAGE_BYTES];
                let target = page_start(Dst::from(memory.as_mut_slice()));
                let (whole, mut flag) = (target.slice(to, len), [1_u8; 8]);
                let mut done = 0;
                while done < len {
                    let address = address_of(whole.slice(done, 1).as_src());
                    let part = first_part(address, source.slice(from + done, len - done));
                    let flag_address = address_of(Dst::from(&mut flag[..]).as_src());
                    let pieces = [(address, part), (flag_address, Src::from(&[0_u8; 8][..]))];
                    let Ok(put) = write_pieces(std::process::id(), pieces) else { return };
                    assert_eq!(put, part.len() + 8);
                    done += part.len();
                }
                assert_eq!(std::hint::black_box(flag), [0; 8]);
                let mut written = vec![0_u8; len];
                Dst::from(written.as_mut_slice()).copy_from(whole.as_src());
                let mut sent = vec![0_u8; len];
                Dst::from(sent.as_mut_slice()).copy_from(source.slice(from, len));
                assert!(written == sent, "{len} {from} {to}");
            }
        }
    }
}
