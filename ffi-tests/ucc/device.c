/*
 * Tests of the back end "ucc" on device memory, over the stubs of UCC and CUDA. UCC gets the buffers
 * of the calls that it supports; all others go through host memory.
 */
#include "../nccl/ranks.h"

#include <dlfcn.h>

#define COUNT 3000

/* The stub of UCC, which libdist loads. */
static unsigned long (*device_buffers)(void);

static void test_rank(struct rank *self)
{
    float values[COUNT], sums[COUNT];
    int i, wrong = 0;
    for (i = 0; i < COUNT; i++) {
        values[i] = (float)(i % 13);
    }
    float *in = device_memory(sizeof values, values), *out = device_memory(sizeof values, NULL);
    dist_call_options_t options = stream_options(self);
    unsigned long before = device_buffers();
    CHECK_OK(dist_all_reduce(dist_world(), in, out, COUNT, DIST_F32, DIST_SUM, &options, NULL));
    read_device(self, sums, out, sizeof sums);
    for (i = 0; i < COUNT; i++) {
        wrong += sums[i] != (float)dist_get_world_size(dist_world()) * values[i];
    }
    CHECK(wrong == 0);
    /* UCC got the device memory itself. */
    CHECK(device_buffers() >= before + 2);
    CHECK_OK(dist_broadcast(dist_world(), out, COUNT, DIST_F32, 0, &options, NULL));
    /* UCC has no scan: the call goes through host memory. */
    before = device_buffers();
    CHECK_OK(dist_scan(dist_world(), in, out, COUNT, DIST_F32, DIST_SUM, &options, NULL));
    CHECK(device_buffers() == before);
    read_device(self, sums, out, sizeof sums);
    CHECK(sums[5] == (float)(self->rank + 1) * values[5]);
    free_device(in);
    free_device(out);
}

int main(void)
{
    void *stub = dlopen("libucc.so.1", RTLD_NOW | RTLD_LOCAL);
    REQUIRE(stub != NULL);
    *(void **)&device_buffers = dlsym(stub, "dist_stub_ucc_device_buffers");
    REQUIRE(device_buffers != NULL);
    run_in_job("cpu:ucc,cuda:ucc", NULL, test_rank);
    check_nothing_leaked();
    return check_report();
}
