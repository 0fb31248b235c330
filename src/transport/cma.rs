//! Reading and writing memory that another rank of the domain has told about, in its process.
//!
//! What is read counts only if the caller's protocol says that the rank had not taken it back. What
//! is written to must still be the writer's to write: so it writes only while its
//! [`RankProgress`](super::progress::Progress) says so, and looks before each part whether the
//! domain has failed. Whoever takes its memory back fails the domain, and waits until nobody
//! writes. That the writer has written is said by the call itself, whose last bytes go to that
//! word: else a writer that is stopped would mostly be found as one that writes, since the kernel
//! stops it at the end of a call.

use super::SharedDomain;
use super::rank_progress::RemoteWritePurpose;
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, Result};
use crate::base::ids::{Nonce, Rank};
use crate::sys;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How much is read at once: between two reads, which take some 30 ms each, a failure is noticed.
/// (Reading 16 MiB in parts of 1 MiB took a tenth longer.)
const READ_CHUNK_BYTES: usize = 128 << 20;

/// How much is written at once: for so long somebody who takes its memory back waits. (Parts of 128
/// KiB take as long as larger ones.)
const WRITE_CHUNK_BYTES: usize = 512 << 10;

/// What the price of reading is measured with: as much as two caches of any core hold, and so many
/// turns, which together last longer than most of what disturbs them.
const SAMPLE_BYTES: usize = 64 << 10;
const SAMPLE_COUNT: usize = 24;

/// How many times as long as a copy within this process reading may take, in halves, for that to be
/// cheaper than a detour: of two copies, into shared memory and out of it. (Measured with 2 ranks
/// and 4 MiB: where it is 2.1, the detour takes 1.2 times as long; where it is 2.9, 0.7 times.)
const MAX_CHEAP_COST_HALVES: u32 = 5;

/// Fills `buffer` with what lies at `address` in the process of a rank.
///
/// # Errors
/// Why the domain has failed; `System` where the memory cannot be read.
pub fn cma_read(domain: &dyn SharedDomain, rank: Rank, address: u64, into: Dst<'_>) -> Result<()> {
    let peer = domain.peer(rank);
    let mut done = 0;
    while done < into.len() {
        if let Some(error) = domain.failure() {
            return Err(error);
        }
        let part = into.slice(done, (into.len() - done).min(READ_CHUNK_BYTES));
        let refused = |cause: &std::io::Error| {
            let what = "reading its memory (process_vm_readv; DIST_CMA=0 does without)";
            Error::system(format_args!("{peer}: {what}"), cause)
        };
        match sys::cma::read(peer.pid, address + done as u64, part).map_err(|e| refused(&e))? {
            0 => return Err(refused(&std::io::ErrorKind::UnexpectedEof.into())),
            more => done += more,
        }
    }
    Ok(())
}

/// Where a rank's process has what others write to.
#[derive(Clone, Copy, Debug)]
pub struct CmaTarget {
    /// The rank.
    pub rank: Rank,
    /// Where the memory lies.
    pub address: u64,
    /// Where the process has the domain's region
    /// ([`Region::address`](super::region::Region::address)).
    pub region_address: u64,
}

/// Copies `from` to the memory of another rank, of which it is known that it does not take that
/// back before the domain has failed.
///
/// # Errors
/// Why the domain has failed; `System` where the memory cannot be written.
pub fn cma_write(
    domain: &dyn SharedDomain,
    purpose: RemoteWritePurpose,
    to: CmaTarget,
    from: Src<'_>,
) -> Result<()> {
    let (region, me, peer) = (domain.region(), domain.rank(), domain.peer(to.rank));
    let status_word = to.region_address.wrapping_add(region.remote_write_offset(me, purpose));
    let mut done = 0;
    while done < from.len() {
        let _write_guard = region.progress(me).begin_remote_write(purpose);
        if let Some(error) = domain.failure() {
            return Err(error);
        }
        let part = from.slice(done, (from.len() - done).min(WRITE_CHUNK_BYTES));
        let pieces = [
            (to.address.wrapping_add(done as u64), part),
            (status_word, Src::from(&WRITE_FINISHED[..])),
        ];
        let refused = |cause: &std::io::Error| {
            let what = "writing its memory (process_vm_writev; DIST_CMA=0 does without)";
            Error::system(format_args!("{peer}: {what}"), cause)
        };
        match sys::cma::write_pieces(peer.pid, pieces).map_err(|e| refused(&e))? {
            0 => return Err(refused(&std::io::ErrorKind::WriteZero.into())),
            more => done += more.min(part.len()),
        }
    }
    Ok(())
}

/// What the word of a rank says that writes to nobody's memory.
const WRITE_FINISHED: [u8; 8] = [0; 8];

/// Whether this process may write as [`cma_write()`] does, which a sandbox may forbid that lets it
/// read: it tries once, with memory of its own.
pub fn can_cma_write() -> bool {
    static CAN_CMA_WRITE: OnceLock<bool> = OnceLock::new();
    *CAN_CMA_WRITE.get_or_init(|| {
        let (from, mut into) = ([1_u8; 2], [0_u8; 2]);
        let address = into.as_mut_ptr().expose_provenance() as u64;
        let wrote = sys::cma::write_pieces(std::process::id(), [(address, Src::from(&from[..]))]);
        wrote.is_ok_and(|put| put == from.len()) && std::hint::black_box(into) == from
    })
}

/// Whether others could read memory of this process: the first and the last byte of both views are
/// read as they would, by one call, which takes a third of what one for each of them does.
pub fn are_readable(one: Src<'_>, other: Src<'_>) -> bool {
    let is_same = (one.as_ptr(), one.len()) == (other.as_ptr(), other.len());
    match (one.is_empty(), other.is_empty()) {
        (true, true) => true,
        (true, false) => can_read_own_memory(end_addresses(other)),
        (false, is_empty) if is_empty || is_same => can_read_own_memory(end_addresses(one)),
        (false, _) => {
            let ([a, b], [c, d]) = (end_addresses(one), end_addresses(other));
            can_read_own_memory([a, b, c, d])
        }
    }
}

/// The addresses of the first and the last byte.
fn end_addresses(bytes: Src<'_>) -> [u64; 2] {
    let start = bytes.as_ptr().addr();
    [start as u64, (start + bytes.len() - 1) as u64]
}

fn can_read_own_memory<const N: usize>(addresses: [u64; N]) -> bool {
    let mut found = [0; N];
    let found = Dst::from(&mut found[..]);
    let pieces = std::array::from_fn(|i| (addresses[i], found.slice(i, 1)));
    sys::cma::read_pieces::<N>(std::process::id(), pieces).is_ok_and(|got| got == N)
}

/// Whether reading the memory of others costs less than their and this rank's copies into memory
/// that they share and out of it: the kernel has to find and hold each page, which takes longer
/// than a copy of it on some machines. Measured once in a process, in some 300 microseconds; false
/// where it may not be read at all.
pub fn is_cma_read_cheap() -> bool {
    static IS_CHEAP: OnceLock<bool> = OnceLock::new();
    *IS_CHEAP.get_or_init(|| {
        let (from, mut into) = (vec![1_u8; SAMPLE_BYTES], vec![2_u8; SAMPLE_BYTES]);
        let (from, into) = (Src::from(from.as_slice()), Dst::from(into.as_mut_slice()));
        let address = from.as_ptr().addr() as u64;
        let read = || {
            sys::cma::read(std::process::id(), address, into).is_ok_and(|got| got == SAMPLE_BYTES)
        };
        let copy = || into.copy_from(from);
        let take_sample = |_| (measure_time(|| _ = read()), measure_time(copy));
        read()
            && relative_cost_halves((0..SAMPLE_COUNT).map(take_sample))
                .is_some_and(|halves| halves <= MAX_CHEAP_COST_HALVES)
    })
}

fn measure_time(action: impl FnOnce()) -> Duration {
    let began = Instant::now();
    action();
    began.elapsed()
}

/// How many times as long reading takes as copying, in halves and rounded up, by the best turn of
/// each: one that was interrupted does not count.
fn relative_cost_halves(samples: impl Iterator<Item = (Duration, Duration)>) -> Option<u32> {
    let (read, copy) = samples.reduce(|best, turn| (best.0.min(turn.0), best.1.min(turn.1)))?;
    u32::try_from((2 * read).as_nanos().div_ceil(copy.as_nanos().max(1))).ok()
}

/// What the process with this id, as this one sees ids, has at `address`; `None` where it may not
/// be read.
pub(super) fn read_process_cookie(pid: u32, address: u64) -> Option<Nonce> {
    let mut found = Nonce::default();
    let into = Dst::from(&mut found.0[..]);
    let len = into.len();
    sys::cma::read(pid, address, into).is_ok_and(|got| got == len).then_some(found)
}

/// Whether it has this mark there.
pub fn has_process_cookie(pid: u32, address: u64, cookie: &Nonce) -> bool {
    read_process_cookie(pid, address) == Some(*cookie)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{PeerName, RegionGeometry, ReusePolicy, inproc};
    use crate::wait::WaitPolicy;

    #[test]
    fn relative_cost_uses_the_fastest_samples() {
        let of = |turns: &[(u64, u64)]| {
            let us = Duration::from_micros;
            relative_cost_halves(turns.iter().map(|&(read, copy)| (us(read), us(copy))))
        };
        assert_eq!(of(&[(90, 10), (25, 400), (30, 11)]), Some(5));
        assert_eq!(of(&[(26, 10)]), Some(6));
        assert_eq!(of(&[(10, 10)]), Some(2));
        assert_eq!(of(&[]), None);
        // Measured once: the same for all groups of a process.
        assert_eq!(is_cma_read_cheap(), is_cma_read_cheap());
    }

    #[test]
    fn kernel_pages_are_not_readable_by_cma() {
        let bytes = [7; 9000];
        let probe = Nonce([3; 16]);
        let address = probe.0.as_ptr().addr() as u64;
        // A sandbox may forbid the call altogether.
        let may_read = has_process_cookie(std::process::id(), address, &probe);
        let (whole, part) = (Src::from(&bytes[..]), Src::from(&bytes[1..2]));
        assert_eq!(are_readable(whole, Src::empty()), may_read);
        assert_eq!(are_readable(Src::empty(), part), may_read);
        assert_eq!(are_readable(whole, whole), may_read);
        assert_eq!(are_readable(whole, part), may_read);
        assert!(are_readable(Src::empty(), Src::empty()));
        // Kernel pages that are mapped into every process, and belong to none.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let vvar = maps.lines().find(|line| line.contains("[vvar")).unwrap();
        let start = usize::from_str_radix(vvar.split('-').next().unwrap(), 16).unwrap();
        assert!(!has_process_cookie(std::process::id(), start as u64, &probe));
        assert!(
            !can_read_own_memory([start as u64]) && !can_read_own_memory([address, start as u64])
        );
        assert!(!has_process_cookie(std::process::id(), address, &Nonce([4; 16])));
    }

    #[test]
    fn remote_write_flag_is_cleared_by_the_last_bytes() {
        if !can_cma_write() {
            return;
        }
        let geometry =
            RegionGeometry { ranks: 2, slot_bytes: 4096, reuse_policy: ReusePolicy::WhileCached };
        let name = |rank| PeerName { rank, pid: std::process::id(), host: "here".into() };
        let pace = WaitPolicy { spin_time: Duration::ZERO, is_oversubscribed: true };
        let group = Nonce([5; 16]);
        let domain =
            inproc::InprocDomain::join(group, 0, 0, vec![name(0), name(1)], geometry, pace)
                .unwrap();
        let mut memory = vec![0_u8; WRITE_CHUNK_BYTES + 3];
        let bytes = vec![7_u8; WRITE_CHUNK_BYTES + 2];
        let address = memory.as_mut_ptr().expose_provenance() as u64;
        let target = CmaTarget { rank: 1, address, region_address: domain.region().address() };
        let word = target.region_address
            + domain.region().remote_write_offset(0, RemoteWritePurpose::Collective);
        cma_write(&domain, RemoteWritePurpose::Collective, target, Src::from(bytes.as_slice()))
            .unwrap();
        assert!(!domain.region().progress(0).is_writing_remotely(RemoteWritePurpose::Collective));
        assert_eq!(std::hint::black_box(&memory)[..bytes.len()], bytes);
        assert_eq!(memory[bytes.len()], 0);
        // The call alone says so.
        let write_guard =
            domain.region().progress(0).begin_remote_write(RemoteWritePurpose::Collective);
        sys::cma::write_pieces(std::process::id(), [(word, Src::from(&WRITE_FINISHED[..]))])
            .unwrap();
        assert!(!domain.region().progress(0).is_writing_remotely(RemoteWritePurpose::Collective));
        drop(write_guard);
        // What has failed is not written for.
        domain.fail(&Error::internal("it has failed"));
        memory.fill(0);
        assert!(
            cma_write(&domain, RemoteWritePurpose::Collective, target, Src::from(bytes.as_slice()))
                .is_err()
        );
        assert!(std::hint::black_box(&memory).iter().all(|&byte| byte == 0));
    }
}
