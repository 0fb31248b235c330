/*
 * Rank 0 whose MASTER_ADDR becomes resolvable some seconds after its start, as in Kubernetes: it
 * waits, as the other ranks do. White space around the name, as files in YAML add it, has no
 * effect. A name that never resolves is an error at the deadline, and the error has the name.
 *
 * The program's own getaddrinfo replaces the one of the C library, for the library too.
 */
#define _GNU_SOURCE
#include "forked_ranks.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <sys/socket.h>

#define RANKS 2
#define LATE_NAME "dist-late-name.invalid"
#define LATE_MS 1500

/* The time from which the name resolves, in milliseconds. */
static int64_t resolves_from;
static int refused;

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int getaddrinfo(const char *restrict node, const char *restrict service, const struct addrinfo *restrict hints,
                struct addrinfo **restrict result)
{
    int (*original)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    void *symbol = dlsym(RTLD_NEXT, "getaddrinfo");
    memcpy(&original, &symbol, sizeof original);
    if (node == NULL || strcmp(node, LATE_NAME) != 0) {
        return original(node, service, hints, result);
    }
    if (now_ms() < resolves_from) {
        __atomic_add_fetch(&refused, 1, __ATOMIC_RELAXED);
        return EAI_NONAME;
    }
    return original("127.0.0.1", service, hints, result);
}

static void set_variable(const char *name, const char *value)
{
    REQUIRE(setenv(name, value, 1) == 0);
}

/* Sets the variables of a launcher. */
static void set_variables(int rank, int size, const char *address, int port)
{
    char number[16];
    sprintf(number, "%d", rank);
    set_variable("RANK", number);
    sprintf(number, "%d", size);
    set_variable("WORLD_SIZE", number);
    sprintf(number, " %d\n", port);
    set_variable("MASTER_PORT", number);
    set_variable("MASTER_ADDR", address);
}

struct job {
    const char *address;
    int port;
};

static int run_rank(struct shared_page *page, int rank, void *arg)
{
    const struct job *job = arg;
    dist_init_options_t options = DIST_INIT_OPTIONS_INIT;
    float x = 1;
    (void)page;
    resolves_from = now_ms() + LATE_MS;
    set_variables(rank, RANKS, job->address, job->port);
    options.connect_timeout_ms = LIMIT_MS;
    REQUIRE_OK(dist_init(&options));
    CHECK(refused > 0);
    CHECK_OK(dist_all_reduce(dist_world(), &x, &x, 1, DIST_F32, DIST_SUM, NULL, NULL));
    CHECK(x == RANKS);
    CHECK_OK(dist_finalize());
    return check_report();
}

static int run_rank_without_name(struct shared_page *page, int rank, void *arg)
{
    dist_init_options_t options = DIST_INIT_OPTIONS_INIT;
    const struct job *job = arg;
    int64_t began = now_ms();
    (void)page;
    resolves_from = INT64_MAX;
    set_variables(rank, RANKS, job->address, job->port);
    options.connect_timeout_ms = 900;
    CHECK_STATUS(dist_init(&options), DIST_ERR_CONNECTION);
    CHECK_MESSAGE(LATE_NAME);
    CHECK_MESSAGE("does not resolve");
    CHECK(refused > 1 && now_ms() - began >= 900);
    return check_report();
}

/* Returns a port that is free now. */
static int find_port(void)
{
    struct sockaddr_in address;
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
    REQUIRE(getsockname(fd, (struct sockaddr *)&address, &len) == 0);
    close(fd);
    return ntohs(address.sin_port);
}

int main(void)
{
    struct job job = { LATE_NAME, find_port() };
    run_forks(RANKS, run_rank, &job);
    job.address = "  " LATE_NAME " \n";
    job.port = find_port();
    run_forks(RANKS, run_rank, &job);
    job.address = LATE_NAME;
    /* Rank 0 fails before it waits for rank 1. */
    run_forks(1, run_rank_without_name, &job);
    return check_report();
}
