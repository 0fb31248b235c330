//! The exported function that makes a group of the surviving ranks of a failed group.

use super::args::{OutPtr, milliseconds};
use super::group::{group, insert_group};
use super::sized_struct;
use super::types::*;
use crate::api::ShrinkOptions;
use std::sync::Arc;

dist_export! {
    /// Creates a group of the remaining ranks of a failed group.
    ///
    /// Each remaining rank calls dist_group_shrink after its calls in `group` have failed, for
    /// instance with DIST_ERR_PEER_FAILED or DIST_ERR_TIMEOUT. If the group has not failed, the
    /// call aborts the group. The ranks find each other without the store and without the
    /// connections of the old group. If the call fails, it may be repeated.
    ///
    /// These ranks are not in the new group:
    ///
    /// - ranks that died, also during the call; the call does not wait for them;
    /// - ranks that do not call within `options.timeout_ms`;
    /// - the rank that the failure names, if the failure is DIST_ERR_PEER_FAILED.
    ///
    /// The remaining ranks must be a quorum of the ranks that are not proven dead: more than half
    /// of these ranks, or exactly half of them with the lowest one. A closed socket proves that a
    /// process is dead. Therefore, if the network splits the ranks into two parts, at most one part
    /// continues.
    ///
    /// The new group keeps the order of the ranks, and numbers them from 0; dist_group_ranks
    /// converts them. It has the back end, the options and the time-out of the old group. Its name
    /// ends with "#1" after the first shrink, "#2" after the second, and so on.
    ///
    /// The call that failed may have different results on different ranks; c-examples/survive shows
    /// how to compare the results. The old group stays failed. The caller still releases it, before
    /// or after the new group. If the old group is the world, the caller calls dist_finalize
    /// instead.
    ///
    /// @param group in: the group.
    /// @param options in, optional: NULL for all defaults; borrowed for the call. The default of
    ///   `timeout_ms` is 10 seconds. The default of `connect_timeout_ms` is
    ///   DIST_CONNECT_TIMEOUT_MS, or 5 minutes if this variable is unset. DIST_NO_WAIT is refused
    ///   for both.
    /// @param out out: the new group, owned by the caller, released with dist_group_release; NULL
    ///   on failure.
    /// @agree nothing; every remaining rank calls it.
    /// @blocks Until each rank of the old group has joined, has died, or has not called within
    ///   `timeout_ms`, but at most until `connect_timeout_ms` has passed.
    /// @return DIST_OK. DIST_ERR_ABORTED if the other ranks continue without this rank.
    ///   DIST_ERR_PEER_FAILED if this rank caused the failure, or if too few ranks remain (the
    ///   message has the missing ranks and the reasons). DIST_ERR_TIMEOUT.
    ///   DIST_ERR_INVALID_ARGUMENT if options are wrong, if another thread shrinks the group, or
    ///   inside a completion callback. DIST_ERR_UNSUPPORTED if the back end cannot shrink groups,
    ///   or if the options set a field that this version does not know. DIST_ERR_BACKEND if the
    ///   back end failed. Also DIST_ERR_INVALID_HANDLE, DIST_ERR_NOT_INITIALIZED,
    ///   DIST_ERR_OUT_OF_MEMORY and DIST_ERR_SYSTEM.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_group_shrink(
        group: *mut dist_group_t,
        options: *const dist_shrink_options_t,
        out: *mut *mut dist_group_t,
    ) -> dist_status_t {
        let out = OutPtr::handle(out, "out")?;
        let options = sized_struct::read(options)?;
        let options = ShrinkOptions {
            timeout_ms: milliseconds(options.timeout_ms, "timeout_ms")?,
            connect_timeout_ms: milliseconds(options.connect_timeout_ms, "connect_timeout_ms")?,
        };
        let shrunk = self::group(group)?.shrink(&options)?;
        out.write(insert_group(Arc::new(shrunk))?);
        Ok(())
    }
}
