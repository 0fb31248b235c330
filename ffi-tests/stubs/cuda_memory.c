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
static unsigned long long n_ids;

static size_t round_to_pages(size_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
}

static char *map_pages(size_t bytes, int protection)
{
    void *start = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return start == MAP_FAILED ? NULL : start;
}

static void unmap_pages(char *start, size_t bytes)
{
    if (start != NULL) {
        munmap(start, bytes);
    }
}

/* Returns the allocation that contains the whole range. */
static struct allocation *find_allocation(const void *pointer, size_t bytes)
{
    const char *start = pointer;
    for (struct allocation *allocation = allocations; allocation != NULL; allocation = allocation->next) {
        if (start >= allocation->start && start < allocation->start + allocation->bytes
            && bytes <= (size_t)(allocation->start + allocation->bytes - start)) {
            return allocation;
        }
    }
    return NULL;
}

static void *as_pointer(CUdeviceptr pointer)
{
    return (void *)(uintptr_t)pointer;
}

static struct allocation *add_allocation(enum memory_kind kind, struct device *device, char *start, char *alias,
                                         size_t bytes)
{
    struct allocation *allocation = malloc(sizeof *allocation);
    if (allocation != NULL) {
        *allocation = (struct allocation){ allocations, kind, device, start, alias, bytes, ++n_ids };
        allocations = allocation;
    }
    return allocation;
}

/* Removes the allocation that begins at an address from the list and returns it. */
static struct allocation *take_allocation(enum memory_kind kind, const void *pointer)
{
    for (struct allocation **link = &allocations; *link != NULL; link = &(*link)->next) {
        struct allocation *allocation = *link;
        if (allocation->kind == kind && allocation->start == pointer) {
            *link = allocation->next;
            return allocation;
        }
    }
    return NULL;
}

static int is_allocation_start(enum memory_kind kind, const void *pointer)
{
    struct allocation *allocation = find_allocation(pointer, 0);
    return allocation != NULL && allocation->kind == kind && allocation->start == pointer;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    ENTER();
    CUresult error = CUDA_SUCCESS;
    struct device *device = current_device(&error);
    if (device == NULL) {
        return leave_call(error);
    }
    if (pointer == NULL || bytes == 0) {
        return leave_call(CUDA_ERROR_INVALID_VALUE);
    }
    size_t most = (size_t)stub_env_number("DIST_STUB_CUDA_MEMORY_MIB", 4096) << 20;
    if (bytes > most || device->memory_used > most - bytes) {
        return leave_call(CUDA_ERROR_OUT_OF_MEMORY);
    }
    char *start = map_pages(round_to_pages(bytes), PROT_NONE);
    char *alias = map_pages(round_to_pages(bytes), PROT_READ | PROT_WRITE);
    if (start == NULL || alias == NULL || add_allocation(MEMORY_DEVICE, device, start, alias, bytes) == NULL) {
        unmap_pages(start, round_to_pages(bytes));
        unmap_pages(alias, round_to_pages(bytes));
        return leave_call(CUDA_ERROR_OUT_OF_MEMORY);
    }
    memset(alias, GARBAGE, bytes < GARBAGE_BYTES ? bytes : GARBAGE_BYTES);
    device->memory_used += bytes;
    *pointer = (CUdeviceptr)(uintptr_t)start;
    return leave_call(CUDA_SUCCESS);
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    ENTER();
    if (pointer == 0) {
        return leave_call(CUDA_SUCCESS);
    }
    if (!is_allocation_start(MEMORY_DEVICE, as_pointer(pointer))) {
        return leave_call(refuse_call(CUDA_ERROR_INVALID_VALUE, "cuMemFree of what is no device memory, or no more"));
    }
    drain_device(find_allocation(as_pointer(pointer), 0)->device);
    /* Another thread may have freed it first. */
    struct allocation *allocation = take_allocation(MEMORY_DEVICE, as_pointer(pointer));
    if (allocation == NULL) {
        return leave_call(refuse_call(CUDA_ERROR_INVALID_VALUE, "cuMemFree of the same memory on two threads"));
    }
    allocation->device->memory_used -= allocation->bytes;
    unmap_pages(allocation->start, round_to_pages(allocation->bytes));
    unmap_pages(allocation->alias, round_to_pages(allocation->bytes));
    free(allocation);
    return leave_call(CUDA_SUCCESS);
}

CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned int flags)
{
    ENTER();
    CUresult error = CUDA_SUCCESS;
    struct device *device = current_device(&error);
    if (device == NULL) {
        return leave_call(error);
    }
    if (pointer == NULL || bytes == 0 || flags > 7) {
        return leave_call(CUDA_ERROR_INVALID_VALUE);
    }
    char *start = map_pages(round_to_pages(bytes), PROT_READ | PROT_WRITE);
    if (start == NULL || add_allocation(MEMORY_HOST, device, start, start, bytes) == NULL) {
        unmap_pages(start, round_to_pages(bytes));
        return leave_call(CUDA_ERROR_OUT_OF_MEMORY);
    }
    memset(start, GARBAGE, bytes < GARBAGE_BYTES ? bytes : GARBAGE_BYTES);
    *pointer = start;
    return leave_call(CUDA_SUCCESS);
}

CUresult cuMemFreeHost(void *pointer)
{
    ENTER();
    if (!is_allocation_start(MEMORY_HOST, pointer)) {
        return leave_call(refuse_call(CUDA_ERROR_INVALID_VALUE, "cuMemFreeHost of what cuMemHostAlloc did not give"));
    }
    drain_device(find_allocation(pointer, 0)->device);
    struct allocation *allocation = take_allocation(MEMORY_HOST, pointer);
    if (allocation == NULL) {
        return leave_call(refuse_call(CUDA_ERROR_INVALID_VALUE, "cuMemFreeHost of the same memory on two threads"));
    }
    unmap_pages(allocation->start, round_to_pages(allocation->bytes));
    free(allocation);
    return leave_call(CUDA_SUCCESS);
}

CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned int flags)
{
    ENTER();
    CUresult error = CUDA_SUCCESS;
    struct device *device = current_device(&error);
    if (device == NULL) {
        return leave_call(error);
    }
    if (pointer == NULL || bytes == 0 || flags > 15) {
        return leave_call(CUDA_ERROR_INVALID_VALUE);
    }
    const char *start = pointer;
    for (const struct allocation *allocation = allocations; allocation != NULL; allocation = allocation->next) {
        if (start < allocation->start + allocation->bytes && allocation->start < start + bytes) {
            return leave_call(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        }
    }
    if (add_allocation(MEMORY_REGISTERED, device, pointer, pointer, bytes) == NULL) {
        return leave_call(CUDA_ERROR_OUT_OF_MEMORY);
    }
    return leave_call(CUDA_SUCCESS);
}

CUresult cuMemHostUnregister(void *pointer)
{
    ENTER();
    if (!is_allocation_start(MEMORY_REGISTERED, pointer)) {
        return leave_call(refuse_call(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
                                      "cuMemHostUnregister of what is not registered"));
    }
    free(take_allocation(MEMORY_REGISTERED, pointer));
    return leave_call(CUDA_SUCCESS);
}

/* Returns one attribute; without an allocation, its default value. */
static CUresult get_attribute(const struct allocation *allocation, CUdeviceptr pointer, CUpointer_attribute attribute,
                              void *value)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)value = allocation == NULL ? NULL : allocation->device->context;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)value = allocation == NULL                     ? 0
                             : allocation->kind == MEMORY_DEVICE ? CU_MEMORYTYPE_DEVICE
                                                         : CU_MEMORYTYPE_HOST;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)value = allocation == NULL ? 0 : pointer;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(void **)value = allocation == NULL || allocation->kind == MEMORY_DEVICE ? NULL : as_pointer(pointer);
        return allocation != NULL && allocation->kind == MEMORY_DEVICE ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)value = allocation == NULL ? 0 : allocation->id;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)value = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)value = allocation == NULL ? -2 : allocation->device->ordinal;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)value = allocation == NULL ? 0 : (CUdeviceptr)(uintptr_t)allocation->start;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)value = allocation == NULL ? 0 : allocation->bytes;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned char *)value = allocation != NULL;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr pointer)
{
    ENTER();
    const struct allocation *allocation = find_allocation(as_pointer(pointer), 0);
    return leave_call(allocation == NULL ? CUDA_ERROR_INVALID_VALUE
                      : get_attribute(allocation, pointer, attribute, value));
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **values,
                                CUdeviceptr pointer)
{
    ENTER();
    const struct allocation *allocation = find_allocation(as_pointer(pointer), 0);
    CUresult result = CUDA_SUCCESS;
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = get_attribute(allocation, pointer, attributes[i], values[i]);
        /* An attribute that does not apply has a zero value; this is no error here. */
        if (result != CUDA_SUCCESS && attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER) {
            result = CUDA_SUCCESS;
        }
    }
    return leave_call(result);
}

enum memory_place memory_place_of(CUdeviceptr pointer, size_t bytes)
{
    const struct allocation *allocation = find_allocation(as_pointer(pointer), bytes);
    return allocation == NULL ? PLACE_UNKNOWN : allocation->kind == MEMORY_DEVICE ? PLACE_DEVICE : PLACE_PINNED;
}

void *host_address(CUdeviceptr pointer, size_t bytes)
{
    const struct allocation *allocation = find_allocation(as_pointer(pointer), 0);
    if (allocation == NULL || allocation->kind != MEMORY_DEVICE) {
        return as_pointer(pointer);
    }
    size_t offset = (size_t)((char *)as_pointer(pointer) - allocation->start);
    return bytes <= allocation->bytes - offset ? allocation->alias + offset : NULL;
}

void *dist_stub_cuda_alias(const void *pointer, size_t bytes)
{
    pthread_mutex_lock(&cuda.lock);
    const struct allocation *allocation = find_allocation(pointer, bytes);
    int is_device = allocation != NULL && allocation->kind == MEMORY_DEVICE;
    void *alias = is_device ? allocation->alias + ((const char *)pointer - allocation->start) : NULL;
    pthread_mutex_unlock(&cuda.lock);
    return alias;
}

int has_memory(const struct device *device)
{
    for (const struct allocation *allocation = allocations; allocation != NULL; allocation = allocation->next) {
        if (allocation->device == device) {
            return 1;
        }
    }
    return 0;
}

void count_memory(struct dist_stub_cuda_counts *counts)
{
    for (const struct allocation *allocation = allocations; allocation != NULL; allocation = allocation->next) {
        counts->device_allocations += allocation->kind == MEMORY_DEVICE;
        counts->host_allocations += allocation->kind == MEMORY_HOST;
        counts->registrations += allocation->kind == MEMORY_REGISTERED;
    }
}
