//! Reads and writes the memory of another rank's process by cross-memory attach (CMA): the system
//! calls `process_vm_readv` and `process_vm_writev`.
//!
//! A read returns valid bytes only if the owner did not withdraw (reuse or free) the buffer before
//! the read ended. The protocol of the caller must prove this.
//!
//! A write must not reach a buffer that the owner has withdrawn. The writer has a flag in the
//! region (the memory that the ranks of the domain share), and follows this protocol:
//!
//! 1. Before each chunk, the writer sets its flag ([`RankProgress::begin_remote_write`]), and then
//!    checks whether the domain has failed.
//! 2. Each `process_vm_writev` call writes the chunk and then a 0 to the flag. The call itself thus
//!    clears the flag. This matters if the writer is stopped by `SIGSTOP`: the kernel stops a
//!    process at the end of a system call. If the writer cleared the flag after the call, a writer
//!    that was stopped there would leave the flag set, and the owner would wait although the write
//!    had ended.
//! 3. An owner that withdraws a buffer fails the domain, and then waits until the flag of each
//!    writer is clear. A writer that sets its flag later sees the failure and does not write.
//!
//! The process id of a rank that has died may belong to another process. Before each chunk, the
//! writer therefore reads the rank's *write cookie*, a random number whose address the rank has
//! published ([`publish_write_cookie`]). Another process has other bytes there, and the writer does
//! not write. The kernel cannot check and write in one call: a process that gets the id between the
//! two calls, some microseconds later, is not detected.
//!
//! [`RankProgress::begin_remote_write`]: super::rank_progress::RankProgress::begin_remote_write

use super::cma_bounce::{self, PAGE_BYTES, page_start};
use super::exposure::cookie_words;
use super::rank_progress::RemoteWritePurpose;
use super::region::Region;
use super::{PeerName, ReusePolicy, SharedDomain};
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, Result};
use crate::base::ids::{Nonce, Rank};
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::sys::{self, host};
use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// The maximum number of bytes per read call. Such a call takes about 30 ms. The reader checks for
/// a failure between two calls. (Reading 16 MiB in chunks of 1 MiB took 10 % longer.)
const READ_CHUNK_BYTES: usize = 128 << 20;

/// The maximum number of bytes per write call. An owner that withdraws its buffer waits for at most
/// one call. (Chunks of 128 KiB or more are all equally fast.)
const WRITE_CHUNK_BYTES: usize = 512 << 10;

/// The size of one sample when the cost of a CMA read is measured. The source and the destination
/// of a sample fit into the L2 cache of any core. Both begin at a page boundary, because the kernel
/// copies slowly at some other distances (see [`cma_bounce`]).
const SAMPLE_BYTES: usize = 64 << 10;
/// The number of samples. All samples together take longer than most disturbances, for example by
/// another process on the same core.
const SAMPLE_COUNT: usize = 24;

/// The highest relative cost of a CMA read at which CMA is used. The relative cost is the time of
/// the read divided by the time of a local copy, and this constant counts it in halves: 5 means
/// 2.5. The alternative to a CMA read is two copies: into shared memory and out of shared memory.
/// Measurements with 2 ranks and 4 MiB: on a machine with a relative cost of 2.1, the two copies
/// take 1.2 times as long as the CMA read. On a machine with 2.9, the two copies take 0.7 times as
/// long.
const MAX_CHEAP_COST_HALVES: u32 = 5;

/// The highest relative cost, in halves, at which messages use CMA on a processor with a victim
/// cache ([`ReusePolicy::AfterEviction`]). There, the ring of a pair does not stay in the near
/// caches, so the two copies of a message take longer than those of a collective. On a Zen 3 with a
/// relative cost of 4 to 5, messages of 512 KiB to 4 MiB take 0.6 to 0.7 of the time by CMA.
const MAX_MESSAGE_COST_HALVES: u32 = 16;

/// Fills `into` with the bytes at `address` in the process of `rank`. Makes one system call per
/// chunk of 128 MiB.
///
/// # Errors
/// Returns the domain's failure, or `System` if the memory cannot be read.
pub fn cma_read(domain: &dyn SharedDomain, rank: Rank, address: u64, into: Dst<'_>) -> Result<()> {
    let peer = domain.peer(rank);
    let mut done = 0;
    while done < into.len() {
        if let Some(error) = domain.failure() {
            return Err(error);
        }
        let part = into.slice(done, (into.len() - done).min(READ_CHUNK_BYTES));
        let pieces = [(address + done as u64, part)];
        let refused = |cause: std::io::Error| {
            let what = "cannot read its memory with process_vm_readv (DIST_CMA=0 disables this)";
            Error::system(format_args!("{peer}: {what}"), cause)
        };
        match cma_bounce::read_pieces(peer.pid, pieces, into.len()).map_err(refused)? {
            0 => return Err(refused(std::io::ErrorKind::UnexpectedEof.into())),
            more => done += more,
        }
    }
    Ok(())
}

/// The destination of a remote write, in the process of another rank.
#[derive(Clone, Copy, Debug)]
pub struct CmaTarget {
    /// The rank that owns the memory.
    pub rank: Rank,
    /// The address of the memory in that rank's process.
    pub address: u64,
    /// The address of the domain's region in that rank's process
    /// ([`Region::address`](super::region::Region::address)).
    pub region_address: u64,
}

/// Copies `from` to the memory of another rank, by the protocol in the head of this module. That
/// rank must not withdraw the memory before the domain has failed.
///
/// # Errors
/// Returns the domain's failure, or `System` if the memory cannot be written.
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
        let address = to.address.wrapping_add(done as u64);
        let chunk = from.slice(done, (from.len() - done).min(WRITE_CHUNK_BYTES));
        let part = cma_bounce::first_part(address, chunk);
        let pieces = [(address, part), (status_word, Src::from(&WRITE_FINISHED[..]))];
        let refused = |cause: std::io::Error| {
            let what = "cannot write its memory with process_vm_writev (DIST_CMA=0 disables this)";
            Error::system(format_args!("{peer}: {what}"), cause)
        };
        check_write_cookie(domain, to.rank)?;
        match cma_bounce::write_pieces(peer.pid, pieces).map_err(refused)? {
            0 => return Err(refused(std::io::ErrorKind::WriteZero.into())),
            more => done += more.min(part.len()),
        }
    }
    Ok(())
}

/// Publishes the cookie by which peers recognise the process of this rank before they write to its
/// memory. Without it, no peer writes. Called when the rank joins a domain.
///
/// # Errors
/// `System` if the system has no random numbers.
pub fn publish_write_cookie(region: &Region, rank: Rank) -> Result<()> {
    let cookie = host::process_nonce()?;
    if let Some(address) = host::process_nonce_address() {
        region.presence(rank).write_cookie.publish(address, cookie_words(&cookie));
    }
    Ok(())
}

/// Checks that the process with the process id of a rank is the rank's process.
fn check_write_cookie(domain: &dyn SharedDomain, rank: Rank) -> Result<()> {
    let peer = domain.peer(rank);
    let failed = |what: &str, cause| Err(Error::system(format_args!("{peer}: {what}"), cause));
    let Some((address, cookie)) = domain.region().presence(rank).write_cookie.get() else {
        let cause = std::io::ErrorKind::NotFound.into();
        return failed("it has published no cookie for writes to its memory", cause);
    };
    let mut found = Nonce::default();
    match sys::cma::read(peer.pid, address, Dst::from(&mut found.0[..])) {
        Ok(_) if cookie_words(&found) == cookie => Ok(()),
        Ok(_) => {
            let cause = std::io::ErrorKind::NotFound.into();
            failed("another process has its process id, so its memory is not written", cause)
        }
        Err(cause) => failed("cannot check its process with process_vm_readv", cause),
    }
}

/// Returns whether the kernel refused an access to the memory of another process: by a lack of
/// rights, or by a filter of system calls. Such a refusal usually lasts.
pub fn is_refused(error: &Error) -> bool {
    error.io_cause().is_some_and(sys::cma::is_refusal)
}

/// Logs that the kernel refuses access to a peer's memory, once for each process.
pub fn log_refusal(peer: &PeerName, reason: &dyn std::fmt::Display) {
    static REFUSED_PROCESSES: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());
    if lock(&REFUSED_PROCESSES).insert(peer.pid) {
        crate::log!(
            LogLevel::Warn,
            "the kernel refuses access to the memory of {peer}, which it granted before (a process \
             changed its user or is no longer dumpable); large vectors and messages of this pair \
             go through shared memory from now on: {reason}"
        );
    }
}

/// The value of a rank's remote-write word while the rank writes to no other rank's memory.
const WRITE_FINISHED: [u8; 8] = [0; 8];

/// Returns whether this process may write as [`cma_write()`] does. A sandbox may allow reads and
/// forbid writes, so the first call of this function tries a write to the memory of this process.
pub fn can_cma_write() -> bool {
    static CAN_CMA_WRITE: OnceLock<bool> = OnceLock::new();
    *CAN_CMA_WRITE.get_or_init(|| {
        let (from, mut into) = ([1_u8; 2], [0_u8; 2]);
        let address = into.as_mut_ptr().expose_provenance() as u64;
        let wrote = sys::cma::write_pieces(std::process::id(), [(address, Src::from(&from[..]))]);
        wrote.is_ok_and(|put| put == from.len()) && std::hint::black_box(into) == from
    })
}

/// Returns whether other processes can read both views, which are in this process, by CMA. The
/// function tries to read the first and the last byte of both views by one CMA call, which takes a
/// third of the time of one call per view.
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

/// Returns the addresses of the first and the last byte of a view that is not empty.
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

/// Returns whether a CMA read costs less than two copies, that is, the peer's copy into shared
/// memory and this rank's copy out of shared memory. Returns false if CMA reads are forbidden.
pub fn is_cma_read_cheap() -> bool {
    cma_cost_halves().is_some_and(|halves| halves <= MAX_CHEAP_COST_HALVES)
}

/// Returns whether long messages are faster by CMA than by two copies through a ring. Returns false
/// if CMA reads are forbidden.
pub fn is_cma_message_cheap() -> bool {
    let max_cost = match ReusePolicy::for_this_cpu() {
        ReusePolicy::WhileCached => MAX_CHEAP_COST_HALVES,
        ReusePolicy::AfterEviction => MAX_MESSAGE_COST_HALVES,
    };
    cma_cost_halves().is_some_and(|halves| halves <= max_cost)
}

/// Returns the relative cost of a CMA read in halves, or `None` if CMA reads are forbidden. For a
/// CMA read, the kernel must look up and pin each page, which takes longer than a copy of the page
/// on some machines. The first call in a process measures the cost in about 300 us.
fn cma_cost_halves() -> Option<u32> {
    static COST_HALVES: OnceLock<Option<u32>> = OnceLock::new();
    *COST_HALVES.get_or_init(|| {
        let mut memory = vec![1_u8; 2 * SAMPLE_BYTES + PAGE_BYTES];
        let memory = page_start(Dst::from(memory.as_mut_slice()));
        let from = memory.slice(0, SAMPLE_BYTES).as_src();
        let into = memory.slice(SAMPLE_BYTES, SAMPLE_BYTES);
        let address = from.as_ptr().addr() as u64;
        let read = || {
            sys::cma::read(std::process::id(), address, into).is_ok_and(|got| got == SAMPLE_BYTES)
        };
        let copy = || into.copy_from(from);
        let take_sample = |_| (measure_time(|| _ = read()), measure_time(copy));
        read().then(|| relative_cost_halves((0..SAMPLE_COUNT).map(take_sample))).flatten()
    })
}

fn measure_time(action: impl FnOnce()) -> Duration {
    let began = Instant::now();
    action();
    began.elapsed()
}

/// Returns the time of a read divided by the time of a copy, in halves and rounded up. Each sample
/// has the time of a read and the time of a copy. The function uses the fastest read and the
/// fastest copy, so that interrupted samples do not count.
fn relative_cost_halves(samples: impl Iterator<Item = (Duration, Duration)>) -> Option<u32> {
    let (read, copy) =
        samples.reduce(|best, sample| (best.0.min(sample.0), best.1.min(sample.1)))?;
    u32::try_from((2 * read).as_nanos().div_ceil(copy.as_nanos().max(1))).ok()
}

/// Reads the process cookie (a random number that identifies a process) at `address` in the process
/// with this id. The id is an id in the PID namespace of this process. Returns `None` if the memory
/// cannot be read.
pub(super) fn read_process_cookie(pid: u32, address: u64) -> Option<Nonce> {
    let mut found = Nonce::default();
    let into = Dst::from(&mut found.0[..]);
    let len = into.len();
    sys::cma::read(pid, address, into).is_ok_and(|got| got == len).then_some(found)
}

/// Returns whether the process with this id has this process cookie at `address`.
pub fn has_process_cookie(pid: u32, address: u64, cookie: &Nonce) -> bool {
    read_process_cookie(pid, address) == Some(*cookie)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::ErrorKind;
    use crate::transport::{PeerName, RegionGeometry, ReusePolicy, inproc};
    use crate::wait::WaitPolicy;

    #[test]
    fn relative_cost_uses_the_fastest_samples() {
        let of = |samples: &[(u64, u64)]| {
            let us = Duration::from_micros;
            relative_cost_halves(samples.iter().map(|&(read, copy)| (us(read), us(copy))))
        };
        assert_eq!(of(&[(90, 10), (25, 400), (30, 11)]), Some(5));
        assert_eq!(of(&[(26, 10)]), Some(6));
        assert_eq!(of(&[(10, 10)]), Some(2));
        assert_eq!(of(&[]), None);
        // The cost is measured once; all groups of a process get the same result.
        assert_eq!(is_cma_read_cheap(), is_cma_read_cheap());
    }

    #[test]
    fn kernel_pages_are_not_readable_by_cma() {
        let bytes = [7; 9000];
        let probe = Nonce([3; 16]);
        let address = probe.0.as_ptr().addr() as u64;
        // A sandbox may forbid the system call.
        let may_read = has_process_cookie(std::process::id(), address, &probe);
        let (whole, part) = (Src::from(&bytes[..]), Src::from(&bytes[1..2]));
        assert_eq!(are_readable(whole, Src::empty()), may_read);
        assert_eq!(are_readable(Src::empty(), part), may_read);
        assert_eq!(are_readable(whole, whole), may_read);
        assert_eq!(are_readable(whole, part), may_read);
        assert!(are_readable(Src::empty(), Src::empty()));
        // The kernel's vvar pages are mapped into every process, but CMA cannot read them.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let vvar = maps.lines().find(|line| line.contains("[vvar")).unwrap();
        let start = usize::from_str_radix(vvar.split('-').next().unwrap(), 16).unwrap();
        assert!(!has_process_cookie(std::process::id(), start as u64, &probe));
        assert!(
            !can_read_own_memory([start as u64]) && !can_read_own_memory([address, start as u64])
        );
        assert!(!has_process_cookie(std::process::id(), address, &Nonce([4; 16])));
    }

    /// Joins rank 0 of two ranks, which are both in this process.
    fn first_of_two_ranks(group: Nonce) -> inproc::InprocDomain {
        let geometry = RegionGeometry::within_host(2, 4096, ReusePolicy::WhileCached);
        let name = |rank| PeerName::new(rank, std::process::id(), "here".into());
        let policy = WaitPolicy { spin_time: Duration::ZERO, is_oversubscribed: true };
        let names = vec![name(0), name(1)];
        inproc::InprocDomain::join(group, 0, 0, names, geometry, policy).unwrap()
    }

    /// After the death of a rank, another process may get its process id.
    #[test]
    fn memory_of_a_process_without_the_cookie_is_not_written() {
        if !can_cma_write() {
            return;
        }
        let domain = first_of_two_ranks(Nonce([6; 16]));
        let region = domain.region();
        let (mut memory, bytes) = (vec![0_u8; 100], vec![7_u8; 100]);
        let address = memory.as_mut_ptr().expose_provenance() as u64;
        let target = CmaTarget { rank: 1, address, region_address: region.address() };
        let write = || {
            let from = Src::from(bytes.as_slice());
            cma_write(&domain, RemoteWritePurpose::Collective, target, from)
        };
        // Rank 1 has not joined.
        let error = write().unwrap_err();
        assert!(error.message().contains("no cookie"), "{error}");
        let other = Nonce([9; 16]);
        let other_address = other.0.as_ptr().addr() as u64;
        let published = &region.presence(1).write_cookie;
        for (address, cookie) in [(other_address, Nonce([8; 16])), (16, other)] {
            published.publish(address, cookie_words(&cookie));
            let error = write().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::System, "{error}");
            assert!(std::hint::black_box(&memory).iter().all(|&byte| byte == 0));
        }
        published.publish(other_address, cookie_words(&other));
        write().unwrap();
        assert_eq!(std::hint::black_box(&memory), &bytes);
    }

    #[test]
    fn remote_write_flag_is_cleared_by_the_last_bytes() {
        if !can_cma_write() {
            return;
        }
        let domain = first_of_two_ranks(Nonce([5; 16]));
        let mut memory = vec![0_u8; WRITE_CHUNK_BYTES + 3];
        let bytes = vec![7_u8; WRITE_CHUNK_BYTES + 2];
        let address = memory.as_mut_ptr().expose_provenance() as u64;
        let target = CmaTarget { rank: 1, address, region_address: domain.region().address() };
        publish_write_cookie(domain.region(), 1).unwrap();
        let word = target.region_address
            + domain.region().remote_write_offset(0, RemoteWritePurpose::Collective);
        cma_write(&domain, RemoteWritePurpose::Collective, target, Src::from(bytes.as_slice()))
            .unwrap();
        assert!(!domain.region().progress(0).is_writing_remotely(RemoteWritePurpose::Collective));
        assert_eq!(std::hint::black_box(&memory)[..bytes.len()], bytes);
        assert_eq!(memory[bytes.len()], 0);
        // The system call alone clears the flag.
        let write_guard =
            domain.region().progress(0).begin_remote_write(RemoteWritePurpose::Collective);
        sys::cma::write_pieces(std::process::id(), [(word, Src::from(&WRITE_FINISHED[..]))])
            .unwrap();
        assert!(!domain.region().progress(0).is_writing_remotely(RemoteWritePurpose::Collective));
        drop(write_guard);
        // If the domain has failed, `cma_write` writes nothing.
        domain.fail(&Error::internal("the domain has failed"));
        memory.fill(0);
        assert!(
            cma_write(&domain, RemoteWritePurpose::Collective, target, Src::from(bytes.as_slice()))
                .is_err()
        );
        assert!(std::hint::black_box(&memory).iter().all(|&byte| byte == 0));
    }
}
