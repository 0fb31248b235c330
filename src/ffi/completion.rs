//! Completion events of a group, for event loops.

use super::args::Out;
use super::group::group;
use super::types::*;
use super::work::WORKS;

dist_export! {
    #[on_error(-1)]
    /// Returns a descriptor that is readable while works of a group are done that dist_group_take_done has not returned.
    ///
    /// For poll, epoll, asyncio and tokio: wait for readability, then call dist_group_take_done until it returns less than
    /// there was room for. The library makes progress without further calls. A work counts if it has a handle: those of
    /// collectives, of messages, and of a batch whose calls are all of this group. A batch over several groups counts in
    /// none of them, its calls with works of their own do. A work that was waited for counts until it is released. A work
    /// is reported shortly after dist_work_wait can return for it.
    ///
    /// @param group in: the group.
    /// @agree nothing.
    /// @blocks no.
    /// @return the descriptor, above 2, the same for each call; static: the caller does not read, write or close it; it is
    ///   closed by dist_group_release, for the world by dist_finalize, so take it out of the event loop before. -1 on
    ///   failure.
    /// @threads any.
    /// @since 0.1
    pub fn dist_group_fd(group: *mut dist_group_t) -> i32 {
        self::group(group)?.completion_descriptor(|| WORKS.all())
    }
}

dist_export! {
    #[on_error(0)]
    /// Takes the works of a group that are done and that it has not returned before, in the order of their completion.
    ///
    /// It counts works from the first call of dist_group_fd on, and works done before that are not released.
    /// The descriptor is not readable any more once none is left.
    ///
    /// @param group in: the group.
    /// @param out out: the handles that the caller has of these works; they are released once, as ever; NULL only if `cap`
    ///   is 0.
    /// @param cap in: how many there is room for.
    /// @agree nothing.
    /// @blocks no.
    /// @return how many were written; 0 if none is done, without dist_group_fd, and on failure.
    /// @threads any; each work is returned once.
    /// @since 0.1
    pub fn dist_group_take_done(
        group: *mut dist_group_t,
        out: *mut *mut dist_work_t,
        cap: usize,
    ) -> usize {
        if cap == 0 {
            return Ok(0);
        }
        Out::required(out, "out")?;
        let taken = self::group(group)?.take_done(cap);
        for (place, &token) in taken.iter().enumerate() {
            let cell = Out::required(out.wrapping_add(place), "out")?;
            cell.write(std::ptr::without_provenance_mut(token));
        }
        Ok(taken.len())
    }
}
