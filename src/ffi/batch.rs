//! Batches: calls that are issued together.

use super::args::{OutPtr, slice};
use super::group::group;
use super::types::*;
use super::work::{create_handle, wait_until_done};
use crate::api::collective::batch;
use crate::api::work::callbacks::reject_blocking_in_callback;
use crate::base::error::Result;
use std::sync::Arc;

dist_export! {
    /// Begins a batch of the calling thread, which collects calls until dist_batch_end.
    ///
    /// Collectives and messages are collected. Inside a batch, a call without `work` does not
    /// block: it returns DIST_OK after the check of its arguments. A call with `work` returns a
    /// work, which can be waited for only after dist_batch_end. All buffers are borrowed until the
    /// work of the batch completes. A batch has at most 65536 calls; a further call returns
    /// DIST_ERR_OUT_OF_MEMORY.
    ///
    /// Small calls of dist_all_reduce, dist_reduce, dist_broadcast, dist_all_gather and
    /// dist_reduce_scatter in host memory are fused. They must follow each other on a group and
    /// have the same dtype, op, root and DIST_CALL_CANONICAL flag. A call is small up to 16 KiB for
    /// its longer buffer; a fused operation has at most 256 KiB. Fused calls are one operation with
    /// one sequence number and the shortest of their time-outs. Calls with DIST_PREMUL_SUM, an
    /// operator of dist_op_create or a chosen algorithm are not fused. On one host the results are
    /// bitwise those of single calls. Between hosts, floating-point sums may be reduced in the
    /// order for a vector of the whole length.
    ///
    /// No call of a batch may use memory that another call of the batch writes, whatever their
    /// sizes and groups. The buffer of dist_broadcast counts as written on the root too. If two
    /// collectives break this rule on a rank, their groups fail with DIST_ERR_INVALID_ARGUMENT on
    /// all ranks.
    ///
    /// @param groups in, optional: the groups that the batch may use, none of them NULL; NULL only
    ///   if `n` is 0; borrowed for the call.
    /// @param n in: the number of groups; 0 allows any group.
    /// @agree the collectives of the batch and their order on each group; otherwise the ranks get
    ///   DIST_ERR_MISMATCH.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if the thread has already begun a batch or
    ///   `groups` is wrong; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED.
    /// @threads any; each thread has its own batch.
    /// @since 0.1
    pub fn dist_batch_begin(groups: *const *mut dist_group_t, n: usize) -> dist_status_t {
        let handles = slice(groups, n, "groups")?;
        let group = |&handle: &*mut dist_group_t| group(handle).map(|it| Arc::clone(&it));
        let groups: Vec<_> = handles.iter().map(group).collect::<Result<_>>()?;
        batch::begin((n > 0).then_some(&groups[..]))
    }
}

dist_export! {
    /// Ends the calling thread's batch and issues its calls.
    ///
    /// Receives are issued first, then sends, then collectives in the order of the calls, on all
    /// groups. So no order of sends, receives and groups makes ranks wait for each other.
    /// Operations of NCCL are issued before these, as one operation on all their groups,
    /// devices and streams. The batch has ended even if the call fails.
    ///
    /// @param work out, optional: NULL to block; else the work of the batch, owned by the caller,
    ///   released with dist_work_release; NULL on failure. It completes when all operations have
    ///   completed, with the first error in the order of the calls.
    /// @agree the collectives of the batch and their order on each group.
    /// @blocks until all operations have completed, until their deadlines at the latest; with
    ///   `work` no.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if the thread has no batch, or without `work`
    ///   inside a completion callback (the operations then end with DIST_ERR_ABORTED);
    ///   DIST_ERR_OUT_OF_MEMORY if there are too many works; without `work` the first error of an
    ///   operation.
    /// @threads any.
    /// @since 0.1
    pub fn dist_batch_end(work: *mut *mut dist_work_t) -> dist_status_t {
        let out = OutPtr::optional_handle(work);
        let batch = batch::end()?;
        let work = Arc::clone(batch.work());
        match out {
            Some(out) => {
                let handle = create_handle(&work)?;
                batch.issue(false);
                out.write(handle);
                Ok(())
            }
            None => {
                reject_blocking_in_callback("the blocking end of a batch")?;
                batch.issue(true);
                wait_until_done(&work)
            }
        }
    }
}
