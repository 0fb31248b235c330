/*
 * The back end "odd", which violates the interface of back ends. Its option selects the violation;
 * its ranks do not communicate.
 */
#ifndef ODD_BACKEND_H
#define ODD_BACKEND_H

#include "check.h"
#include "nap.h"

#include <dist_backend.h>

struct odd {
    char does[32];
    const dist_backend_host_t *host;
    pthread_mutex_t lock;
    int aborted;
    int is_good; /* until its first operation has ended */
    uint64_t ticket;
};

/* The prefix of violations from the second operation on; the first one succeeds. */
static const char then[] = "then ";

static int does(const struct odd *odd, const char *what)
{
    return strcmp(odd->does, what) == 0;
}

static int is_aborted(struct odd *odd)
{
    int aborted;
    pthread_mutex_lock(&odd->lock);
    aborted = odd->aborted;
    pthread_mutex_unlock(&odd->lock);
    return aborted;
}

static dist_status_t create(void *user, const dist_backend_setup_t *setup, dist_backend_created_t *created,
                            dist_backend_outcome_t *outcome)
{
    struct odd *odd = calloc(1, sizeof(*odd));
    (void)user;
    REQUIRE(odd != NULL && strlen(setup->group_id) == 32 && strcmp(setup->group_name, "odd") == 0);
    REQUIRE(setup->struct_size == sizeof(*setup) && created->struct_size == sizeof(*created));
    odd->is_good = strncmp(setup->options, then, strlen(then)) == 0;
    snprintf(odd->does, sizeof(odd->does), "%s", setup->options + (odd->is_good ? strlen(then) : 0));
    odd->host = setup->host;
    pthread_mutex_init(&odd->lock, NULL);
    created->part = odd;
    created->kinds = does(odd, "bad kinds") ? (uint64_t)1 << 40 : 0;
    if (does(odd, "no create")) {
        snprintf(outcome->text, outcome->text_cap, "no cable is plugged in");
        free(odd);
        return DIST_ERR_CONNECTION;
    }
    return DIST_OK;
}

static void destroy(void *part)
{
    free(part);
}

static void *complete_later(void *arg)
{
    struct odd *odd = arg;
    dist_backend_outcome_t outcome = DIST_BACKEND_OUTCOME_INIT;
    static char text[] = "the fuse has blown";
    int fails = does(odd, "completes badly");
    outcome.culprit = 0;
    outcome.text = text;
    nap_ms(20);
    CHECK_OK(odd->host->complete(odd->host->context, odd->ticket, fails ? DIST_ERR_PEER_FAILED : DIST_OK, &outcome));
    return NULL;
}

static dist_status_t submit(void *part, const dist_backend_operation_t *what, void **request,
                            dist_backend_outcome_t *outcome)
{
    struct odd *odd = part;
    pthread_t thread;
    *request = odd;
    odd->ticket = what->ticket;
    if (does(odd, "unknown status")) {
        return -4711;
    }
    if (does(odd, "no request")) {
        *request = NULL;
        return DIST_IN_PROGRESS;
    }
    if (does(odd, "fails")) {
        outcome->culprit = 0;
        snprintf(outcome->text, outcome->text_cap, "the line is dead");
        return DIST_ERR_PEER_FAILED;
    }
    if (does(odd, "refuses")) {
        return DIST_ERR_UNSUPPORTED;
    }
    if (does(odd, "completes") || does(odd, "completes badly")) {
        CHECK(what->ticket != 0);
        REQUIRE(pthread_create(&thread, NULL, complete_later, odd) == 0);
        REQUIRE(pthread_detach(thread) == 0);
        return DIST_IN_PROGRESS;
    }
    if (does(odd, "completes at once")) {
        CHECK_STATUS(odd->host->complete(odd->host->context, 987654, DIST_OK, NULL), DIST_ERR_INVALID_ARGUMENT);
        CHECK_OK(odd->host->complete(odd->host->context, what->ticket, DIST_OK, NULL));
        CHECK_STATUS(odd->host->complete(odd->host->context, what->ticket, DIST_OK, NULL), DIST_ERR_INVALID_ARGUMENT);
        return DIST_IN_PROGRESS;
    }
    return does(odd, "done") ? DIST_OK : DIST_IN_PROGRESS;
}

static dist_status_t look(void *part, void *request, dist_backend_outcome_t *outcome)
{
    (void)request;
    (void)outcome;
    return does(part, "tested") ? DIST_OK : DIST_IN_PROGRESS;
}

static dist_status_t await(void *part, void *request, int64_t timeout_ms, dist_backend_outcome_t *outcome)
{
    struct odd *odd = part;
    int64_t waited;
    (void)request;
    CHECK(timeout_ms == DIST_NO_WAIT || (timeout_ms >= 1 && timeout_ms <= 1000));
    if (does(odd, "17")) {
        return 17;
    }
    if (does(odd, "too late to refuse")) {
        outcome->culprit = 12345;
        return DIST_ERR_UNSUPPORTED;
    }
    if (does(odd, "early")) {
        return DIST_ERR_TIMEOUT;
    }
    if (does(odd, "late")) {
        nap_ms(timeout_ms + 900);
        return DIST_IN_PROGRESS;
    }
    /* "hangs" waits until an abort; the other variants wait until their deadline. */
    for (waited = 0; (waited < timeout_ms || does(odd, "hangs")) && !is_aborted(odd); waited += 5) {
        nap_ms(5);
    }
    (void)outcome;
    return DIST_IN_PROGRESS;
}

/* Runs an operation in one call. */
static dist_status_t run_odd(void *part, const dist_backend_operation_t *what, int64_t timeout_ms, void **request,
                             dist_backend_outcome_t *outcome)
{
    struct odd *odd = part;
    dist_status_t status = odd->is_good ? DIST_OK : submit(part, what, request, outcome);
    odd->is_good = 0;
    CHECK(outcome->flags == 0 && (timeout_ms == DIST_NO_WAIT || (timeout_ms >= 1 && timeout_ms <= 1000)));
    if (status == DIST_OK) {
        outcome->flags = DIST_BACKEND_SHORT;
    }
    return status == DIST_IN_PROGRESS && *request != NULL ? await(part, *request, timeout_ms, outcome) : status;
}

static dist_status_t take_back(void *part, void *request, dist_backend_outcome_t *outcome)
{
    (void)request;
    snprintf(outcome->text, outcome->text_cap, "it waited for the moon");
    return does(part, "keeps") ? DIST_ERR_BACKEND : DIST_OK;
}

static void abort_part(void *part, dist_status_t status, const char *reason, int32_t culprit)
{
    struct odd *odd = part;
    CHECK(status < 0 && reason != NULL && culprit >= -1);
    pthread_mutex_lock(&odd->lock);
    odd->aborted++;
    CHECK(odd->aborted == 1);
    pthread_mutex_unlock(&odd->lock);
}

static dist_status_t failure(void *part, dist_backend_outcome_t *outcome)
{
    if (!does(part, "finds out")) {
        return DIST_OK;
    }
    snprintf(outcome->text, outcome->text_cap, "another rank has given up");
    return DIST_ERR_ABORTED;
}

static dist_backend_vtable_t table_of(const char *kind)
{
    dist_backend_vtable_t table = DIST_BACKEND_VTABLE_INIT;
    table.create = create;
    table.destroy = destroy;
    table.submit = submit;
    table.release = take_back;
    if (strcmp(kind, "odd-calls") != 0) {
        table.test = look;
    }
    if (strcmp(kind, "odd") == 0 || strcmp(kind, "odd-deaf") == 0 || strcmp(kind, "odd-runs") == 0) {
        table.wait = await;
    }
    if (strcmp(kind, "odd-runs") == 0) {
        table.run = run_odd;
    }
    if (strcmp(kind, "odd-deaf") != 0) {
        table.abort = abort_part;
        table.failure = failure;
    }
    return table;
}

#endif
