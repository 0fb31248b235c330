//! Former names of algorithms, back-end options and environment variables, with their present
//! names.
//!
//! A former name is never accepted. A program, a script or a tuning file with a former name gets an
//! error that contains the present name ([`former_name_error`]). Otherwise it would run with the
//! default setting by accident. The present names are the names of UCX, UCC, MPICH, Open MPI,
//! MVAPICH2 and NCCL. `docs/tuning.md` has the table for users.

use super::error::Error;

/// The kind of thing that has a name.
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
pub struct NameChange {
    /// The kind of thing that has the name.
    pub kind: NameKind,
    /// The former name.
    pub old: &'static str,
    /// The present name.
    pub new: &'static str,
}

const fn name_change(kind: NameKind, old: &'static str, new: &'static str) -> NameChange {
    NameChange { kind, old, new }
}

/// All changes of names.
pub const NAME_CHANGES: [NameChange; 13] = [
    name_change(NameKind::Algorithm, "pull", "cma_read"),
    name_change(NameKind::Algorithm, "push", "cma_write"),
    name_change(NameKind::Algorithm, "short", "eager"),
    name_change(NameKind::Algorithm, "leader", "two_level"),
    name_change(NameKind::Algorithm, "leaders", "two_level"),
    name_change(NameKind::Algorithm, "lanes", "split_rail"),
    name_change(NameKind::Algorithm, "direct", "linear"),
    name_change(NameKind::Algorithm, "doubling", "recursive_doubling"),
    name_change(NameKind::Algorithm, "tree", "binomial"),
    name_change(NameKind::Algorithm, "scatter_gather", "reduce_scatter_gather"),
    name_change(NameKind::BackendOption, "attach", "cma"),
    name_change(NameKind::BackendOption, "nccl.may_block", "nccl.blocking"),
    name_change(NameKind::Variable, "DIST_ATTACH", "DIST_CMA"),
];

/// Returns the present name for a former name, or `None` if `old` is not a former name of this
/// kind.
pub fn new_name(kind: NameKind, old: &str) -> Option<&'static str> {
    NAME_CHANGES
        .iter()
        .find(|change| change.kind == kind && change.old == old)
        .map(|change| change.new)
}

/// Returns the error for a former name, with the present name, or `None` if `old` is not a former
/// name of this kind.
pub fn former_name_error(kind: NameKind, old: &str) -> Option<Error> {
    let new = new_name(kind, old)?;
    Some(Error::invalid(match kind {
        NameKind::Algorithm => {
            format!("algorithm \"{old}\" is now called \"{new}\"; use that name")
        }
        NameKind::BackendOption => {
            format!("back-end option \"{old}\" is now called \"{new}\"; use that name")
        }
        NameKind::Variable => format!("{old} is now {new}; set {new} instead"),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ErrorKind;

    #[test]
    fn each_former_name_is_refused_with_its_present_name() {
        for change in NAME_CHANGES {
            let error = former_name_error(change.kind, change.old).unwrap();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.message().contains(change.old), "{error}");
            assert!(error.message().contains(change.new), "{error}");
        }
    }

    #[test]
    fn former_names_are_unique_and_no_new_name_is_refused() {
        for (at, change) in NAME_CHANGES.iter().enumerate() {
            let others = NAME_CHANGES.iter().skip(at + 1).filter(|other| other.kind == change.kind);
            assert!(others.into_iter().all(|other| other.old != change.old), "{}", change.old);
            assert!(former_name_error(change.kind, change.new).is_none(), "{}", change.new);
        }
        assert!(former_name_error(NameKind::Variable, "pull").is_none());
    }
}
