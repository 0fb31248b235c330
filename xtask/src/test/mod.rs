//! `cargo xtask test`: every check that this machine allows, and a count.
//!
//! A check that cannot run here (a tool is missing and may not be installed) is skipped with its reason; a skipped
//! check is not a failure, since the command must work for an ordinary user who has Rust and a C compiler only.

mod counts;
mod faults;
mod mpi;
mod packages;
mod programs;
mod report;
mod rust;

use crate::tools::{self, Tool};
use crate::{Arguments, Outcome};
use report::Report;

const NEEDED: &[Tool] = &[
    Tool { program: "cmake", package: "cmake", purpose: "C tests, installed package" },
    Tool { program: "make", package: "make", purpose: "C tests, installed package" },
    Tool { program: "c++", package: "g++", purpose: "the header from C++" },
    Tool { program: "pkg-config", package: "pkg-config", purpose: "pkg-config consumer" },
    Tool { program: "python3", package: "python3", purpose: "ctypes consumer" },
    Tool {
        program: "valgrind",
        package: "valgrind",
        purpose: "leaks and bad accesses of C programs",
    },
    Tool { program: "abidiff", package: "abigail-tools", purpose: "the ABI against its baseline" },
    Tool {
        program: "mpirun.openmpi",
        package: "openmpi-bin",
        purpose: "ranks that Open MPI starts",
    },
    Tool { program: "mpiexec.mpich", package: "mpich", purpose: "ranks that MPICH starts" },
    Tool {
        program: "mpicc.openmpi",
        package: "libopenmpi-dev",
        purpose: "the plug-in for Open MPI",
    },
    Tool { program: "mpicc.mpich", package: "libmpich-dev", purpose: "the plug-in for MPICH" },
    Tool { program: tools::LIBCLANG, package: "libclang-dev", purpose: "the plug-ins for MPI" },
];

/// Runs the command. Its last line is the count.
pub(crate) fn main(rest: &[String]) -> Outcome {
    let mut arguments = Arguments::new(rest);
    let may_install = !arguments.flag("--no-install");
    arguments.finish()?;

    tools::provide(NEEDED, may_install);
    let mut report = Report::default();
    rust::run(&mut report);
    if let Some(stage) = programs::run(&mut report) {
        faults::run(&mut report, &stage);
        packages::run(&mut report, &stage);
        mpi::run(&mut report, &stage);
        report.check("what GPUs are tested with, over the stubs", || {
            crate::gpu::over_stubs(&stage).map(|()| report::PASSED)
        });
    }
    Ok(report.print())
}
