//! Subgroups that a worker creates.
#![allow(unsafe_code, reason = "the C ABI takes raw pointers")]

use super::command_words::CommandWords;
use super::library::{CommandOutcome, GroupHandle, defaults, outcome};
use dist::ffi::group_new::{dist_group_new, dist_group_ranks};
use dist::ffi::group_shrink::dist_group_shrink;
use dist::ffi::types::{DIST_OK, dist_group_new_options_t, dist_shrink_options_t};
use std::ptr::null_mut;

/// Executes `new NAME RANKS`, where RANKS is a list with commas, with `members=yes`, or `shrink
/// NAME` with `timeout_ms=` and `connect_timeout_ms=`. Returns `None` if this rank is no member.
pub(super) fn derive_group(
    words: &CommandWords<'_>,
    from: GroupHandle,
) -> Result<Option<GroupHandle>, CommandOutcome> {
    let mut made = null_mut();
    let status = if words.verb() == "shrink" {
        let mut options: dist_shrink_options_t = defaults();
        options.struct_size = size_of::<dist_shrink_options_t>();
        options.timeout_ms = words.number("timeout_ms").unwrap_or(0);
        options.connect_timeout_ms = words.number("connect_timeout_ms").unwrap_or(50_000);
        // SAFETY: the options outlive the call, and `made` takes the handle.
        unsafe { dist_group_shrink(from.0, &raw const options, &raw mut made) }
    } else {
        let ranks: Vec<i32> = words.at(1).split(',').map(|rank| rank.parse().unwrap()).collect();
        let mut options: dist_group_new_options_t = defaults();
        options.struct_size = size_of::<dist_group_new_options_t>();
        options.connect_timeout_ms = 50_000;
        options.use_local_synchronization = i64::from(words.text("members").is_some());
        let (list, count) = (ranks.as_ptr(), ranks.len());
        // SAFETY: the ranks and options outlive the call, and `made` takes the handle.
        unsafe { dist_group_new(from.0, list, count, &raw const options, &raw mut made) }
    };
    match status {
        DIST_OK if made.is_null() => Ok(None),
        DIST_OK => Ok(Some(GroupHandle(made))),
        status => Err(outcome(status)),
    }
}

/// Returns the group's ranks as ranks of the outermost group.
pub(super) fn world_ranks_text(group: GroupHandle) -> String {
    let mut ranks = [-1; 64];
    // SAFETY: the buffer has the length that the call gets.
    let count = unsafe { dist_group_ranks(group.0, ranks.as_mut_ptr(), ranks.len()) };
    format!("{:?}", &ranks[..count.min(ranks.len())])
}
