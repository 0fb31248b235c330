/*
 * Former names of algorithms, back-end options and environment variables are refused with the
 * present name.
 */
#define _GNU_SOURCE
#include "check.h"

#include <unistd.h>

#define INVALID DIST_ERR_INVALID_ARGUMENT
#define COUNT(array) (sizeof(array) / sizeof(array[0]))

/* One former name of an algorithm, an operation that has the algorithm, and the present name. */
static const struct {
    const char *operation;
    const char *old_name;
    const char *new_name;
} algorithms[] = {
    { "all_reduce", "pull", "cma_read" },
    { "all_reduce", "push", "cma_write" },
    { "all_reduce", "short", "eager" },
    { "all_reduce", "leader", "two_level" },
    { "all_reduce", "lanes", "split_rail" },
    { "all_reduce", "direct", "linear" },
    { "all_reduce", "doubling", "recursive_doubling" },
    { "broadcast", "leaders", "two_level" },
    { "broadcast", "tree", "binomial" },
    { "reduce", "scatter_gather", "reduce_scatter_gather" },
};

/* Makes a group of one rank with these back-end options. */
static dist_status_t make_group(const char *backend_options, dist_group_t **group)
{
    dist_store_t *store = new_store();
    dist_group_options_t options = DIST_GROUP_OPTIONS_INIT;
    dist_status_t status;
    options.store = store;
    options.name = "renamed";
    options.fields = DIST_FIELD_RANK;
    options.world_size = 1;
    options.backend_options = backend_options;
    options.connect_timeout_ms = LIMIT_MS;
    status = dist_group_create(&options, group);
    dist_store_release(store);
    return status;
}

/* Initialises the world of one rank, which these tests expect to fail. */
static dist_status_t init_alone(void)
{
    dist_store_t *store = new_store();
    dist_init_options_t options = DIST_INIT_OPTIONS_INIT;
    dist_status_t status;
    options.store = store;
    options.fields = DIST_FIELD_RANK;
    options.world_size = 1;
    status = dist_init(&options);
    dist_store_release(store);
    return status;
}

static void call_refuses_old_algorithm_names(dist_group_t *group, size_t i)
{
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    float in = 1, out = 0;
    dist_status_t status;
    options.algorithm = algorithms[i].old_name;
    if (strcmp(algorithms[i].operation, "broadcast") == 0) {
        status = dist_broadcast(group, &in, 1, DIST_F32, 0, &options, NULL);
    } else if (strcmp(algorithms[i].operation, "reduce") == 0) {
        status = dist_reduce(group, &in, &out, 1, DIST_F32, DIST_SUM, 0, &options, NULL);
    } else {
        status = dist_all_reduce(group, &in, &out, 1, DIST_F32, DIST_SUM, &options, NULL);
    }
    CHECK_REFUSED(status, INVALID, algorithms[i].new_name);
    CHECK_MESSAGE("is now called");
}

/* The same name in the options of the group, in the environment, and in a tuning file. */
static void group_refuses_old_algorithm_names(size_t i)
{
    dist_group_t *group = NULL;
    char text[256], path[64];
    FILE *file;
    snprintf(text, sizeof(text), "algorithm=%s=%s", algorithms[i].operation, algorithms[i].old_name);
    CHECK_REFUSED(make_group(text, &group), INVALID, algorithms[i].new_name);
    CHECK_MESSAGE("is now called");

    snprintf(text, sizeof(text), "%s=%s", algorithms[i].operation, algorithms[i].old_name);
    REQUIRE(setenv("DIST_ALGORITHM", text, 1) == 0);
    CHECK_REFUSED(make_group(NULL, &group), INVALID, algorithms[i].new_name);
    CHECK_MESSAGE("DIST_ALGORITHM");
    CHECK_REFUSED(init_alone(), INVALID, algorithms[i].new_name);
    REQUIRE(unsetenv("DIST_ALGORITHM") == 0);

    snprintf(path, sizeof(path), "/tmp/renamed-%ld.json", (long)getpid());
    file = fopen(path, "w");
    REQUIRE(file != NULL);
    fprintf(file, "{\"rows\": [{\"operation\": \"%s\", \"algorithm\": \"%s\"}]}", algorithms[i].operation,
            algorithms[i].old_name);
    REQUIRE(fclose(file) == 0);
    snprintf(text, sizeof(text), "tuning_file=%s", path);
    CHECK_REFUSED(make_group(text, &group), INVALID, algorithms[i].new_name);
    CHECK_MESSAGE("row 1");
    CHECK(group == NULL);
    unlink(path);

    snprintf(text, sizeof(text), "algorithm=%s=%s", algorithms[i].operation, algorithms[i].new_name);
    CHECK_OK(make_group(text, &group));
    CHECK_OK(dist_group_release(group));
}

static void old_backend_options_are_refused(void)
{
    dist_group_t *group = NULL;
    CHECK_REFUSED(make_group("attach=0", &group), INVALID, "\"attach\" is now called \"cma\"");
    CHECK_REFUSED(make_group("nccl.may_block=1", &group), INVALID, "is now called \"nccl.blocking\"");
    CHECK(group == NULL);
    CHECK_OK(make_group("cma=0", &group));
    CHECK_OK(dist_group_release(group));
}

/* The group was made before the variable was set. */
static void subgroup_refuses_old_variables(dist_group_t *parent)
{
    dist_group_t *group = NULL;
    REQUIRE(setenv("DIST_ATTACH", "0", 1) == 0);
    CHECK_REFUSED(dist_group_split(parent, 0, 0, NULL, &group), INVALID, "DIST_ATTACH is now DIST_CMA");
    CHECK(group == NULL);
    REQUIRE(unsetenv("DIST_ATTACH") == 0);
    CHECK_OK(dist_group_split(parent, 0, 0, NULL, &group));
    CHECK_OK(dist_group_release(group));
}

static void old_variables_are_refused(void)
{
    dist_group_t *group = NULL;
    const char *text = "DIST_ATTACH is now DIST_CMA; set DIST_CMA instead";
    REQUIRE(setenv("DIST_ATTACH", "0", 1) == 0);
    CHECK_REFUSED(make_group(NULL, &group), INVALID, text);
    CHECK(group == NULL);
    CHECK_REFUSED(init_alone(), INVALID, text);
    CHECK(!dist_is_initialized());
    /* An empty variable is not set. */
    REQUIRE(setenv("DIST_ATTACH", "", 1) == 0);
    CHECK_OK(make_group(NULL, &group));
    CHECK_OK(dist_group_release(group));
    REQUIRE(unsetenv("DIST_ATTACH") == 0);
    REQUIRE(setenv("DIST_CMA", "2", 1) == 0);
    CHECK_REFUSED(make_group(NULL, &group), INVALID, "DIST_CMA");
    REQUIRE(unsetenv("DIST_CMA") == 0);
}

int main(void)
{
    dist_group_t *group = NULL;
    size_t i;
    old_variables_are_refused();
    old_backend_options_are_refused();
    REQUIRE_OK(make_group(NULL, &group));
    subgroup_refuses_old_variables(group);
    for (i = 0; i < COUNT(algorithms); i++) {
        call_refuses_old_algorithm_names(group, i);
        group_refuses_old_algorithm_names(i);
    }
    CHECK_OK(dist_group_release(group));
    return check_report();
}
