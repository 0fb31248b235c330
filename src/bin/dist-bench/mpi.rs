//! Peers that speak MPI: one C program, compiled with each implementation's own compiler and started by its own launcher, with
//! the settings that were found to be the best.

use crate::Failure;
use crate::engine::Launch;
use crate::ops::Op;
use crate::stage::Stage;
use clap::ValueEnum;
use dist::base::config::{self, Variable};
use dist::base::deadline::Deadline;
use dist::base::dtype::DataType;
use dist::sys::host;
use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The program.
const SOURCE: &str = include_str!("peers/mpi.c");

/// How long compiling it may take.
const COMPILING: Duration = Duration::from_secs(120);

const CACHE: Variable = Variable {
    name: "XDG_CACHE_HOME",
    set_by: "user",
    default: ".cache in HOME",
    meaning: "Where programs keep what they can make again.",
};
const HOME: Variable =
    Variable { name: "HOME", set_by: "login", default: "none", meaning: "The user's own folder." };
const PATH: Variable = Variable {
    name: "PATH",
    set_by: "login",
    default: "none",
    meaning: "Where programs are looked for.",
};

/// An implementation of MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Implementation {
    Openmpi,
    Mpich,
}

/// What an implementation is called with.
#[derive(Clone, Copy, Debug)]
struct Setting {
    /// After the implementation's name.
    name: &'static str,
    arguments: &'static [&'static str],
    /// The only operation that it changes, and from which size on it can be better.
    only: Option<(Op, usize)>,
}

const PLAIN: Setting = Setting { name: "", arguments: &[], only: None };

/// Shared memory alone, read from the other process directly where that pays.
const CMA: &[&str] = &[
    "--mca",
    "pml",
    "ob1",
    "--mca",
    "btl",
    "vader,self",
    "--mca",
    "btl_vader_single_copy_mechanism",
    "cma",
];

/// The all-reduce that is best for long vectors: a ring, whose pieces have the size that follows.
const SEGMENTED_RING: &[&str] = &[
    "--mca",
    "coll_tuned_use_dynamic_rules",
    "1",
    "--mca",
    "coll_tuned_allreduce_algorithm",
    "5",
    "--mca",
    "coll_tuned_allreduce_algorithm_segmentsize",
];

/// Ranks that wait let others have the core: better where there are fewer cores than ranks.
const YIELD: &[&str] = &["--mca", "mpi_yield_when_idle", "1"];

const OPENMPI: &[Setting] = &[
    PLAIN,
    Setting { name: "-ring128k", arguments: &["131072"], only: Some((Op::AllReduce, 65_536)) },
    Setting { name: "-ring1m", arguments: &["1048576"], only: Some((Op::AllReduce, 524_288)) },
];

impl Implementation {
    fn name(self) -> &'static str {
        match self {
            Self::Openmpi => "openmpi",
            Self::Mpich => "mpich",
        }
    }

    fn compiler(self) -> &'static str {
        match self {
            Self::Openmpi => "mpicc.openmpi",
            Self::Mpich => "mpicc.mpich",
        }
    }

    fn launcher(self) -> &'static str {
        match self {
            Self::Openmpi => "mpirun.openmpi",
            Self::Mpich => "mpiexec.mpich",
        }
    }

    fn packages(self) -> &'static str {
        match self {
            Self::Openmpi => "libopenmpi-dev and openmpi-bin",
            Self::Mpich => "libmpich-dev and mpich",
        }
    }

    fn settings(self) -> &'static [Setting] {
        match self {
            Self::Openmpi => OPENMPI,
            Self::Mpich => &[PLAIN],
        }
    }

    /// What to do where something of it is missing.
    fn remedy(self) -> String {
        let (name, packages) = (self.name(), self.packages());
        format!(
            "install {packages} (the names of Debian and Ubuntu), or leave {name} out of --peer"
        )
    }

    /// Where one of its programs is.
    fn find(self, program: &str) -> Result<PathBuf, Failure> {
        let path = config::text(PATH)?.unwrap_or_default();
        let mut places = std::env::split_paths(&path).map(|folder| folder.join(program));
        let found = places.find(|file| file.is_file());
        found.ok_or_else(|| Failure::new(format!("{program} not found: {}", self.remedy())))
    }
}

/// Whether the C program knows a type of elements.
pub(crate) const fn knows(dtype: DataType) -> bool {
    use DataType::*;
    matches!(dtype, I8 | U8 | I16 | U16 | I32 | U32 | I64 | U64 | F32 | F64)
}

/// An implementation with a setting, compiled.
#[derive(Debug)]
pub(crate) struct Mpi {
    name: String,
    implementation: Implementation,
    setting: Setting,
    launcher: PathBuf,
    program: PathBuf,
}

/// All settings of an implementation, whose program is compiled unless it was before.
pub(crate) fn peers(
    implementation: Implementation,
    stage: &mut Stage,
) -> Result<Vec<Mpi>, Failure> {
    let compiler = implementation.find(implementation.compiler())?;
    let launcher = implementation.find(implementation.launcher())?;
    let program = compiled(implementation, &compiler, stage)?;
    let settings = implementation.settings().iter();
    let peer = |&setting: &Setting| Mpi {
        name: format!("{}{}", implementation.name(), setting.name),
        implementation,
        setting,
        launcher: launcher.clone(),
        program: program.clone(),
    };
    Ok(settings.map(peer).collect())
}

impl Launch for Mpi {
    fn name(&self) -> &str {
        &self.name
    }

    fn commands(&self, ranks: usize, place: &Path) -> Result<Vec<Command>, Failure> {
        let mut command = Command::new(&self.launcher);
        if self.implementation == Implementation::Openmpi {
            // Where ranks run is the program's own business, the same as ours.
            command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
            command.args(CMA);
            if ranks > host::cores() {
                command.args(YIELD);
            }
            if self.setting.only.is_some() {
                command.args(SEGMENTED_RING);
            }
            command.args(self.setting.arguments);
        }
        command.args(["-n", &ranks.to_string()]).arg(&self.program).arg(place);
        Ok(vec![command])
    }

    fn takes(&self, op: Op, bytes: usize) -> bool {
        self.setting.only.is_none_or(|(only, least)| op == only && bytes >= least)
    }
}

/// The compiled program: from the cache, or made.
fn compiled(
    implementation: Implementation,
    compiler: &Path,
    stage: &mut Stage,
) -> Result<PathBuf, Failure> {
    let mut hasher = DefaultHasher::new();
    // Another version of the compiler's files is another compiler.
    let changed = fs::metadata(compiler).and_then(|data| data.modified()).ok();
    (SOURCE, compiler, changed).hash(&mut hasher);
    let name = format!("mpi-{}-{:016x}", implementation.name(), hasher.finish());
    let folder = cache(stage)?;
    let program = folder.join(&name);
    if program.is_file() {
        return Ok(program);
    }
    let made = |cause: std::io::Error| Failure::new(format!("{}: {cause}", folder.display()));
    fs::create_dir_all(&folder).map_err(made)?;
    let (source, fresh) = (stage.folder().join(format!("{name}.c")), stage.folder().join(&name));
    let log = stage.folder().join(format!("{name}.log"));
    fs::write(&source, SOURCE).map_err(made)?;
    let mut command = Command::new(compiler);
    command.args(["-std=gnu11", "-O3", "-o"]).arg(&fresh).arg(&source);
    let compiling = [stage.start(&mut command, &log)?];
    let has_ended = stage.await_ends(&compiling, &Deadline::after(COMPILING))?;
    if !has_ended || !stage.ending(compiling[0]).is_some_and(|ending| ending.is_success()) {
        stage.end(&compiling)?;
        let said = fs::read_to_string(&log).unwrap_or_default();
        let why = if has_ended { "failed" } else { "takes too long" };
        let (compiler, remedy) = (compiler.display(), implementation.remedy());
        return Err(Failure::new(format!("{compiler} {why}: {remedy}\n{}", said.trim_end())));
    }
    // The cache may be on another file system; put in place in one step, since others may be doing the same.
    let beside = folder.join(format!("{name}.{}", host::pid()));
    fs::copy(&fresh, &beside).and_then(|_| fs::rename(&beside, &program)).map_err(made)?;
    Ok(program)
}

/// Where compiled programs are kept: for this run only, where the user has no place.
fn cache(stage: &Stage) -> Result<PathBuf, Failure> {
    let own = |name: OsString| PathBuf::from(name).join("dist-bench");
    if let Some(folder) = config::text(CACHE)? {
        return Ok(own(folder.into()));
    }
    let home = config::text(HOME)?;
    Ok(home.map_or_else(
        || stage.folder().join("cache"),
        |home| own(Path::new(&home).join(".cache").into_os_string()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(implementation: Implementation, setting: Setting) -> Mpi {
        let name = format!("{}{}", implementation.name(), setting.name);
        let (launcher, program) = ("run".into(), "program".into());
        Mpi { name, implementation, setting, launcher, program }
    }

    fn words(peer: &Mpi, ranks: usize) -> Vec<String> {
        let commands = peer.commands(ranks, Path::new("/place")).unwrap();
        let arguments = commands[0].get_args();
        arguments.map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn the_launcher_is_told_the_setting() {
        let ring = peer(Implementation::Openmpi, OPENMPI[1]);
        let said = words(&ring, 2).join(" ");
        assert!(said.contains("coll_tuned_allreduce_algorithm_segmentsize 131072 -n 2"), "{said}");
        assert!(words(&ring, host::cores() + 1).contains(&"mpi_yield_when_idle".to_owned()));
        let plain = words(&peer(Implementation::Openmpi, PLAIN), 1).join(" ");
        assert!(!plain.contains("dynamic_rules") && !plain.contains("yield"), "{plain}");
        let mpich = words(&peer(Implementation::Mpich, PLAIN), 3);
        assert_eq!(mpich, ["-n", "3", "program", "/place"]);
    }

    #[test]
    fn a_ring_takes_part_where_it_can_be_the_best() {
        let ring = peer(Implementation::Openmpi, OPENMPI[2]);
        assert!(ring.takes(Op::AllReduce, 1 << 20) && !ring.takes(Op::AllReduce, 1 << 10));
        assert!(!ring.takes(Op::Broadcast, 1 << 20));
        assert!(peer(Implementation::Mpich, PLAIN).takes(Op::Barrier, 0));
    }

    #[test]
    fn a_missing_program_is_told_with_what_to_install() {
        let failure = Implementation::Mpich.find("mpicc.nowhere").unwrap_err();
        let text = "mpicc.nowhere not found: install libmpich-dev and mpich";
        assert!(failure.message.starts_with(text), "{}", failure.message);
    }
}
