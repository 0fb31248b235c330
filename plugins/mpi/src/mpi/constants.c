/*
 * The macros of mpi.h, which are not visible outside of C. mpi-sys has the rest.
 */
#include <mpi.h>
#include <stddef.h>

void *const dist_mpi_in_place = MPI_IN_PLACE;

/* The family of the header: other libraries that call themselves MPI have other types. */
#if defined(OPEN_MPI)
const int dist_mpi_family = 1;
#elif defined(MPICH_VERSION) || defined(MPICH) || defined(I_MPI_VERSION) || defined(MVAPICH2_VERSION)
const int dist_mpi_family = 2;
#else
#error "neither Open MPI nor MPICH nor a known derivative: add this MPI to constants.c and family.rs"
#endif

/*
 * Returns true if this MPI reports now that it accepts CUDA device memory. These functions are
 * extensions that an MPI may lack, so the loader resolves them as weak symbols.
 */
extern int MPIX_Query_cuda_support(void) __attribute__((weak));
#if defined(MPIX_GPU_SUPPORT_CUDA)
extern int MPIX_GPU_query_support(int gpu_type, int *is_supported) __attribute__((weak));
#endif

int dist_mpi_supports_cuda(void)
{
#if defined(MPIX_GPU_SUPPORT_CUDA)
    int is_supported = 0;
    if (MPIX_GPU_query_support != NULL) {
        return MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA, &is_supported) == MPI_SUCCESS && is_supported;
    }
#endif
    return MPIX_Query_cuda_support != NULL && MPIX_Query_cuda_support() == 1;
}
