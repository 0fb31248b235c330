# A recipe of Spack (https://spack.io). To build the source tree that contains this file:
#
#     spack repo add packaging/spack && spack install libdist

from pathlib import Path

from spack.package import *

ROOT = Path(__file__).resolve().parents[4]


class Libdist(CMakePackage):
    """Collective communication between the processes of a training job, behind a C interface."""

    git = ROOT.as_uri()

    license("Apache-2.0")

    version("main", branch="main")

    variant("mpi", default=False, description="Build the back end over MPI as a plug-in")

    depends_on("c", type="build")
    depends_on("cmake@3.16:", type="build")
    depends_on("rust@1.89:", type="build")
    depends_on("mpi", when="+mpi")
    depends_on("llvm+clang", type="build", when="+mpi")

    # Only Linux has the system calls.
    requires("platform=linux")

    def cmake_args(self):
        compiler = self.spec["mpi"].mpicc if "+mpi" in self.spec else "OFF"
        return [self.define("DIST_MPI", compiler)]
