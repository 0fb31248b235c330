/*
 * The two functions through which LightGBM communicates: a reduce-scatter with a function of
 * LightGBM as its operator, and an all-gather of blocks of different lengths.
 *
 * LightGBM passes neither a context nor a status, so the group is a variable of this file, and a
 * failed call ends the process (check.h). The launcher then reports or restarts the job.
 */
#include "group_network.h"

#include "../common/check.h"
#include "lightgbm_api.h"

#include <string.h>

/* The group, and arrays with one entry for each rank. */
static struct {
    dist_group_t *group;
    int rank, size;
    const void **send;
    void **recv;
    size_t *send_bytes, *recv_bytes;
    /* The blocks that the ranks sent to this rank, one behind the other. */
    char *received;
    size_t received_capacity;
} network;

static void *allocate(void *memory, size_t n_bytes)
{
    memory = realloc(memory, n_bytes);
    if (memory == NULL) {
        fprintf(stderr, "no memory for %zu bytes\n", n_bytes);
        exit(1);
    }
    return memory;
}

/* Each rank sends block i to rank i, and reduces the blocks that it receives in the order of the
 * ranks. */
static void reduce_scatter(char *input, int32_t n_input_bytes, int element_bytes,
                           const int32_t *block_start, const int32_t *block_len, int n_blocks,
                           char *output, int32_t n_output_bytes, const lightgbm_reducer_t *reducer)
{
    size_t own_bytes = (size_t)block_len[network.rank];
    size_t needed = own_bytes * (size_t)n_blocks;
    (void)n_input_bytes;
    (void)n_output_bytes;

    if (needed > network.received_capacity) {
        network.received = allocate(network.received, needed);
        network.received_capacity = needed;
    }
    for (int i = 0; i < n_blocks; i++) {
        network.send[i] = input + block_start[i];
        network.send_bytes[i] = (size_t)block_len[i];
        network.recv[i] = own_bytes > 0 ? network.received + (size_t)i * own_bytes : NULL;
        network.recv_bytes[i] = own_bytes;
    }
    /* The first block of the sum may go to its final place. */
    if (own_bytes > 0) {
        network.recv[0] = output;
    }
    check(dist_all_to_all_v(network.group, network.send, network.send_bytes, network.recv,
                            network.recv_bytes, DIST_U8, NULL, NULL));
    for (int i = 1; i < n_blocks && own_bytes > 0; i++) {
        (*reducer)(network.recv[i], output, element_bytes, (int32_t)own_bytes);
    }
}

static void all_gather(char *input, int32_t n_input_bytes, const int32_t *block_start,
                       const int32_t *block_len, int n_blocks, char *output, int32_t n_output_bytes)
{
    /* The own block may overlap other blocks of `output`: LightGBM passes the beginning of `output`
     * as `input` if it has just reduced its block into it. */
    char *own = output + block_start[network.rank];
    (void)n_output_bytes;

    memmove(own, input, (size_t)n_input_bytes);
    for (int i = 0; i < n_blocks; i++) {
        network.recv[i] = block_len[i] > 0 ? output + block_start[i] : NULL;
        network.recv_bytes[i] = (size_t)block_len[i];
    }
    check(dist_all_gather_v(network.group, network.recv[network.rank], network.recv,
                            network.recv_bytes, DIST_U8, NULL, NULL));
}

void group_network_begin(dist_group_t *group)
{
    size_t size = (size_t)dist_get_world_size(group);

    network.group = group;
    network.rank = (int)dist_get_rank(group);
    network.size = (int)size;
    network.send = allocate(NULL, size * sizeof *network.send);
    network.recv = allocate(NULL, size * sizeof *network.recv);
    network.send_bytes = allocate(NULL, size * sizeof *network.send_bytes);
    network.recv_bytes = allocate(NULL, size * sizeof *network.recv_bytes);
    if (LGBM_NetworkInitWithFunctions(network.size, network.rank, reduce_scatter, all_gather) != 0) {
        fprintf(stderr, "LightGBM: %s\n", LGBM_GetLastError());
        exit(1);
    }
}

void group_network_end(void)
{
    LGBM_NetworkFree();
    free(network.send);
    free(network.recv);
    free(network.send_bytes);
    free(network.recv_bytes);
    free(network.received);
    memset(&network, 0, sizeof network);
}
