/*
 * Loads back ends from files: invalid files, files with another version, and the files in the
 * environment.
 *
 *     backend_load PLUGIN NONE NEWER OTHER SICK NAMELESS
 *         the example, then the objects of backend_odd.c
 *     backend_load
 *         one of several processes of a launcher, with the example in the environment
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

static void run_rank(void)
{
    dist_init_options_t options = DIST_INIT_OPTIONS_INIT;
    int32_t one = 1, sum = 0;
    char name[8] = "";
    options.backend = "store";
    options.timeout_ms = LIMIT_MS;
    REQUIRE_OK(dist_init(&options));
    CHECK_OK(dist_all_reduce(dist_world(), &one, &sum, 1, DIST_I32, DIST_SUM, NULL, NULL));
    CHECK(sum == dist_get_world_size(dist_world()) && dist_group_local_size(dist_world()) == sum && dist_group_host_count(dist_world()) == 1);
    CHECK(dist_group_backend(dist_world(), name, sizeof(name)) == 6 && strcmp(name, "store") == 0);
    CHECK_OK(dist_barrier(dist_world(), NULL, NULL));
    CHECK_OK(dist_finalize());
}

int main(int argc, char **argv)
{
    char list[8192];
    if (argc == 1) {
        run_rank();
        return check_report();
    }
    REQUIRE(argc == 7);
    CHECK_REFUSED(dist_backend_load("/nonexistent/backend.so"), DIST_ERR_NOT_FOUND, "/nonexistent/backend.so");
    CHECK_REFUSED(dist_backend_load("/dev/null"), DIST_ERR_SYSTEM, "/dev/null");
    CHECK_REFUSED(dist_backend_load(argv[2]), DIST_ERR_UNSUPPORTED, "does not export dist_backend_plugin_v2");
    CHECK_MESSAGE(argv[2]);
    CHECK_REFUSED(dist_backend_load(argv[3]), DIST_ERR_UNSUPPORTED, "version 1 of the back-end interface");
    CHECK_MESSAGE("has version 2");
    CHECK_REFUSED(dist_backend_load(argv[4]), DIST_ERR_UNSUPPORTED, "version 7 of the back-end interface");
    CHECK_REFUSED(dist_backend_load(argv[5]), DIST_ERR_SYSTEM, "flu");
    CHECK_REFUSED(dist_backend_load(argv[6]), DIST_ERR_INVALID_ARGUMENT, "name is NULL");

    /* For an unknown name the library tries all files of the list; the error names the files
     * that failed to load. */
    snprintf(list, sizeof(list), "%s:%s", argv[2], argv[1]);
    REQUIRE(setenv("DIST_BACKEND_PLUGINS", list, 1) == 0);
    CHECK(dist_backend_is_available("native"));
    CHECK(!dist_backend_is_available("elsewhere"));
    CHECK_MESSAGE("DIST_BACKEND_PLUGINS");
    CHECK_MESSAGE(argv[2]);
    CHECK(dist_backend_is_available("store"));
    CHECK_REFUSED(dist_backend_load(argv[1]), DIST_ERR_INVALID_ARGUMENT, "already");

    /* For MPI the library uses the named file and no other. */
    REQUIRE(setenv("DIST_MPI_PLUGIN", "/nonexistent/mpi.so", 1) == 0);
    CHECK(!dist_backend_is_available("mpi"));
    CHECK_MESSAGE("DIST_MPI_PLUGIN");
    CHECK_MESSAGE("/nonexistent/mpi.so");
    REQUIRE(setenv("DIST_MPI_PLUGIN", argv[2], 1) == 0);
    CHECK(!dist_backend_is_available("MPI"));
    CHECK_MESSAGE("does not export dist_backend_plugin_v2");
    return check_report();
}
