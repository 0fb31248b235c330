/*
 * Memory of the stub libcuda. Device memory is host memory at a second address, its alias. The
 * processor can neither read nor write the address that the caller gets, so a program that
 * accesses device memory on the processor crashes. Streams and the stub libnccl use the alias.
 *
 * As with CUDA, a free waits for the device. If a thread frees memory while a collective hangs,
 * the thread hangs as well.
 */
#include "cuda_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* The initial content of device memory, up to GARBAGE_BYTES to limit the cost. */
#define GARBAGE 0xA5
#define GARBAGE_BYTES (1u << 20)

enum memory_kind { MEMORY_DEVICE, MEMORY_HOST, MEMORY_REGISTERED };

struct allocation {
    struct allocation *next;
    enum memory_kind kind;
    struct device *device;
    char *start;
    char *alias;
    size_t bytes;
    unsigned long long id;
};

static struct allocation *allocations;
static unsigned long long ids;

static size_t in_pages(size_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
}

static char *map(size_t bytes, int protection)
{
    void *start = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return start == MAP_FAILED ? NULL : start;
}

static void unmap(char *start, size_t bytes)
{
    if (start != NULL) {
        munmap(start, bytes);
    }
}

/* Returns the allocation that contains the whole range. */
static struct allocation *find(const void *pointer, size_t bytes)
{
    const char *start = pointer;
    for (struct allocation *it = allocations; it != NULL; it = it->next) {
        if (start >= it->start && start < it->start + it->bytes
            && bytes <= (size_t)(it->start + it->bytes - start)) {
            return it;
        }
    }
    return NULL;
}

static void *as_pointer(CUdeviceptr pointer)
{
    return (void *)(uintptr_t)pointer;
}

static struct allocation *add(enum memory_kind kind, struct device *device, char *start, char *alias,
                              size_t bytes)
{
    struct allocation *it = malloc(sizeof *it);
    if (it != NULL) {
        *it = (struct allocation){ allocations, kind, device, start, alias, bytes, ++ids };
        allocations = it;
    }
    return it;
}

/* Removes the allocation that begins at an address from the list and returns it. */
static struct allocation *take(enum memory_kind kind, const void *pointer)
{
    for (struct allocation **link = &allocations; *link != NULL; link = &(*link)->next) {
        struct allocation *it = *link;
        if (it->kind == kind && it->start == pointer) {
            *link = it->next;
            return it;
        }
    }
    return NULL;
}

static int begins_there(enum memory_kind kind, const void *pointer)
{
    struct allocation *it = find(pointer, 0);
    return it != NULL && it->kind == kind && it->start == pointer;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    ENTER();
    CUresult error = CUDA_SUCCESS;
    struct device *device = current_device(&error);
    if (device == NULL) {
        return leave(error);
    }
    if (pointer == NULL || bytes == 0) {
        return leave(CUDA_ERROR_INVALID_VALUE);
    }
    size_t most = (size_t)stub_number("DIST_STUB_CUDA_MEMORY_MIB", 4096) << 20;
    if (bytes > most || device->memory_used > most - bytes) {
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    char *start = map(in_pages(bytes), PROT_NONE);
    char *alias = map(in_pages(bytes), PROT_READ | PROT_WRITE);
    if (start == NULL || alias == NULL || add(MEMORY_DEVICE, device, start, alias, bytes) == NULL) {
        unmap(start, in_pages(bytes));
        unmap(alias, in_pages(bytes));
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    memset(alias, GARBAGE, bytes < GARBAGE_BYTES ? bytes : GARBAGE_BYTES);
    device->memory_used += bytes;
    *pointer = (CUdeviceptr)(uintptr_t)start;
    return leave(CUDA_SUCCESS);
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    ENTER();
    if (pointer == 0) {
        return leave(CUDA_SUCCESS);
    }
    if (!begins_there(MEMORY_DEVICE, as_pointer(pointer))) {
        return leave(refuse(CUDA_ERROR_INVALID_VALUE, "cuMemFree of what is no device memory, or no more"));
    }
    drain_device(find(as_pointer(pointer), 0)->device);
    /* Another thread may have freed it first. */
    struct allocation *it = take(MEMORY_DEVICE, as_pointer(pointer));
    if (it == NULL) {
        return leave(refuse(CUDA_ERROR_INVALID_VALUE, "cuMemFree of the same memory on two threads"));
    }
    it->device->memory_used -= it->bytes;
    unmap(it->start, in_pages(it->bytes));
    unmap(it->alias, in_pages(it->bytes));
    free(it);
    return leave(CUDA_SUCCESS);
}

CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned int flags)
{
    ENTER();
    CUresult error = CUDA_SUCCESS;
    struct device *device = current_device(&error);
    if (device == NULL) {
        return leave(error);
    }
    if (pointer == NULL || bytes == 0 || flags > 7) {
        return leave(CUDA_ERROR_INVALID_VALUE);
    }
    char *start = map(in_pages(bytes), PROT_READ | PROT_WRITE);
    if (start == NULL || add(MEMORY_HOST, device, start, start, bytes) == NULL) {
        unmap(start, in_pages(bytes));
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    memset(start, GARBAGE, bytes < GARBAGE_BYTES ? bytes : GARBAGE_BYTES);
    *pointer = start;
    return leave(CUDA_SUCCESS);
}

CUresult cuMemFreeHost(void *pointer)
{
    ENTER();
    if (!begins_there(MEMORY_HOST, pointer)) {
        return leave(refuse(CUDA_ERROR_INVALID_VALUE, "cuMemFreeHost of what cuMemHostAlloc did not give"));
    }
    drain_device(find(pointer, 0)->device);
    struct allocation *it = take(MEMORY_HOST, pointer);
    if (it == NULL) {
        return leave(refuse(CUDA_ERROR_INVALID_VALUE, "cuMemFreeHost of the same memory on two threads"));
    }
    unmap(it->start, in_pages(it->bytes));
    free(it);
    return leave(CUDA_SUCCESS);
}

CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned int flags)
{
    ENTER();
    CUresult error = CUDA_SUCCESS;
    struct device *device = current_device(&error);
    if (device == NULL) {
        return leave(error);
    }
    if (pointer == NULL || bytes == 0 || flags > 15) {
        return leave(CUDA_ERROR_INVALID_VALUE);
    }
    const char *start = pointer;
    for (const struct allocation *it = allocations; it != NULL; it = it->next) {
        if (start < it->start + it->bytes && it->start < start + bytes) {
            return leave(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        }
    }
    if (add(MEMORY_REGISTERED, device, pointer, pointer, bytes) == NULL) {
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    return leave(CUDA_SUCCESS);
}

CUresult cuMemHostUnregister(void *pointer)
{
    ENTER();
    if (!begins_there(MEMORY_REGISTERED, pointer)) {
        return leave(refuse(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "cuMemHostUnregister of what is not registered"));
    }
    free(take(MEMORY_REGISTERED, pointer));
    return leave(CUDA_SUCCESS);
}

/* Returns one attribute; without an allocation, its default value. */
static CUresult attribute_of(const struct allocation *it, CUdeviceptr pointer, CUpointer_attribute attribute,
                             void *value)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)value = it == NULL ? NULL : it->device->context;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)value = it == NULL                     ? 0
                             : it->kind == MEMORY_DEVICE ? CU_MEMORYTYPE_DEVICE
                                                         : CU_MEMORYTYPE_HOST;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)value = it == NULL ? 0 : pointer;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(void **)value = it == NULL || it->kind == MEMORY_DEVICE ? NULL : as_pointer(pointer);
        return it != NULL && it->kind == MEMORY_DEVICE ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)value = it == NULL ? 0 : it->id;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)value = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)value = it == NULL ? -2 : it->device->ordinal;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)value = it == NULL ? 0 : (CUdeviceptr)(uintptr_t)it->start;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)value = it == NULL ? 0 : it->bytes;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned char *)value = it != NULL;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr pointer)
{
    ENTER();
    const struct allocation *it = find(as_pointer(pointer), 0);
    return leave(it == NULL ? CUDA_ERROR_INVALID_VALUE : attribute_of(it, pointer, attribute, value));
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **values,
                                CUdeviceptr pointer)
{
    ENTER();
    const struct allocation *it = find(as_pointer(pointer), 0);
    CUresult result = CUDA_SUCCESS;
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = attribute_of(it, pointer, attributes[i], values[i]);
        /* An attribute that does not apply has a zero value; this is no error here. */
        if (result != CUDA_SUCCESS && attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER) {
            result = CUDA_SUCCESS;
        }
    }
    return leave(result);
}

enum place place_of(CUdeviceptr pointer, size_t bytes)
{
    const struct allocation *it = find(as_pointer(pointer), bytes);
    return it == NULL ? PLACE_UNKNOWN : it->kind == MEMORY_DEVICE ? PLACE_DEVICE : PLACE_PINNED;
}

void *reach(CUdeviceptr pointer, size_t bytes)
{
    const struct allocation *it = find(as_pointer(pointer), 0);
    if (it == NULL || it->kind != MEMORY_DEVICE) {
        return as_pointer(pointer);
    }
    size_t offset = (size_t)((char *)as_pointer(pointer) - it->start);
    return bytes <= it->bytes - offset ? it->alias + offset : NULL;
}

void *dist_stub_cuda_alias(const void *pointer, size_t bytes)
{
    pthread_mutex_lock(&cuda.lock);
    const struct allocation *it = find(pointer, bytes);
    int is_device = it != NULL && it->kind == MEMORY_DEVICE;
    void *alias = is_device ? it->alias + ((const char *)pointer - it->start) : NULL;
    pthread_mutex_unlock(&cuda.lock);
    return alias;
}

int has_memory(const struct device *device)
{
    for (const struct allocation *it = allocations; it != NULL; it = it->next) {
        if (it->device == device) {
            return 1;
        }
    }
    return 0;
}

void count_memory(struct dist_stub_cuda_counts *counts)
{
    for (const struct allocation *it = allocations; it != NULL; it = it->next) {
        counts->device_allocations += it->kind == MEMORY_DEVICE;
        counts->host_allocations += it->kind == MEMORY_HOST;
        counts->registrations += it->kind == MEMORY_REGISTERED;
    }
}
