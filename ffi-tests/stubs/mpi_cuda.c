/*
 * A stub of a CUDA-aware MPI on top of an MPI that is not. It is preloaded into a program that
 * is linked with the stub libcuda. It reports CUDA support and passes MPI the alias of the
 * stub's device memory. It is compiled with the MPI's compiler and is never installed.
 *
 * It implements only the functions that every such MPI supports: messages between two ranks.
 * Device memory in any other function crashes the process, since its own address is not
 * readable. A device context must be current, as such MPIs expect.
 */
#include "stub_cuda.h"

#include <mpi.h>
#include <stdatomic.h>

#define EXPORTED __attribute__((visibility("default")))

/* Symbols of the program; without them no device memory exists. */
#pragma weak dist_stub_cuda_alias
#pragma weak cuCtxGetCurrent

static atomic_long n_translated, n_without_context;

/* Returns the number of device buffers that MPI received, and how many of them without a current
 * context. */
EXPORTED void dist_stub_mpi_count(long *buffers, long *wrong)
{
    *buffers = atomic_load(&n_translated);
    *wrong = atomic_load(&n_without_context);
}

EXPORTED int MPIX_Query_cuda_support(void)
{
    return 1;
}

EXPORTED int MPIX_GPU_query_support(int gpu_type, int *is_supported)
{
    *is_supported = gpu_type == 0;
    return MPI_SUCCESS;
}

static void *host_address(const void *buffer, int count, MPI_Datatype datatype)
{
    CUcontext context = NULL;
    MPI_Count size = 0;
    void *alias = NULL;
    if (dist_stub_cuda_alias != NULL && PMPI_Type_size_x(datatype, &size) == MPI_SUCCESS && count > 0) {
        alias = dist_stub_cuda_alias(buffer, (size_t)count * (size_t)size);
    }
    if (alias == NULL) {
        return (void *)buffer;
    }
    atomic_fetch_add(&n_translated, 1);
    if (cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == NULL) {
        atomic_fetch_add(&n_without_context, 1);
    }
    return alias;
}

EXPORTED int MPI_Isend(const void *buffer, int count, MPI_Datatype datatype, int to, int tag, MPI_Comm comm, MPI_Request *request)
{
    return PMPI_Isend(host_address(buffer, count, datatype), count, datatype, to, tag, comm, request);
}

EXPORTED int MPI_Irecv(void *buffer, int count, MPI_Datatype datatype, int from, int tag, MPI_Comm comm, MPI_Request *request)
{
    return PMPI_Irecv(host_address(buffer, count, datatype), count, datatype, from, tag, comm, request);
}

EXPORTED int MPI_Imrecv(void *buffer, int count, MPI_Datatype datatype, MPI_Message *message, MPI_Request *request)
{
    return PMPI_Imrecv(host_address(buffer, count, datatype), count, datatype, message, request);
}
