/*
 * Messages of the stub libnccl, executed on the thread of a stream. All messages of a group
 * progress at the same time; messages between the same two ranks run one after another. A send
 * is done when the receiver has the whole message.
 */
#include "nccl_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct message {
    const struct operation *it;
    /* The number of pieces that this rank has sent or received. */
    size_t moved;
    int is_done;
};

enum progress { NOTHING, SOMETHING, BROKEN };

static size_t pieces(const struct operation *it)
{
    size_t bytes = it->count * type_size(it->type);
    return bytes == 0 ? 1 : (bytes + MESSAGE_BYTES - 1) / MESSAGE_BYTES;
}

/* Copies a piece between the caller's buffer and the channel. */
static int move(struct comm *comm, const struct message *message)
{
    const struct operation *it = message->it;
    size_t start = message->moved * MESSAGE_BYTES;
    size_t left = it->count * type_size(it->type) - start;
    size_t bytes = left < MESSAGE_BYTES ? left : MESSAGE_BYTES;
    if (bytes == 0) {
        return 1;
    }
    int is_send = it->kind == SEND;
    const char *buffer = is_send ? it->send : it->receive;
    void *mine = alias(comm, buffer + start, bytes);
    char *channel = is_send ? meet_message(comm, comm->rank, it->root) : meet_message(comm, it->root, comm->rank);
    if (mine != NULL) {
        memcpy(is_send ? (void *)channel : mine, is_send ? mine : (void *)channel, bytes);
    }
    return mine != NULL;
}

static enum progress send_on(struct comm *comm, struct message *message)
{
    struct channel *channel = meet_channel(comm, comm->rank, message->it->root);
    if (atomic_load(&channel->filled) != atomic_load(&channel->drained)) {
        return NOTHING;
    }
    if (message->moved == pieces(message->it)) {
        message->is_done = 1;
        return SOMETHING;
    }
    channel->count = message->it->count;
    channel->type = (int)message->it->type;
    if (!move(comm, message)) {
        return BROKEN;
    }
    message->moved++;
    atomic_fetch_add(&channel->filled, 1);
    meet_ring(comm);
    return SOMETHING;
}

static enum progress receive_on(struct comm *comm, struct message *message)
{
    const struct operation *it = message->it;
    struct channel *channel = meet_channel(comm, it->root, comm->rank);
    if (atomic_load(&channel->filled) == atomic_load(&channel->drained)) {
        return NOTHING;
    }
    if (channel->count != it->count || channel->type != (int)it->type) {
        char mine[64], theirs[64];
        snprintf(mine, sizeof mine, "receive of %zu %s", it->count, type_name((int)it->type));
        unsigned long long count = channel->count;
        snprintf(theirs, sizeof theirs, "send of %llu %s", count, type_name(channel->type));
        differ(comm, it->root, mine, theirs);
        return BROKEN;
    }
    if (!move(comm, message)) {
        return BROKEN;
    }
    message->is_done = ++message->moved == pieces(it);
    atomic_fetch_add(&channel->drained, 1);
    meet_ring(comm);
    return SOMETHING;
}

/* Returns true if an earlier message between the same two ranks is not done. */
static int must_wait(const struct message *messages, size_t which)
{
    for (size_t i = 0; i < which; i++) {
        if (!messages[i].is_done && messages[i].it->kind == messages[which].it->kind
            && messages[i].it->root == messages[which].it->root) {
            return 1;
        }
    }
    return 0;
}

static enum progress go_on(struct comm *comm, struct message *messages, size_t n, int *are_done)
{
    enum progress all = NOTHING;
    *are_done = 1;
    for (size_t i = 0; i < n && all != BROKEN; i++) {
        if (!messages[i].is_done && !must_wait(messages, i)) {
            int is_send = messages[i].it->kind == SEND;
            enum progress one = is_send ? send_on(comm, &messages[i]) : receive_on(comm, &messages[i]);
            all = one == NOTHING ? all : one;
        }
        *are_done &= messages[i].is_done;
    }
    return all;
}

static int exchange(struct comm *comm, struct message *messages, size_t n)
{
    for (int are_done = n == 0; !are_done;) {
        uint32_t seen = meet_bell(comm);
        enum progress progress = go_on(comm, messages, n, &are_done);
        if (progress == BROKEN || meet_is_over(comm)) {
            meet_hang(comm);
            return 0;
        }
        if (progress == NOTHING) {
            meet_sleep(comm, seen);
        }
    }
    return 1;
}

int run_messages(struct comm *comm, struct operation *first)
{
    size_t n = 0;
    for (const struct operation *it = first; it != NULL; it = it->next) {
        n += it->kind == SEND || it->kind == RECEIVE;
    }
    struct message *messages = calloc(n + 1, sizeof *messages);
    if (messages == NULL) {
        abort();
    }
    size_t filled = 0;
    int may_go_on = 1;
    for (const struct operation *it = first; it != NULL && may_go_on; it = it->next) {
        if (it->kind == SEND || it->kind == RECEIVE) {
            messages[filled++].it = it;
            may_go_on = begin_operation(comm);
        }
    }
    int are_done = may_go_on && exchange(comm, messages, n);
    free(messages);
    return are_done;
}
