/*
 * The misuse log, switches from the environment, and handles. See stub_common.h.
 */
#include "stub_common.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static atomic_ulong misuses;

static void append_log(const char *kind, const char *format, va_list arguments)
{
    const char *path = getenv("DIST_STUB_LOG");
    if (path == NULL) {
        return;
    }
    char line[1024];
    int length = snprintf(line, sizeof line, "stub: pid %ld: %s", (long)getpid(), kind);
    int more = vsnprintf(line + length, sizeof line - (size_t)length - 1, format, arguments);
    length += more < 0 ? 0 : more;
    if ((size_t)length > sizeof line - 2) {
        length = (int)sizeof line - 2;
    }
    line[length++] = '\n';
    /* One write per line, so that lines of several processes do not interleave. */
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd >= 0) {
        ssize_t written = write(fd, line, (size_t)length);
        (void)written;
        close(fd);
    }
}

void stub_log(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    append_log("", format, arguments);
    va_end(arguments);
}

void stub_misuse(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    append_log("misuse: ", format, arguments);
    va_end(arguments);
    atomic_fetch_add(&misuses, 1);
    const char *reaction = getenv("DIST_STUB_MISUSE");
    if (reaction != NULL && strcmp(reaction, "abort") == 0) {
        abort();
    }
}

unsigned long stub_misuses(void)
{
    return atomic_load(&misuses);
}

long stub_env_number(const char *name, long fallback)
{
    const char *text = getenv(name);
    long number = fallback;
    return text != NULL && stub_parse_numbers(text, '\0', &number, 1) == 1 ? number : fallback;
}

int stub_parse_numbers(const char *text, char separator, long *numbers, int max_numbers)
{
    int count = 0;
    while (text != NULL && *text != '\0' && count < max_numbers) {
        char *end = NULL;
        errno = 0;
        long number = strtol(text, &end, 10);
        if (end == text || errno != 0 || (*end != '\0' && *end != separator)) {
            break;
        }
        numbers[count++] = number;
        text = *end == '\0' ? end : end + 1;
    }
    return count;
}

void stub_sleep_us(long us)
{
    struct timespec remaining = { us / 1000000, us % 1000000 * 1000 };
    while (us > 0 && nanosleep(&remaining, &remaining) != 0 && errno == EINTR) {
    }
}

void stub_set_fault(struct stub_fault *fault, const char *function, long calls, int error)
{
    snprintf(fault->function, sizeof fault->function, "%s", function == NULL ? "" : function);
    fault->calls = calls;
    fault->error = error;
}

void stub_read_fault(struct stub_fault *fault, const char *name)
{
    const char *text = getenv(name);
    const char *colon = text == NULL ? NULL : strchr(text, ':');
    long numbers[2];
    if (colon != NULL && stub_parse_numbers(colon + 1, ':', numbers, 2) == 2) {
        stub_set_fault(fault, text, numbers[0], (int)numbers[1]);
        size_t length = (size_t)(colon - text);
        fault->function[length < sizeof fault->function ? length : 0] = '\0';
    }
}

int stub_fails_now(struct stub_fault *fault, const char *function)
{
    if (fault->function[0] == '\0' || strcmp(fault->function, function) != 0 || fault->calls-- > 0) {
        return 0;
    }
    fault->function[0] = '\0';
    return 1;
}

/* A token consists of a top byte that makes it an invalid address, the kind, the slot's
 * generation, and the slot. */
#define TOKEN_MARK 0xD1ull
#define SLOTS (1u << 16)

struct slot {
    void *object;
    uint32_t generation;
    int kind;
};

static struct {
    pthread_mutex_t lock;
    struct slot slots[SLOTS];
    uint32_t n_used;
} handles = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void *make_token(uint32_t slot)
{
    uint64_t generation = handles.slots[slot].generation & 0xffffffffu;
    uint64_t kind = (uint64_t)handles.slots[slot].kind;
    return (void *)(uintptr_t)(TOKEN_MARK << 56 | kind << 52 | generation << 20 | (uint64_t)slot << 4);
}

static struct slot *find_slot(int kind, const void *token)
{
    uint32_t slot = (uint32_t)((uintptr_t)token >> 4) % SLOTS;
    struct slot *found = &handles.slots[slot];
    int is_it = found->object != NULL && found->kind == kind && make_token(slot) == token;
    return is_it ? found : NULL;
}

void *stub_handle_new(int kind, void *object)
{
    void *token = NULL;
    pthread_mutex_lock(&handles.lock);
    /* Slots are used in rotation, so that generations last longer. */
    for (uint32_t tried = 0; tried < SLOTS && token == NULL; tried++) {
        uint32_t slot = handles.n_used++ % SLOTS;
        if (handles.slots[slot].object == NULL) {
            handles.slots[slot].object = object;
            handles.slots[slot].kind = kind;
            handles.slots[slot].generation++;
            token = make_token(slot);
        }
    }
    pthread_mutex_unlock(&handles.lock);
    if (token == NULL) {
        stub_log("there are more than %u handles", SLOTS);
        abort();
    }
    return token;
}

void *stub_handle_find(int kind, const void *token)
{
    pthread_mutex_lock(&handles.lock);
    struct slot *slot = find_slot(kind, token);
    void *object = slot == NULL ? NULL : slot->object;
    pthread_mutex_unlock(&handles.lock);
    return object;
}

void *stub_handle_take(int kind, const void *token)
{
    pthread_mutex_lock(&handles.lock);
    struct slot *slot = find_slot(kind, token);
    void *object = NULL;
    if (slot != NULL) {
        object = slot->object;
        slot->object = NULL;
    }
    pthread_mutex_unlock(&handles.lock);
    return object;
}

int stub_handle_count(int kind)
{
    int count = 0;
    pthread_mutex_lock(&handles.lock);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        count += handles.slots[slot].object != NULL && handles.slots[slot].kind == kind;
    }
    pthread_mutex_unlock(&handles.lock);
    return count;
}

void stub_handle_each(int kind, void (*visit)(void *object, void *context), void *context)
{
    pthread_mutex_lock(&handles.lock);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        if (handles.slots[slot].object != NULL && handles.slots[slot].kind == kind) {
            visit(handles.slots[slot].object, context);
        }
    }
    pthread_mutex_unlock(&handles.lock);
}
