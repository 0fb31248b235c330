//! Batches: calls that are issued together.

use super::args::{Out, slice};
use super::group::group;
use super::types::*;
use super::work::{give_handle, wait_to_the_end};
use crate::api::batch;
use crate::api::callbacks::refuse_to_block;
use crate::base::error::Result;
use std::sync::Arc;

dist_export! {
    /// Begins a batch on the calling thread: its collectives and messages are only collected from now on, and issued
    /// together by dist_batch_end.
    ///
    /// Inside, a call with `work` NULL does not block and returns DIST_OK once its arguments are checked; one with a
    /// work gives it, but it can be waited for only after dist_batch_end. All buffers are borrowed until the work of
    /// the batch is done. Small calls of dist_all_reduce, dist_reduce, dist_broadcast, dist_all_gather and
    /// dist_reduce_scatter that follow each other on a group, with the same dtype, op, root and flags, become one
    /// operation with one sequence number, so all ranks must put the same collectives into the same batch; ranks that do
    /// not get DIST_ERR_MISMATCH. Small is up to 16 KiB, and 256 KiB in all. Calls with DIST_PREMUL_SUM or with an
    /// algorithm stay alone. What was fused has the shortest of the time-outs. Ranks of one host give bitwise the result
    /// of single calls; between hosts floating-point sums may be folded in another order, as for a vector of that length.
    /// No call of a batch may use memory that another one of it writes, whatever their sizes and groups; the buffer of
    /// dist_broadcast counts as written on the root too. A rank where two collectives do so fails their groups with
    /// DIST_ERR_INVALID_ARGUMENT, so that all ranks are told and none waits. `groups`: the groups that the batch may
    /// use, borrowed for the call, none of them NULL; (NULL, 0) allows any. `n`: how many there are. Other
    /// threads are not concerned. Does not block. Any thread.
    ///
    /// Returns DIST_OK, DIST_ERR_INVALID_HANDLE, DIST_ERR_NOT_INITIALIZED, or DIST_ERR_INVALID_ARGUMENT, also where the
    /// thread has begun one already. Since 0.1.
    pub fn dist_batch_begin(groups: *const *mut dist_group_t, n: usize) -> dist_status_t {
        let handles = slice(groups, n, "groups")?;
        let groups: Vec<_> = handles.iter().map(|&handle| group(handle)).collect::<Result<_>>()?;
        batch::begin((n > 0).then_some(&groups[..]))
    }
}

dist_export! {
    /// Issues the calls of the calling thread's batch together: receives first, then sends, then collectives in the
    /// order of the calls, whatever their groups. So no order of sends, receives and groups makes ranks wait for each
    /// other. What NCCL carries goes before all that, as one operation on all its groups, devices and streams.
    ///
    /// `work`: NULL, or out; the work of the whole, owned by the caller, released with dist_work_release; NULL on
    /// failure. It is done when all operations are, with the first error in the order of the calls. With NULL it
    /// blocks until then, which the operations' own deadlines bound. The batch has ended in every case. Any thread.
    ///
    /// Returns DIST_OK; DIST_ERR_INVALID_ARGUMENT without a batch, or for a blocking call inside a completion callback
    /// (then its operations end with DIST_ERR_ABORTED); without a work, and else from it, the first error of an
    /// operation. Since 0.1.
    pub fn dist_batch_end(work: *mut *mut dist_work_t) -> dist_status_t {
        let out = Out::optional_handle(work);
        let batch = batch::end()?;
        let work = Arc::clone(batch.work());
        match out {
            Some(out) => {
                let handle = give_handle(&work)?;
                batch.issue(false);
                out.write(handle);
                Ok(())
            }
            None => {
                refuse_to_block("a blocking end of a batch")?;
                batch.issue(true);
                wait_to_the_end(&work)
            }
        }
    }
}
