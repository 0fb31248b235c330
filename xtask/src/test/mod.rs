//! `cargo xtask test`: runs every check that is possible on this machine, and prints the numbers of
//! passed, failed and skipped tests.
//!
//! If a check cannot run on this machine, it is skipped, and the reason is printed. For example, a
//! tool may be missing. A skipped check is not a failure, because the command must work on a
//! machine with only Rust and a C compiler.

mod counts;
mod faults;
mod mpi;
mod packages;
mod programs;
mod python;
mod report;
mod rust;

pub(crate) use packages::use_installed;
pub(crate) use python::use_wheel;

use crate::tools::{self, Tool};
use crate::workspace;
use crate::{Arguments, CommandResult};
use report::CheckReport;

const NEEDED_TOOLS: &[Tool] = &[
    Tool { program: "cmake", package: "cmake", purpose: "C tests, installed package" },
    Tool { program: "make", package: "make", purpose: "C tests, installed package" },
    Tool { program: "c++", package: "g++", purpose: "the header from C++" },
    Tool { program: "pkg-config", package: "pkg-config", purpose: "pkg-config consumer" },
    Tool { program: "python3", package: "python3", purpose: "ctypes consumer, Python package" },
    Tool { program: tools::PYTHON_VENV, package: "python3-venv", purpose: "the Python package" },
    Tool {
        program: "valgrind",
        package: "valgrind",
        purpose: "leaks and invalid accesses of C programs",
    },
    Tool { program: "abidiff", package: "abigail-tools", purpose: "the ABI against its baseline" },
    Tool {
        program: "mpirun.openmpi",
        package: "openmpi-bin",
        purpose: "ranks under Open MPI's launcher",
    },
    Tool { program: "mpiexec.mpich", package: "mpich", purpose: "ranks under MPICH's launcher" },
    Tool {
        program: "mpicc.openmpi",
        package: "libopenmpi-dev",
        purpose: "the plug-in for Open MPI",
    },
    Tool { program: "mpicc.mpich", package: "libmpich-dev", purpose: "the plug-in for MPICH" },
    Tool { program: "chromium", package: "chromium", purpose: "the page of dist-doctor" },
    Tool { program: "script", package: "bsdutils", purpose: "the programs on a terminal" },
    Tool { program: tools::LIBCLANG, package: "libclang-dev", purpose: "the plug-ins for MPI" },
];

/// Runs the command. The last line of its output has the numbers of tests.
pub(crate) fn main(rest: &[String]) -> CommandResult {
    let mut arguments = Arguments::new(rest);
    let may_install = !arguments.flag("--no-install");
    let only = arguments.value("--only")?;
    arguments.finish()?;
    let wants = |part: &str| only.as_deref().is_none_or(|only| only == part);
    if let Some(only) = only.as_deref().filter(|only| !["packages", "mpi", "python"].contains(only))
    {
        return Err(format!("--only takes packages, mpi or python, not {only}"));
    }

    tools::install_missing(NEEDED_TOOLS, may_install);
    let mut report = CheckReport::default();
    let stage = match only {
        None => {
            rust::run(&mut report, may_install);
            programs::run(&mut report)
        }
        Some(_) => Some(workspace::stage_release_build()?),
    };
    let Some(stage) = stage else { return Ok(report.print_summary()) };
    if only.is_none() {
        faults::run(&mut report, &stage);
    }
    if wants("packages") {
        packages::run(&mut report, &stage);
    }
    if wants("python") {
        python::run(&mut report, &stage);
    }
    if wants("mpi") {
        mpi::run(&mut report, &stage);
        report.run_check("GPU programs with the stubs", || {
            crate::gpu::run_over_stubs(&stage).map(|()| report::PASSED)
        });
    }
    Ok(report.print_summary())
}
