//! Child groups of a group, and the mapping of their ranks.

use super::args::{OutPtr, index, milliseconds, optional_ranks, optional_str, to_i32};
use super::group::{GROUPS, group};
use super::sized_struct;
use super::types::*;
use crate::api::{Group, SubgroupOptions};
use crate::base::error::{Error, Result};
use std::sync::Arc;

/// Reads the options of a new group.
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

/// Creates the handle of a new group if this rank is a member.
fn write_group(out: &OutPtr<*mut dist_group_t>, new_group: Option<Group>) -> Result<()> {
    if let Some(new_group) = new_group {
        out.write(GROUPS.insert(Arc::new(new_group))?);
    }
    Ok(())
}

dist_export! {
    /// Creates a group of some ranks of another group, in the order given.
    ///
    /// All ranks of `parent` call it, members of the new group or not. The call has its place in
    /// the order of the parent's collectives.
    ///
    /// With `options.use_local_synchronization` only the members need to call it, in no order
    /// with other calls. The members find each other by the name. While a rank has a group of this
    /// kind and name from `parent`, it cannot make a second one. An unnamed group is named after
    /// its ranks and the number of groups made of these ranks before.
    ///
    /// The ranks exchange messages of the parent; they do not use the store. The parent may be
    /// released before or after the new group, which is not affected. Aborting the parent aborts
    /// the new group while both exist. Errors leave the parent usable, with one exception. If a
    /// rank does not make a call of all ranks, or makes another call instead, the parent fails as
    /// with any collective.
    ///
    /// @param parent in: the group whose ranks form the new group.
    /// @param ranks in, optional: `n` ranks of the parent, none twice; NULL only if `n` is 0;
    ///   borrowed for the call.
    /// @param n in: the number of ranks; 0 for all ranks of the parent.
    /// @param options in, optional: NULL for all defaults; borrowed for the call. The default of
    ///   `connect_timeout_ms` is DIST_CONNECT_TIMEOUT_MS, or 5 minutes; DIST_NO_WAIT is refused.
    /// @param out out: the new group, owned by the caller, released with dist_group_release; NULL
    ///   on failure, and with DIST_OK on a rank that is not a member.
    /// @agree the order of calls on the parent, the ranks, the name and the back end.
    /// @blocks until all ranks that make the group have called, until `connect_timeout_ms` at the
    ///   latest.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if ranks, name or options are wrong, or inside a
    ///   completion callback; DIST_ERR_NOT_FOUND if no back end has this name; DIST_ERR_MISMATCH if
    ///   ranks define the group differently (the message has each definition and its ranks);
    ///   DIST_ERR_TIMEOUT if ranks did not call (the message names them); DIST_ERR_PEER_FAILED if
    ///   another rank failed to join, left or died; DIST_ERR_UNSUPPORTED if the parent's back end
    ///   has no messages, the new back end cannot run here or the options set a field that this
    ///   version does not know; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED;
    ///   DIST_ERR_OUT_OF_MEMORY; DIST_ERR_SYSTEM; DIST_ERR_BACKEND if the new back end failed; the
    ///   parent's failure if it has failed.
    /// @threads any.
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
    /// All ranks of `parent` call it. The call has its place in the order of the parent's
    /// collectives. Within a color, ranks are ordered by `key`; ranks with equal keys are ordered
    /// by their ranks in the parent. If the options give a name, all new groups have this name. For
    /// the parent's release and abort the rules of dist_group_new apply.
    ///
    /// @param parent in: the group to split.
    /// @param color in: 0 or more, or DIST_NO_COLOR for no new group on this rank.
    /// @param key in: the sort key; any number.
    /// @param options in, optional: as in dist_group_new; `use_local_synchronization` is refused.
    /// @param out out: this rank's new group, owned by the caller, released with
    ///   dist_group_release; NULL on failure, and with DIST_OK for DIST_NO_COLOR.
    /// @agree the order of calls on the parent; ranks with a color also the name and the back end.
    /// @blocks as dist_group_new.
    /// @return as dist_group_new; DIST_ERR_INVALID_ARGUMENT also if `color` is negative and not
    ///   DIST_NO_COLOR.
    /// @threads any.
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
    /// Copies the ranks that a group's ranks have in the outermost group.
    ///
    /// The outermost group is the one at the beginning of the chain of dist_group_new,
    /// dist_group_split and dist_group_shrink: the world, or a group of dist_group_create. The
    /// latter may define other numbers in `global_ranks`. Element i of the result belongs to rank i
    /// of `group`.
    ///
    /// @param group in: the group.
    /// @param out out, optional: receives up to `cap` ranks; NULL only if `cap` is 0.
    /// @param cap in: the number of ranks that fit into `out`; a longer list is cut.
    /// @agree nothing.
    /// @blocks no.
    /// @return the number of the group's ranks; 0 for NULL or an invalid handle, and if `out` is
    ///   NULL and `cap` is not 0.
    /// @threads any.
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
    /// @return the rank in `group`; -1 if the group does not contain it, and for NULL or an invalid
    ///   handle.
    /// @threads any.
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
    /// @return the rank in the outermost group; -1 if `rank` is no rank of the group, and for NULL
    ///   or an invalid handle.
    /// @threads any.
    /// @since 0.1
    pub fn dist_group_rank_to_global(group: *const dist_group_t, rank: i32) -> i32 {
        let group = self::group(group)?;
        let found = group.global_ranks().get(index(rank, "rank")?).copied();
        found.map_or(Ok(-1), to_i32)
    }
}
