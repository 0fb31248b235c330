/*
 * Prints the CUDA and NCCL installation of this machine for `cargo xtask gpu`, one item per
 * line:
 *
 *     driver FILE VERSION
 *     nccl FILE VERSION
 *     device INDEX NAME
 *
 * or `no driver REASON`, `no nccl REASON`. The program is linked with neither. The exit status
 * is 0 if there is a driver with a device.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the file that contains a function. */
static const char *library_file(void *function)
{
    Dl_info info;
    return dladdr(function, &info) != 0 && info.dli_fname != NULL ? info.dli_fname : "?";
}

/* Opens the first available library of a list of names. */
static void *open_first(const char *const *names, const char *description)
{
    for (const char *const *name = names; *name != NULL; name++) {
        void *library = dlopen(*name, RTLD_NOW | RTLD_LOCAL);
        if (library != NULL) {
            return library;
        }
    }
    printf("no %s %s or %s: %s\n", description, names[0], names[1] != NULL ? names[1] : names[0], dlerror());
    return NULL;
}

/* Finds a function with its type; C does not convert between function pointers and object
 * pointers. */
#define FIND(library, type, name) \
    type name = NULL; \
    void *found_##name = dlsym(library, #name); \
    memcpy(&name, &found_##name, sizeof name)

static int print_driver(void)
{
    static const char *const names[] = { "libcuda.so.1", "libcuda.so", NULL };
    typedef int (*init_fn)(unsigned);
    typedef int (*number_fn)(int *);
    typedef int (*name_fn)(char *, int, int);
    int version = 0, count = 0;
    void *library = open_first(names, "driver");
    if (library == NULL) {
        return 0;
    }
    FIND(library, init_fn, cuInit);
    FIND(library, number_fn, cuDriverGetVersion);
    FIND(library, number_fn, cuDeviceGetCount);
    FIND(library, name_fn, cuDeviceGetName);
    if (cuInit == NULL || cuDriverGetVersion == NULL || cuDeviceGetCount == NULL || cuDeviceGetName == NULL) {
        printf("no driver %s has not the driver's functions\n", names[0]);
        return 0;
    }
    int error = cuInit(0);
    if (error != 0) {
        printf("no driver cuInit gives error %d\n", error);
        return 0;
    }
    cuDriverGetVersion(&version);
    cuDeviceGetCount(&count);
    printf("driver %s %d\n", library_file(found_cuInit), version);
    for (int i = 0; i < count; i++) {
        char name[256] = "?";
        cuDeviceGetName(name, sizeof name - 1, i);
        printf("device %d %s\n", i, name);
    }
    return count;
}

static void print_nccl(void)
{
    const char *named = getenv("DIST_NCCL_LIB");
    const char *const names[] = { named != NULL ? named : "libnccl.so.2", named != NULL ? NULL : "libnccl.so", NULL };
    typedef int (*number_fn)(int *);
    int version = 0;
    void *library = open_first(names, "nccl");
    if (library == NULL) {
        return;
    }
    FIND(library, number_fn, ncclGetVersion);
    if (ncclGetVersion == NULL || ncclGetVersion(&version) != 0) {
        printf("no nccl %s does not say its version\n", names[0]);
        return;
    }
    printf("nccl %s %d\n", library_file(found_ncclGetVersion), version);
}

int main(void)
{
    int devices = print_driver();
    print_nccl();
    return devices > 0 ? 0 : 1;
}
