/*
 * Errors of jobs that cannot start: wrong addresses, variables and ports, and absent ranks.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#define INVALID DIST_ERR_INVALID_ARGUMENT

static dist_status_t init_from(const char *init_method)
{
    dist_init_options_t options = DIST_INIT_OPTIONS_INIT;
    options.init_method = init_method;
    options.connect_timeout_ms = 300;
    return dist_init(&options);
}

/* A port that another listener uses. */
static int bind_port(int *port)
{
    struct sockaddr_in address;
    socklen_t len = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    memset(&address, 0, sizeof(address));
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(fd >= 0);
    REQUIRE(bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
    REQUIRE(listen(fd, 1) == 0);
    REQUIRE(getsockname(fd, (struct sockaddr *)&address, &len) == 0);
    *port = ntohs(address.sin_port);
    return fd;
}

static void wrong_addresses_are_refused(void)
{
    CHECK_REFUSED(init_from("etcd://host"), INVALID, "etcd://host");
    CHECK_REFUSED(init_from("tcp"), INVALID, "tcp");
    CHECK_REFUSED(init_from("tcp://127.0.0.1"), INVALID, "port");
    CHECK_REFUSED(init_from("tcp://127.0.0.1:99999?rank=0&world_size=1"), INVALID, "port");
    CHECK_REFUSED(init_from("tcp://:1?rank=0&world_size=1"), INVALID, "host");
    CHECK_REFUSED(init_from("tcp://127.0.0.1:1?rank=x&world_size=1"), INVALID, "rank");
    CHECK_REFUSED(init_from("tcp://127.0.0.1:1?rank=0"), INVALID, "WORLD_SIZE");
    CHECK_REFUSED(init_from("tcp://127.0.0.1:1?world_size=1"), INVALID, "RANK");
    CHECK_REFUSED(init_from("tcp://127.0.0.1:1?rank=3&world_size=2"), INVALID, "rank 3");
    CHECK_REFUSED(init_from("tcp://127.0.0.1:1?wolrd_size=2"), INVALID, "wolrd_size");
    CHECK_REFUSED(init_from("\xff\xfe"), INVALID, "init_method");
    CHECK(dist_is_initialized() == 0);
}

static void wrong_variables_are_refused(void)
{
    CHECK_REFUSED(dist_init(NULL), INVALID, "MASTER_ADDR");
    setenv("RANK", "0", 1);
    CHECK_REFUSED(dist_init(NULL), INVALID, "WORLD_SIZE");
    setenv("WORLD_SIZE", "two", 1);
    CHECK_REFUSED(dist_init(NULL), INVALID, "WORLD_SIZE=\"two\"");
    setenv("WORLD_SIZE", "2", 1);
    CHECK_REFUSED(dist_init(NULL), INVALID, "MASTER_ADDR");
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", "70000", 1);
    CHECK_REFUSED(dist_init(NULL), INVALID, "MASTER_PORT=\"70000\"");
    unsetenv("RANK");
    CHECK_REFUSED(dist_init(NULL), INVALID, "RANK");
    unsetenv("WORLD_SIZE");
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
    setenv("DIST_LOG_LEVEL", "LOUD", 1);
    CHECK_REFUSED(dist_init(NULL), INVALID, "DIST_LOG_LEVEL=\"LOUD\"");
    unsetenv("DIST_LOG_LEVEL");
    setenv("DIST_CONNECT_TIMEOUT_MS", "soon", 1);
    CHECK_REFUSED(dist_init(NULL), INVALID, "DIST_CONNECT_TIMEOUT_MS=\"soon\"");
    unsetenv("DIST_CONNECT_TIMEOUT_MS");
}

static void port_in_use_is_reported(void)
{
    dist_store_tcp_options_t options = DIST_STORE_TCP_OPTIONS_INIT;
    dist_store_t *store = NULL;
    char url[80];
    char number[16];
    int port = 0;
    int fd = bind_port(&port);
    snprintf(number, sizeof(number), "%d", port);
    options.host = "127.0.0.1";
    options.port = port;
    options.is_server = 1;
    options.timeout_ms = LIMIT_MS;
    CHECK_REFUSED(dist_store_tcp_create(&options, &store), DIST_ERR_SYSTEM, number);
    CHECK_MESSAGE("in use");
    CHECK(store == NULL);
    snprintf(url, sizeof(url), "tcp://127.0.0.1:%d?rank=0&world_size=2", port);
    CHECK_REFUSED(init_from(url), DIST_ERR_SYSTEM, number);
    close(fd);
}

/* Without a server or peers, the error comes within the deadline and names the address or the
 * ranks. */
static void absent_peers_are_named(void)
{
    dist_store_t *store = new_store();
    dist_group_options_t options = DIST_GROUP_OPTIONS_INIT;
    dist_group_t *group = NULL;
    dist_status_t status;
    char url[80];
    char number[16];
    int port = 0;
    /* This process has just closed the port, so it has no listener. */
    close(bind_port(&port));
    snprintf(number, sizeof(number), "%d", port);
    snprintf(url, sizeof(url), "tcp://127.0.0.1:%d?rank=1&world_size=2", port);
    status = init_from(url);
    CHECK(status == DIST_ERR_TIMEOUT || status == DIST_ERR_CONNECTION);
    CHECK_MESSAGE(number);

    options.store = store;
    options.name = "late";
    options.fields = DIST_FIELD_RANK;
    options.world_size = 3;
    options.connect_timeout_ms = 100;
    CHECK_REFUSED(dist_group_create(&options, &group), DIST_ERR_TIMEOUT, "ranks 1, 2");
    CHECK(group == NULL);
    CHECK_OK(dist_store_release(store));
}

/* Calls on a store end at their deadline, and the error names the missing keys. */
static void missing_keys_are_named(void)
{
    static const char *const keys[3] = { "here", "absent-1", "absent-2" };
    dist_store_t *store = new_store();
    dist_blob_t *blob = NULL;
    int64_t sum = 7;
    CHECK_OK(dist_store_set(store, "here", DIST_TERMINATED, "text", 4));
    CHECK_REFUSED(dist_store_wait(store, keys, NULL, 3, 20), DIST_ERR_TIMEOUT, "absent-1");
    CHECK_MESSAGE("absent-2");
    CHECK_OK(dist_store_set_timeout(store, 20));
    CHECK_REFUSED(dist_store_get(store, "absent-1", DIST_TERMINATED, &blob), DIST_ERR_TIMEOUT, "absent-1");
    CHECK_REFUSED(dist_store_multi_get(store, keys, NULL, 3, &blob), DIST_ERR_TIMEOUT, "absent-2");
    CHECK(blob == NULL);
    CHECK_STATUS(dist_store_add(store, "here", DIST_TERMINATED, 1, &sum), DIST_ERR_NOT_A_NUMBER);
    CHECK(sum == 7);
    CHECK_OK(dist_store_get(store, "here", DIST_TERMINATED, &blob));
    CHECK_OK(dist_blob_release(blob));
    CHECK_OK(dist_store_release(store));
}

static void two_rendezvous_methods_are_refused(void)
{
    dist_init_options_t options = DIST_INIT_OPTIONS_INIT;
    dist_store_t *store = new_store();
    options.store = store;
    options.init_method = "env://";
    CHECK_REFUSED(dist_init(&options), INVALID, "init_method");
    options.init_method = NULL;
    CHECK_REFUSED(dist_init(&options), INVALID, "rank");
    CHECK_OK(dist_store_release(store));
}

/* A world group of one rank needs no address. */
static void single_rank_needs_no_address(void)
{
    dist_init_options_t options = DIST_INIT_OPTIONS_INIT;
    options.fields = DIST_FIELD_RANK;
    options.world_size = 1;
    CHECK_OK(dist_init(&options));
    CHECK_OK(dist_barrier(dist_world(), NULL, NULL));
    CHECK_OK(dist_finalize());
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "1", 1);
    CHECK_OK(dist_init(NULL));
    CHECK_OK(dist_finalize());
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    CHECK_OK(init_from("env://?rank=0&world_size=1"));
    CHECK_OK(dist_finalize());
    CHECK_OK(init_from("tcp://127.0.0.1:0?rank=0&world_size=1"));
    CHECK(dist_get_world_size(dist_world()) == 1);
    CHECK_OK(dist_finalize());
}

int main(void)
{
    wrong_addresses_are_refused();
    wrong_variables_are_refused();
    port_in_use_is_reported();
    absent_peers_are_named();
    missing_keys_are_named();
    two_rendezvous_methods_are_refused();
    single_rank_needs_no_address();
    return check_report();
}
