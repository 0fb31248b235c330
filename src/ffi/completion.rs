//! Completion events of a group, for event loops.

use super::args::OutPtr;
use super::group::group;
use super::types::*;
use super::work::WORKS;

dist_export! {
    #[on_error(-1)]
    /// Returns a descriptor that is readable while done works of a group have not been taken.
    ///
    /// It is for poll, epoll, asyncio and tokio: wait until the descriptor is readable, then call
    /// dist_group_take_done until it returns less than `cap`. The library makes progress without
    /// further calls.
    ///
    /// A work counts if it has a handle: the works of collectives, of messages, and of a batch
    /// whose calls are all of this group. A batch over several groups counts in none of them, but
    /// the works of its calls do. A work that was waited for counts until it is taken or released.
    /// dist_work_wait may return for a work shortly before the descriptor reports it.
    ///
    /// @param group in: the group.
    /// @agree nothing.
    /// @blocks no.
    /// @return the descriptor, above 2, the same for each call; -1 on failure. It is static: the
    ///   caller does not read, write or close it. dist_group_release closes it (dist_finalize for
    ///   the world): remove it from the event loop before.
    /// @threads any.
    /// @since 0.1
    pub fn dist_group_fd(group: *mut dist_group_t) -> i32 {
        self::group(group)?.completion_descriptor(|| WORKS.all())
    }
}

dist_export! {
    #[on_error(0)]
    /// Takes the works of a group that are done and not yet taken, in the order of completion.
    ///
    /// It counts works from the first call of dist_group_fd on, and works that were done before and
    /// are not released. Once no work is left, the descriptor is not readable.
    ///
    /// @param group in: the group.
    /// @param out out: the handles of these works, as the caller got them; the caller still
    ///   releases each of them once; NULL only if `cap` is 0.
    /// @param cap in: the capacity of `out`, in handles.
    /// @agree nothing.
    /// @blocks no.
    /// @return the number of handles written; 0 if no work is done, before the first dist_group_fd,
    ///   and on failure.
    /// @threads any; each work is taken once.
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
