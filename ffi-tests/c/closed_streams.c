/*
 * A daemon whose standard streams are closed: the library never takes the descriptors 0 to 2, so
 * that the output of the program does not go into its sockets and files. The program closes the
 * streams, starts ranks with dist_spawn, and each rank uses everything that has descriptors, over
 * each transport. After each step the three descriptors are still closed.
 */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS 3
#define COUNT 300000
/* The copy of the standard output for the report. */
#define REPORT 100

static char folder[64];

/*
 * Returns true if a descriptor is closed, or is closed within a second. Another thread of the
 * library may have created a descriptor just now, which has a low number until it is moved or
 * closed.
 */
static int is_closed_soon(int fd)
{
    int tries;
    for (tries = 0; tries < 1000; tries++) {
        if (fcntl(fd, F_GETFD) == -1 && errno == EBADF) {
            return 1;
        }
        usleep(1000);
    }
    return 0;
}

/* Returns true if the standard streams are closed, and prints the path of a descriptor that is open. */
static int are_streams_closed(const char *step)
{
    int fd, are_closed = 1;
    for (fd = 0; fd <= 2; fd++) {
        if (!is_closed_soon(fd)) {
            char path[64], target[256] = "";
            sprintf(path, "/proc/self/fd/%d", fd);
            if (readlink(path, target, sizeof(target) - 1) < 0) {
                strcpy(target, "?");
            }
            printf("after %s: descriptor %d is open: %s\n", step, fd, target);
            are_closed = 0;
        }
    }
    return are_closed;
}

#define STEP(call) \
    do { \
        CHECK_OK(call); \
        CHECK(are_streams_closed(#call)); \
    } while (0)

/* The output of the program, which must go nowhere. */
static void print_something(void)
{
    ssize_t written = write(1, "somebody prints\n", 16) + write(2, "somebody complains\n", 19);
    char byte;
    CHECK(written == -2 && read(0, &byte, 1) == -1);
}

static void use_group(dist_group_t *group, int rank, int size)
{
    static float vector[COUNT], received[COUNT];
    static const size_t counts[] = { 1, 1000, COUNT };
    size_t c, i;
    for (c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        dist_work_t *work = NULL;
        for (i = 0; i < counts[c]; i++) {
            vector[i] = (float)(rank + 1);
        }
        print_something();
        STEP(dist_all_reduce(group, vector, vector, counts[c], DIST_F32, DIST_SUM, NULL, NULL));
        CHECK(vector[0] == (float)(size * (size + 1) / 2) && vector[counts[c] - 1] == vector[0]);
        print_something();
        STEP(dist_recv(group, received, counts[c], DIST_F32, (rank + size - 1) % size, 7, NULL, NULL, &work));
        STEP(dist_send(group, vector, counts[c], DIST_F32, (rank + 1) % size, 7, NULL, NULL));
        STEP(dist_work_wait(work, LIMIT_MS));
        STEP(dist_work_release(work));
        CHECK(received[counts[c] - 1] == vector[0]);
    }
}

static void use_new_group(int rank, int size)
{
    dist_group_t *group = NULL;
    STEP(dist_group_new(dist_world(), NULL, 0, NULL, &group));
    CHECK(dist_group_fd(group) > 2);
    CHECK(are_streams_closed("dist_group_fd"));
    use_group(group, rank, size);
    STEP(dist_group_release(group));
}

static void use_files(const char *transport, int rank)
{
    char path[128];
    dist_store_t *store = NULL;
    dist_blob_t *dump = NULL;
    dist_store_file_options_t options = DIST_STORE_FILE_OPTIONS_INIT;
    sprintf(path, "%s/store_%s_%d", folder, transport, rank);
    STEP(dist_store_file_create(path, 1, &options, &store));
    STEP(dist_store_set(store, "key", 3, "value", 5));
    STEP(dist_store_release(store));
    sprintf(path, "%s/trace_%s_%d", folder, transport, rank);
    STEP(dist_trace_start(path));
    STEP(dist_barrier(dist_world(), NULL, NULL));
    STEP(dist_trace_stop());
    STEP(dist_flight_recorder_dump(dist_world(), &dump));
    STEP(dist_blob_release(dump));
}

/* Lets the report go to the original standard output at the end. */
static void reopen_output(void)
{
    if (dup2(REPORT, 1) != 1) {
        _exit(99);
    }
}

/* `arg` is the transport, or "hosts" for two pretended hosts. */
static int32_t run_rank(int32_t rank, void *arg)
{
    void *memory = NULL;
    const char *transport = arg;
    CHECK(are_streams_closed("the fork"));
    REQUIRE(setenv("DIST_TIMEOUT_MS", "20000", 1) == 0);
    REQUIRE(setenv("DIST_CONNECT_TIMEOUT_MS", "20000", 1) == 0);
    if (strcmp(transport, "hosts") == 0) {
        REQUIRE(setenv("DIST_HOST_ID", rank < 2 ? "a" : "b", 1) == 0);
    } else {
        REQUIRE(setenv("DIST_TRANSPORT", transport, 1) == 0);
    }
    STEP(dist_init(NULL));
    use_group(dist_world(), rank, RANKS);
    use_new_group(rank, RANKS);
    STEP(dist_mem_alloc(dist_world(), 1 << 20, DIST_DEVICE_HOST, &memory));
    STEP(dist_all_reduce(dist_world(), memory, memory, 1 << 18, DIST_U32, DIST_SUM, NULL, NULL));
    STEP(dist_mem_free(memory));
    use_files(transport, rank);
    print_something();
    STEP(dist_finalize());
    if (check_report() != 0) {
        reopen_output();
        fflush(stdout);
        return 1;
    }
    return 0;
}

int main(void)
{
    dist_spawn_options_t options = DIST_SPAWN_OPTIONS_INIT;
    static char buffer[1 << 16];
    static char transports[][6] = { "shm", "tcp", "hosts" };
    char command[128];
    size_t t;
    strcpy(folder, "/tmp/dist-closed-streams-XXXXXX");
    REQUIRE(mkdtemp(folder) != NULL);
    REQUIRE(setvbuf(stdout, buffer, _IOFBF, sizeof(buffer)) == 0);
    REQUIRE(dup2(1, REPORT) == REPORT && atexit(reopen_output) == 0);
    REQUIRE(close(0) == 0 && close(1) == 0 && close(2) == 0);
    options.join_timeout_ms = LIMIT_MS * 3;
    for (t = 0; t < sizeof(transports) / sizeof(transports[0]); t++) {
        STEP(dist_spawn(run_rank, transports[t], RANKS, &options));
    }
    sprintf(command, "rm -r %s", folder);
    CHECK(system(command) == 0);
    return check_report();
}
