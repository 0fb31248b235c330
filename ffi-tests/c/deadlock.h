/*
 * Runs cases of deadlocks. Each rank is a process, and each case has a world of its own with two
 * groups of the ranks 0 and 1.
 */
#ifndef DEADLOCK_H
#define DEADLOCK_H

#include "check.h"
#include "nap.h"

#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANKS 3
#define LONG_MS 20000

struct configuration {
    const char *name;
    /* The options of the back end of each rank. */
    const char *options[RANKS];
};

/* Two groups of the ranks 0 and 1; NULL on rank 2. */
static dist_group_t *first, *second;
static int me;

/* The number of lines in the log about cycles that are no errors. */
static int lines;

static void count_line(int32_t level, const char *line, void *user)
{
    (void)user;
    if (strstr(line, "possible deadlock: rank 0 waits for rank 1 in ") != NULL) {
        CHECK(level == DIST_LOG_WARN);
        lines++;
    }
}

static dist_call_options_t limited_to(uint64_t ms)
{
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    options.timeout_ms = ms;
    return options;
}

struct test_case {
    const char *name;
    dist_status_t (*body)(void);
    /* The ranks that run the body. */
    int ranks;
    /* A part of the message of rank 0; NULL if there is no deadlock. */
    const char *message;
    /* The number of lines in the log of rank 0. */
    int lines;
};

static void join(const struct configuration *configuration, const char *directory, size_t number)
{
    static const int32_t members[] = { 0, 1 };
    char url[128];
    dist_init_options_t options = DIST_INIT_OPTIONS_INIT;
    (void)snprintf(url, sizeof(url), "file://%s/%d", directory, (int)number);
    options.init_method = url;
    options.fields = DIST_FIELD_RANK;
    options.rank = me;
    options.world_size = RANKS;
    options.timeout_ms = LIMIT_MS;
    options.connect_timeout_ms = LIMIT_MS;
    options.backend_options = configuration->options[me];
    REQUIRE_OK(dist_init(&options));
    REQUIRE_OK(dist_group_new(dist_world(), members, 2, NULL, &first));
    REQUIRE_OK(dist_group_new(dist_world(), members, 2, NULL, &second));
    REQUIRE_OK(dist_barrier(dist_world(), NULL, NULL));
}

static void run_case(const struct test_case *test, const struct configuration *configuration)
{
    time_t start = time(NULL);
    dist_status_t status, expected;
    int is_fine;
    lines = 0;
    status = me < test->ranks ? test->body() : DIST_OK;
    expected = test->message != NULL && me < test->ranks ? DIST_ERR_DEADLOCK : DIST_OK;
    is_fine = CHECK(status == expected);
    if (me == 0 && test->message != NULL) {
        is_fine &= CHECK_MESSAGE(test->message);
    }
    is_fine &= CHECK(time(NULL) - start < 12);
    is_fine &= CHECK(lines == (me == 0 ? test->lines : 0));
    if (!is_fine) {
        printf("%s, %s, rank %d: status %d\n", configuration->name, test->name, me, (int)status);
    }
}

/* Runs each case in a world of its own. The last entry of `cases` has no name. */
static void run_rank(const struct test_case *cases, const struct configuration *configuration,
                     const char *directory)
{
    size_t i;
    REQUIRE_OK(dist_set_log_level(DIST_LOG_WARN));
    REQUIRE_OK(dist_set_log_callback(count_line, NULL));
    for (i = 0; cases[i].name != NULL; i++) {
        dist_status_t ended;
        join(configuration, directory, i);
        run_case(&cases[i], configuration);
        if (first != NULL) {
            (void)dist_group_release(first);
            (void)dist_group_release(second);
        }
        ended = dist_finalize();
        CHECK(cases[i].message != NULL || ended == DIST_OK);
    }
}

/* Runs the cases over shared memory, over TCP, and on two simulated hosts. */
static int run_all(const struct test_case *cases)
{
    static const struct configuration configurations[] = {
        { "shm", { "transport=shm", "transport=shm", "transport=shm" } },
        { "tcp", { "transport=tcp", "transport=tcp", "transport=tcp" } },
        { "two hosts", { "host_id=a", "host_id=b", "host_id=a" } },
    };
    enum { CONFIGURATIONS = sizeof(configurations) / sizeof(configurations[0]) };
    pid_t children[CONFIGURATIONS][RANKS];
    char directories[CONFIGURATIONS][40], command[80];
    size_t i;
    for (i = 0; i < CONFIGURATIONS; i++) {
        strcpy(directories[i], "/tmp/dist-deadlock-XXXXXX");
        REQUIRE(mkdtemp(directories[i]) != NULL);
        for (me = 0; me < RANKS; me++) {
            children[i][me] = fork();
            REQUIRE(children[i][me] >= 0);
            if (children[i][me] == 0) {
                run_rank(cases, &configurations[i], directories[i]);
                exit(check_report());
            }
        }
    }
    for (i = 0; i < CONFIGURATIONS; i++) {
        for (me = 0; me < RANKS; me++) {
            int status = 1;
            REQUIRE(waitpid(children[i][me], &status, 0) == children[i][me]);
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        }
        (void)snprintf(command, sizeof(command), "rm -r %s", directories[i]);
        CHECK(system(command) == 0);
    }
    return check_report();
}

#endif
