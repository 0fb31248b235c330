//! Where the back end "mpi" comes from: a plug-in for each MPI, of which the right one is found when it is asked for.
//!
//! An MPI that the program has brought along decides, since two of them do not go together in one process; else the
//! variable with a path; else the launcher, which is the one of some MPI; else whichever is there. What is named by the
//! variable is taken or nothing.

use super::backend::load;
use crate::backend;
use crate::base::config;
use crate::base::error::{Error, ErrorKind, Result};
use crate::process::library::{self, Library};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The name that the plug-ins give themselves.
pub(super) const NAME: &str = "mpi";

/// The MPIs between which there is a choice; what is made of one of them is of its family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    OpenMpi,
    Mpich,
}

impl Family {
    const ALL: [Self; 2] = [Self::OpenMpi, Self::Mpich];

    fn name(self) -> &'static str {
        match self {
            Self::OpenMpi => "Open MPI",
            Self::Mpich => "MPICH",
        }
    }

    fn object(self) -> &'static str {
        match self {
            Self::OpenMpi => "libdist_mpi_openmpi.so",
            Self::Mpich => "libdist_mpi_mpich.so",
        }
    }

    /// The one in this process, if there is one.
    fn present() -> Option<Self> {
        let is_mpi = |path: &Path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("libmpi.so") || name.starts_with("libmpich.so")
        };
        let object = library::loaded().into_iter().find(|path| is_mpi(path))?;
        let library = Library::loaded(&object)?;
        let is_open_mpi = library.symbol(c"ompi_mpi_comm_world").is_some();
        Some(if is_open_mpi { Self::OpenMpi } else { Self::Mpich })
    }

    /// The one whose launcher has started this process, as far as it says.
    fn launched() -> Result<Option<Self>> {
        if config::text(config::OMPI_SIZE)?.is_some() {
            return Ok(Some(Self::OpenMpi));
        }
        Ok(config::text(config::PMI_SIZE)?.map(|_| Self::Mpich))
    }
}

/// Loads the plug-in, unless that has been done.
///
/// # Errors
/// `NotFound`, with everything that was looked for and why; or what is wrong with the one that was found.
pub(super) fn find() -> Result<()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _held = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if backend::is_available(NAME) {
        return Ok(());
    }
    let present = Family::present();
    if let Some(path) = config::text(config::MPI_PLUGIN)? {
        return load(&path).map(drop).map_err(|error| error.context(config::MPI_PLUGIN.name));
    }
    let (wanted, why) = match (present, Family::launched()?) {
        (Some(family), _) => (vec![family], format!("{} is in this process", family.name())),
        (None, Some(family)) => {
            (vec![family], format!("the launcher of {} has started it", family.name()))
        }
        (None, None) => (
            Family::ALL.to_vec(),
            "no MPI is in this process, nor has one's launcher started it".into(),
        ),
    };
    search(&wanted, &why, library::own_folder().as_deref())
}

/// Looks beside the library, then where the loader looks.
fn search(wanted: &[Family], why: &str, beside: Option<&Path>) -> Result<()> {
    let mut missed = Vec::new();
    for family in wanted {
        let name = family.object();
        let beside = beside.map(|folder| folder.join(name).display().to_string());
        for place in beside.into_iter().chain([name.to_owned()]) {
            match load(&place) {
                Ok(_) => return Ok(()),
                Err(error) if is_absent(&error, &place) => missed.push(error.message().to_owned()),
                Err(error) => return Err(error),
            }
        }
    }
    let message = format!(
        "no plug-in for the back end \"mpi\" ({why}): {}. Build one with `cargo xtask mpi`, and put it beside libdist.so or \
         set {} to its path",
        missed.join("; "),
        config::MPI_PLUGIN.name
    );
    Err(Error::new(ErrorKind::NotFound, message))
}

/// Whether there simply is no such file; what is there and cannot be used is another matter.
fn is_absent(error: &Error, place: &str) -> bool {
    let by_loader = !place.contains('/') && error.kind() == ErrorKind::System;
    // What the plug-in itself needs may be missing too: then the loader names that.
    let names_it = error.message().matches(place).count() > 1;
    error.kind() == ErrorKind::NotFound || (by_loader && names_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_looked_for_is_told_with_its_place() {
        let beside = std::env::temp_dir().join("nothing-is-here");
        let error = search(&Family::ALL, "a test", Some(&beside)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let text = error.message();
        let paths = Family::ALL.map(|family| beside.join(family.object()).display().to_string());
        for words in ["a test", "DIST_MPI_PLUGIN", "cargo xtask mpi", &paths[0], &paths[1]] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_used_is_not_passed_over() {
        let beside = std::env::temp_dir().join(format!("dist-mpi-{}", std::process::id()));
        std::fs::create_dir_all(&beside).unwrap();
        let file = beside.join(Family::Mpich.object());
        std::fs::write(&file, "no library").unwrap();
        let error = search(&[Family::Mpich], "a test", Some(&beside)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::System);
        assert!(error.message().contains(&file.display().to_string()), "{error}");
        std::fs::remove_dir_all(&beside).unwrap();
    }
}
