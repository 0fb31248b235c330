//! Groups made from groups, and which rank is which in them.

use super::args::{Out, index, milliseconds, number, optional_str, ranks};
use super::group::{GROUPS, group};
use super::options;
use super::types::*;
use crate::api::{Group, SubgroupOptions};
use crate::base::error::{Error, Result};
use std::sync::Arc;

/// What the options say.
fn read(options: *const dist_group_new_options_t) -> Result<SubgroupOptions> {
    let options = options::read(options)?;
    let text = |ptr, name| optional_str(ptr, name).map(|text| text.map(str::to_owned));
    Ok(SubgroupOptions {
        name: text(options.name, "name")?,
        backend: super::backend::named(options.backend)?,
        backend_options: text(options.backend_options, "backend_options")?,
        timeout_ms: milliseconds(options.timeout_ms, "timeout_ms")?,
        connect_timeout_ms: milliseconds(options.connect_timeout_ms, "connect_timeout_ms")?,
        members_only: options.use_local_synchronization != 0,
    })
}

/// Gives a new group a handle, where this rank is in it.
fn give(out: &Out<*mut dist_group_t>, made: Option<Group>) -> Result<()> {
    if let Some(made) = made {
        out.write(GROUPS.insert(Arc::new(made))?);
    }
    Ok(())
}

dist_export! {
    /// Makes a group of some ranks of another group, in the order given.
    ///
    /// All ranks of `parent` call it, also those that are not in the new group, in the same order with the parent's
    /// other collectives, and agree on the ranks, the name and the back end. With use_local_synchronization only
    /// the new group's members call it, in no order with anything; they find each other by the name, which no
    /// other group that any of them made this way from `parent` and has not released may have; an unnamed one is
    /// named by its ranks and how often these were made a group.
    ///
    /// `parent`: required. `ranks`: in, `n` ranks of the parent, none twice; (NULL, 0) for all of them;
    /// borrowed for the call. `options`: NULL for all defaults; borrowed for the call. `out`: out, required;
    /// owned by the caller, released with dist_group_release; NULL on failure, and with DIST_OK on ranks that are
    /// not in the new group. The ranks meet over messages of the parent; the store is not asked. The parent may be
    /// released before or after the new group, which then goes on as before; aborting it before that aborts the new one.
    /// Blocks until all who make the group have come, until connect_timeout_ms at the latest. Any thread.
    ///
    /// Returns DIST_OK; DIST_ERR_INVALID_ARGUMENT for wrong ranks, names or options, DIST_ERR_NOT_FOUND for an unknown
    /// back end, both before anything has happened; DIST_ERR_MISMATCH on all ranks that came where they define the
    /// group differently (the message has each definition and who said it); DIST_ERR_TIMEOUT naming ranks that did
    /// not come; DIST_ERR_PEER_FAILED where another rank could not join or left; DIST_ERR_SYSTEM where a limit of
    /// the system is reached; DIST_ERR_UNSUPPORTED where the parent's back end has no messages; DIST_ERR_INVALID_HANDLE,
    /// DIST_ERR_NOT_INITIALIZED, DIST_ERR_OUT_OF_MEMORY. The parent goes on after all of these, except where
    /// ranks of it did not come to a call of all of them, or came to another one, which fails it as with any
    /// collective. Since 0.1.
    pub fn dist_group_new(
        parent: *mut dist_group_t,
        ranks: *const i32,
        n: usize,
        options: *const dist_group_new_options_t,
        out: *mut *mut dist_group_t,
    ) -> dist_status_t {
        let out = Out::handle(out, "out")?;
        let ranks = self::ranks(ranks, n, "ranks")?.unwrap_or_default();
        let options = read(options)?;
        give(&out, group(parent)?.new_group(&ranks, &options)?)
    }
}

dist_export! {
    /// Splits a group into one group for each color.
    ///
    /// All ranks of `parent` call it, in the same order with the parent's other collectives; those with a color agree
    /// on the name and the back end. Within a color, ranks are ordered by `key`, and where keys are equal by their
    /// ranks in the parent. All groups have the name that the options give.
    ///
    /// `parent`: required. `color`: 0 or more, or DIST_NO_COLOR for no group. `key`: any number. `options`:
    /// NULL for all defaults; borrowed for the call. `out`: out, required; owned by the caller, released with
    /// dist_group_release; NULL on failure, and with DIST_OK for DIST_NO_COLOR. Releasing, blocking, threads: as in
    /// dist_group_new.
    ///
    /// Returns as dist_group_new. Since 0.1.
    pub fn dist_group_split(
        parent: *mut dist_group_t,
        color: i32,
        key: i32,
        options: *const dist_group_new_options_t,
        out: *mut *mut dist_group_t,
    ) -> dist_status_t {
        let out = Out::handle(out, "out")?;
        let color = match color {
            DIST_NO_COLOR => None,
            _ => Some(u32::try_from(color).map_err(|_| {
                Error::invalid(format!("color is {color}: it is 0 or more, or DIST_NO_COLOR"))
            })?),
        };
        let options = read(options)?;
        give(&out, group(parent)?.split(color, key, &options)?)
    }
}

dist_export! {
    #[on_error(0)]
    /// Copies which ranks of the outermost group a group's ranks are, in the order of its own ranks.
    ///
    /// The outermost group is the one that a chain of dist_group_new and dist_group_split began with: the world, or
    /// one made by dist_group_create, which may say otherwise in global_ranks.
    ///
    /// `group`: required. `out`: out, may be NULL if `cap` is 0. `cap`: how many ranks it has room for; a
    /// longer list is cut. Returns how many there are; 0 for an invalid handle. Any thread. Since 0.1.
    pub fn dist_group_ranks(group: *const dist_group_t, out: *mut i32, cap: usize) -> usize {
        let group = self::group(group)?;
        let ranks = group.global_ranks();
        if cap != 0 {
            Out::required(out, "out")?;
        }
        for (place, &rank) in ranks.iter().take(cap).enumerate() {
            Out::required(out.wrapping_add(place), "out")?.write(number(rank)?);
        }
        Ok(ranks.len())
    }
}

dist_export! {
    #[on_error(-1)]
    /// Which rank of a group a rank of the outermost group (see dist_group_ranks) is.
    ///
    /// `group`: required. `global_rank`: that rank. Returns -1 where it is not in the group, and for an invalid handle. Any
    /// thread. Since 0.1.
    pub fn dist_group_rank_from_global(group: *const dist_group_t, global_rank: i32) -> i32 {
        let group = self::group(group)?;
        let global = index(global_rank, "global_rank")?;
        let found = group.global_ranks().iter().position(|&rank| rank == global);
        found.map_or(Ok(-1), number)
    }
}

dist_export! {
    #[on_error(-1)]
    /// Which rank of the outermost group (see dist_group_ranks) a rank of a group is.
    ///
    /// `group`: required. `rank`: that rank. Returns -1 for one that the group has not, and for an invalid handle. Any
    /// thread. Since 0.1.
    pub fn dist_group_rank_to_global(group: *const dist_group_t, rank: i32) -> i32 {
        let group = self::group(group)?;
        let found = group.global_ranks().get(index(rank, "rank")?).copied();
        found.map_or(Ok(-1), number)
    }
}
