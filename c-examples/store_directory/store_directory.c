/*
 * Processes that share only a directory: the program's own store is in directory_store.c.
 *
 *     ./store_directory FOLDER set KEY VALUE
 *     ./store_directory FOLDER get KEY             waits for the value
 *     ./store_directory FOLDER sum RANK SIZE       waits for the other ranks, and sums over all
 *     distrun --nproc-per-node 4 ./store_directory FOLDER sum
 *                                                  the same with the launcher's rank and size
 *
 * A group needs only a store for its rendezvous: no address, no port, no server.
 */
#include "../common/check.h"
#include "directory_store.h"

#include <string.h>

static int usage(void)
{
    fprintf(stderr, "usage: store_directory FOLDER (set KEY VALUE | get KEY | sum [RANK SIZE])\n");
    return 2;
}

static void print_value(dist_store_t *store, const char *key)
{
    dist_blob_t *blob = NULL;
    const void *bytes;
    size_t len;
    check(dist_store_get(store, key, DIST_TERMINATED, &blob));
    check(dist_blob_data(blob, 0, &bytes, &len));
    fwrite(bytes, 1, len, stdout);
    putchar('\n');
    check(dist_blob_release(blob));
}

static void sum_over_all(dist_store_t *store, int rank, int size)
{
    dist_group_options_t options = DIST_GROUP_OPTIONS_INIT;
    options.store = store;
    options.fields = DIST_FIELD_RANK;
    options.rank = rank;
    options.world_size = size;
    options.name = "sum";

    dist_group_t *group = NULL;
    check(dist_group_create(&options, &group));
    int64_t value = rank + 1;
    check(dist_all_reduce(group, &value, &value, 1, DIST_I64, DIST_SUM, NULL, NULL));
    printf("rank %d of %d: the sum is %d\n", rank, size, (int)value);
    check(dist_group_release(group));
}

/* Returns the number in an argument, or else in a launcher's variable; -1 if there is none. */
static int parse_number(const char *argument, const char *variable)
{
    const char *text = argument != NULL ? argument : getenv(variable);
    char *end;
    if (text == NULL || *text == '\0') {
        return -1;
    }
    long value = strtol(text, &end, 10);
    return *end == '\0' && value >= 0 && value < 100000 ? (int)value : -1;
}

int main(int argc, char **argv)
{
    const char *command = argc > 2 ? argv[2] : "";
    dist_store_t *store = NULL;
    if (argc < 3) {
        return usage();
    }
    if (directory_store_create(argv[1], &store) != DIST_OK) {
        perror(argv[1]);
        return 3;
    }
    if (strcmp(command, "set") == 0 && argc == 5) {
        check(dist_store_set(store, argv[3], DIST_TERMINATED, argv[4], strlen(argv[4])));
    } else if (strcmp(command, "get") == 0 && argc == 4) {
        print_value(store, argv[3]);
    } else if (strcmp(command, "sum") == 0 && (argc == 3 || argc == 5)) {
        int rank = parse_number(argc == 5 ? argv[3] : NULL, "RANK");
        int size = parse_number(argc == 5 ? argv[4] : NULL, "WORLD_SIZE");
        if (rank < 0 || size < 0) {
            return usage();
        }
        sum_over_all(store, rank, size);
    } else {
        return usage();
    }
    check(dist_store_release(store));
    return 0;
}
