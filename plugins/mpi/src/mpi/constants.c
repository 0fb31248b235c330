/*
 * What mpi.h has as macros only, which no other language sees. The rest is mpi-sys's.
 */
#include <mpi.h>

void *const dist_mpi_in_place = MPI_IN_PLACE;

/* Whose header this was compiled with: what else calls itself MPI has other types. */
#if defined(OPEN_MPI)
const int dist_mpi_family = 1;
#elif defined(MPICH_VERSION) || defined(MPICH) || defined(I_MPI_VERSION) || defined(MVAPICH2_VERSION)
const int dist_mpi_family = 2;
#else
#error "neither Open MPI nor MPICH, or an MPI made of one of them: tell constants.c and family.rs of it"
#endif
