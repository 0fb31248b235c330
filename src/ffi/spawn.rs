//! Ranks that are forks of the caller.

use super::args::{index, milliseconds, number, timeout};
use super::options;
use super::types::*;
use crate::api::spawn::{self, SpawnOptions};
use crate::base::error::Error;
use std::ffi::c_void;

dist_export! {
    /// Runs a function in processes of its own, one for each rank, and waits for all of them: for programs and tests without
    /// a launcher.
    ///
    /// Forks this process `nprocs` times (there is no other way to start them: nothing is executed anew). In each child the
    /// environment says what a launcher would say (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT,
    /// DIST_STORE_SECRET_FD), so that dist_init(NULL) there makes a world of them; this process serves their store until they
    /// have ended, on a free port of the loopback interface, with a secret that only they have. A child ends when its function
    /// returns: C's streams are written out, exit handlers do not run. Writing them out waits for each stream that another
    /// thread of the child holds, as one that reads standard input does: such threads must have ended by then, or the child
    /// calls _exit. It may also call exit or _exit itself, and succeeds with status 0. When the first one fails (a result other
    /// than 0, another exit status, a signal), the others get a tenth of a second to fail on their own, then SIGTERM, then
    /// SIGKILL. When this process dies, the kernel kills the children. What children start themselves is theirs to end.
    ///
    /// The caller must have one thread, must never have made a group (dist_init, dist_group_create) or a TCP or file store
    /// (dist_store_tcp_create, dist_store_file_create), even if it has released it, and must not ignore SIGCHLD; it may call
    /// dist_spawn again later, and dist_init after it. Of a hash store every child has a copy of its own. What C's streams hold
    /// back is written out before the forks, so that nothing is written twice. SIGCHLD stays blocked in the calling thread
    /// until the end, so that no handler takes the children's ends; other children and signals of the caller are left alone.
    ///
    /// `function`: required; called in each child with its rank and `arg`. `arg`: may be NULL; every child has its own copy of
    /// what it points to. `nprocs`: 1 to 4096; this process needs 2 descriptors for each and 64 more, which its limit
    /// (ulimit -n) must leave. `options`: NULL for all defaults; borrowed for the call. Blocks until all children have ended,
    /// and no child and no descriptor of the call is left then.
    ///
    /// Returns DIST_OK where all have succeeded; DIST_ERR_PEER_FAILED naming the rank that failed first, its process, its
    /// result, exit status or signal, and its last error in libdist if it had one; DIST_ERR_TIMEOUT naming the ranks that
    /// still ran after join_timeout_ms, which have been ended; DIST_ERR_INVALID_ARGUMENT for wrong arguments, other threads, a
    /// process that has used groups or such stores, and inside a completion callback; DIST_ERR_UNSUPPORTED for unknown
    /// options; DIST_ERR_OUT_OF_MEMORY or DIST_ERR_SYSTEM where the processes or their store cannot be started, descriptors are
    /// too few, or somebody else has waited for one of them. Since 0.1.
    pub fn dist_spawn(
        function: dist_spawn_fn,
        arg: *mut c_void,
        nprocs: i32,
        options: *const dist_spawn_options_t,
    ) -> dist_status_t {
        let function = function.ok_or_else(|| Error::invalid("argument function is NULL"))?;
        let options = options::read(options)?;
        let options = SpawnOptions {
            join_timeout_ms: milliseconds(options.join_timeout_ms, "join_timeout_ms")?,
            grace: timeout(options.grace_ms, "grace_ms")?,
        };
        let count = index(nprocs, "nprocs")?;
        spawn::spawn(count, &options, &mut |rank| {
            // SAFETY: the caller's function, with the caller's pointer.
            number(rank).map_or(-1, |rank| unsafe { function(rank, arg) })
        })
    }
}
