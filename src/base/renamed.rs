//! Former names of algorithms, back-end options and environment variables, with their present
//! names.
//!
//! A former name is never accepted. [`refusal`] makes the error that gives the present name, so
//! that a program, a script or a tuning file with a former name cannot run with the default by
//! accident. The sources of the present names are UCX, UCC, MPICH, Open MPI, MVAPICH2 and NCCL.
//! `docs/tuning.md` has the table for users.

use super::error::Error;

/// The kind of thing that a name is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
    /// An algorithm: in call options, `DIST_ALGORITHM`, `backend_options` or a tuning file.
    Algorithm,
    /// The key of an entry of `backend_options`.
    BackendOption,
    /// An environment variable.
    Variable,
}

/// One change of a name.
#[derive(Clone, Copy, Debug)]
pub struct Renamed {
    /// The kind of thing that has the name.
    pub kind: NameKind,
    /// The former name.
    pub old: &'static str,
    /// The present name.
    pub new: &'static str,
}

const fn renamed(kind: NameKind, old: &'static str, new: &'static str) -> Renamed {
    Renamed { kind, old, new }
}

/// All changes of names.
pub const RENAMED: [Renamed; 13] = [
    renamed(NameKind::Algorithm, "pull", "cma_read"),
    renamed(NameKind::Algorithm, "push", "cma_write"),
    renamed(NameKind::Algorithm, "short", "eager"),
    renamed(NameKind::Algorithm, "leader", "two_level"),
    renamed(NameKind::Algorithm, "leaders", "two_level"),
    renamed(NameKind::Algorithm, "lanes", "split_rail"),
    renamed(NameKind::Algorithm, "direct", "linear"),
    renamed(NameKind::Algorithm, "doubling", "recursive_doubling"),
    renamed(NameKind::Algorithm, "tree", "binomial"),
    renamed(NameKind::Algorithm, "scatter_gather", "reduce_scatter_gather"),
    renamed(NameKind::BackendOption, "attach", "cma"),
    renamed(NameKind::BackendOption, "nccl.may_block", "nccl.blocking"),
    renamed(NameKind::Variable, "DIST_ATTACH", "DIST_CMA"),
];

/// The present name of something with this former name; `None` if the name was never changed.
pub fn new_name(kind: NameKind, old: &str) -> Option<&'static str> {
    RENAMED.iter().find(|change| change.kind == kind && change.old == old).map(|change| change.new)
}

/// The error for a former name, with the present name; `None` if the name was never changed.
pub fn refusal(kind: NameKind, old: &str) -> Option<Error> {
    let new = new_name(kind, old)?;
    Some(Error::invalid(match kind {
        NameKind::Algorithm => {
            format!("algorithm \"{old}\" is now called \"{new}\"; use that name")
        }
        NameKind::BackendOption => {
            format!("back-end option \"{old}\" is now called \"{new}\"; use that name")
        }
        NameKind::Variable => format!("{old} is now {new}; set that instead"),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ErrorKind;

    #[test]
    fn each_former_name_is_refused_with_its_present_name() {
        for change in RENAMED {
            let error = refusal(change.kind, change.old).unwrap();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.message().contains(change.old), "{error}");
            assert!(error.message().contains(change.new), "{error}");
        }
    }

    #[test]
    fn former_names_are_unique_and_no_present_name_is_refused() {
        for (at, change) in RENAMED.iter().enumerate() {
            let others = RENAMED.iter().skip(at + 1).filter(|other| other.kind == change.kind);
            assert!(others.into_iter().all(|other| other.old != change.old), "{}", change.old);
            assert!(refusal(change.kind, change.new).is_none(), "{}", change.new);
        }
        assert!(refusal(NameKind::Variable, "pull").is_none());
    }
}
