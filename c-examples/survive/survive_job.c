/*
 * Parses --ranks and --kill, and starts the ranks as child processes. The launcher process also
 * hosts the TCP store, so that the store survives the death of any rank.
 */
#define _POSIX_C_SOURCE 200112L

#include "survive_job.h"

#include "../common/check.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_RANKS 256

static void fail_usage(const char *option, const char *text)
{
    fprintf(stderr, "survive: %s \"%s\": --ranks takes a number from 1 to %d, --kill RANK@STEP\n", option, text,
            MAX_RANKS);
    exit(2);
}

static long parse_number(const char *text, char **end, long low, long high, const char *option)
{
    errno = 0;
    long value = strtol(text, end, 10);
    if (*end == text || errno != 0 || value < low || value > high) {
        fail_usage(option, text);
    }
    return value;
}

static void parse_option(survive_job_t *job, const char *option, const char *text)
{
    char *end;
    if (strcmp(option, "--ranks") == 0) {
        job->ranks = (int)parse_number(text, &end, 1, MAX_RANKS, option);
    } else {
        survive_kill_t kill = {0, 0};
        kill.rank = (int)parse_number(text, &end, 0, MAX_RANKS - 1, option);
        if (*end++ != '@' || job->n_kills == SURVIVE_MAX_KILLS) {
            fail_usage(option, text);
        }
        kill.step = parse_number(end, &end, 1, 1000000000, option);
        job->kills[job->n_kills++] = kill;
    }
    if (*end != '\0') {
        fail_usage(option, text);
    }
}

survive_job_t survive_job_parse(int *argc, char **argv)
{
    survive_job_t job = {8, 0, {{0, 0}}, NULL};
    job.argv = malloc(((size_t)*argc + 1) * sizeof *job.argv); /* lives as long as the process */
    if (job.argv == NULL) {
        fail_usage("memory", "none");
    }
    memcpy(job.argv, argv, ((size_t)*argc + 1) * sizeof *argv);
    int n_kept = 0;
    for (int i = 0; i < *argc; i++) {
        if (strcmp(argv[i], "--ranks") != 0 && strcmp(argv[i], "--kill") != 0) {
            argv[n_kept++] = argv[i];
        } else if (i + 1 == *argc) {
            fail_usage(argv[i], "");
        } else {
            parse_option(&job, argv[i], argv[i + 1]);
            i++;
        }
    }
    argv[n_kept] = NULL;
    *argc = n_kept;
    return job;
}

int survive_job_is_rank(void)
{
    return getenv("RANK") != NULL;
}

int survive_job_kills_rank(const survive_job_t *job, int rank, int64_t step)
{
    for (int i = 0; i < job->n_kills; i++) {
        if (job->kills[i].rank == rank && job->kills[i].step == step) {
            return 1;
        }
    }
    return 0;
}

static int is_kill_planned(const survive_job_t *job, int rank)
{
    for (int i = 0; i < job->n_kills; i++) {
        if (job->kills[i].rank == rank) {
            return 1;
        }
    }
    return 0;
}

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static pid_t start_rank(const survive_job_t *job, int rank)
{
    set_number("RANK", rank);
    pid_t pid = fork();
    if (pid == 0) {
        execv("/proc/self/exe", job->argv);
        _exit(127);
    }
    if (pid < 0) {
        perror("survive: fork");
        exit(2);
    }
    return pid;
}

int survive_job_start(const survive_job_t *job)
{
    pid_t pids[MAX_RANKS];
    dist_store_t *store = NULL;
    dist_store_tcp_options_t options = DIST_STORE_TCP_OPTIONS_INIT;
    options.host = "127.0.0.1";
    options.is_server = 1; /* in this process, so that the store survives the death of any rank */
    check(dist_store_tcp_create(&options, &store));
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_number("MASTER_PORT", (int)dist_store_port(store));
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1); /* rank 0 must not host a store */
    set_number("WORLD_SIZE", job->ranks);
    for (int rank = 0; rank < job->ranks; rank++) {
        pids[rank] = start_rank(job, rank);
    }
    int exit_status = 0;
    for (int rank = 0; rank < job->ranks; rank++) {
        int status = 0;
        while (waitpid(pids[rank], &status, 0) < 0 && errno == EINTR) {
        }
        if (WIFSIGNALED(status)) {
            printf("rank %d was killed by signal %d\n", rank, WTERMSIG(status));
        }
        int has_succeeded = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if (!has_succeeded && !(is_kill_planned(job, rank) && WIFSIGNALED(status))) {
            exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        }
    }
    check(dist_store_release(store));
    return exit_status;
}
