//! The exported functions that return the culprit of an error: the rank that the error names.

use super::args::to_i32;
use super::group::group;
use super::sized_struct;
use super::types::*;
use super::work::WORKS;
use crate::base::error::{Culprit, RankFault, Result};
use std::ffi::c_char;

const NO_CULPRIT: dist_culprit_t = dist_culprit_t {
    struct_size: size_of::<dist_culprit_t>(),
    rank: -1,
    kind: DIST_CULPRIT_NONE,
    pid: 0,
    host: [0; 256],
};

/// Converts a fault to its C constant. The match has no wildcard: if a fault is added without a
/// number here, the code does not compile.
fn culprit_kind(fault: RankFault) -> i32 {
    match fault {
        RankFault::Other => DIST_CULPRIT_FAILED,
        RankFault::Died => DIST_CULPRIT_DIED,
        RankFault::Left => DIST_CULPRIT_LEFT,
        RankFault::Unreachable | RankFault::Silent => DIST_CULPRIT_UNREACHABLE,
        RankFault::Stopped => DIST_CULPRIT_STOPPED,
        RankFault::Late => DIST_CULPRIT_LATE,
        RankFault::Mismatch => DIST_CULPRIT_MISMATCH,
        RankFault::Aborted => DIST_CULPRIT_ABORTED,
    }
}

/// Writes a culprit to the struct of a caller. A long host name is truncated between two
/// characters.
fn write_culprit(out: *mut dist_culprit_t, culprit: Option<Culprit>) -> Result<()> {
    sized_struct::write_required(out, "out", || {
        let mut filled = NO_CULPRIT;
        if let Some(Culprit { rank, fault, process }) = culprit {
            filled.rank = to_i32(rank)?;
            filled.kind = culprit_kind(fault);
            if let Some((pid, host)) = process {
                filled.pid = i64::from(pid);
                let mut end = host.len().min(filled.host.len() - 1);
                while !host.is_char_boundary(end) {
                    end -= 1;
                }
                for (cell, byte) in filled.host.iter_mut().zip(&host.as_bytes()[..end]) {
                    *cell = c_char::from_le_bytes([*byte]);
                }
            }
        }
        Ok(filled)
    })
}

dist_export! {
    /// Returns the rank that a work's error names, with the kind of its failure and its process.
    ///
    /// @param work in: the work.
    /// @param out out: the culprit. Its kind is DIST_CULPRIT_NONE and its rank -1 if the work is
    ///   pending or has succeeded, and if the error of the work names no rank. Set struct_size
    ///   before the call (DIST_CULPRIT_INIT).
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE (`out` then has the kind DIST_CULPRIT_NONE);
    ///   DIST_ERR_INVALID_ARGUMENT if `out` is NULL or its struct_size is wrong.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_work_culprit(work: *const dist_work_t, out: *mut dist_culprit_t) -> dist_status_t {
        write_culprit(out, None)?;
        write_culprit(out, WORKS.get(work)?.culprit())
    }
}

dist_export! {
    /// Returns the rank that has failed a group, with the kind of its failure and its process.
    ///
    /// If a rank has died and the group has not failed, that rank is the culprit.
    ///
    /// @param group in: the group.
    /// @param out out: the culprit. Its kind is DIST_CULPRIT_NONE and its rank -1 if the group has
    ///   not failed, and if the error of the group names no rank. Set struct_size before the call
    ///   (DIST_CULPRIT_INIT).
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE (`out` then has the kind DIST_CULPRIT_NONE);
    ///   DIST_ERR_NOT_INITIALIZED if `group` is NULL before dist_init; DIST_ERR_INVALID_ARGUMENT if
    ///   `out` is NULL or its struct_size is wrong.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_group_culprit(
        group: *const dist_group_t,
        out: *mut dist_culprit_t,
    ) -> dist_status_t {
        write_culprit(out, None)?;
        write_culprit(out, self::group(group)?.culprit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn filled(host: &str) -> dist_culprit_t {
        let process = Some((7, Arc::from(host)));
        let mut out = dist_culprit_t { rank: 9, ..NO_CULPRIT };
        write_culprit(&raw mut out, Some(Culprit { rank: 2, fault: RankFault::Died, process }))
            .unwrap();
        out
    }

    #[test]
    fn long_host_names_are_cut_between_characters() {
        for (host, kept) in [("h".to_owned(), 1), ("x".repeat(300), 255), ("é".repeat(200), 254)] {
            let out = filled(&host);
            assert_eq!((out.rank, out.kind, out.pid), (2, DIST_CULPRIT_DIED, 7));
            let text: Vec<u8> =
                out.host.iter().map(|it| u8::from_le_bytes(it.to_le_bytes())).collect();
            assert_eq!(&text[..kept], &host.as_bytes()[..kept]);
            assert!(text[kept..].iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn structs_of_wrong_sizes_are_refused() {
        let mut out = dist_culprit_t { struct_size: 8, ..NO_CULPRIT };
        assert!(write_culprit(&raw mut out, None).is_err());
        assert!(write_culprit(std::ptr::null_mut(), None).is_err());
    }
}
