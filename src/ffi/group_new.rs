//! The exported functions that make child groups of a group, and that convert the ranks of the
//! groups.

use super::args::{OutPtr, index, milliseconds, optional_ranks, optional_str, to_i32};
use super::group::{group, insert_group};
use super::sized_struct;
use super::types::*;
use crate::api::{Group, SubgroupOptions};
use crate::base::error::{Error, Result};
use std::sync::Arc;

/// Reads the options of a new child group.
fn read_subgroup_options(options: *const dist_group_new_options_t) -> Result<SubgroupOptions> {
    let options = sized_struct::read(options)?;
    let text = |ptr, name| optional_str(ptr, name).map(|text| text.map(str::to_owned));
    Ok(SubgroupOptions {
        name: text(options.name, "name")?,
        backend: super::backend::optional_backend_name(options.backend)?,
        backend_options: text(options.backend_options, "backend_options")?,
        timeout_ms: milliseconds(options.timeout_ms, "timeout_ms")?,
        connect_timeout_ms: milliseconds(options.connect_timeout_ms, "connect_timeout_ms")?,
        members_only: options.use_local_synchronization != 0,
    })
}

/// Writes the handle of a new group to `out`. If this rank is no member, `new_group` is `None`, and
/// the handle stays NULL.
fn write_group(out: &OutPtr<*mut dist_group_t>, new_group: Option<Group>) -> Result<()> {
    if let Some(new_group) = new_group {
        out.write(insert_group(Arc::new(new_group))?);
    }
    Ok(())
}

dist_export! {
    /// Creates a group of some ranks of another group, in the given order.
    ///
    /// All ranks of `parent` call dist_group_new, also the ranks that are not members of the new
    /// group. The order of this call and of the parent's collectives is the same on all ranks.
    ///
    /// With `options.use_local_synchronization`, only the members need to call dist_group_new, and
    /// the call has no order with other calls. The members find each other by the name of the
    /// group. While a rank has a group that was made in this way from `parent`, the rank cannot
    /// make a second group with the same name. A group without a name in the options gets a name
    /// from its ranks and from the number of earlier groups of these ranks.
    ///
    /// The ranks communicate through messages of the parent, and do not use the store. The parent
    /// may be released before the new group, and the new group stays usable. While both groups
    /// exist, an abort of the parent also aborts the new group.
    ///
    /// After an error the parent stays usable, with one exception. If all ranks of the parent must
    /// call, and a rank does not call or calls another function, the parent fails as in any
    /// collective.
    ///
    /// @param parent in: the group whose ranks form the new group.
    /// @param ranks in, optional: `n` different ranks of the parent; NULL only if `n` is 0;
    ///   borrowed for the call.
    /// @param n in: the number of ranks; 0 for all ranks of the parent.
    /// @param options in, optional: NULL for all defaults; borrowed for the call. The default of
    ///   `connect_timeout_ms` is DIST_CONNECT_TIMEOUT_MS, or 5 minutes if this variable is unset;
    ///   DIST_NO_WAIT is refused.
    /// @param out out: the new group, owned by the caller, released with dist_group_release. NULL
    ///   on failure. On a rank that is not a member, NULL with DIST_OK.
    /// @agree the ranks, the name and the back end; the order of calls on the parent.
    /// @blocks Until all ranks that must call have called, but at most until `connect_timeout_ms`
    ///   has passed.
    /// @return DIST_OK. DIST_ERR_INVALID_ARGUMENT if ranks, name or options are wrong, or inside a
    ///   completion callback. DIST_ERR_NOT_FOUND if no back end has the name in the options.
    ///   DIST_ERR_MISMATCH if ranks define the group differently (the message has each definition
    ///   and its ranks). DIST_ERR_TIMEOUT if ranks did not call (the message names them).
    ///   DIST_ERR_PEER_FAILED if another rank failed to join, left or died. DIST_ERR_UNSUPPORTED if
    ///   the parent's back end has no messages, if the new back end cannot run here, or if the
    ///   options set a field that this version does not know. DIST_ERR_BACKEND if the new back end
    ///   failed. If the parent has failed, its failure. Also DIST_ERR_INVALID_HANDLE,
    ///   DIST_ERR_NOT_INITIALIZED, DIST_ERR_OUT_OF_MEMORY and DIST_ERR_SYSTEM.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_group_new(
        parent: *mut dist_group_t,
        ranks: *const i32,
        n: usize,
        options: *const dist_group_new_options_t,
        out: *mut *mut dist_group_t,
    ) -> dist_status_t {
        let out = OutPtr::handle(out, "out")?;
        let ranks = optional_ranks(ranks, n, "ranks")?.unwrap_or_default();
        let options = read_subgroup_options(options)?;
        write_group(&out, group(parent)?.new_group(&ranks, &options)?)
    }
}

dist_export! {
    /// Splits a group into one group for each color.
    ///
    /// All ranks of `parent` call dist_group_split. The order of this call and of the parent's
    /// collectives is the same on all ranks. Within a color, the new ranks are in the order of
    /// `key`; ranks with equal keys keep their order in the parent. If the options have a name, all
    /// new groups get this name. The rules of dist_group_new for the release and the abort of the
    /// parent apply.
    ///
    /// For example, with 4 ranks, the colors 0, 1, 0, 1 and equal keys make two groups: ranks 0 and
    /// 2 of the parent, and ranks 1 and 3 of the parent.
    ///
    /// @param parent in: the group to split.
    /// @param color in: 0 or more, or DIST_NO_COLOR for no new group on this rank.
    /// @param key in: the sort key of this rank; any number.
    /// @param options in, optional: as in dist_group_new; `use_local_synchronization` is refused.
    /// @param out out: this rank's new group, owned by the caller, released with
    ///   dist_group_release. NULL on failure. With DIST_NO_COLOR, NULL with DIST_OK.
    /// @agree the order of calls on the parent. The ranks with a color also agree on the name and
    ///   the back end.
    /// @blocks as dist_group_new.
    /// @return as dist_group_new. DIST_ERR_INVALID_ARGUMENT also if `color` is negative and not
    ///   DIST_NO_COLOR.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_group_split(
        parent: *mut dist_group_t,
        color: i32,
        key: i32,
        options: *const dist_group_new_options_t,
        out: *mut *mut dist_group_t,
    ) -> dist_status_t {
        let out = OutPtr::handle(out, "out")?;
        let color = match color {
            DIST_NO_COLOR => None,
            _ => Some(u32::try_from(color).map_err(|_| {
                Error::invalid(format!("color is {color}: use 0 or more, or DIST_NO_COLOR"))
            })?),
        };
        let options = read_subgroup_options(options)?;
        write_group(&out, group(parent)?.split(color, key, &options)?)
    }
}

dist_export! {
    #[on_error(0)]
    /// Copies, for each rank of a group, the rank of the same process in the outermost group.
    ///
    /// The outermost group is the first group of the chain: dist_group_new, dist_group_split and
    /// dist_group_shrink make a group from another one, and the first group is the world or comes
    /// from dist_group_create. The options of dist_group_create may set other numbers in
    /// `global_ranks`. Element i of the result belongs to rank i of `group`.
    ///
    /// @param group in: the group.
    /// @param out out, optional: receives up to `cap` ranks; NULL only if `cap` is 0.
    /// @param cap in: the number of ranks that fit into `out`. A longer list is truncated.
    /// @agree nothing.
    /// @blocks no.
    /// @return the number of ranks in the group; 0 if `group` is NULL or invalid, and if `out` is
    ///   NULL and `cap` is not 0.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_group_ranks(group: *const dist_group_t, out: *mut i32, cap: usize) -> usize {
        let group = self::group(group)?;
        let ranks = group.global_ranks();
        if cap != 0 {
            OutPtr::required(out, "out")?;
        }
        for (index, &rank) in ranks.iter().take(cap).enumerate() {
            OutPtr::required(out.wrapping_add(index), "out")?.write(to_i32(rank)?);
        }
        Ok(ranks.len())
    }
}

dist_export! {
    #[on_error(-1)]
    /// Converts a rank of the outermost group (see dist_group_ranks) to a rank of a group.
    ///
    /// @param group in: the group.
    /// @param global_rank in: the rank in the outermost group.
    /// @agree nothing.
    /// @blocks no.
    /// @return the rank in `group`; -1 if the group does not contain the rank, and if `group` is
    ///   NULL or invalid.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_group_rank_from_global(group: *const dist_group_t, global_rank: i32) -> i32 {
        let group = self::group(group)?;
        let global = index(global_rank, "global_rank")?;
        let found = group.global_ranks().iter().position(|&rank| rank == global);
        found.map_or(Ok(-1), to_i32)
    }
}

dist_export! {
    #[on_error(-1)]
    /// Converts a rank of a group to its rank in the outermost group (see dist_group_ranks).
    ///
    /// @param group in: the group.
    /// @param rank in: the rank in `group`.
    /// @agree nothing.
    /// @blocks no.
    /// @return the rank in the outermost group; -1 if `rank` is no rank of the group, and if
    ///   `group` is NULL or invalid.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_group_rank_to_global(group: *const dist_group_t, rank: i32) -> i32 {
        let group = self::group(group)?;
        let found = group.global_ranks().get(index(rank, "rank")?).copied();
        found.map_or(Ok(-1), to_i32)
    }
}
