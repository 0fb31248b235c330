//! Which MPI this was built for, which one is in the process, and whose launcher started it.
//!
//! The families do not know each other: a program that the launcher of the other one has started
//! finds itself alone in its MPI_COMM_WORLD.
//!
//! The library's tests read this file. So it must not know MPI.

/// An MPI, and those that are made of it.
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

    /// How its jobs are started, in the words of Debian where both are installed.
    pub(crate) fn launcher(self) -> &'static str {
        match self {
            Self::OpenMpi => "Open MPI's mpirun (mpirun.openmpi)",
            Self::Mpich => "MPICH's mpiexec (mpiexec.mpich)",
        }
    }

    /// What the plug-in for it is called.
    pub(crate) fn object(self) -> &'static str {
        match self {
            Self::OpenMpi => "libdist_mpi_openmpi.so",
            Self::Mpich => "libdist_mpi_mpich.so",
        }
    }

    /// What its launcher tells each process about the size of the job.
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

    /// The one that a library's text on its version tells of.
    pub(crate) fn of_version(text: &str) -> Option<Self> {
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

/// Why a plug-in cannot be used with the MPI in the process, whose text on its version this is.
pub(crate) fn mismatch(own: Family, version: &str) -> Option<String> {
    let found = Family::of_version(version);
    if found == Some(own) {
        return None;
    }
    let found = found.map_or_else(|| format!("\"{version}\""), |family| family.name().to_owned());
    Some(format!(
        "the MPI in this process is {found}, and this plug-in was built for {}: load the one that was built for it",
        own.name()
    ))
}

/// What is said where a rank of a larger group finds itself alone in MPI.
pub(crate) fn alone(own: Family, size: usize, variable: &dyn Fn(&str) -> Option<String>) -> String {
    let other = own.other();
    let told = told(other, variable).filter(|&told| told > 1);
    let told = told
        .map(|told| format!(" The launcher of {} has told of {told} ranks.", other.name()))
        .unwrap_or_default();
    format!(
        "{} finds a process alone in its MPI_COMM_WORLD, of {size} in the group: it was not started by {}.{told}",
        own.name(),
        own.launcher()
    )
}

/// The size of the job that the launcher of a family has started, as it told this process.
pub(crate) fn told(family: Family, variable: &dyn Fn(&str) -> Option<String>) -> Option<usize> {
    variable(family.size_variable()).and_then(|text| text.trim().parse().ok())
}

/// Why this plug-in cannot be used, where the launcher was surely the other family's: before MPI is
/// initialised, which can be done once only.
pub(crate) fn refusal(own: Family, variable: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    // What Slurm tells serves either.
    if told(own, variable).is_some() || variable("SLURM_PROCID").is_some() {
        return None;
    }
    let other = own.other();
    let size = told(other, variable).filter(|&size| size > 1)?;
    Some(format!(
        "this process was started by the launcher of {} ({} is {size}), and the plug-in that is loaded is for {}: start the \
         program with {}, or set DIST_MPI_PLUGIN to the path of {}",
        other.name(),
        other.size_variable(),
        own.name(),
        own.launcher(),
        other.object()
    ))
}
