//! The rank that an error names, as fields.

use super::args::{null, number};
use super::group::group;
use super::options;
use super::types::*;
use super::work::WORKS;
use crate::base::error::{Culprit, Fault, Result};

const NOBODY: dist_culprit_t = dist_culprit_t {
    struct_size: size_of::<dist_culprit_t>(),
    rank: -1,
    kind: DIST_CULPRIT_NONE,
    pid: 0,
    host: [0; 256],
};

/// The fault as C callers know it. No wildcard, so that a new one does not compile until it has a
/// number.
fn kind(fault: Fault) -> i32 {
    match fault {
        Fault::Other => DIST_CULPRIT_FAILED,
        Fault::Died => DIST_CULPRIT_DIED,
        Fault::Left => DIST_CULPRIT_LEFT,
        Fault::Unreachable => DIST_CULPRIT_UNREACHABLE,
        Fault::Stopped => DIST_CULPRIT_STOPPED,
        Fault::Late => DIST_CULPRIT_LATE,
        Fault::Mismatch => DIST_CULPRIT_MISMATCH,
        Fault::Aborted => DIST_CULPRIT_ABORTED,
    }
}

/// Fills a caller's struct; a host name that is too long is cut between characters.
fn fill(out: *mut dist_culprit_t, culprit: Option<Culprit>) -> Result<()> {
    if out.is_null() {
        return Err(null("out"));
    }
    let size = options::output_size(out.cast_const())?;
    let mut filled = NOBODY;
    if let Some(Culprit { rank, fault, process }) = culprit {
        filled.rank = number(rank)?;
        filled.kind = kind(fault);
        if let Some((pid, host)) = process {
            filled.pid = i64::from(pid);
            let mut end = host.len().min(filled.host.len() - 1);
            while !host.is_char_boundary(end) {
                end -= 1;
            }
            for (cell, byte) in filled.host.iter_mut().zip(&host.as_bytes()[..end]) {
                *cell = byte.cast_signed();
            }
        }
    }
    options::write(out, size, filled);
    Ok(())
}

dist_export! {
    /// Gives the rank that a work's error names, with its kind of failure and its process.
    ///
    /// @param work in: the work.
    /// @param out out: DIST_CULPRIT_NONE and rank -1 while the work is pending, if it has
    ///   succeeded, and if its error names no rank. Set struct_size before the call
    ///   (DIST_CULPRIT_INIT).
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE, with DIST_CULPRIT_NONE in `out`;
    ///   DIST_ERR_INVALID_ARGUMENT if `out` is NULL or its struct_size is wrong.
    /// @threads any.
    /// @since 0.1
    pub fn dist_work_culprit(work: *const dist_work_t, out: *mut dist_culprit_t) -> dist_status_t {
        fill(out, None)?;
        fill(out, WORKS.get(work)?.culprit())
    }
}

dist_export! {
    /// Gives the rank that has failed a group, with its kind of failure and its process.
    ///
    /// @param group in: the group.
    /// @param out out: DIST_CULPRIT_NONE and rank -1 while the group has not failed, and if its
    ///   error names no rank. Set struct_size before the call (DIST_CULPRIT_INIT).
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE, with DIST_CULPRIT_NONE in `out`;
    ///   DIST_ERR_NOT_INITIALIZED if `group` is NULL before dist_init; DIST_ERR_INVALID_ARGUMENT if
    ///   `out` is NULL or its struct_size is wrong.
    /// @threads any.
    /// @since 0.1
    pub fn dist_group_culprit(
        group: *const dist_group_t,
        out: *mut dist_culprit_t,
    ) -> dist_status_t {
        fill(out, None)?;
        fill(out, self::group(group)?.culprit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn filled(host: &str) -> dist_culprit_t {
        let process = Some((7, Arc::from(host)));
        let mut out = dist_culprit_t { rank: 9, ..NOBODY };
        fill(&raw mut out, Some(Culprit { rank: 2, fault: Fault::Died, process })).unwrap();
        out
    }

    #[test]
    fn long_host_names_are_cut_between_characters() {
        for (host, kept) in [("h".to_owned(), 1), ("x".repeat(300), 255), ("é".repeat(200), 254)] {
            let out = filled(&host);
            assert_eq!((out.rank, out.kind, out.pid), (2, DIST_CULPRIT_DIED, 7));
            let text: Vec<u8> = out.host.iter().map(|it| it.cast_unsigned()).collect();
            assert_eq!(&text[..kept], &host.as_bytes()[..kept]);
            assert!(text[kept..].iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn structs_of_wrong_sizes_are_refused() {
        let mut out = dist_culprit_t { struct_size: 8, ..NOBODY };
        assert!(fill(&raw mut out, None).is_err());
        assert!(fill(std::ptr::null_mut(), None).is_err());
    }
}
