//! Where the back end "mpi" comes from: a plug-in for each MPI, of which the right one is found
//! when it is asked for.
//!
//! An MPI that the program has brought along decides, since two of them do not go together in one
//! process; else the variable with a path; else the launcher, which is the one of some MPI; else
//! whichever is there. What is named by the variable is taken or nothing.

use super::backend::load;
use crate::backend;
use crate::base::config;
use crate::base::error::{Error, ErrorKind, Result};
use crate::process::library::{self, Library};
use std::path::{Path, PathBuf};
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

    /// As a list.
    fn alone(self) -> &'static [Self] {
        match self {
            Self::OpenMpi => &[Self::OpenMpi],
            Self::Mpich => &[Self::Mpich],
        }
    }

    /// That of an MPI's library.
    fn of(library: &Library) -> Self {
        match library.symbol(c"ompi_mpi_comm_world") {
            Some(_) => Self::OpenMpi,
            None => Self::Mpich,
        }
    }
}

/// The MPI among the files that are loaded, if there is one.
fn mpi_among(files: Vec<PathBuf>) -> Option<PathBuf> {
    files.into_iter().find(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("libmpi.so") || name.starts_with("libmpich.so")
    })
}

/// What a process can know of its MPI before it has one.
#[derive(Clone, Copy, Debug, Default)]
struct Signs {
    /// The program has brought it along.
    present: Option<Family>,
    /// What the launchers' variables say.
    by_open_mpi: bool,
    by_pmi: bool,
    by_slurm: bool,
}

impl Signs {
    fn read() -> Result<Self> {
        let library = mpi_among(library::loaded()).and_then(|path| Library::loaded(&path));
        let is_set = |variable| config::text(variable).map(|text| text.is_some());
        Ok(Self {
            present: library.as_ref().map(Family::of),
            by_open_mpi: is_set(config::OMPI_SIZE)?,
            by_pmi: is_set(config::PMI_SIZE)?,
            by_slurm: is_set(config::SLURM_RANK)?,
        })
    }

    /// The plug-ins that will do, the likeliest first, and why these.
    fn wanted(self) -> (&'static [Family], String) {
        let launched = |family: Family| format!("the launcher of {} has started it", family.name());
        match self {
            Self { present: Some(family), .. } => {
                (family.alone(), format!("{} is in this process", family.name()))
            }
            Self { by_open_mpi: true, .. } => (&[Family::OpenMpi], launched(Family::OpenMpi)),
            // Slurm speaks MPICH's protocol for whichever was built for that.
            Self { by_pmi: true, by_slurm: true, .. } => {
                (&[Family::Mpich, Family::OpenMpi], "Slurm has started it, for any MPI".into())
            }
            Self { by_pmi: true, .. } => (&[Family::Mpich], launched(Family::Mpich)),
            Self { .. } => (
                &[Family::OpenMpi, Family::Mpich],
                "no MPI is in this process, nor has one's launcher started it".into(),
            ),
        }
    }
}

/// Loads the plug-in, unless that has been done.
///
/// # Errors
/// `NotFound`, with everything that was looked for and why; or what is wrong with the one that was
/// found.
pub(super) fn find() -> Result<()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _held = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if backend::is_available(NAME) {
        return Ok(());
    }
    let load = |path: &str| load(path).map(drop);
    if let Some(path) = config::text(config::MPI_PLUGIN)? {
        return load(&path).map_err(|error| error.context(config::MPI_PLUGIN.name));
    }
    let (wanted, why) = Signs::read()?.wanted();
    search(wanted, &why, library::own_folder().as_deref(), &load)
}

/// Looks beside the library, then where the loader looks. One that is there and cannot be used is
/// told, if no other will do.
fn search(
    wanted: &[Family],
    why: &str,
    beside: Option<&Path>,
    load: &dyn Fn(&str) -> Result<()>,
) -> Result<()> {
    let (mut missed, mut unusable) = (Vec::new(), None);
    for family in wanted {
        let name = family.object();
        let beside = beside.map(|folder| folder.join(name).display().to_string());
        for place in beside.into_iter().chain([name.to_owned()]) {
            match load(&place) {
                Ok(()) => return Ok(()),
                Err(error) if is_absent(&error, &place) => missed.push(error.message().to_owned()),
                Err(error) => {
                    unusable.get_or_insert(error);
                    break;
                }
            }
        }
    }
    if let Some(error) = unusable {
        return Err(error);
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
    use std::cell::RefCell;

    const BOTH: [Family; 2] = [Family::OpenMpi, Family::Mpich];

    fn families(signs: Signs) -> Vec<Family> {
        signs.wanted().0.to_vec()
    }

    #[test]
    fn what_is_in_the_process_decides_then_who_has_started_it() {
        let none = Signs::default();
        assert_eq!(families(none), BOTH);
        let open_mpi = Signs { by_open_mpi: true, ..none };
        let mpich = Signs { by_pmi: true, ..none };
        assert_eq!(families(open_mpi), [Family::OpenMpi]);
        assert_eq!(families(mpich), [Family::Mpich]);
        // Open MPI's launcher inside of a job of another: the innermost counts, which MPICH's never
        // is there.
        assert_eq!(families(Signs { by_pmi: true, ..open_mpi }), [Family::OpenMpi]);
        for launched in [none, open_mpi, mpich] {
            for present in BOTH {
                let (wanted, why) = Signs { present: Some(present), ..launched }.wanted();
                assert_eq!(wanted, [present]);
                assert!(why.contains(present.name()) && why.contains("in this process"), "{why}");
            }
        }
        assert!(open_mpi.wanted().1.contains("launcher of Open MPI"));
        assert!(mpich.wanted().1.contains("launcher of MPICH"));
    }

    #[test]
    fn slurm_starts_ranks_of_either() {
        let slurm = Signs { by_slurm: true, ..Signs::default() };
        assert_eq!(families(slurm), BOTH);
        assert_eq!(families(Signs { by_pmi: true, ..slurm }), [Family::Mpich, Family::OpenMpi]);
        assert_eq!(families(Signs { by_open_mpi: true, ..slurm }), [Family::OpenMpi]);
    }

    #[test]
    fn the_library_of_an_mpi_is_known_by_its_name() {
        let among = |names: &[&str]| {
            let files = names.iter().map(|name| Path::new("/some/lib").join(name)).collect();
            mpi_among(files).and_then(|path| Some(path.file_name()?.to_str()?.to_owned()))
        };
        let others = ["libc.so.6", "libmpi_cxx.so.40", "libmpi_mpifh.so", "libdist_mpi_mpich.so"];
        assert_eq!(among(&others), None);
        for name in ["libmpi.so.40", "libmpi.so", "libmpich.so.12", "libmpi.so.12.1.8"] {
            assert_eq!(among(&[&others[..], &[name]].concat()).as_deref(), Some(name));
        }
        assert_eq!(among(&[]), None);
    }

    #[test]
    fn what_is_no_mpi_of_the_other_family_is_mpich_or_made_of_it() {
        let library = Library::open("libc.so.6").unwrap();
        assert_eq!(Family::of(&library), Family::Mpich);
    }

    /// What a loader says of places: all that are not named are absent.
    fn asked(
        wanted: &[Family],
        beside: Option<&str>,
        says: &[(&str, std::result::Result<(), ErrorKind>)],
    ) -> (Result<()>, Vec<String>) {
        let places = RefCell::new(Vec::new());
        let load = |place: &str| {
            places.borrow_mut().push(place.to_owned());
            match says.iter().find(|(known, _)| *known == place) {
                Some((_, Ok(()))) => Ok(()),
                Some((_, Err(kind))) => Err(Error::new(*kind, format!("{place} is spoilt"))),
                // As the loader puts it.
                None if place.contains('/') => Err(Error::new(ErrorKind::NotFound, place)),
                None => Err(Error::new(
                    ErrorKind::System,
                    format!("{place}: {place}: cannot open shared object file"),
                )),
            }
        };
        let outcome = search(wanted, "a test", beside.map(Path::new), &load);
        (outcome, places.into_inner())
    }

    const OPEN_MPI: &str = "libdist_mpi_openmpi.so";
    const MPICH: &str = "libdist_mpi_mpich.so";

    #[test]
    fn the_file_beside_the_library_comes_first() {
        let (outcome, places) =
            asked(&[Family::Mpich], Some("/lib"), &[("/lib/libdist_mpi_mpich.so", Ok(()))]);
        assert!(outcome.is_ok());
        assert_eq!(places, ["/lib/libdist_mpi_mpich.so"]);
        let (outcome, places) = asked(&[Family::OpenMpi], Some("/lib"), &[(OPEN_MPI, Ok(()))]);
        assert!(outcome.is_ok());
        assert_eq!(places, ["/lib/libdist_mpi_openmpi.so", OPEN_MPI]);
        // Where nobody knows where the library is.
        assert_eq!(asked(&[Family::OpenMpi], None, &[]).1, [OPEN_MPI]);
    }

    #[test]
    fn where_either_will_do_the_one_that_works_is_taken() {
        let spoilt = ("/lib/libdist_mpi_openmpi.so", Err(ErrorKind::System));
        let (outcome, places) = asked(&BOTH, Some("/lib"), &[spoilt, (MPICH, Ok(()))]);
        assert!(outcome.is_ok(), "{outcome:?}");
        assert_eq!(places, [spoilt.0, "/lib/libdist_mpi_mpich.so", MPICH]);
        // If none works, what is there is told, and not what is not.
        let (outcome, _) = asked(&BOTH, Some("/lib"), &[spoilt]);
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::System);
        assert!(error.message().contains("spoilt"), "{error}");
    }

    #[test]
    fn a_plug_in_that_lacks_its_mpi_is_no_missing_plug_in() {
        let text = format!("{OPEN_MPI}: libmpi.so.40: cannot open shared object file");
        assert!(!is_absent(&Error::new(ErrorKind::System, text), OPEN_MPI));
        let text = format!("{OPEN_MPI}: {OPEN_MPI}: cannot open shared object file");
        assert!(is_absent(&Error::new(ErrorKind::System, text), OPEN_MPI));
        assert!(is_absent(&Error::new(ErrorKind::NotFound, "no"), "/lib/file"));
        assert!(!is_absent(&Error::new(ErrorKind::System, "/lib/file: /lib/file"), "/lib/file"));
    }

    #[test]
    fn what_was_looked_for_is_told_with_its_place() {
        let beside = std::env::temp_dir().join("nothing-is-here");
        let load = |path: &str| load(path).map(drop);
        let error = search(&BOTH, "a test", Some(&beside), &load).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let text = error.message();
        let paths = BOTH.map(|family| beside.join(family.object()).display().to_string());
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
        let load = |path: &str| load(path).map(drop);
        let error = search(&[Family::Mpich], "a test", Some(&beside), &load).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::System);
        assert!(error.message().contains(&file.display().to_string()), "{error}");
        std::fs::remove_dir_all(&beside).unwrap();
    }
}
