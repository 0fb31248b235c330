//! The exported functions of completion events: a descriptor for event loops, and the list of the
//! works of a group that are done.

use super::args::OutPtr;
use super::group::group;
use super::types::*;
use super::work::WORKS;

dist_export! {
    #[on_error(-1)]
    /// Returns a descriptor that is readable while done works of a group have not been taken.
    ///
    /// The descriptor is for poll, epoll, asyncio and tokio. Wait until it is readable, then call
    /// dist_group_take_done until the result is less than `cap`. The library makes progress without
    /// further calls.
    ///
    /// The descriptor reports works with handles: the works of collectives, of messages, and of
    /// batches whose calls are all in this group. For a batch over several groups, the groups
    /// report the works of its calls, but no group reports the work of the batch. Waiting for a
    /// work does not take it: the descriptor reports the work until it is taken or released.
    /// dist_work_wait may return for a work shortly before the descriptor reports the work.
    ///
    /// @param group in: the group.
    /// @agree nothing.
    /// @blocks no.
    /// @return the descriptor, greater than 2, the same for each call; -1 on failure. The
    ///   descriptor is static: the caller does not read, write or close it. dist_group_release
    ///   closes it; for the world, dist_finalize closes it. Remove the descriptor from the event
    ///   loop before that.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_group_fd(group: *mut dist_group_t) -> i32 {
        self::group(group)?.completion_descriptor(|| WORKS.all())
    }
}

dist_export! {
    #[on_error(0)]
    /// Takes the works of a group that are done and not yet taken, in the order of completion.
    ///
    /// The first call of dist_group_fd starts the list of done works. Works that were done before
    /// this call are in the list too, unless they were released. When the list is empty, the
    /// descriptor is not readable.
    ///
    /// @param group in: the group.
    /// @param out out: the handles of the taken works, the same handles that the calls returned.
    ///   The caller still releases each handle once. NULL only if `cap` is 0.
    /// @param cap in: the capacity of `out`, in handles.
    /// @agree nothing.
    /// @blocks no.
    /// @return the number of handles written; 0 if no work is done, before the first call of
    ///   dist_group_fd, and on failure.
    /// @threads Any thread may call this at any time. Each work is taken once.
    /// @since 0.1
    pub fn dist_group_take_done(
        group: *mut dist_group_t,
        out: *mut *mut dist_work_t,
        cap: usize,
    ) -> usize {
        if cap == 0 {
            return Ok(0);
        }
        OutPtr::required(out, "out")?;
        let completed = self::group(group)?.take_done(cap);
        for (index, &token) in completed.iter().enumerate() {
            let cell = OutPtr::required(out.wrapping_add(index), "out")?;
            cell.write(std::ptr::without_provenance_mut(token));
        }
        Ok(completed.len())
    }
}
