/*
 * A store server for clients of other implementations: prints "port N", and ends when its
 * standard input is closed.
 *
 *     serve [HOST]
 */
#include "../c/check.h"

int main(int argc, char **argv)
{
    dist_store_tcp_options_t options = DIST_STORE_TCP_OPTIONS_INIT;
    dist_store_t *store = NULL;
    options.host = argc > 1 ? argv[1] : "127.0.0.1";
    options.is_server = 1;
    options.timeout_ms = LIMIT_MS;
    REQUIRE_OK(dist_store_tcp_create(&options, &store));
    printf("port %d\n", (int)dist_store_port(store));
    fflush(stdout);
    while (getchar() != EOF) {
    }
    CHECK_OK(dist_store_release(store));
    return check_report();
}
