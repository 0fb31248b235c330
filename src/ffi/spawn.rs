//! `dist_spawn`: ranks that are forked child processes of the caller.

use super::args::{index, milliseconds, timeout, to_i32};
use super::sized_struct;
use super::types::*;
use crate::api::spawn::{self, SpawnOptions};
use crate::base::error::Error;
use std::ffi::c_void;

dist_export! {
    /// Runs a function in forked processes, one for each rank, and waits for all of them.
    ///
    /// The function is for programs and tests that have no launcher. The environment of each child
    /// has RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and
    /// DIST_STORE_SECRET_FD. With these variables, dist_init(NULL) in the children creates a world
    /// of all children. The parent serves the store of this world on a free port of the loopback
    /// interface until all children have ended. Only the children know the secret of the store.
    ///
    /// End of a child: a child ends when its function returns. The library then flushes the child's
    /// C streams, but exit handlers do not run. The flush waits for a stream that another thread of
    /// the child holds, for instance a thread that reads standard input. Therefore, such threads
    /// must have ended, or the child calls _exit instead of returning. A child may also call exit
    /// or _exit; status 0 means success.
    ///
    /// Failure of a child: a child has failed if its result or exit status is not 0, or if a signal
    /// ended it. The other children then get 100 ms to fail on their own. After that the library
    /// sends SIGTERM to them, and SIGKILL after another `options.grace_ms`. If the parent dies, the
    /// kernel kills the children. The library does not end processes that a child starts.
    ///
    /// Conditions: the parent must have one thread and must not ignore SIGCHLD. It must never have
    /// called dist_init, dist_group_create, dist_store_tcp_create or dist_store_file_create. After
    /// dist_spawn, it may call dist_spawn another time, and may then call dist_init. Each child has
    /// its own copy of a hash store. The library flushes the parent's C streams before the forks.
    /// SIGCHLD is blocked in the calling thread during the call, so no handler reaps the children.
    /// The call does not affect other children and signals of the parent.
    ///
    /// @param function in: called in each child with its rank and `arg`.
    /// @param arg in, optional: passed to `function`; each child has its own copy of the memory.
    /// @param nprocs in: the number of ranks, 1 to 4096. The parent needs 2 free descriptors for
    ///   each rank and 64 more within its limit (ulimit -n).
    /// @param options in, optional: NULL for all defaults; borrowed for the call. The default of
    ///   `join_timeout_ms` is no limit; DIST_NO_WAIT is refused. The default of `grace_ms` is 2
    ///   seconds.
    /// @agree nothing.
    /// @blocks Until all children have ended and been reaped. If SIGKILL does not end a child
    ///   within 5 seconds, the call returns without it.
    /// @return DIST_OK if all children succeeded; DIST_ERR_PEER_FAILED if a child failed (the
    ///   message has the first failed rank, its process, its result or signal, and its last error
    ///   in libdist); DIST_ERR_TIMEOUT if children still ran after `join_timeout_ms` (the message
    ///   names them; they have been ended); DIST_ERR_INVALID_ARGUMENT if an argument is wrong, if
    ///   the parent does not meet the conditions above, or inside a completion callback;
    ///   DIST_ERR_UNSUPPORTED if the options set a field that this version does not know;
    ///   DIST_ERR_OUT_OF_MEMORY or DIST_ERR_SYSTEM if children or their store cannot be started, or
    ///   too few descriptors are free; DIST_ERR_SYSTEM if another part of the program reaped a
    ///   child.
    /// @threads Only the single thread of the process may call this.
    /// @since 0.1
    pub fn dist_spawn(
        function: dist_spawn_fn,
        arg: *mut c_void,
        nprocs: i32,
        options: *const dist_spawn_options_t,
    ) -> dist_status_t {
        let function = function.ok_or_else(|| Error::invalid("argument function is NULL"))?;
        let options = sized_struct::read(options)?;
        let options = SpawnOptions {
            join_timeout_ms: milliseconds(options.join_timeout_ms, "join_timeout_ms")?,
            grace: timeout(options.grace_ms, "grace_ms")?,
        };
        let count = index(nprocs, "nprocs")?;
        spawn::spawn(count, &options, &mut |rank| {
            // SAFETY: the caller's function gets the caller's pointer.
            to_i32(rank).map_or(-1, |rank| unsafe { function(rank, arg) })
        })
    }
}
