//! The MPI families: of this plug-in's build, of the MPI in the process, and of the launcher.
//!
//! The families do not know each other. If the launcher of one family starts a program of the
//! other, each process is alone in its MPI_COMM_WORLD.
//!
//! The library's tests read this file. So it does not depend on MPI.

/// A family of MPI implementations: one of them and its derivatives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    OpenMpi,
    Mpich,
}

impl Family {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OpenMpi => "Open MPI",
            Self::Mpich => "MPICH",
        }
    }

    /// Returns the launcher of the family, with Debian's name for the case that both are installed.
    pub(crate) fn launcher(self) -> &'static str {
        match self {
            Self::OpenMpi => "Open MPI's mpirun (mpirun.openmpi)",
            Self::Mpich => "MPICH's mpiexec (mpiexec.mpich)",
        }
    }

    /// Returns the file name of the plug-in for the family.
    pub(crate) fn plugin_file(self) -> &'static str {
        match self {
            Self::OpenMpi => "libdist_mpi_openmpi.so",
            Self::Mpich => "libdist_mpi_mpich.so",
        }
    }

    /// Returns the environment variable in which the launcher passes the size of the job.
    fn size_variable(self) -> &'static str {
        match self {
            Self::OpenMpi => "OMPI_COMM_WORLD_SIZE",
            Self::Mpich => "PMI_SIZE",
        }
    }

    pub(crate) fn other(self) -> Self {
        match self {
            Self::OpenMpi => Self::Mpich,
            Self::Mpich => Self::OpenMpi,
        }
    }

    /// Returns the family that MPI's version text names.
    pub(crate) fn from_version(text: &str) -> Option<Self> {
        let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
        if has(&["Open MPI"]) {
            Some(Self::OpenMpi)
        } else if has(&["MPICH", "MVAPICH", "Intel(R) MPI", "CRAY MPICH"]) {
            Some(Self::Mpich)
        } else {
            None
        }
    }
}

/// Returns why this plug-in cannot be used with the MPI in the process, given MPI's version text.
pub(crate) fn library_mismatch(own: Family, version: &str) -> Option<String> {
    let found = Family::from_version(version);
    if found == Some(own) {
        return None;
    }
    let found = found.map_or_else(|| format!("\"{version}\""), |family| family.name().to_owned());
    Some(format!(
        "the MPI in this process is {found}, and this plug-in was built for {}: load the plug-in \
         that was built for the MPI in this process",
        own.name()
    ))
}

/// Returns the error text for a rank of a larger group that is alone in MPI_COMM_WORLD.
pub(crate) fn single_rank_error(
    own: Family,
    size: usize,
    variable: &dyn Fn(&str) -> Option<String>,
) -> String {
    let other = own.other();
    let other_size = launched_size(other, variable).filter(|&size| size > 1);
    let other_launcher = other_size
        .map(|size| format!(" The launcher of {} started {size} ranks.", other.name()))
        .unwrap_or_default();
    format!(
        "{}: this process is alone in its MPI_COMM_WORLD, and the group has {size} ranks: start \
         the program with {}, which did not start this process.{other_launcher}",
        own.name(),
        own.launcher()
    )
}

/// Returns the size of the job that the launcher of a family passed to this process.
pub(crate) fn launched_size(
    family: Family,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Option<usize> {
    variable(family.size_variable()).and_then(|text| text.trim().parse().ok())
}

/// Returns why this plug-in cannot be used if the other family's launcher started the process. This
/// is checked before MPI is initialised, because that is possible only once.
pub(crate) fn launcher_mismatch(
    own: Family,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Option<String> {
    // Slurm's variables work for both families.
    if launched_size(own, variable).is_some() || variable("SLURM_PROCID").is_some() {
        return None;
    }
    let other = own.other();
    let size = launched_size(other, variable).filter(|&size| size > 1)?;
    Some(format!(
        "the launcher of {} started this process ({} is {size}), and the loaded plug-in is for \
         {}: start the program with {}, or set DIST_MPI_PLUGIN to the path of {}",
        other.name(),
        other.size_variable(),
        own.name(),
        own.launcher(),
        other.plugin_file()
    ))
}
