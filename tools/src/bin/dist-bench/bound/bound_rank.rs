//! One of the two ranks of the lower bound.
#![allow(unsafe_code, reason = "raw pointers access buffers of two processes")]

use super::RANKS;
use super::control_segment::{ControlSegment, ControlWord, open_segment};
use super::sum_kernels;
use crate::ops::RankPosition;
use crate::rank::{RankBuffers, measure_calls};
use crate::request::{BenchRequest, RankStamps};
use dist::base::buffer::Dst;
use dist::sys::{cma, shm::Segment};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

/// The sizes in bytes of one read from the other process. A trial selects the fastest size.
const PIECE_SIZES: [usize; 4] = [16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// The number of trials with each size.
const TRIALS_PER_SIZE: usize = 5;

const ELEMENT_BYTES: usize = size_of::<f32>();

/// One rank, after it has connected to the other rank.
#[derive(Debug)]
pub(super) struct BoundRank {
    rank: usize,
    control: ControlSegment,
    buffers: Option<PairBuffers>,
    /// For each rank, the number of pieces of the result that it has reduced so far.
    pieces_reduced: [u64; RANKS],
    scratch: Vec<f32>,
}

/// The buffers of the two ranks. They fit all requests with the same `count` and `is_shared`.
#[derive(Debug)]
struct PairBuffers {
    count: usize,
    is_shared: bool,
    buffers: RankBuffers,
    peer: PeerBuffer,
    /// The size of a piece in bytes.
    piece: usize,
}

/// The other rank's buffer.
#[derive(Debug)]
enum PeerBuffer {
    SharedMapping(Segment),
    /// The process id and the address of the buffer.
    RemoteAddress(u32, u64),
}

impl BoundRank {
    /// Connects the two ranks.
    pub(super) fn connect(rank: usize, path_prefix: &str) -> Result<Self, String> {
        let scratch = vec![0.0; PIECE_SIZES[PIECE_SIZES.len() - 1] / ELEMENT_BYTES];
        let control = ControlSegment::connect(rank, path_prefix)?;
        Ok(Self { rank, control, buffers: None, pieces_reduced: [0; RANKS], scratch })
    }

    /// Executes a request. Returns `None` if this process may not read the memory of the other
    /// process.
    pub(super) fn execute(&mut self, request: &BenchRequest) -> Result<Option<RankStamps>, String> {
        let fits = |pair: &PairBuffers| {
            (pair.count, pair.is_shared) == (request.count, request.uses_arena)
        };
        if !self.buffers.as_ref().is_some_and(fits) {
            // Free the previous buffers before the allocation, because both may not fit in memory.
            self.buffers = None;
            let pair_buffers = if request.uses_arena {
                self.map_shared_buffers(request)?
            } else {
                self.attach_remote_buffers(request)?
            };
            let Some(pair_buffers) = pair_buffers else { return Ok(None) };
            self.buffers = Some(pair_buffers);
        }
        let Some(mut pair_buffers) = self.buffers.take() else {
            return Err("the request has no buffers".into());
        };
        if request.is_verified && !pair_buffers.is_shared {
            self.choose_piece_size(&mut pair_buffers)?;
        }
        let stamps = self.measure_calls(request, &mut pair_buffers);
        self.buffers = Some(pair_buffers);
        stamps.map(Some)
    }

    fn measure_calls(
        &mut self,
        request: &BenchRequest,
        pair_buffers: &mut PairBuffers,
    ) -> Result<RankStamps, String> {
        let PairBuffers { count, buffers, peer, piece, .. } = pair_buffers;
        let (output, rank) = (buffers.output(), self.rank);
        let work = ReduceSlice { local: output.cast(), count: *count, piece: *piece };
        let this = std::cell::RefCell::new(self);
        let barrier = || this.borrow_mut().control.barrier();
        measure_calls(
            request,
            buffers,
            RankPosition { rank, ranks: RANKS },
            barrier,
            barrier,
            || this.borrow_mut().all_reduce(work, peer),
        )
    }

    /// Creates buffers that both processes map.
    fn map_shared_buffers(
        &mut self,
        request: &BenchRequest,
    ) -> Result<Option<PairBuffers>, String> {
        let bytes = request.count * ELEMENT_BYTES;
        let own = Segment::create(bytes.next_multiple_of(8)).map_err(|error| error.to_string())?;
        let descriptor = u64::try_from(own.as_fd().as_raw_fd()).map_err(|e| e.to_string())?;
        self.control.set_word(ControlWord::BufferLocation, descriptor);
        self.control.barrier()?;
        let (process, peer_descriptor) = (
            self.control.peer_word(ControlWord::ProcessId),
            self.control.peer_word(ControlWord::BufferLocation),
        );
        let peer_segment = open_segment(process, peer_descriptor, own.len())?;
        let buffers = RankBuffers::in_segment(request, self.rank, RANKS, own);
        // Wait until the peer has opened this segment. After that, the word for its location may
        // change.
        self.control.barrier()?;
        let (count, piece) = (request.count, 0);
        Ok(Some(PairBuffers {
            count,
            is_shared: true,
            buffers,
            peer: PeerBuffer::SharedMapping(peer_segment),
            piece,
        }))
    }

    /// Creates a private buffer for each rank. Returns `None` if a rank may not read the buffer of
    /// the other rank.
    fn attach_remote_buffers(
        &mut self,
        request: &BenchRequest,
    ) -> Result<Option<PairBuffers>, String> {
        let buffers = RankBuffers::new(request, self.rank, RANKS, None)?;
        let address = u64::try_from(buffers.output().addr()).map_err(|e| e.to_string())?;
        self.control.set_word(ControlWord::BufferLocation, address);
        self.control.barrier()?;
        let (process, peer_address) = (
            self.control.peer_word(ControlWord::ProcessId),
            self.control.peer_word(ControlWord::BufferLocation),
        );
        let process = u32::try_from(process).map_err(|e| e.to_string())?;
        let mut probe = [0u8; ELEMENT_BYTES];
        let may_read = cma::read(process, peer_address, Dst::from(&mut probe[..])).is_ok();
        self.control.set_word(ControlWord::Proposal, u64::from(may_read));
        self.control.barrier()?;
        if !may_read || self.control.peer_word(ControlWord::Proposal) == 0 {
            return Ok(None);
        }
        let (count, piece) = (request.count, PIECE_SIZES[0]);
        let peer = PeerBuffer::RemoteAddress(process, peer_address);
        Ok(Some(PairBuffers { count, is_shared: false, buffers, peer, piece }))
    }

    /// Measures all piece sizes. Both ranks then use the size that was the fastest on rank 0.
    fn choose_piece_size(&mut self, pair_buffers: &mut PairBuffers) -> Result<(), String> {
        let mut best = (Duration::MAX, PIECE_SIZES[0]);
        let local_buffer = pair_buffers.buffers.output().cast();
        for piece in PIECE_SIZES {
            for _ in 0..TRIALS_PER_SIZE {
                self.control.barrier()?;
                let began = Instant::now();
                self.all_reduce(
                    ReduceSlice { local: local_buffer, count: pair_buffers.count, piece },
                    &pair_buffers.peer,
                )?;
                best = best.min((began.elapsed(), piece));
            }
        }
        self.control.set_word(ControlWord::Proposal, best.1 as u64);
        self.control.barrier()?;
        pair_buffers.piece = best.1;
        if self.rank != 0 {
            let piece = self.control.peer_word(ControlWord::Proposal);
            pair_buffers.piece = usize::try_from(piece).map_err(|error| error.to_string())?;
        }
        // Wait until the peer has read the proposed size. After that, the word may change.
        self.control.barrier()
    }

    fn all_reduce(&mut self, work: ReduceSlice, peer: &PeerBuffer) -> Result<(), String> {
        self.control.barrier()?;
        match peer {
            PeerBuffer::SharedMapping(segment) => self.reduce_half(work, segment),
            PeerBuffer::RemoteAddress(process, address) => {
                self.cma_reduce_half(work, *process, *address)?
            }
        }
        self.control.barrier()
    }

    /// Adds this rank's half of the two vectors, and stores the sums in both buffers.
    fn reduce_half(&self, work: ReduceSlice, peer_segment: &Segment) {
        let (from, to) = work.half_range(self.rank);
        let (local, remote) =
            (work.local.wrapping_add(from), peer_segment.as_mut_ptr().cast::<f32>());
        // SAFETY: both buffers have `count` elements. Until the next barrier, the other rank only
        // uses the other half of both.
        unsafe { sum_kernels::add_into_both(local, remote.wrapping_add(from), to - from) };
    }

    /// Reads this rank's half from the other process and adds it to the local half. Then reads the
    /// sums of the other half from the other process.
    fn cma_reduce_half(
        &mut self,
        work: ReduceSlice,
        process: u32,
        address: u64,
    ) -> Result<(), String> {
        let read = |at: usize, bytes: usize, into: *mut u8| {
            // SAFETY: `into` points to `bytes` bytes of the buffer or of `scratch`. No other code
            // uses them during the call.
            let into = unsafe { Dst::new(into, bytes) };
            match cma::read(process, address + at as u64, into) {
                Ok(got) if got == bytes => Ok(()),
                Ok(got) => {
                    Err(format!("cma_read of the other process: read {got} of {bytes} bytes"))
                }
                Err(cause) => Err(format!("cma_read of the other process: {cause}")),
            }
        };
        for (from, to) in work.piece_ranges(self.rank) {
            let scratch = self.scratch.as_mut_ptr();
            read(from * ELEMENT_BYTES, (to - from) * ELEMENT_BYTES, scratch.cast())?;
            // SAFETY: `scratch` holds a whole piece. The piece is inside the buffer. The other rank
            // reads the piece only after `PiecesReduced` is set, and never writes it.
            unsafe {
                sum_kernels::add_into_first(work.local.wrapping_add(from), scratch, to - from)
            };
            self.pieces_reduced[self.rank] += 1;
            self.control.set_word(ControlWord::PiecesReduced, self.pieces_reduced[self.rank]);
        }
        let other_rank = 1 - self.rank;
        for (from, to) in work.piece_ranges(other_rank) {
            self.pieces_reduced[other_rank] += 1;
            self.control.wait_for(ControlWord::PiecesReduced, self.pieces_reduced[other_rank])?;
            let into = work.local.wrapping_add(from).cast();
            read(from * ELEMENT_BYTES, (to - from) * ELEMENT_BYTES, into)?;
        }
        Ok(())
    }
}

/// The vector of this rank and its division into pieces.
#[derive(Clone, Copy, Debug)]
struct ReduceSlice {
    local: *mut f32,
    count: usize,
    /// The size of a piece in bytes.
    piece: usize,
}

impl ReduceSlice {
    /// Returns the range of elements that a rank reduces: its half of the vector.
    const fn half_range(&self, rank: usize) -> (usize, usize) {
        let middle = self.count / 2;
        if rank == 0 { (0, middle) } else { (middle, self.count) }
    }

    /// Divides the half of a rank into pieces.
    fn piece_ranges(&self, rank: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let ((from, to), step) = (self.half_range(rank), (self.piece / ELEMENT_BYTES).max(1));
        (from..to).step_by(step).map(move |at| (at, to.min(at + step)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_both_ranks_cover_the_vector() {
        let work = ReduceSlice { local: std::ptr::null_mut(), count: 25, piece: 16 };
        let all: Vec<(usize, usize)> = work.piece_ranges(0).chain(work.piece_ranges(1)).collect();
        let expected = [(0, 4), (4, 8), (8, 12), (12, 16), (16, 20), (20, 24), (24, 25)];
        assert_eq!(all, expected);
    }

    #[test]
    fn two_ranks_reduce_by_mapping_and_by_cma() {
        let path_prefix = std::env::temp_dir().join(format!("bound-{}", std::process::id()));
        let path_prefix = path_prefix.to_str().unwrap().to_owned();
        let requests = [0, 1].map(|shared| {
            let line = format!("run all_reduce f32 sum 70001 1 2 0 1 1 {shared} 0 1");
            BenchRequest::parse(&line).unwrap()
        });
        let body = |rank: usize| {
            let mut pair = BoundRank::connect(rank, &path_prefix).unwrap();
            requests.clone().map(|request| pair.execute(&request).unwrap())
        };
        let results = std::thread::scope(|scope| {
            [0, 1].map(|rank| scope.spawn(move || body(rank))).map(|rank| rank.join().unwrap())
        });
        std::fs::remove_file(format!("{path_prefix}.control")).unwrap();
        for [cma_stamps, direct] in results {
            let direct = direct.unwrap();
            assert_eq!((direct.wrong_elements, direct.call_times.len()), (0, 2));
            // A sandbox may forbid reads from another process.
            assert!(cma_stamps.is_none_or(|stamps| (stamps.wrong_elements, stamps.call_times.len()) == (0, 2)));
        }
    }
}
