//! The libraries that libdist is compared with, and their engines.

use crate::engine::EngineLauncher;
use crate::gloo;
use crate::mpi::{self, MpiImplementation};
use crate::run_context::RunContext;
use crate::ucc;
use clap::ValueEnum;
use dist::base::dtype::DataType;
use dist_tools::Failure;

/// A library to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PeerLibrary {
    Openmpi,
    /// Open MPI without single copy; compare it with libdist under DIST_CMA=0
    OpenmpiStaged,
    Mpich,
    /// Gloo through PyTorch
    Gloo,
    /// Gloo from C++
    GlooCpp,
    /// UCC, in the folder that DIST_BENCH_UCC names
    Ucc,
}

impl PeerLibrary {
    /// Builds the engines of the library. Finds or compiles their programs.
    pub(crate) fn engines(
        self,
        context: &mut RunContext,
    ) -> Result<Vec<Box<dyn EngineLauncher>>, Failure> {
        match self {
            Self::Openmpi => mpi::mpi_engines(MpiImplementation::Openmpi, context),
            Self::OpenmpiStaged => mpi::mpi_engines(MpiImplementation::OpenmpiStaged, context),
            Self::Mpich => mpi::mpi_engines(MpiImplementation::Mpich, context),
            Self::Gloo => gloo::torch_engines(context),
            Self::GlooCpp => gloo::cpp_engines(context),
            Self::Ucc => ucc::engines(context),
        }
    }

    /// Returns true if the library's program supports an element type. For Gloo through torch,
    /// always returns true, because torch reports an unsupported type itself for each operation.
    pub(crate) const fn supports_dtype(self, dtype: DataType) -> bool {
        use DataType::*;
        match self {
            Self::Gloo => true,
            _ => matches!(dtype, I8 | U8 | I16 | U16 | I32 | U32 | I64 | U64 | F32 | F64),
        }
    }
}
