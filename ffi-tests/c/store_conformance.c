/*
 * The conformance suite of all store kinds, through the C interface.
 *
 *     store_conformance KIND                       runs all checks for the kind
 *     store_conformance KIND CHECK                 runs one check
 *     store_conformance KIND ROLE WHERE NUMBER     a process that the suite starts
 *
 * Each failure is a line with the check and the kind; the last line has the number of passed
 * checks. Every check uses a new store with two users. If other processes can reach the store,
 * the second user connects from outside; otherwise it is a second handle.
 */
#define _POSIX_C_SOURCE 200809L
#define _XOPEN_SOURCE 700
#include "../../c-examples/store_directory/directory_store.h"
#include "store_suite.h"

#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The time limit of a check, longer than any of its calls. */
#define CHECK_LIMIT_S (LIMIT_MS / 1000 + 10)

#define REQUIRE_CALL(call) \
    if ((call) != DIST_OK) { \
        printf("%s: %s\n", #call, dist_last_error()); \
        suite_abort(); \
    }

/* ---- hash: the memory of this process ---- */

static dist_store_t *hash_make(char *location)
{
    dist_store_t *store = NULL;
    location[0] = '\0';
    REQUIRE_CALL(dist_store_hash_create(&store));
    return store;
}

static dist_store_t *second_handle(const char *location, dist_store_t *first)
{
    dist_store_t *store = NULL;
    (void)location;
    REQUIRE_CALL(dist_store_clone(first, &store));
    return store;
}

/* ---- tcp: a server in this process, and its clients; `location` is the port ---- */

#define TCP_LONGEST_VALUE ((size_t)8 << 20)
/* The protocol allows 8192 bytes; the "/" before each key takes one. */
#define TCP_LONGEST_KEY 8191

static dist_store_t *tcp_store(int32_t port, int32_t is_server)
{
    dist_store_t *store = NULL;
    dist_store_tcp_options_t options = DIST_STORE_TCP_OPTIONS_INIT;
    options.host = "127.0.0.1";
    options.port = port;
    options.is_server = is_server;
    REQUIRE_CALL(dist_store_tcp_create(&options, &store));
    return store;
}

static dist_store_t *tcp_make(char *location)
{
    dist_store_t *store = tcp_store(0, 1);
    sprintf(location, "%d", (int)dist_store_port(store));
    return store;
}

static dist_store_t *tcp_join(const char *location, dist_store_t *first)
{
    (void)first;
    return tcp_store(atoi(location), 0);
}

/* ---- Folders for stores that are in one ---- */

static void temporary_folder(char *location)
{
    const char *folder = getenv("TMPDIR");
    snprintf(location, LOCATION_BYTES, "%s/dist-store-XXXXXX", folder != NULL ? folder : "/tmp");
    REQUIRE(mkdtemp(location) != NULL);
}

static int remove_one(const char *path, const struct stat *file_status, int type, struct FTW *walk_info)
{
    (void)file_status;
    (void)type;
    (void)walk_info;
    return remove(path);
}

static void remove_folder(const char *location)
{
    CHECK(nftw(location, remove_one, 20, FTW_DEPTH | FTW_PHYS) == 0);
}

/* ---- file: a file that all open; `location` is the folder of the file ---- */

/* Stores for several processes have equal limits; the file store adds no byte to a key. */
#define FILE_LONGEST_KEY 8192
#define FILE_LONGEST_VALUE ((size_t)8 << 20)

static dist_store_t *file_join(const char *location, dist_store_t *first)
{
    dist_store_t *store = NULL;
    char path[LOCATION_BYTES + 8];
    (void)first;
    snprintf(path, sizeof(path), "%s/store", location);
    REQUIRE_CALL(dist_store_file_create(path, 0, NULL, &store));
    return store;
}

static dist_store_t *file_make(char *location)
{
    temporary_folder(location);
    return file_join(location, NULL);
}

/* ---- prefix: a part of a tcp store; and a part of a part of a hash store ---- */

#define PREFIX "part"

static dist_store_t *make_prefix_store(const char *prefix, dist_store_t *inner)
{
    dist_store_t *store = NULL;
    REQUIRE_CALL(dist_store_prefix_create(prefix, DIST_TERMINATED, inner, &store));
    REQUIRE_CALL(dist_store_release(inner));
    return store;
}

static dist_store_t *prefix_make(char *location)
{
    return make_prefix_store(PREFIX, tcp_make(location));
}

static dist_store_t *prefix_join(const char *location, dist_store_t *first)
{
    return make_prefix_store(PREFIX, tcp_join(location, first));
}

static dist_store_t *nested_make(char *location)
{
    return make_prefix_store("outer", make_prefix_store("inner", hash_make(location)));
}

/* ---- custom: the example's store over a directory; `location` is its path ---- */

static dist_store_t *custom_join(const char *location, dist_store_t *first)
{
    dist_store_t *store = NULL;
    (void)first;
    REQUIRE_CALL(directory_store_create(location, &store));
    return store;
}

static dist_store_t *custom_make(char *location)
{
    temporary_folder(location);
    return custom_join(location, NULL);
}

static dist_store_t *composed_join(const char *location, dist_store_t *first)
{
    dist_store_t *store = NULL;
    (void)first;
    REQUIRE_CALL(directory_store_create_without_queues(location, &store));
    return store;
}

static dist_store_t *composed_make(char *location)
{
    temporary_folder(location);
    return composed_join(location, NULL);
}

/* ---- The kinds ---- */

const struct kind kinds[] = {
    { "hash", hash_make, second_handle, NULL, 0, 0,
      WAIT_SEES_QUEUES | QUEUES_ARE_NOT_KEYS | HAS_NO_ADDRESS | HAS_ZERO_BYTES },
    { "tcp", tcp_make, tcp_join, NULL, TCP_LONGEST_KEY, TCP_LONGEST_VALUE,
      IS_MULTI_PROCESS | HAS_ADDRESS | WAIT_SEES_QUEUES | QUEUES_ARE_NOT_KEYS | HAS_VALUE_LIMIT |
          HAS_KEY_LIMIT | HAS_ZERO_BYTES },
    { "file", file_make, file_join, remove_folder, FILE_LONGEST_KEY, FILE_LONGEST_VALUE,
      IS_MULTI_PROCESS | HAS_NO_ADDRESS | WAIT_SEES_QUEUES | QUEUES_ARE_NOT_KEYS | HAS_VALUE_LIMIT |
          HAS_KEY_LIMIT | HAS_ZERO_BYTES },
    { "prefix", prefix_make, prefix_join, NULL, TCP_LONGEST_KEY - sizeof(PREFIX), TCP_LONGEST_VALUE,
      IS_MULTI_PROCESS | HAS_ADDRESS | WAIT_SEES_QUEUES | QUEUES_ARE_NOT_KEYS | HAS_VALUE_LIMIT |
          HAS_KEY_LIMIT | HAS_ZERO_BYTES },
    { "prefix_of_prefix", nested_make, second_handle, NULL, 0, 0,
      WAIT_SEES_QUEUES | QUEUES_ARE_NOT_KEYS | HAS_NO_ADDRESS | HAS_ZERO_BYTES },
    { "custom", custom_make, custom_join, remove_folder, DIRECTORY_STORE_LONGEST_KEY, 0,
      IS_MULTI_PROCESS | QUEUES_ARE_NOT_KEYS | HAS_NO_ADDRESS | HAS_KEY_LIMIT | HAS_C_STRINGS },
    /* Its queues consist of keys, which are counted and listed. */
    { "custom_with_composed_queues", composed_make, composed_join, remove_folder, DIRECTORY_STORE_LONGEST_KEY, 0,
      IS_MULTI_PROCESS | HAS_NO_ADDRESS | HAS_KEY_LIMIT | HAS_C_STRINGS },
};

const size_t kind_count = sizeof(kinds) / sizeof(kinds[0]);

/* ---- Running the checks ---- */

static const struct checks *const suite[] = {
    &value_checks, &number_checks, &batch_checks, &name_checks,    &wait_checks,
    &time_checks,  &queue_checks,  &handle_checks, &process_checks,
};

/* The text that a hanging check prints. */
static char hang_message[256];

static void report_hang(int signal)
{
    (void)signal;
    ssize_t written = write(STDOUT_FILENO, hang_message, strlen(hang_message));
    _exit(written > 0 ? 1 : 2);
}

static int run_check(const struct check *check, const struct kind *kind)
{
    struct users users = { kind, "", NULL, NULL };
    suite_begin(check->name, kind);
    snprintf(hang_message, sizeof(hang_message), "%s on %s did not end within %d s\n", check->name, kind->name,
             CHECK_LIMIT_S);
    alarm(CHECK_LIMIT_S);
    users.a = kind->make(users.location);
    users.b = kind->join(users.location, users.a);
    CHECK_OK(dist_store_set_timeout(users.a, LIMIT_MS));
    CHECK_OK(dist_store_set_timeout(users.b, LIMIT_MS));
    check->run(&users);
    /* The host of a tcp store is released last. */
    CHECK_OK(dist_store_release(users.b));
    CHECK_OK(dist_store_release(users.a));
    if (kind->clear != NULL) {
        kind->clear(users.location);
    }
    alarm(0);
    return suite_failures() == 0;
}

static int run_all(const struct kind *kind, const char *only)
{
    int passed = 0;
    int record_failure = 0;
    int left_out = 0;
    for (size_t i = 0; i < sizeof(suite) / sizeof(suite[0]); i++) {
        for (size_t j = 0; j < suite[i]->count_up; j++) {
            const struct check *check = &suite[i]->rows[j];
            if (only != NULL && strcmp(check->name, only) != 0) {
                continue;
            }
            if ((check->needs & ~kind->features) != 0) {
                left_out++;
            } else if (run_check(check, kind)) {
                passed++;
            } else {
                record_failure++;
            }
        }
    }
    printf("%d checks passed on %s, %d failed, %d do not apply\n", passed, kind->name, record_failure, left_out);
    return record_failure != 0 || passed == 0;
}

static const struct kind *find_kind(const char *name)
{
    for (size_t i = 0; i < kind_count; i++) {
        if (strcmp(kinds[i].name, name) == 0) {
            return &kinds[i];
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    const struct kind *kind = argc > 1 ? find_kind(argv[1]) : NULL;
    suite_program = argv[0];
    signal(SIGALRM, report_hang);
    if (kind == NULL || argc > 5 || argc == 4) {
        printf("usage: %s KIND [CHECK]; the kinds are", argv[0]);
        for (size_t i = 0; i < kind_count; i++) {
            printf(" %s", kinds[i].name);
        }
        printf("\n");
        return 2;
    }
    return argc == 5 ? run_role(kind, argv[2], argv[3], atoi(argv[4])) : run_all(kind, argc == 3 ? argv[2] : NULL);
}
