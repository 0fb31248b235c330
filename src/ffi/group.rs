//! The exported functions of groups: creation through a store, abort, release and queries.
//!
//! The world is the group that dist_init makes. Other groups come from `dist_group_create` in this
//! file, and from the functions in `group_new` and `group_shrink`.

use super::args::{
    OutPtr, check_reserved, copy_text, index, milliseconds, optional_device, optional_ranks,
    optional_str, required_str, to_i32,
};
use super::handle::{HandleKind, HandleRef, HandleTable};
use super::store::STORES;
use super::types::*;
use super::{blob, sized_struct};
use crate::api::leave_at_exit::{has_groups_to_leave, leave_all_groups};
use crate::api::{Group, GroupOptions, runtime};
use crate::base::deadline::Timeout;
use crate::base::error::{Error, ErrorKind, Result};
use crate::process::exit_hook::{self, ExitFunction};
use std::ffi::c_char;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The groups that have a handle, the world included.
pub(super) static GROUPS: HandleTable<Group> = HandleTable::new(HandleKind::Group);

/// The handle of the world group; NULL if there is no world.
static WORLD: AtomicPtr<dist_group_t> = AtomicPtr::new(std::ptr::null_mut());

/// Creates the handle of a group. From then on, the process leaves its groups when it ends.
pub(super) fn insert_group(group: Arc<Group>) -> Result<*mut dist_group_t> {
    exit_hook::set(ExitFunction { is_needed: has_groups_to_leave, run: leave_at_exit });
    GROUPS.insert(group)
}

/// Leaves the groups that the program has not released.
fn leave_at_exit() {
    WORLD.store(std::ptr::null_mut(), Ordering::Release);
    leave_all_groups(GROUPS.remove_all());
}

/// Returns the group that a handle names.
pub(super) fn group(handle: *const dist_group_t) -> Result<HandleRef<Group>> {
    if handle.is_null() { Err(null_group_error()) } else { GROUPS.get(handle) }
}

/// Returns the error for a NULL handle. A rank that is not a member of a new group gets NULL as its
/// handle.
#[cold]
fn null_group_error() -> Error {
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

/// Creates the handle of the world group.
pub(super) fn set_world(world: Arc<Group>) -> Result<()> {
    let handle = insert_group(world)?;
    WORLD.store(handle, Ordering::Release);
    Ok(())
}

/// Removes the handle of the world group.
pub(super) fn clear_world() {
    let handle = WORLD.swap(std::ptr::null_mut(), Ordering::AcqRel);
    if !handle.is_null() {
        GROUPS.remove(handle).iter().for_each(|world| world.close_events());
    }
}

dist_export! {
    #[on_error(std::ptr::null_mut())]
    /// Returns the world group.
    ///
    /// @agree nothing.
    /// @blocks no.
    /// @return the world, static: dist_finalize ends it. NULL before dist_init and after
    ///   dist_finalize.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_world() -> *mut dist_group_t {
        Ok(WORLD.load(Ordering::Acquire))
    }
}

dist_export! {
    /// Creates a group whose ranks bootstrap through a store, independently of dist_init.
    ///
    /// A process may have several such groups. The ranks of a group may be threads of one process.
    ///
    /// @param options in: the options; borrowed for the call. Required are `store`, `rank` (with
    ///   DIST_FIELD_RANK in `fields`), `world_size` and `name`. The default of `connect_timeout_ms`
    ///   is DIST_CONNECT_TIMEOUT_MS, or 5 minutes if this variable is unset; DIST_NO_WAIT is
    ///   refused.
    /// @param out out: the group, owned by the caller, released with dist_group_release; NULL on
    ///   failure.
    /// @agree the store, `world_size`, `name`, the back end and `global_ranks`.
    /// @blocks Until all ranks have joined, but at most until `connect_timeout_ms` has passed.
    /// @return as dist_init, but never DIST_ERR_ALREADY_INITIALIZED. DIST_ERR_INVALID_HANDLE if
    ///   `options.store` is NULL or is not the handle of a store.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_group_create(
        options: *const dist_group_options_t,
        out: *mut *mut dist_group_t,
    ) -> dist_status_t {
        let out = OutPtr::handle(out, "out")?;
        if options.is_null() {
            return Err(Error::invalid("argument options is NULL"));
        }
        let options = sized_struct::read(options)?;
        if options.fields & DIST_FIELD_RANK == 0 {
            return Err(Error::invalid("rank is not set: put DIST_FIELD_RANK into fields"));
        }
        check_reserved(options.reserved)?;
        let global_ranks =
            optional_ranks(options.global_ranks, options.n_global_ranks, "global_ranks")?;
        // The members are ranks of the world, which may know that one of them has died.
        let world = global_ranks.as_ref().and_then(|_| runtime::world().ok());
        let options = GroupOptions {
            store: Arc::clone(STORES.get(options.store)?.store()),
            rank: index(options.rank, "rank")?,
            size: index(options.world_size, "world_size")?,
            backend: super::backend::optional_backend_name(options.backend)?,
            backend_options: optional_str(options.backend_options, "backend_options")?
                .unwrap_or_default()
                .to_owned(),
            device: optional_device(options.fields, options.device)?,
            name: required_str(options.name, "name")?.to_owned(),
            timeout_ms: milliseconds(options.timeout_ms, "timeout_ms")?,
            connect_timeout_ms: milliseconds(options.connect_timeout_ms, "connect_timeout_ms")?,
            global_ranks,
            job_secret: None,
        };
        let group = Group::create_within(options, world.as_deref())?;
        out.write(insert_group(Arc::new(group))?);
        Ok(())
    }
}

dist_export! {
    /// Fails a group on all its ranks, with a reason.
    ///
    /// The calls that wait in the group, and its pending works, end with DIST_ERR_ABORTED and the
    /// reason. Later calls in the group return DIST_ERR_ABORTED too. If the group has failed
    /// before, the earlier failure stays.
    ///
    /// The abort also aborts the groups that dist_group_new and dist_group_split made from `group`,
    /// the groups made from those groups, and so on. Each rank that has not released `group` aborts
    /// them.
    ///
    /// @param group in: the group.
    /// @param reason in, optional: a text for the error message; NULL for none; borrowed for the
    ///   call.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED;
    ///   DIST_ERR_INVALID_ARGUMENT if `reason` is not UTF-8 or longer than 1 MiB.
    /// @threads Any thread may call this at any time, also while other threads are inside a
    ///   collective of the group.
    /// @since 0.1
    pub fn dist_group_abort(group: *mut dist_group_t, reason: *const c_char) -> dist_status_t {
        let reason = optional_str(reason, "reason")?.unwrap_or_default();
        self::group(group)?.abort(reason);
        Ok(())
    }
}

dist_export! {
    /// Leaves a group and ends its handle.
    ///
    /// The other ranks can still receive the messages that this rank has sent. If another rank
    /// calls a collective that needs this rank, the collective fails with DIST_ERR_PEER_FAILED.
    /// Blocking calls of other threads and pending works continue until they end, and then this
    /// rank leaves the group. The parent of the group, and the groups made from the group, may be
    /// released before or after the group.
    ///
    /// If the ranks made different calls in the group, this call or dist_finalize returns
    /// DIST_ERR_MISMATCH, and the message names the first difference. For a group of the world,
    /// dist_finalize returns it on all ranks. For any other group, the ranks that release the group
    /// after the first one return it, while the store of the group is open. A rank whose calls have
    /// already returned the failure of the group does not return it again. The rank leaves the
    /// group in any case.
    ///
    /// If the group has ranks on several hosts, the lowest rank of each host should be the last
    /// rank of its host to leave. This rank exchanges reports of failures and deaths with the other
    /// hosts. After it has left, the ranks that stay on its host learn of failures on other hosts
    /// only from their own connections and time-outs.
    ///
    /// @param group in, optional: the group, not the world (see dist_finalize); NULL does nothing.
    /// @agree nothing.
    /// @blocks no, except for a group on GPUs: until the device of this rank and the other ranks
    ///   are ready, but at most 10 seconds. The requests to the store of a group that does not
    ///   belong to the world take at most 300 ms.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT for the world;
    ///   DIST_ERR_MISMATCH if ranks made different calls.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_group_release(group: *mut dist_group_t) -> dist_status_t {
        if group.is_null() {
            return Ok(());
        }
        if group == WORLD.load(Ordering::Acquire) {
            return Err(Error::invalid("the world group cannot be released: call dist_finalize"));
        }
        let group = GROUPS.remove(group)?;
        group.close_events();
        runtime::compare_calls_at_release(&group)
    }
}

dist_export! {
    #[on_error(0)]
    /// Copies the message of the error that failed a group.
    ///
    /// If a rank has died and the group has not failed, the message describes the death. Calls that
    /// do not need that rank still succeed.
    ///
    /// @param group in: the group.
    /// @param buf out, optional: as in dist_last_error_copy; receives the message, or "" if the
    ///   group has not failed.
    /// @param cap in: the size of `buf` in bytes.
    /// @agree nothing.
    /// @blocks no.
    /// @return the number of bytes that the whole message needs, terminator included; 0 if `group`
    ///   is NULL or invalid, and if `buf` is NULL and `cap` is not 0.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_group_error(group: *const dist_group_t, buf: *mut c_char, cap: usize) -> usize {
        let failure = self::group(group)?.failure_or_death();
        copy_text(failure.as_ref().map_or("", Error::message), buf, cap)
    }
}

dist_export! {
    #[on_error(0)]
    /// Returns how many collectives this rank has issued on a group.
    ///
    /// Ranks that made the same calls have the same number. Each collective counts as one, with
    /// these exceptions and additions:
    ///
    /// - A call on byte strings counts as two.
    /// - Calls of a batch that the library has fused into one operation count as one.
    /// - A call of dist_group_new or dist_group_split that all ranks of the parent make counts as
    ///   one on the parent.
    /// - Messages do not count.
    ///
    /// @param group in: the group.
    /// @agree nothing.
    /// @blocks no.
    /// @return the number; 0 before the first collective, and for NULL or an invalid handle.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_group_sequence(group: *const dist_group_t) -> u64 {
        Ok(self::group(group)?.collectives_issued())
    }
}

dist_export! {
    /// Sets the default time-out of a group's operations on this rank.
    ///
    /// The new default applies to later calls whose options set no time-out.
    ///
    /// @param group in: the group.
    /// @param timeout_ms in: the time-out. The default is DIST_TIMEOUT_MS, or 30 minutes if this
    ///   variable is unset; DIST_NO_WAIT is refused.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if `timeout_ms` or DIST_TIMEOUT_MS is wrong;
    ///   DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_group_set_timeout(group: *mut dist_group_t, timeout_ms: i64) -> dist_status_t {
        self::group(group)?.set_timeout_ms(milliseconds(timeout_ms, "timeout_ms")?)
    }
}

dist_export! {
    #[on_error(0)]
    /// Returns the default time-out of a group's operations on this rank, in milliseconds.
    ///
    /// @param group in: the group.
    /// @agree nothing.
    /// @blocks no.
    /// @return the time-out; DIST_WAIT_FOREVER if there is no limit; 0 for NULL or an invalid
    ///   handle.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_group_get_timeout(group: *const dist_group_t) -> i64 {
        Ok(Timeout::after_ms(self::group(group)?.timeout_ms()).number())
    }
}

dist_export! {
    #[on_error(0)]
    /// Copies a group's name.
    ///
    /// @param group in: the group.
    /// @param buf out, optional: receives the name; as in dist_last_error_copy.
    /// @param cap in: the size of `buf` in bytes.
    /// @agree nothing.
    /// @blocks no.
    /// @return as dist_group_error, for the name.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_group_name(group: *const dist_group_t, buf: *mut c_char, cap: usize) -> usize {
        copy_text(self::group(group)?.name(), buf, cap)
    }
}

dist_export! {
    #[on_error(0)]
    /// Copies the name of a group's back end.
    ///
    /// "gloo" is another name of "native". A group that was created with the name "gloo" has this
    /// name here. dist_group_describe has the name of the back end that is in use.
    ///
    /// @param group in: the group.
    /// @param buf out, optional: receives the name; as in dist_last_error_copy.
    /// @param cap in: the size of `buf` in bytes.
    /// @agree nothing.
    /// @blocks no.
    /// @return as dist_group_error, for the name.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_group_backend(group: *const dist_group_t, buf: *mut c_char, cap: usize) -> usize {
        copy_text(&self::group(group)?.requested_backend_name(), buf, cap)
    }
}

dist_export! {
    #[on_error(-1)]
    /// Returns this rank's position among the group's ranks on its host, from 0.
    ///
    /// @param group in: the group.
    /// @agree nothing.
    /// @blocks no.
    /// @return the local rank; -1 for NULL or an invalid handle.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_group_local_rank(group: *const dist_group_t) -> i32 {
        to_i32(self::group(group)?.rank_location().local_rank)
    }
}

dist_export! {
    #[on_error(-1)]
    /// Returns the number of the group's ranks on this rank's host.
    ///
    /// @param group in: the group.
    /// @agree nothing.
    /// @blocks no.
    /// @return the number; -1 for NULL or an invalid handle.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_group_local_size(group: *const dist_group_t) -> i32 {
        to_i32(self::group(group)?.local_size())
    }
}

dist_export! {
    #[on_error(-1)]
    /// Returns the number of this rank's host among the group's hosts, from 0.
    ///
    /// Hosts are ordered by their lowest ranks.
    ///
    /// @param group in: the group.
    /// @agree nothing.
    /// @blocks no.
    /// @return the number; -1 for NULL or an invalid handle.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_group_host_index(group: *const dist_group_t) -> i32 {
        to_i32(self::group(group)?.rank_location().host_index)
    }
}

dist_export! {
    #[on_error(-1)]
    /// Returns the number of hosts that the group's ranks run on.
    ///
    /// @param group in: the group.
    /// @agree nothing.
    /// @blocks no.
    /// @return the number; -1 for NULL or an invalid handle.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_group_host_count(group: *const dist_group_t) -> i32 {
        to_i32(self::group(group)?.host_count())
    }
}

dist_export! {
    /// Describes a group as JSON.
    ///
    /// The JSON has these parts:
    ///
    /// - the members, each with its host, its process and its rank in the outermost group (see
    ///   dist_group_ranks);
    /// - the name of the parent;
    /// - the back end, with its transport and its algorithms by size;
    /// - the default time-out, the failure, the arrival skew (how late each rank is) and the trace.
    ///
    /// @param group in: the group.
    /// @param json out: a blob of one text, owned by the caller, released with dist_blob_release;
    ///   NULL on failure.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `json` is NULL;
    ///   DIST_ERR_NOT_INITIALIZED; DIST_ERR_OUT_OF_MEMORY.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_group_describe(
        group: *const dist_group_t,
        json: *mut *mut dist_blob_t,
    ) -> dist_status_t {
        let out = OutPtr::handle(json, "json")?;
        let text = self::group(group)?.describe().to_string();
        blob::write_blob(&out, vec![text.into_bytes()])
    }
}
