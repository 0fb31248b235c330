/*
 * The lines that a reducer writes to the log. With the debug level INFO it writes some when it is
 * created. With DETAIL it writes some for each of the first ten steps and then for every hundredth,
 * with the names of unused parameters. No line has more than 200 characters.
 */
#include "check.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int created, steps;
static char creation[4096], last_step[4096];

/* The number of characters that the log on standard error adds to a line. */
#define PREFIX_LENGTH strlen("libdist INFO: ")

static void append(char *text, const char *line)
{
    size_t length = strlen(text);
    snprintf(text + length, sizeof(creation) - length, "%s\n", line);
}

static void record_line(int32_t level, const char *line, void *user)
{
    (void)level;
    (void)user;
    pthread_mutex_lock(&lock);
    CHECK(strlen(line) + PREFIX_LENGTH <= 200);
    if (strstr(line, "reducer on ") != NULL && strstr(line, ", iteration ") != NULL) {
        if (strstr(line, "has_rebuilt_buckets: ") != NULL) {
            steps++;
            last_step[0] = '\0';
        }
        append(last_step, line);
    } else if (strstr(line, "reducer on ") != NULL) {
        created += strstr(line, "num_parameter_tensors: 2") != NULL;
        append(creation, line);
    }
    pthread_mutex_unlock(&lock);
}

static void train(dist_group_t *group, int n)
{
    static float data[2][6];
    dist_param_t params[2] = { DIST_PARAM_INIT, DIST_PARAM_INIT };
    dist_reducer_options_t options = DIST_REDUCER_OPTIONS_INIT;
    dist_reducer_t *reducer = NULL;
    int step, p;
    for (p = 0; p < 2; p++) {
        params[p].name = p == 0 ? "encoder" : "decoder";
        params[p].data = data[p];
        params[p].count = 6;
        params[p].dtype = DIST_F32;
    }
    options.name = "tiny";
    REQUIRE_OK(dist_reducer_create(group, params, 2, &options, &reducer));
    for (step = 0; step < n; step++) {
        REQUIRE_OK(dist_reducer_begin(reducer, 0, 0));
        CHECK_OK(dist_reducer_ready(reducer, 0));
        CHECK_OK(dist_reducer_unused(reducer, 1));
        REQUIRE_OK(dist_reducer_end(reducer, step == 100 ? DIST_VOTE_SKIP : DIST_VOTE_COMMIT, NULL, NULL));
    }
    CHECK_OK(dist_reducer_release(reducer));
}

int main(void)
{
    dist_store_t *store = new_store();
    dist_group_t *group = NULL;
    CHECK_OK(dist_set_log_callback(record_line, NULL));
    REQUIRE_OK(join_group(store, "log", 0, 1, &group));
    train(group, 1);
    CHECK(created == 0 && steps == 0);
    CHECK_OK(dist_set_debug_level(DIST_DEBUG_INFO));
    train(group, 1);
    CHECK(created == 1 && steps == 0);
    CHECK(strstr(creation, "module_name: tiny") != NULL && strstr(creation, "dtypes: f32") != NULL);
    CHECK(strstr(creation, "total_parameter_size_bytes: 48") != NULL);
    CHECK(strstr(creation, "world_size: 1") != NULL && strstr(creation, "bucket_sizes: ") != NULL);
    CHECK(strstr(creation, "gradient_as_bucket_view: true") != NULL);
    CHECK_OK(dist_set_debug_level(DIST_DEBUG_DETAIL));
    train(group, 150);
    CHECK(created == 2 && steps == 11);
    CHECK(strstr(last_step, ", iteration 100: ") != NULL && strstr(last_step, "unused_parameters: \"decoder\"") != NULL);
    CHECK(strstr(last_step, "unused_parameter_size: 24") != NULL && strstr(last_step, "votes: 0x2") != NULL);
    CHECK(strstr(last_step, "voters: 0") != NULL);
    CHECK(strstr(last_step, "backward_compute_comm_overlap_time: ") != NULL);
    CHECK_OK(dist_group_release(group));
    CHECK_OK(dist_store_release(store));
    return check_report();
}
