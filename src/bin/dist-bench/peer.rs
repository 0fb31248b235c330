//! The libraries that ours is compared with, and what engines each of them makes.

use crate::Failure;
use crate::engine::Launch;
use crate::gloo;
use crate::mpi::{self, Implementation};
use crate::stage::Stage;
use clap::ValueEnum;
use dist::base::dtype::DataType;

/// A library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    Openmpi,
    /// Without cross-memory attach: compared with ours under DIST_CMA=0.
    OpenmpiStaged,
    Mpich,
    /// Through PyTorch.
    Gloo,
    /// From C++.
    GlooCpp,
}

impl Peer {
    /// Its engines, whose programs are found or made.
    pub(crate) fn engines(self, stage: &mut Stage) -> Result<Vec<Box<dyn Launch>>, Failure> {
        match self {
            Self::Openmpi => mpi::peers(Implementation::Openmpi, stage),
            Self::OpenmpiStaged => mpi::peers(Implementation::OpenmpiStaged, stage),
            Self::Mpich => mpi::peers(Implementation::Mpich, stage),
            Self::Gloo => gloo::through_torch(stage),
            Self::GlooCpp => gloo::from_cpp(stage),
        }
    }

    /// Whether its program knows a type of elements at all. torch says so itself, for each
    /// operation.
    pub(crate) const fn knows(self, dtype: DataType) -> bool {
        use DataType::*;
        match self {
            Self::Gloo => true,
            _ => matches!(dtype, I8 | U8 | I16 | U16 | I32 | U32 | I64 | U64 | F32 | F64),
        }
    }
}
