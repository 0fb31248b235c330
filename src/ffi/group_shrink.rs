//! Groups of what is left of a group that has failed.

use super::args::{Out, milliseconds};
use super::group::{GROUPS, group};
use super::options;
use super::types::*;
use crate::api::ShrinkOptions;
use std::sync::Arc;

dist_export! {
    /// Makes a group of those of a failed group's ranks that are left: after DIST_ERR_PEER_FAILED, DIST_ERR_TIMEOUT or any
    /// other failure, to go on without whoever caused it.
    ///
    /// All ranks that go on call it, each after its calls in `group` have failed; a group that has not failed is aborted by
    /// it ("rank 2 shrinks group world"). They find each other by what they know since the group began, without the store and
    /// without the group's own connections. A rank that has died is passed over at once, one that does not call within
    /// timeout_ms after it has been looked for is excluded, and so is the rank that the failure names where that is
    /// DIST_ERR_PEER_FAILED. Those that are left must be more than half of the ranks that are not proven dead (a closed socket
    /// proves it), or half of them with the lowest: of two parts that do not reach each other, one goes on at most. A rank
    /// that dies while they make the group is left out as well.
    ///
    /// The new group has the ranks in the order they had, numbered from 0; dist_group_ranks says which they are of the outermost
    /// group. It has the back end, the options and the time-outs of the old one, and its name with "#1" behind it, "#2" for
    /// what is left of that, and so on. Results that some ranks had and others had not when the group failed are the
    /// caller's to compare: c-examples/survive.c shows how. The old group stays failed, and is released as before;
    /// for the world that is dist_finalize, which may come before or after the new group's release.
    ///
    /// `group`: required. `options`: NULL for all defaults; borrowed for the call. `out`: out, required; owned by
    /// the caller, released with dist_group_release; NULL on failure. Blocks until all who may come have come, and for
    /// timeout_ms for each that does not answer, until connect_timeout_ms at the latest. Any thread; not inside a
    /// completion callback.
    ///
    /// Returns DIST_OK; DIST_ERR_ABORTED where the others have gone on without this rank, for as long as they do;
    /// DIST_ERR_PEER_FAILED where the group has failed because of this rank, and where those that came are too few (the
    /// message has the others, and why each did not come); DIST_ERR_TIMEOUT; DIST_ERR_INVALID_ARGUMENT where another
    /// thread shrinks the group; DIST_ERR_UNSUPPORTED for a back end whose ranks cannot meet again;
    /// DIST_ERR_INVALID_HANDLE, DIST_ERR_NOT_INITIALIZED, DIST_ERR_OUT_OF_MEMORY, DIST_ERR_SYSTEM. It may be called again after
    /// a failure. Since 0.1.
    pub fn dist_group_shrink(
        group: *mut dist_group_t,
        options: *const dist_shrink_options_t,
        out: *mut *mut dist_group_t,
    ) -> dist_status_t {
        let out = Out::handle(out, "out")?;
        let options = options::read(options)?;
        let options = ShrinkOptions {
            timeout_ms: milliseconds(options.timeout_ms, "timeout_ms")?,
            connect_timeout_ms: milliseconds(options.connect_timeout_ms, "connect_timeout_ms")?,
        };
        let made = self::group(group)?.shrink(&options)?;
        out.write(GROUPS.insert(Arc::new(made))?);
        Ok(())
    }
}
