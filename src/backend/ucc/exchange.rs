//! The exchange of data between the ranks of a team that UCC creates (its "out-of-band"
//! collective).
//!
//! UCC calls [`start_gather`] and then tests the request. The function only records the gather, so
//! that no rank waits inside UCC. The thread that creates the team runs the recorded gathers
//! ([`TeamExchange::serve`]), with the deadline and the failures of the group's own exchange.

use super::functions::{ERR_NO_MEMORY, ERR_NO_MESSAGE, IN_PROGRESS, OK, OobCollectives, UccStatus};
use crate::backend::BootstrapExchange;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{Rank, WorldSize};
use crate::base::sync::lock;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};

/// The largest contribution of a rank. UCC exchanges addresses of some hundred bytes.
const MAX_CONTRIBUTION: usize = 16 << 20;

/// The largest number of gathers that one team may begin.
const MAX_GATHERS: usize = 256;

/// The exchange of one team.
#[derive(Debug, Default)]
pub(super) struct TeamExchange {
    queue: Mutex<ExchangeQueue>,
}

#[derive(Debug, Default)]
struct ExchangeQueue {
    pending: VecDeque<Arc<Gather>>,
    begun: usize,
    /// True when the team exists. UCC must not begin a gather any more.
    is_closed: bool,
}

/// One gather that UCC has begun.
#[derive(Debug)]
struct Gather {
    contribution: Vec<u8>,
    /// The address of UCC's buffer for the contributions of all ranks.
    destination: usize,
    status: AtomicI32,
}

/// UCC's callback: begins a gather of `size` bytes of each rank.
unsafe extern "C" fn start_gather(
    source: *mut c_void,
    destination: *mut c_void,
    size: usize,
    info: *mut c_void,
    request: *mut *mut c_void,
) -> UccStatus {
    if info.is_null() || request.is_null() || size > MAX_CONTRIBUTION {
        return ERR_NO_MESSAGE;
    }
    let mut contribution = Vec::new();
    if contribution.try_reserve_exact(size).is_err() {
        return ERR_NO_MEMORY;
    }
    contribution.resize(size, 0_u8);
    if size > 0 {
        // SAFETY: UCC's buffer has `size` bytes, and the new vector does not overlap it.
        unsafe { source.cast::<u8>().copy_to_nonoverlapping(contribution.as_mut_ptr(), size) };
    }
    // SAFETY: the exchange that `collectives` passed, which lives as long as the team.
    let exchange = unsafe { &*info.cast::<TeamExchange>() };
    let status = AtomicI32::new(IN_PROGRESS);
    let gather = Arc::new(Gather { contribution, destination: destination.addr(), status });
    if !exchange.enqueue(&gather) {
        return ERR_NO_MESSAGE;
    }
    // SAFETY: UCC's space for the request, which `free_gather` releases.
    unsafe { request.write(Arc::into_raw(gather).cast_mut().cast()) };
    OK
}

/// UCC's callback: returns the state of a gather.
unsafe extern "C" fn test_gather(request: *mut c_void) -> UccStatus {
    if request.is_null() {
        return ERR_NO_MESSAGE;
    }
    // SAFETY: a request of `start_gather` that was not freed.
    unsafe { &*request.cast::<Gather>() }.status.load(Ordering::Acquire)
}

/// UCC's callback: releases the request of a gather.
unsafe extern "C" fn free_gather(request: *mut c_void) -> UccStatus {
    if !request.is_null() {
        // SAFETY: a request of `start_gather`, which UCC frees once.
        drop(unsafe { Arc::from_raw(request.cast::<Gather>().cast_const()) });
    }
    OK
}

impl TeamExchange {
    /// Returns the functions of this exchange for UCC. The exchange must outlive the team.
    pub(super) fn collectives(self: &Arc<Self>, rank: Rank, size: WorldSize) -> OobCollectives {
        OobCollectives {
            all_gather: Some(start_gather),
            request_test: Some(test_gather),
            request_free: Some(free_gather),
            info: Arc::as_ptr(self).cast_mut().cast(),
            endpoints: u32::try_from(size).unwrap_or(u32::MAX),
            endpoint: u32::try_from(rank).unwrap_or(u32::MAX),
        }
    }

    fn enqueue(&self, gather: &Arc<Gather>) -> bool {
        let mut queue = lock(&self.queue);
        if queue.is_closed || queue.begun == MAX_GATHERS {
            return false;
        }
        queue.begun += 1;
        queue.pending.push_back(Arc::clone(gather));
        true
    }

    /// Runs the oldest gather that UCC has begun. Returns false if there is none. All ranks begin
    /// the same gathers in the same order.
    ///
    /// # Errors
    /// The errors of the exchange; `Backend` if the ranks contribute different lengths.
    pub(super) fn serve(
        &self,
        exchange: &dyn BootstrapExchange,
        check_cancelled: &dyn Fn() -> Option<Error>,
    ) -> Result<bool> {
        let (gather, number) = {
            let mut queue = lock(&self.queue);
            let number = queue.begun - queue.pending.len();
            let Some(gather) = queue.pending.pop_front() else { return Ok(false) };
            (gather, number)
        };
        let gathered = exchange
            .all_gather(&format!("ucc-{number}"), &gather.contribution, check_cancelled)
            .and_then(|all| gather.store(&all));
        let status = if gathered.is_ok() { OK } else { ERR_NO_MESSAGE };
        gather.status.store(status, Ordering::Release);
        gathered.map(|()| true)
    }

    /// Keeps the exchange until the process ends, because UCC may still call it.
    pub(super) fn keep_forever(self: &Arc<Self>) {
        let _kept = ManuallyDrop::new(Arc::clone(self));
    }

    /// Refuses later gathers.
    pub(super) fn close(&self) {
        lock(&self.queue).is_closed = true;
    }
}

impl Gather {
    /// Writes the contributions of all ranks to UCC's buffer.
    fn store(&self, all: &[Vec<u8>]) -> Result<()> {
        let size = self.contribution.len();
        if let Some(rank) = all.iter().position(|bytes| bytes.len() != size) {
            let message = format!(
                "rank {rank} gives UCC {} bytes to create its team, and this rank {size}: use one \
                 version and one configuration of UCC on all ranks",
                all[rank].len()
            );
            return Err(Error::new(ErrorKind::Mismatch, message).with_culprit(rank));
        }
        for (rank, bytes) in all.iter().enumerate() {
            let to = std::ptr::with_exposed_provenance_mut::<u8>(self.destination + rank * size);
            // SAFETY: UCC's buffer has `size` bytes for each rank until the gather is complete.
            unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), size) };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An exchange of two ranks, in which rank 1 contributes `other`.
    struct TwoRanks {
        other: Vec<u8>,
    }

    impl BootstrapExchange for TwoRanks {
        fn all_gather(
            &self,
            phase: &str,
            contribution: &[u8],
            _: &dyn Fn() -> Option<Error>,
        ) -> Result<Vec<Vec<u8>>> {
            assert_eq!(phase, "ucc-0");
            Ok(vec![contribution.to_vec(), self.other.clone()])
        }

        fn publish_failure(&self, _: &Error) {}

        fn peer_failure(&self) -> Option<Error> {
            None
        }
    }

    /// Begins a gather of three bytes, and returns its request.
    fn begin(exchange: &Arc<TeamExchange>, destination: &mut [u8]) -> *mut c_void {
        let oob = exchange.collectives(0, 2);
        assert_eq!((oob.endpoints, oob.endpoint), (2, 0));
        let mut source = *b"abc";
        let mut request = std::ptr::null_mut();
        let start = oob.all_gather.unwrap();
        // SAFETY: buffers of the right length that outlive the gather.
        let status = unsafe {
            start(
                source.as_mut_ptr().cast(),
                destination.as_mut_ptr().cast(),
                3,
                oob.info,
                &raw mut request,
            )
        };
        assert_eq!(status, OK);
        request
    }

    fn end(request: *mut c_void) -> UccStatus {
        // SAFETY: a request of `begin`.
        let status = unsafe { test_gather(request) };
        // SAFETY: as above, and it is not used again.
        unsafe { free_gather(request) };
        status
    }

    #[test]
    fn gather_completes_when_served() {
        let exchange = Arc::new(TeamExchange::default());
        let ranks = TwoRanks { other: b"xyz".to_vec() };
        assert!(!exchange.serve(&ranks, &|| None).unwrap());
        let mut all = [0; 6];
        let request = begin(&exchange, &mut all);
        // SAFETY: a request that was not freed.
        assert_eq!(unsafe { test_gather(request) }, IN_PROGRESS);
        assert!(exchange.serve(&ranks, &|| None).unwrap());
        assert_eq!(end(request), OK);
        assert_eq!(&all, b"abcxyz");
        exchange.close();
        let gather = Gather { contribution: vec![], destination: 0, status: AtomicI32::new(0) };
        assert!(!exchange.enqueue(&Arc::new(gather)));
    }

    #[test]
    fn other_length_of_a_rank_is_an_error() {
        let exchange = Arc::new(TeamExchange::default());
        let mut all = [0; 6];
        let request = begin(&exchange, &mut all);
        let error = exchange.serve(&TwoRanks { other: vec![1] }, &|| None).unwrap_err();
        assert_eq!((error.kind(), error.culprit()), (ErrorKind::Mismatch, Some(1)));
        assert_eq!(end(request), ERR_NO_MESSAGE);
        assert_eq!(all, [0; 6]);
    }
}
