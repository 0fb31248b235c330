//! Groups.

use super::args::{
    Out, copy_text, device, index, milliseconds, number, optional_str, ranks, required_str,
    reserved,
};
use super::handle::{Kind, Table};
use super::store::STORES;
use super::types::*;
use super::{blob, options};
use crate::api::{Group, GroupOptions, runtime};
use crate::base::deadline::Timeout;
use crate::base::error::{Error, ErrorKind, Result};
use std::ffi::c_char;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

pub(super) static GROUPS: Table<Group> = Table::new(Kind::Group);

/// The world group's handle while there is one.
static WORLD: AtomicPtr<dist_group_t> = AtomicPtr::new(std::ptr::null_mut());

/// Returns the group that a handle names. The world, the most frequent one, takes no lock of the table.
pub(super) fn group(handle: *const dist_group_t) -> Result<Arc<Group>> {
    if handle.is_null() {
        Err(no_group())
    } else if handle == WORLD.load(Ordering::Acquire) {
        runtime::world()
    } else {
        GROUPS.get(handle)
    }
}

/// NULL names no group: it is what a rank outside a new group gets for it.
#[cold]
fn no_group() -> Error {
    if !runtime::is_initialized() {
        return Error::new(
            ErrorKind::NotInitialized,
            "the group is NULL, and dist_init has not been called: call it, then pass dist_world()",
        );
    }
    let message = "the group is NULL: pass dist_world() for the world; a rank that belongs to no new group \
                   gets NULL and makes no calls in it";
    Error::new(ErrorKind::InvalidHandle, message)
}

/// Gives the world a handle.
pub(super) fn remember_world(world: Arc<Group>) -> Result<()> {
    let handle = GROUPS.insert(world)?;
    WORLD.store(handle, Ordering::Release);
    Ok(())
}

/// Ends the world's handle.
pub(super) fn forget_world() {
    let handle = WORLD.swap(std::ptr::null_mut(), Ordering::AcqRel);
    if !handle.is_null() {
        GROUPS.remove(handle).iter().for_each(|world| world.close_events());
    }
}

dist_export! {
    #[on_error(std::ptr::null_mut())]
    /// The world group, or NULL before dist_init and after dist_finalize.
    ///
    /// Static: never released by the caller. Any thread. Since 0.1.
    pub fn dist_world() -> *mut dist_group_t {
        Ok(WORLD.load(Ordering::Acquire))
    }
}

dist_export! {
    /// Makes a group from a store, without any global state: several groups may live in one process, and
    /// ranks may be threads.
    ///
    /// All ranks must agree on store, world_size and name. `options`: required, borrowed for the call. `out`:
    /// out, required; owned by the caller, released with dist_group_release; NULL on failure. Blocks until
    /// all ranks have come, until connect_timeout_ms at the latest. Any thread.
    ///
    /// Returns as dist_init, and DIST_ERR_INVALID_HANDLE for a wrong store. Since 0.1.
    pub fn dist_group_create(
        options: *const dist_group_options_t,
        out: *mut *mut dist_group_t,
    ) -> dist_status_t {
        let out = Out::handle(out, "out")?;
        if options.is_null() {
            return Err(Error::invalid("argument options is NULL"));
        }
        let options = options::read(options)?;
        if options.fields & DIST_FIELD_RANK == 0 {
            return Err(Error::invalid("rank is not set: put DIST_FIELD_RANK into fields"));
        }
        reserved(options.reserved)?;
        let group = Group::create(GroupOptions {
            store: Arc::clone(STORES.get(options.store)?.store()),
            rank: index(options.rank, "rank")?,
            size: index(options.world_size, "world_size")?,
            backend: super::backend::named(options.backend)?,
            backend_options: optional_str(options.backend_options, "backend_options")?
                .unwrap_or_default()
                .to_owned(),
            device: device(options.fields, options.device)?,
            name: required_str(options.name, "name")?.to_owned(),
            timeout_ms: milliseconds(options.timeout_ms, "timeout_ms")?,
            connect_timeout_ms: milliseconds(options.connect_timeout_ms, "connect_timeout_ms")?,
            global_ranks: ranks(options.global_ranks, options.n_global_ranks, "global_ranks")?,
        })?;
        out.write(GROUPS.insert(Arc::new(group))?);
        Ok(())
    }
}

dist_export! {
    /// Fails a group on all its ranks: every call that waits in it returns DIST_ERR_ABORTED with the reason, every
    /// pending work ends with it, and so does every later call. So it is with groups that were made from it by
    /// dist_group_new and dist_group_split, and from those, on all ranks that have not released `group`.
    ///
    /// `group`: required. `reason`: may be NULL; borrowed for the call. Only the first failure of a
    /// group counts. Does not block. Any thread, also while others are inside a collective.
    ///
    /// Returns DIST_OK, DIST_ERR_INVALID_HANDLE, DIST_ERR_NOT_INITIALIZED. Since 0.1.
    pub fn dist_group_abort(group: *mut dist_group_t, reason: *const c_char) -> dist_status_t {
        let reason = optional_str(reason, "reason")?.unwrap_or_default();
        self::group(group)?.abort(reason);
        Ok(())
    }
}

dist_export! {
    /// Leaves a group and releases it. Its other ranks can go on among what they have already received; a
    /// collective that needs this rank ends there with DIST_ERR_PEER_FAILED. On several hosts, the lowest rank of
    /// each host should be the last one there to leave: it tells the other hosts of failures and deaths on its
    /// own, so that ranks that stay behind it learn of them from their connections and time limits only.
    ///
    /// Groups made from it, and the one that it was made from, are other groups: they may be released before or after.
    ///
    /// `group`: NULL does nothing; the world is left with dist_finalize instead. Calls under way on other
    /// threads end as they would; so do pending works, until which the group is not left. Does not block, but for groups on
    /// GPUs: these wait for their device and for the other ranks, 10 seconds at most. Any thread.
    ///
    /// Returns DIST_OK, DIST_ERR_INVALID_HANDLE, or DIST_ERR_INVALID_ARGUMENT for the world. Since 0.1.
    pub fn dist_group_release(group: *mut dist_group_t) -> dist_status_t {
        if group.is_null() {
            return Ok(());
        }
        if group == WORLD.load(Ordering::Acquire) {
            return Err(Error::invalid("the world group is left with dist_finalize"));
        }
        GROUPS.remove(group)?.close_events();
        Ok(())
    }
}

dist_export! {
    #[on_error(0)]
    /// Copies the message of the error that has failed a group; "" while it has not failed.
    ///
    /// `group`: required. `buf`, `cap`: as in dist_last_error_copy. Returns the bytes that the whole
    /// message needs, its terminator included; 0 for an invalid handle. Any thread. Since 0.1.
    pub fn dist_group_error(group: *const dist_group_t, buf: *mut c_char, cap: usize) -> usize {
        let failure = self::group(group)?.failure();
        copy_text(failure.as_ref().map_or("", Error::message), buf, cap)
    }
}

dist_export! {
    #[on_error(0)]
    /// Returns how many collectives have been issued on a group on this rank; ranks that called the same have the same.
    ///
    /// Calls on byte strings count as two, those of a batch that became one operation as one, messages not at all.
    ///
    /// @param group in: the group.
    /// @agree nothing.
    /// @blocks no.
    /// @return the number; 0 before the first one, and for an invalid handle.
    /// @threads any.
    /// @since 0.1
    pub fn dist_group_sequence(group: *const dist_group_t) -> u64 {
        Ok(self::group(group)?.sequence())
    }
}

dist_export! {
    /// Sets the time-out of a group's operations that name none themselves.
    ///
    /// It holds for calls from now on, of this process only.
    ///
    /// @param group in: the group.
    /// @param timeout_ms in: the default is DIST_TIMEOUT_MS, or 30 minutes; DIST_NO_WAIT is refused.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT; DIST_ERR_NOT_INITIALIZED.
    /// @threads any.
    /// @since 0.1
    pub fn dist_group_set_timeout(group: *mut dist_group_t, timeout_ms: i64) -> dist_status_t {
        self::group(group)?.set_timeout_ms(milliseconds(timeout_ms, "timeout_ms")?)
    }
}

dist_export! {
    #[on_error(0)]
    /// Gives the time-out of a group's operations that name none themselves, in milliseconds.
    ///
    /// @param group in: the group.
    /// @agree nothing.
    /// @blocks no.
    /// @return the time-out; DIST_WAIT_FOREVER; 0 for an invalid handle.
    /// @threads any.
    /// @since 0.1
    pub fn dist_group_get_timeout(group: *const dist_group_t) -> i64 {
        Ok(Timeout::after_ms(self::group(group)?.timeout_ms()).number())
    }
}

dist_export! {
    #[on_error(0)]
    /// Copies a group's name.
    ///
    /// `group`: required. `buf`, `cap`, result: as in dist_group_error. Any thread. Since 0.1.
    pub fn dist_group_name(group: *const dist_group_t, buf: *mut c_char, cap: usize) -> usize {
        copy_text(self::group(group)?.name(), buf, cap)
    }
}

dist_export! {
    #[on_error(0)]
    /// Copies the name of the back end that serves a group.
    ///
    /// `group`: required. `buf`, `cap`, result: as in dist_group_error. Any thread. Since 0.1.
    pub fn dist_group_backend(group: *const dist_group_t, buf: *mut c_char, cap: usize) -> usize {
        copy_text(self::group(group)?.backend_name(), buf, cap)
    }
}

dist_export! {
    #[on_error(-1)]
    /// This process's rank among the group's ranks of its host.
    ///
    /// `group`: required. Returns -1 for an invalid handle. Any thread. Since 0.1.
    pub fn dist_group_local_rank(group: *const dist_group_t) -> i32 {
        number(self::group(group)?.place().local_rank)
    }
}

dist_export! {
    #[on_error(-1)]
    /// The number of the group's ranks on this process's host.
    ///
    /// `group`: required. Returns -1 for an invalid handle. Any thread. Since 0.1.
    pub fn dist_group_local_size(group: *const dist_group_t) -> i32 {
        number(self::group(group)?.local_size())
    }
}

dist_export! {
    #[on_error(-1)]
    /// Which of the group's hosts this process is on, from 0 in order of their lowest ranks.
    ///
    /// `group`: required. Returns -1 for an invalid handle. Any thread. Since 0.1.
    pub fn dist_group_host_index(group: *const dist_group_t) -> i32 {
        number(self::group(group)?.place().host_index)
    }
}

dist_export! {
    #[on_error(-1)]
    /// The number of hosts that the group's ranks are on.
    ///
    /// `group`: required. Returns -1 for an invalid handle. Any thread. Since 0.1.
    pub fn dist_group_host_count(group: *const dist_group_t) -> i32 {
        number(self::group(group)?.host_count())
    }
}

dist_export! {
    /// Describes a group as JSON: its ranks and where they are, which ranks of the outermost group they are, the name
    /// of the group that it was made from, the transport, and which algorithm would run
    /// from which size on.
    ///
    /// `group`: required. `json`: out, required; a blob of one text, owned by the caller. Does not
    /// block. Any thread.
    ///
    /// Returns DIST_OK, DIST_ERR_INVALID_HANDLE, DIST_ERR_INVALID_ARGUMENT, DIST_ERR_NOT_INITIALIZED.
    /// Since 0.1.
    pub fn dist_group_describe(
        group: *const dist_group_t,
        json: *mut *mut dist_blob_t,
    ) -> dist_status_t {
        let out = Out::handle(json, "json")?;
        let text = self::group(group)?.describe().to_string();
        blob::give(&out, vec![text.into_bytes()])
    }
}
