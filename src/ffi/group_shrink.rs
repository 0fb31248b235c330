//! Groups of the surviving ranks of a failed group.

use super::args::{OutPtr, milliseconds};
use super::group::{GROUPS, group};
use super::sized_struct;
use super::types::*;
use crate::api::ShrinkOptions;
use std::sync::Arc;

dist_export! {
    /// Creates a group of the remaining ranks of a failed group.
    ///
    /// Each remaining rank calls it after its calls in `group` have failed, for instance with
    /// DIST_ERR_PEER_FAILED or DIST_ERR_TIMEOUT. If the group has not failed, the call aborts it.
    /// The ranks find each other without the store and without the connections of the old group. A
    /// failed attempt may be repeated.
    ///
    /// Dead ranks are left out at once. A rank that does not call within `options.timeout_ms`
    /// is excluded. If the failure is DIST_ERR_PEER_FAILED, the rank that it names is excluded too.
    /// The remaining ranks must be more than half of the ranks that are not proven dead, or exactly
    /// half with the lowest of these. A closed socket proves that a process is dead. So at most one
    /// of two parts that cannot reach each other continues. A rank that dies during the call is
    /// left out as well.
    ///
    /// The new group keeps the order of the ranks, numbered from 0; dist_group_ranks converts them.
    /// It has the back end, the options and the time-out of the old group. Its name ends with "#1",
    /// then "#2" and so on. The ranks may have different results of the call that failed;
    /// c-examples/survive shows how to compare them. The old group stays failed. The caller still
    /// releases it, or calls dist_finalize for the world, before or after the new group's release.
    ///
    /// @param group in: the group.
    /// @param options in, optional: NULL for all defaults; borrowed for the call. The default of
    ///   `timeout_ms` is 10 seconds, of `connect_timeout_ms` DIST_CONNECT_TIMEOUT_MS or 5 minutes;
    ///   DIST_NO_WAIT is refused.
    /// @param out out: the new group, owned by the caller, released with dist_group_release; NULL
    ///   on failure.
    /// @agree nothing; every remaining rank calls it.
    /// @blocks until all remaining ranks have joined or `timeout_ms` has passed for the others,
    ///   until `connect_timeout_ms` at the latest.
    /// @return DIST_OK; DIST_ERR_ABORTED if the other ranks continue without this rank;
    ///   DIST_ERR_PEER_FAILED if this rank caused the failure or too few ranks remain (the message
    ///   has the missing ranks and the reasons); DIST_ERR_TIMEOUT; DIST_ERR_INVALID_ARGUMENT if
    ///   options are wrong, if another thread shrinks the group, or inside a completion callback;
    ///   DIST_ERR_UNSUPPORTED if the back end cannot shrink groups or the options set a field that
    ///   this version does not know; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED;
    ///   DIST_ERR_OUT_OF_MEMORY; DIST_ERR_SYSTEM; DIST_ERR_BACKEND if the back end failed.
    /// @threads any.
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
        out.write(GROUPS.insert(Arc::new(shrunk))?);
        Ok(())
    }
}
