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

#define MUST(call) \
    if ((call) != DIST_OK) { \
        printf("%s: %s\n", #call, dist_last_error()); \
        suite_gives_up(); \
    }

/* ---- hash: the memory of this process ---- */

static dist_store_t *hash_make(char *where)
{
    dist_store_t *store = NULL;
    where[0] = '\0';
    MUST(dist_store_hash_create(&store));
    return store;
}

static dist_store_t *second_handle(const char *where, dist_store_t *first)
{
    dist_store_t *store = NULL;
    (void)where;
    MUST(dist_store_clone(first, &store));
    return store;
}

/* ---- tcp: a server in this process, and its clients; `where` is the port ---- */

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
    MUST(dist_store_tcp_create(&options, &store));
    return store;
}

static dist_store_t *tcp_make(char *where)
{
    dist_store_t *store = tcp_store(0, 1);
    sprintf(where, "%d", (int)dist_store_port(store));
    return store;
}

static dist_store_t *tcp_join(const char *where, dist_store_t *first)
{
    (void)first;
    return tcp_store(atoi(where), 0);
}

/* ---- Folders for stores that are in one ---- */

static void temporary_folder(char *where)
{
    const char *folder = getenv("TMPDIR");
    snprintf(where, WHERE_BYTES, "%s/dist-store-XXXXXX", folder != NULL ? folder : "/tmp");
    REQUIRE(mkdtemp(where) != NULL);
}

static int remove_one(const char *path, const struct stat *about, int type, struct FTW *place)
{
    (void)about;
    (void)type;
    (void)place;
    return remove(path);
}

static void remove_folder(const char *where)
{
    CHECK(nftw(where, remove_one, 20, FTW_DEPTH | FTW_PHYS) == 0);
}

/* ---- file: a file that all open; `where` is the folder of the file ---- */

/* Stores for several processes have equal limits; the file store adds no byte to a key. */
#define FILE_LONGEST_KEY 8192
#define FILE_LONGEST_VALUE ((size_t)8 << 20)

static dist_store_t *file_join(const char *where, dist_store_t *first)
{
    dist_store_t *store = NULL;
    char path[WHERE_BYTES + 8];
    (void)first;
    snprintf(path, sizeof(path), "%s/store", where);
    MUST(dist_store_file_create(path, 0, NULL, &store));
    return store;
}

static dist_store_t *file_make(char *where)
{
    temporary_folder(where);
    return file_join(where, NULL);
}

/* ---- prefix: a part of a tcp store; and a part of a part of a hash store ---- */

#define PREFIX "part"

static dist_store_t *under(const char *prefix, dist_store_t *inner)
{
    dist_store_t *store = NULL;
    MUST(dist_store_prefix_create(prefix, DIST_TERMINATED, inner, &store));
    MUST(dist_store_release(inner));
    return store;
}

static dist_store_t *prefix_make(char *where)
{
    return under(PREFIX, tcp_make(where));
}

static dist_store_t *prefix_join(const char *where, dist_store_t *first)
{
    return under(PREFIX, tcp_join(where, first));
}

static dist_store_t *nested_make(char *where)
{
    return under("outer", under("inner", hash_make(where)));
}

/* ---- custom: the example's store over a directory; `where` is its path ---- */

static dist_store_t *custom_join(const char *where, dist_store_t *first)
{
    dist_store_t *store = NULL;
    (void)first;
    MUST(directory_store_create(where, &store));
    return store;
}

static dist_store_t *custom_make(char *where)
{
    temporary_folder(where);
    return custom_join(where, NULL);
}

static dist_store_t *composed_join(const char *where, dist_store_t *first)
{
    dist_store_t *store = NULL;
    (void)first;
    MUST(directory_store_create_without_queues(where, &store));
    return store;
}

static dist_store_t *composed_make(char *where)
{
    temporary_folder(where);
    return composed_join(where, NULL);
}

/* ---- The kinds ---- */

const struct kind kinds[] = {
    { "hash", hash_make, second_handle, NULL, 0, 0, WAIT_SEES_QUEUES | QUEUES_BESIDE_KEYS | HAS_NO_ADDRESS | HAS_ZERO_BYTES },
    { "tcp", tcp_make, tcp_join, NULL, TCP_LONGEST_KEY, TCP_LONGEST_VALUE,
      BETWEEN_PROCESSES | HAS_ADDRESS | WAIT_SEES_QUEUES | QUEUES_BESIDE_KEYS | HAS_VALUE_LIMIT | HAS_KEY_LIMIT | HAS_ZERO_BYTES },
    { "file", file_make, file_join, remove_folder, FILE_LONGEST_KEY, FILE_LONGEST_VALUE,
      BETWEEN_PROCESSES | HAS_NO_ADDRESS | WAIT_SEES_QUEUES | QUEUES_BESIDE_KEYS | HAS_VALUE_LIMIT | HAS_KEY_LIMIT | HAS_ZERO_BYTES },
    { "prefix", prefix_make, prefix_join, NULL, TCP_LONGEST_KEY - sizeof(PREFIX), TCP_LONGEST_VALUE,
      BETWEEN_PROCESSES | HAS_ADDRESS | WAIT_SEES_QUEUES | QUEUES_BESIDE_KEYS | HAS_VALUE_LIMIT | HAS_KEY_LIMIT | HAS_ZERO_BYTES },
    { "prefix_of_prefix", nested_make, second_handle, NULL, 0, 0,
      WAIT_SEES_QUEUES | QUEUES_BESIDE_KEYS | HAS_NO_ADDRESS | HAS_ZERO_BYTES },
    { "custom", custom_make, custom_join, remove_folder, DIRECTORY_STORE_LONGEST_KEY, 0,
      BETWEEN_PROCESSES | QUEUES_BESIDE_KEYS | HAS_NO_ADDRESS | HAS_KEY_LIMIT | HAS_C_STRINGS },
    /* Its queues consist of keys, which are counted and listed. */
    { "custom_with_composed_queues", composed_make, composed_join, remove_folder, DIRECTORY_STORE_LONGEST_KEY, 0,
      BETWEEN_PROCESSES | HAS_NO_ADDRESS | HAS_KEY_LIMIT | HAS_C_STRINGS },
};

const size_t kind_count = sizeof(kinds) / sizeof(kinds[0]);

/* ---- Running the checks ---- */

static const struct checks *const suite[] = {
    &value_checks, &number_checks, &batch_checks, &name_checks,    &wait_checks,
    &time_checks,  &queue_checks,  &handle_checks, &process_checks,
};

/* The text that a hanging check prints. */
static char last_words[256];

static void give_up(int signal)
{
    (void)signal;
    ssize_t written = write(STDOUT_FILENO, last_words, strlen(last_words));
    _exit(written > 0 ? 1 : 2);
}

static int run(const struct check *check, const struct kind *kind)
{
    struct users users = { kind, "", NULL, NULL };
    suite_begin(check->name, kind);
    snprintf(last_words, sizeof(last_words), "%s on %s did not end within %d s\n", check->name, kind->name,
             CHECK_LIMIT_S);
    alarm(CHECK_LIMIT_S);
    users.a = kind->make(users.where);
    users.b = kind->join(users.where, users.a);
    CHECK_OK(dist_store_set_timeout(users.a, LIMIT_MS));
    CHECK_OK(dist_store_set_timeout(users.b, LIMIT_MS));
    check->run(&users);
    /* The host of a tcp store is released last. */
    CHECK_OK(dist_store_release(users.b));
    CHECK_OK(dist_store_release(users.a));
    if (kind->clear != NULL) {
        kind->clear(users.where);
    }
    alarm(0);
    return suite_failures() == 0;
}

static int run_all(const struct kind *kind, const char *only)
{
    int passed = 0;
    int failed = 0;
    int left_out = 0;
    for (size_t i = 0; i < sizeof(suite) / sizeof(suite[0]); i++) {
        for (size_t j = 0; j < suite[i]->count; j++) {
            const struct check *check = &suite[i]->rows[j];
            if (only != NULL && strcmp(check->name, only) != 0) {
                continue;
            }
            if ((check->needs & ~kind->abilities) != 0) {
                left_out++;
            } else if (run(check, kind)) {
                passed++;
            } else {
                failed++;
            }
        }
    }
    printf("%d checks passed on %s, %d failed, %d do not apply\n", passed, kind->name, failed, left_out);
    return failed != 0 || passed == 0;
}

static const struct kind *kind_named(const char *name)
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
    const struct kind *kind = argc > 1 ? kind_named(argv[1]) : NULL;
    suite_program = argv[0];
    signal(SIGALRM, give_up);
    if (kind == NULL || argc > 5 || argc == 4) {
        printf("usage: %s KIND [CHECK]; the kinds are", argv[0]);
        for (size_t i = 0; i < kind_count; i++) {
            printf(" %s", kinds[i].name);
        }
        printf("\n");
        return 2;
    }
    return argc == 5 ? work(kind, argv[2], argv[3], atoi(argv[4])) : run_all(kind, argc == 3 ? argv[2] : NULL);
}
