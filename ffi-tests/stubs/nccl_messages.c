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
    const struct operation *operation;
    /* The number of pieces that this rank has sent or received. */
    size_t pieces_moved;
    int is_done;
};

enum progress { NO_PROGRESS, PROGRESS, FAILED };

static size_t count_pieces(const struct operation *operation)
{
    size_t bytes = operation->count * type_size(operation->type);
    return bytes == 0 ? 1 : (bytes + MESSAGE_BYTES - 1) / MESSAGE_BYTES;
}

/* Copies a piece between the caller's buffer and the channel. */
static int move_piece(struct comm *comm, const struct message *message)
{
    const struct operation *operation = message->operation;
    size_t start = message->pieces_moved * MESSAGE_BYTES;
    size_t left = operation->count * type_size(operation->type) - start;
    size_t bytes = left < MESSAGE_BYTES ? left : MESSAGE_BYTES;
    if (bytes == 0) {
        return 1;
    }
    int is_send = operation->kind == SEND;
    const char *buffer = is_send ? operation->send : operation->receive;
    void *memory = host_alias(comm, buffer + start, bytes);
    char *channel = is_send ? meet_message(comm, comm->rank, operation->root)
        : meet_message(comm, operation->root, comm->rank);
    if (memory != NULL) {
        memcpy(is_send ? (void *)channel : memory, is_send ? memory : (void *)channel, bytes);
    }
    return memory != NULL;
}

static enum progress send_next_piece(struct comm *comm, struct message *message)
{
    struct channel *channel = meet_channel(comm, comm->rank, message->operation->root);
    if (atomic_load(&channel->filled) != atomic_load(&channel->drained)) {
        return NO_PROGRESS;
    }
    if (message->pieces_moved == count_pieces(message->operation)) {
        message->is_done = 1;
        return PROGRESS;
    }
    channel->count = message->operation->count;
    channel->type = (int)message->operation->type;
    if (!move_piece(comm, message)) {
        return FAILED;
    }
    message->pieces_moved++;
    atomic_fetch_add(&channel->filled, 1);
    meet_notify(comm);
    return PROGRESS;
}

static enum progress receive_next_piece(struct comm *comm, struct message *message)
{
    const struct operation *operation = message->operation;
    struct channel *channel = meet_channel(comm, operation->root, comm->rank);
    if (atomic_load(&channel->filled) == atomic_load(&channel->drained)) {
        return NO_PROGRESS;
    }
    if (channel->count != operation->count || channel->type != (int)operation->type) {
        char own_call[64], peer_call[64];
        snprintf(own_call, sizeof own_call, "receive of %zu %s", operation->count, type_name((int)operation->type));
        unsigned long long count = channel->count;
        snprintf(peer_call, sizeof peer_call, "send of %llu %s", count, type_name(channel->type));
        report_mismatch(comm, operation->root, own_call, peer_call);
        return FAILED;
    }
    if (!move_piece(comm, message)) {
        return FAILED;
    }
    message->is_done = ++message->pieces_moved == count_pieces(operation);
    atomic_fetch_add(&channel->drained, 1);
    meet_notify(comm);
    return PROGRESS;
}

/* Returns true if an earlier message between the same two ranks is not done. */
static int must_wait(const struct message *messages, size_t index)
{
    for (size_t i = 0; i < index; i++) {
        if (!messages[i].is_done && messages[i].operation->kind == messages[index].operation->kind
            && messages[i].operation->root == messages[index].operation->root) {
            return 1;
        }
    }
    return 0;
}

static enum progress progress_messages(struct comm *comm, struct message *messages, size_t n, int *are_done)
{
    enum progress all = NO_PROGRESS;
    *are_done = 1;
    for (size_t i = 0; i < n && all != FAILED; i++) {
        if (!messages[i].is_done && !must_wait(messages, i)) {
            int is_send = messages[i].operation->kind == SEND;
            enum progress one = is_send ? send_next_piece(comm, &messages[i]) : receive_next_piece(comm, &messages[i]);
            all = one == NO_PROGRESS ? all : one;
        }
        *are_done &= messages[i].is_done;
    }
    return all;
}

static int exchange_messages(struct comm *comm, struct message *messages, size_t n)
{
    for (int are_done = n == 0; !are_done;) {
        uint32_t seen = meet_doorbell(comm);
        enum progress progress = progress_messages(comm, messages, n, &are_done);
        if (progress == FAILED || meet_is_over(comm)) {
            meet_hang(comm);
            return 0;
        }
        if (progress == NO_PROGRESS) {
            meet_sleep(comm, seen);
        }
    }
    return 1;
}

int run_messages(struct comm *comm, struct operation *first)
{
    size_t n = 0;
    for (const struct operation *operation = first; operation != NULL; operation = operation->next) {
        n += operation->kind == SEND || operation->kind == RECEIVE;
    }
    struct message *messages = calloc(n + 1, sizeof *messages);
    if (messages == NULL) {
        abort();
    }
    size_t filled = 0;
    int may_go_on = 1;
    for (const struct operation *operation = first; operation != NULL && may_go_on; operation = operation->next) {
        if (operation->kind == SEND || operation->kind == RECEIVE) {
            messages[filled++].operation = operation;
            may_go_on = start_operation(comm);
        }
    }
    int are_done = may_go_on && exchange_messages(comm, messages, n);
    free(messages);
    return are_done;
}
