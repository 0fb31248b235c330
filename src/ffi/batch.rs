//! The exported functions of batches: lists of calls of one thread that the library issues
//! together.

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
    /// A batch collects collectives and messages. Inside a batch, a call without `work` does not
    /// block: it returns DIST_OK after the check of its arguments. A call with `work` returns a
    /// work, which can be waited for only after dist_batch_end. All buffers are borrowed until the
    /// work of the batch completes. A batch has at most 65536 calls; a further call returns
    /// DIST_ERR_OUT_OF_MEMORY.
    ///
    /// No call of a batch may use memory that another call of the batch writes, whatever the sizes
    /// and the groups of the two calls are. The buffer of dist_broadcast counts as written also on
    /// the root. If two collectives break this rule on a rank, their groups fail with
    /// DIST_ERR_INVALID_ARGUMENT on all ranks.
    ///
    /// The library fuses small collectives: it runs several calls as one operation with one
    /// sequence number and the shortest of their time-outs. Calls are fused if all of these
    /// conditions hold:
    ///
    /// - They are calls of dist_all_reduce, dist_reduce, dist_broadcast, dist_all_gather or
    ///   dist_reduce_scatter in host memory.
    /// - They follow each other on a group, and have the same dtype, op, root and
    ///   DIST_CALL_CANONICAL flag.
    /// - The longer buffer of each call has at most 16 KiB, and all calls together have at most 256
    ///   KiB.
    /// - They do not use DIST_PREMUL_SUM, an operator of dist_op_create or a chosen algorithm.
    ///
    /// On one host, the results of fused calls are bitwise those of single calls. Between hosts,
    /// the library may reduce floating-point sums in the order that it uses for a vector of the
    /// total length.
    ///
    /// @param groups in, optional: the groups that the batch may use, none of them NULL; NULL only
    ///   if `n` is 0; borrowed for the call.
    /// @param n in: the number of groups; 0 allows any group.
    /// @agree the collectives of the batch and their order on each group; otherwise the ranks get
    ///   DIST_ERR_MISMATCH.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if the thread has already begun a batch or
    ///   `groups` is wrong; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED.
    /// @threads Any thread may call this at any time. Each thread has its own batch.
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
    /// The library issues the calls on all groups in this order: operations of NCCL, receives,
    /// sends, and then the other collectives in the order of the calls. The operations of NCCL are
    /// issued as one operation on all their groups, devices and streams. Therefore, whatever the
    /// order of the sends, receives and groups in the batches is, the ranks do not deadlock. The
    /// batch has ended even if dist_batch_end fails.
    ///
    /// @param work out, optional: the work of the batch, owned by the caller, released with
    ///   dist_work_release; `*work` is NULL on failure. If `work` itself is NULL, the call blocks.
    ///   The work completes when all operations have completed, with the first error in the order
    ///   of the calls.
    /// @agree the collectives of the batch and their order on each group.
    /// @blocks Until all operations have completed, but at most until their deadlines. A call with
    ///   `work` does not block.
    /// @return DIST_OK. DIST_ERR_INVALID_ARGUMENT if the thread has no batch, or if a call without
    ///   `work` is made inside a completion callback; then the operations end with
    ///   DIST_ERR_ABORTED. DIST_ERR_OUT_OF_MEMORY if there are too many works. Without `work`, also
    ///   the first error of an operation in the order of the calls.
    /// @threads Any thread may call this at any time.
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
