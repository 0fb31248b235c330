/*
 * Trains a model of LightGBM on all ranks of a job. Each rank has its own rows. The ranks
 * communicate over libdist, or for comparison over LightGBM's own sockets. Both give the same
 * model: the program prints its hash.
 *
 *     distrun --nproc-per-node 2 ./train_lightgbm [--sockets] [--rows N] [--features N]
 *                                                 [--leaves N] [--rounds N]
 */
#define _POSIX_C_SOURCE 200112L
#include "../common/check.h"
#include "group_network.h"
#include "lightgbm_api.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* The time that LightGBM gets to connect its sockets. */
#define CONNECT_MINUTES 2

typedef struct options {
    int over_sockets;
    int rows, features, leaves, rounds;
} options_t;

static void check_lightgbm(int status)
{
    if (status != 0) {
        fprintf(stderr, "LightGBM: %s\n", LGBM_GetLastError());
        exit(1);
    }
}

static options_t parse_options(int argc, char **argv)
{
    options_t o = {0, 4000, 200, 63, 20};
    const struct {
        const char *name;
        int *value;
    } numbers[] = {
        {"--rows", &o.rows}, {"--features", &o.features}, {"--leaves", &o.leaves}, {"--rounds", &o.rounds}};

    for (int i = 1; i < argc; i++) {
        int *value = NULL;
        for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++) {
            if (strcmp(argv[i], numbers[n].name) == 0) {
                value = numbers[n].value;
            }
        }
        if (strcmp(argv[i], "--sockets") == 0) {
            o.over_sockets = 1;
        } else if (value == NULL || i + 1 == argc || (*value = atoi(argv[++i])) < 2) {
            fprintf(stderr, "usage: train_lightgbm [--sockets] [--rows N] [--features N] [--leaves N] "
                            "[--rounds N], with numbers from 2\n");
            exit(2);
        }
    }
    return o;
}

static void *allocate(size_t n_bytes)
{
    void *memory = malloc(n_bytes);
    if (memory == NULL) {
        fprintf(stderr, "no memory for %zu bytes\n", n_bytes);
        exit(1);
    }
    return memory;
}

/* Returns a number from 0 to 1 for each index (the mixing function of splitmix64). */
static double random_number(uint64_t index)
{
    uint64_t bits = (index + 1) * UINT64_C(0x9e3779b97f4a7c15);
    bits = (bits ^ (bits >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    bits = (bits ^ (bits >> 27)) * UINT64_C(0x94d049bb133111eb);
    bits ^= bits >> 31;
    return (double)(bits >> 11) / 9007199254740992.0;
}

/* Makes the rows of this rank: every size-th row of the data set. The label depends on ten features
 * and some noise. */
static lightgbm_dataset_t make_dataset(const options_t *o, int rank, int size, const char *parameters)
{
    int rows = (o->rows - rank + size - 1) / size;
    size_t columns = (size_t)o->features;
    float *values = allocate((size_t)rows * columns * sizeof *values);
    float *labels = allocate((size_t)rows * sizeof *labels);
    lightgbm_dataset_t dataset;

    for (int row = 0; row < rows; row++) {
        uint64_t number = (uint64_t)row * (uint64_t)size + (uint64_t)rank;
        double score = 0.0;
        for (size_t column = 0; column < columns; column++) {
            double value = random_number(number * columns + column);
            values[(size_t)row * columns + column] = (float)value;
            score += column < 10 ? (value - 0.5) * (double)(column + 1) : 0.0;
        }
        labels[row] = score + random_number(~number) > 0.5 ? 1.0F : 0.0F;
    }
    check_lightgbm(LGBM_DatasetCreateFromMat(values, LIGHTGBM_FLOAT32, rows, o->features, 1,
                                             parameters, NULL, &dataset));
    check_lightgbm(LGBM_DatasetSetField(dataset, "label", labels, rows, LIGHTGBM_FLOAT32));
    free(values);
    free(labels);
    return dataset;
}

/* Returns a port that no program uses at this moment. */
static int32_t find_free_port(void)
{
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    int descriptor = socket(AF_INET, SOCK_STREAM, 0);

    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (descriptor < 0 || bind(descriptor, (struct sockaddr *)&address, sizeof address) != 0 ||
        getsockname(descriptor, (struct sockaddr *)&address, &length) != 0) {
        perror("no free port");
        exit(1);
    }
    close(descriptor);
    return ntohs(address.sin_port);
}

/* Lets LightGBM connect the ranks, which are on this host, by sockets of its own. */
static void connect_sockets(dist_group_t *world, int rank, int size)
{
    int32_t *ports = allocate((size_t)size * sizeof *ports);
    char *machines = allocate((size_t)size * sizeof "127.0.0.1:65535,");
    size_t length = 0;
    int32_t own = find_free_port();

    check(dist_all_gather(world, &own, ports, 1, DIST_I32, NULL, NULL));
    for (int i = 0; i < size; i++) {
        length += (size_t)sprintf(machines + length, "%s127.0.0.1:%d", i > 0 ? "," : "", (int)ports[i]);
    }
    check_lightgbm(LGBM_NetworkInit(machines, ports[rank], CONNECT_MINUTES, size));
    free(machines);
    free(ports);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Returns the hash of the model's trees (FNV-1a). The list of parameters behind the trees names
 * ports, so it does not count. */
static uint64_t hash_model(lightgbm_booster_t booster)
{
    int64_t n_bytes = 0;
    uint64_t hash = UINT64_C(14695981039346656037);
    char *text, *end;

    check_lightgbm(LGBM_BoosterSaveModelToString(booster, 0, -1, 0, 0, &n_bytes, NULL));
    text = allocate((size_t)n_bytes);
    check_lightgbm(LGBM_BoosterSaveModelToString(booster, 0, -1, 0, n_bytes, &n_bytes, text));
    end = strstr(text, "\nend of trees");
    if (end == NULL) {
        fprintf(stderr, "the model has no trees\n");
        exit(1);
    }
    for (const char *at = text; at < end; at++) {
        hash = (hash ^ (unsigned char)*at) * UINT64_C(1099511628211);
    }
    free(text);
    return hash;
}

int main(int argc, char **argv)
{
    options_t o = parse_options(argc, argv);
    check(dist_init(NULL));
    dist_group_t *world = dist_world();
    int rank = (int)dist_get_rank(world);
    int size = (int)dist_get_world_size(world);

    /* One way to make histograms, so that the order of additions does not depend on the time. */
    char parameters[400];
    snprintf(parameters, sizeof parameters,
             "objective=binary tree_learner=%s num_machines=%d pre_partition=true num_leaves=%d "
             "min_data_in_leaf=5 num_threads=1 force_col_wise=true deterministic=true verbosity=-1",
             size > 1 ? "data" : "serial", size, o.leaves);

    if (o.over_sockets) {
        connect_sockets(world, rank, size);
    } else {
        group_network_begin(world);
    }
    lightgbm_dataset_t dataset = make_dataset(&o, rank, size, parameters);
    lightgbm_booster_t booster;
    check_lightgbm(LGBM_BoosterCreate(dataset, parameters, &booster));

    check(dist_barrier(world, NULL, NULL));
    double start = seconds();
    for (int round = 0, is_finished = 0; round < o.rounds && !is_finished; round++) {
        check_lightgbm(LGBM_BoosterUpdateOneIter(booster, &is_finished));
    }
    double elapsed = seconds() - start;

    /* All ranks have the same model. */
    uint64_t hash = hash_model(booster);
    int32_t all_equal = 0;
    check(dist_all_equal(world, &hash, sizeof hash, &all_equal, NULL, NULL));
    if (rank == 0) {
        printf("model %016llx, %d rounds in %.3f s over %s\n", (unsigned long long)hash, o.rounds,
               elapsed, o.over_sockets ? "sockets" : "libdist");
    }

    check_lightgbm(LGBM_BoosterFree(booster));
    check_lightgbm(LGBM_DatasetFree(dataset));
    if (o.over_sockets) {
        LGBM_NetworkFree();
    } else {
        group_network_end();
    }
    check(dist_finalize());
    return all_equal ? 0 : 1;
}
