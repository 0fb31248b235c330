//! The search for the plug-in of the back end "mpi". There is one plug-in per family of MPI
//! libraries, and the first request for "mpi" selects a family.
//!
//! The first of these sources that exists decides:
//!
//! 1. the path in `DIST_MPI_PLUGIN`; there is no fallback if this plug-in cannot be used;
//! 2. an MPI library that the program has loaded, because two MPI libraries conflict in one
//!    process;
//! 3. the launcher that started the process, because each launcher belongs to a family;
//! 4. any plug-in that can be loaded.

use crate::backend;
use crate::base::config;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::sync::lock;
use crate::process::library::{self, Library};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The name that the plug-ins report.
pub(super) const BACKEND_NAME: &str = "mpi";

/// A family of MPI libraries. A library that was derived from another belongs to the family of its
/// origin, for example MVAPICH to the family of MPICH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MpiFamily {
    OpenMpi,
    Mpich,
}

impl MpiFamily {
    fn name(self) -> &'static str {
        match self {
            Self::OpenMpi => "Open MPI",
            Self::Mpich => "MPICH",
        }
    }

    fn plugin_file(self) -> &'static str {
        match self {
            Self::OpenMpi => "libdist_mpi_openmpi.so",
            Self::Mpich => "libdist_mpi_mpich.so",
        }
    }

    /// Returns a list with only this family.
    fn as_slice(self) -> &'static [Self] {
        match self {
            Self::OpenMpi => &[Self::OpenMpi],
            Self::Mpich => &[Self::Mpich],
        }
    }

    /// Returns the family of an MPI library. Only Open MPI exports this symbol.
    fn from_library(library: &Library) -> Self {
        match library.symbol(c"ompi_mpi_comm_world") {
            Some(_) => Self::OpenMpi,
            None => Self::Mpich,
        }
    }
}

/// Returns the MPI library among the loaded files, if there is one.
fn find_mpi_library(files: Vec<PathBuf>) -> Option<PathBuf> {
    files.into_iter().find(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("libmpi.so") || name.starts_with("libmpich.so")
    })
}

/// The information about MPI that this process has before it loads a plug-in.
#[derive(Clone, Copy, Debug, Default)]
struct MpiEnvironment {
    /// The family of the MPI library that the program has loaded, if any.
    loaded_family: Option<MpiFamily>,
    /// The environment variables of the launcher of Open MPI are set.
    has_open_mpi_launcher: bool,
    /// The environment variables of PMI, the protocol of MPICH's launcher, are set.
    has_pmi_launcher: bool,
    /// The environment variables of Slurm are set.
    has_slurm_launcher: bool,
}

impl MpiEnvironment {
    fn detect() -> Result<Self> {
        let library =
            find_mpi_library(library::loaded_paths()).and_then(|path| Library::open_loaded(&path));
        let is_set = |variable| config::read_text(variable).map(|text| text.is_some());
        Ok(Self {
            loaded_family: library.as_ref().map(MpiFamily::from_library),
            has_open_mpi_launcher: is_set(config::OMPI_SIZE)?,
            has_pmi_launcher: is_set(config::PMI_SIZE)?,
            has_slurm_launcher: is_set(config::SLURM_RANK)?,
        })
    }

    /// Returns the families whose plug-ins are possible, the most likely first, and the reason as
    /// text.
    fn candidates(self) -> (&'static [MpiFamily], String) {
        let launched =
            |family: MpiFamily| format!("the launcher of {} started this process", family.name());
        match self {
            Self { loaded_family: Some(family), .. } => {
                (family.as_slice(), format!("{} is loaded in this process", family.name()))
            }
            Self { has_open_mpi_launcher: true, .. } => {
                (&[MpiFamily::OpenMpi], launched(MpiFamily::OpenMpi))
            }
            // Slurm uses PMI to start programs of any MPI that was built for Slurm, so the family
            // is unknown.
            Self { has_pmi_launcher: true, has_slurm_launcher: true, .. } => (
                &[MpiFamily::Mpich, MpiFamily::OpenMpi],
                "Slurm started this process, for any MPI".into(),
            ),
            Self { has_pmi_launcher: true, .. } => {
                (&[MpiFamily::Mpich], launched(MpiFamily::Mpich))
            }
            Self { .. } => (
                &[MpiFamily::OpenMpi, MpiFamily::Mpich],
                "no MPI is loaded in this process, and no MPI launcher started it".into(),
            ),
        }
    }
}

/// Finds the plug-in and loads it with `load`. Does nothing if the back end exists.
///
/// # Errors
/// `NotFound`, with all searched names and the reason for the choice of the families. If a plug-in
/// was found and cannot be used: the error of that plug-in.
pub(super) fn find_plugin(load: &dyn Fn(&str) -> Result<()>) -> Result<()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _search_guard = lock(&ONE_AT_A_TIME);
    if backend::is_available(BACKEND_NAME) {
        return Ok(());
    }
    if let Some(path) = config::read_text(config::MPI_PLUGIN)? {
        return load(&path).map_err(|error| error.context(config::MPI_PLUGIN.name));
    }
    let (candidates, reason) = MpiEnvironment::detect()?.candidates();
    search(candidates, &reason, library::own_directory().as_deref(), load)
}

/// Searches the plug-ins of these families: for each one, first in the directory of the library,
/// and then in the search path of the dynamic loader. If no plug-in can be used, the error is that
/// of the first unusable plug-in, or `NotFound` if no plug-in exists.
fn search(
    candidates: &[MpiFamily],
    reason: &str,
    directory: Option<&Path>,
    load: &dyn Fn(&str) -> Result<()>,
) -> Result<()> {
    let (mut absent, mut unusable) = (Vec::new(), None);
    for family in candidates {
        let name = family.plugin_file();
        let directory = directory.map(|folder| folder.join(name).display().to_string());
        for file in directory.into_iter().chain([name.to_owned()]) {
            match load(&file) {
                Ok(()) => return Ok(()),
                Err(error) if is_file_absent(&error, &file) => {
                    absent.push(error.message().to_owned())
                }
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
        "no plug-in for the back end \"mpi\" ({reason}): {}. Build one with `cargo xtask mpi`, \
         and put it into the directory of libdist.so or set {} to its path",
        absent.join("; "),
        config::MPI_PLUGIN.name
    );
    Err(Error::new(ErrorKind::NotFound, message))
}

/// Returns true if the error means that the file does not exist, and false if the file exists but
/// cannot be used.
fn is_file_absent(error: &Error, file: &str) -> bool {
    let by_loader = !file.contains('/') && error.kind() == ErrorKind::System;
    // If the file is missing, the error names it twice: "cannot load FILE: FILE: cannot open". If a
    // dependency of the plug-in is missing, the second name is that of the dependency.
    let is_named = error.message().matches(file).count() > 1;
    error.kind() == ErrorKind::NotFound || (by_loader && is_named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::backend::load_plugin;
    use std::cell::RefCell;

    const BOTH: [MpiFamily; 2] = [MpiFamily::OpenMpi, MpiFamily::Mpich];

    fn families(environment: MpiEnvironment) -> Vec<MpiFamily> {
        environment.candidates().0.to_vec()
    }

    #[test]
    fn loaded_mpi_wins_over_the_launcher() {
        let none = MpiEnvironment::default();
        assert_eq!(families(none), BOTH);
        let open_mpi = MpiEnvironment { has_open_mpi_launcher: true, ..none };
        let mpich = MpiEnvironment { has_pmi_launcher: true, ..none };
        assert_eq!(families(open_mpi), [MpiFamily::OpenMpi]);
        assert_eq!(families(mpich), [MpiFamily::Mpich]);
        // A job of Open MPI inside another job: the innermost launcher decides. MPICH's launcher is
        // never the innermost one here.
        assert_eq!(
            families(MpiEnvironment { has_pmi_launcher: true, ..open_mpi }),
            [MpiFamily::OpenMpi]
        );
        for launched in [none, open_mpi, mpich] {
            for present in BOTH {
                let (wanted, reason) =
                    MpiEnvironment { loaded_family: Some(present), ..launched }.candidates();
                assert_eq!(wanted, [present]);
                assert!(
                    reason.contains(present.name()) && reason.contains("in this process"),
                    "{reason}"
                );
            }
        }
        assert!(open_mpi.candidates().1.contains("launcher of Open MPI"));
        assert!(mpich.candidates().1.contains("launcher of MPICH"));
    }

    #[test]
    fn slurm_allows_either_family() {
        let slurm = MpiEnvironment { has_slurm_launcher: true, ..MpiEnvironment::default() };
        assert_eq!(families(slurm), BOTH);
        assert_eq!(
            families(MpiEnvironment { has_pmi_launcher: true, ..slurm }),
            [MpiFamily::Mpich, MpiFamily::OpenMpi]
        );
        assert_eq!(
            families(MpiEnvironment { has_open_mpi_launcher: true, ..slurm }),
            [MpiFamily::OpenMpi]
        );
    }

    #[test]
    fn mpi_library_is_recognised_by_its_file_name() {
        let among = |names: &[&str]| {
            let files = names.iter().map(|name| Path::new("/some/lib").join(name)).collect();
            find_mpi_library(files).and_then(|path| Some(path.file_name()?.to_str()?.to_owned()))
        };
        let others = ["libc.so.6", "libmpi_cxx.so.40", "libmpi_mpifh.so", "libdist_mpi_mpich.so"];
        assert_eq!(among(&others), None);
        for name in ["libmpi.so.40", "libmpi.so", "libmpich.so.12", "libmpi.so.12.1.8"] {
            assert_eq!(among(&[&others[..], &[name]].concat()).as_deref(), Some(name));
        }
        assert_eq!(among(&[]), None);
    }

    #[test]
    fn library_without_open_mpi_symbol_counts_as_mpich() {
        let library = Library::open("libc.so.6").unwrap();
        assert_eq!(MpiFamily::from_library(&library), MpiFamily::Mpich);
    }

    /// Searches with a fake loader: `load_results` has the results of the files that exist. Returns
    /// the outcome and the paths that were tried.
    fn search_with(
        candidates: &[MpiFamily],
        directory: Option<&str>,
        load_results: &[(&str, std::result::Result<(), ErrorKind>)],
    ) -> (Result<()>, Vec<String>) {
        let tried = RefCell::new(Vec::new());
        let load = |path: &str| {
            tried.borrow_mut().push(path.to_owned());
            match load_results.iter().find(|(known, _)| *known == path) {
                Some((_, Ok(()))) => Ok(()),
                Some((_, Err(kind))) => Err(Error::new(*kind, format!("{path} is unusable"))),
                // The text of the real loader.
                None if path.contains('/') => Err(Error::new(ErrorKind::NotFound, path)),
                None => Err(Error::new(
                    ErrorKind::System,
                    format!("{path}: {path}: cannot open shared object file"),
                )),
            }
        };
        let outcome = search(candidates, "a test", directory.map(Path::new), &load);
        (outcome, tried.into_inner())
    }

    const OPEN_MPI: &str = "libdist_mpi_openmpi.so";
    const MPICH: &str = "libdist_mpi_mpich.so";

    #[test]
    fn plugin_file_next_to_the_library_comes_first() {
        let (outcome, tried) = search_with(
            &[MpiFamily::Mpich],
            Some("/lib"),
            &[("/lib/libdist_mpi_mpich.so", Ok(()))],
        );
        assert!(outcome.is_ok());
        assert_eq!(tried, ["/lib/libdist_mpi_mpich.so"]);
        let (outcome, tried) =
            search_with(&[MpiFamily::OpenMpi], Some("/lib"), &[(OPEN_MPI, Ok(()))]);
        assert!(outcome.is_ok());
        assert_eq!(tried, ["/lib/libdist_mpi_openmpi.so", OPEN_MPI]);
        // The directory of the library is unknown.
        assert_eq!(search_with(&[MpiFamily::OpenMpi], None, &[]).1, [OPEN_MPI]);
    }

    #[test]
    fn either_family_falls_back_to_the_loadable_plugin() {
        let broken = ("/lib/libdist_mpi_openmpi.so", Err(ErrorKind::System));
        let (outcome, tried) = search_with(&BOTH, Some("/lib"), &[broken, (MPICH, Ok(()))]);
        assert!(outcome.is_ok(), "{outcome:?}");
        assert_eq!(tried, [broken.0, "/lib/libdist_mpi_mpich.so", MPICH]);
        // If no plug-in works, the error reports the existing one and not the absent ones.
        let (outcome, _) = search_with(&BOTH, Some("/lib"), &[broken]);
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::System);
        assert!(error.message().contains("unusable"), "{error}");
    }

    #[test]
    fn plugin_without_its_mpi_is_not_absent() {
        let text = format!("{OPEN_MPI}: libmpi.so.40: cannot open shared object file");
        assert!(!is_file_absent(&Error::new(ErrorKind::System, text), OPEN_MPI));
        let text = format!("{OPEN_MPI}: {OPEN_MPI}: cannot open shared object file");
        assert!(is_file_absent(&Error::new(ErrorKind::System, text), OPEN_MPI));
        assert!(is_file_absent(&Error::new(ErrorKind::NotFound, "no"), "/lib/file"));
        assert!(!is_file_absent(
            &Error::new(ErrorKind::System, "/lib/file: /lib/file"),
            "/lib/file"
        ));
    }

    #[test]
    fn not_found_error_lists_the_searched_paths() {
        let load = |path: &str| load_plugin(path).map(drop);
        let directory = std::env::temp_dir().join("nothing-is-here");
        let error = search(&BOTH, "a test", Some(&directory), &load).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let text = error.message();
        let paths = BOTH.map(|family| directory.join(family.plugin_file()).display().to_string());
        for words in ["a test", "DIST_MPI_PLUGIN", "cargo xtask mpi", &paths[0], &paths[1]] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn unusable_plugin_file_is_an_error() {
        let load = |path: &str| load_plugin(path).map(drop);
        let directory = std::env::temp_dir().join(format!("dist-mpi-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join(MpiFamily::Mpich.plugin_file());
        std::fs::write(&file, "no library").unwrap();
        let error = search(&[MpiFamily::Mpich], "a test", Some(&directory), &load).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::System);
        assert!(error.message().contains(&file.display().to_string()), "{error}");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
