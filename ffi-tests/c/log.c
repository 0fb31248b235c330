/*
 * The library logs only on request: to the caller's function, or else to standard error.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <unistd.h>

/* Captures the output to standard output and standard error between two calls. */
struct capture {
    FILE *file;
    int out;
    int err;
};

static void start_capture(struct capture *capture)
{
    fflush(stdout);
    fflush(stderr);
    capture->file = tmpfile();
    REQUIRE(capture->file != NULL);
    capture->out = dup(1);
    capture->err = dup(2);
    REQUIRE(capture->out >= 0 && capture->err >= 0);
    REQUIRE(dup2(fileno(capture->file), 1) == 1 && dup2(fileno(capture->file), 2) == 2);
}

static void stop_capture(struct capture *capture, char *text, size_t cap)
{
    size_t len;
    fflush(stdout);
    fflush(stderr);
    dup2(capture->out, 1);
    dup2(capture->err, 2);
    close(capture->out);
    close(capture->err);
    rewind(capture->file);
    len = fread(text, 1, cap - 1, capture->file);
    text[len] = '\0';
    fclose(capture->file);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int lines;
static int32_t most_severe_level = DIST_LOG_DEBUG;
static char last[512];

static void record_line(int32_t level, const char *line, void *user)
{
    pthread_mutex_lock(&lock);
    lines++;
    most_severe_level = level < most_severe_level ? level : most_severe_level;
    /* The line is terminated, has no newline, and comes with the registered pointer. */
    if (user != &lines || strchr(line, '\n') != NULL || strlen(line) == 0) {
        lines = -1000;
    }
    snprintf(last, sizeof(last), "%s", line);
    pthread_mutex_unlock(&lock);
}

static void *run_second_rank(void *store)
{
    dist_group_t *group = NULL;
    REQUIRE_OK(join_group(store, "log", 1, 2, &group));
    CHECK_OK(dist_barrier(group, NULL, NULL));
    CHECK_OK(dist_group_release(group));
    return NULL;
}

/* Makes calls that could be logged: a group, a collective, refused calls, a failure without a
 * panic. */
static void make_logged_calls(void)
{
    dist_store_t *store = new_store();
    dist_group_t *group = NULL;
    dist_blob_t *blob = NULL;
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, run_second_rank, store) == 0);
    REQUIRE_OK(join_group(store, "log", 0, 2, &group));
    CHECK_OK(dist_barrier(group, NULL, NULL));
    REQUIRE(pthread_join(thread, NULL) == 0);
    CHECK_OK(dist_group_release(group));
    CHECK_STATUS(dist_init(NULL), DIST_ERR_INVALID_ARGUMENT);
    CHECK_OK(dist_store_set_timeout(store, 1));
    CHECK_STATUS(dist_store_get(store, "absent", DIST_TERMINATED, &blob), DIST_ERR_TIMEOUT);
    CHECK_OK(dist_store_release(store));
    start_world();
    CHECK_OK(dist_group_abort(dist_world(), "for the log"));
    CHECK_STATUS(dist_barrier(dist_world(), NULL, NULL), DIST_ERR_ABORTED);
    CHECK_OK(dist_finalize());
}

int main(void)
{
    struct capture capture;
    char text[8192];
    int before;

    start_capture(&capture);
    make_logged_calls();
    stop_capture(&capture, text, sizeof(text));
    CHECK(strcmp(text, "") == 0);

    CHECK_OK(dist_set_log_level(DIST_LOG_INFO));
    start_capture(&capture);
    make_logged_calls();
    stop_capture(&capture, text, sizeof(text));
    CHECK(strstr(text, "libdist INFO: ") != NULL);

    CHECK_OK(dist_set_log_callback(record_line, &lines));
    start_capture(&capture);
    make_logged_calls();
    stop_capture(&capture, text, sizeof(text));
    CHECK(strcmp(text, "") == 0);
    CHECK(lines > 0 && most_severe_level >= DIST_LOG_ERROR && most_severe_level <= DIST_LOG_INFO);
    CHECK(strlen(last) > 0);

    CHECK_OK(dist_set_log_level(DIST_LOG_OFF));
    before = lines;
    make_logged_calls();
    CHECK(lines == before);

    CHECK_OK(dist_set_log_level(DIST_LOG_INFO));
    CHECK_OK(dist_set_log_callback(NULL, NULL));
    start_capture(&capture);
    make_logged_calls();
    stop_capture(&capture, text, sizeof(text));
    CHECK(lines == before && strstr(text, "libdist INFO: ") != NULL);
    return check_report();
}
