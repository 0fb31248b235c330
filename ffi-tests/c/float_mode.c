/*
 * Ranks whose threads have different floating-point modes: they round to nearest, upwards or
 * downwards. Some flush subnormal numbers to zero, as after loading a library that was built with
 * -ffast-math. Every reduction has the same bits on all ranks, and the mode of each
 * caller is unchanged after each call.
 *
 *   float_mode              ranks are threads, over each transport
 *   float_mode TRANSPORT    the process is a rank of a job
 */
#define _POSIX_C_SOURCE 200809L
#include "ranks.h"

#include <fenv.h>

#define MOST_ELEMENTS 40000
static const size_t counts[] = { 1, 3, 700, MOST_ELEMENTS };
#define COUNTS (sizeof(counts) / sizeof(counts[0]))

static const struct {
    dist_dtype_t dtype;
    size_t width;
} types[] = { { DIST_F16, 2 }, { DIST_BF16, 2 }, { DIST_F32, 4 },    { DIST_F64, 8 },
              { DIST_C64, 8 }, { DIST_C128, 16 }, { DIST_F8E4M3, 1 }, { DIST_F8E5M2, 1 } };
static const dist_op_t operators[] = { DIST_SUM, DIST_PRODUCT, DIST_MIN, DIST_MAX, DIST_AVG, DIST_PREMUL_SUM };

/* The control word of the floating-point unit, without the flags of exceptions. */
static uint64_t get_mode(void)
{
#if defined(__x86_64__)
    uint32_t word;
    __asm__ volatile("stmxcsr %0" : "=m"(word));
    return word & 0xffc0;
#elif defined(__aarch64__)
    uint64_t word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word));
    return word;
#else
    return (uint64_t)fegetround();
#endif
}

/* Makes the processor read and write subnormal numbers as zeros. */
static void flush_subnormal_numbers(void)
{
#if defined(__x86_64__)
    uint32_t word;
    __asm__ volatile("stmxcsr %0" : "=m"(word));
    word |= 0x8040;
    __asm__ volatile("ldmxcsr %0" : : "m"(word));
#elif defined(__aarch64__)
    uint64_t word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word));
    word |= 1 << 24;
    __asm__ volatile("msr fpcr, %0" : : "r"(word));
#endif
}

/* Rank 3 has the default mode. */
static void set_mode_of_rank(int rank)
{
    if (rank == 0) {
        flush_subnormal_numbers();
    } else if (rank == 1) {
        REQUIRE(fesetround(FE_UPWARD) == 0);
        flush_subnormal_numbers();
    } else if (rank == 2) {
        REQUIRE(fesetround(FE_DOWNWARD) == 0);
    }
}

/* Arbitrary finite numbers, many of them subnormal. All ranks can compute all of them. */
static void fill(unsigned char *memory, size_t bytes, size_t width, int rank)
{
    uint64_t state = 0x9e3779b97f4a7c15U * (uint64_t)(rank + 1);
    size_t i;
    for (i = 0; i < bytes; i++) {
        state = state * 6364136223846793005U + 1442695040888963407U;
        memory[i] = (unsigned char)(state >> 40);
    }
    /* The last byte of a number has the sign and the exponent. */
    for (i = 0; i + width <= bytes; i += width) {
        unsigned char *last = memory + i + width - 1;
        *last = i / width % 3 == 0 ? 0 : width == 1 ? *last & 0xb7 : *last & 0xbb;
        if (i / width % 3 == 0 && width > 1) {
            last[-1] &= 0x7f;
        }
        if (width >= 8) {
            memory[i + width / 2 - 1] &= 0xbb;
        }
    }
}

/* Checks that a result has the same bits on all ranks: the minimum and the maximum of its bytes. */
static int is_same_everywhere(const struct rank *me, const unsigned char *result, size_t bytes)
{
    unsigned char *low = malloc(bytes), *high = malloc(bytes);
    int is_same;
    REQUIRE(low != NULL && high != NULL);
    CHECK_OK(dist_all_reduce(me->group, result, low, bytes, DIST_U8, DIST_MIN, NULL, NULL));
    CHECK_OK(dist_all_reduce(me->group, result, high, bytes, DIST_U8, DIST_MAX, NULL, NULL));
    is_same = memcmp(low, high, bytes) == 0;
    free(low);
    free(high);
    return is_same;
}

static int is_supported(dist_dtype_t dtype, dist_op_t op)
{
    return (dtype != DIST_C64 && dtype != DIST_C128) || op == DIST_SUM || op == DIST_AVG || op == DIST_PREMUL_SUM;
}

static void check_type(const struct rank *me, size_t t, unsigned char *own, unsigned char *result)
{
    size_t o, c;
    int round;
    uint64_t mode = get_mode();
    for (c = 0; c < COUNTS; c++) {
        size_t bytes = counts[c] * types[t].width;
        for (o = 0; o < sizeof(operators) / sizeof(operators[0]); o++) {
            dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
            if (!is_supported(types[t].dtype, operators[o])) {
                continue;
            }
            options.premul_scale = 1.0 / 3;
            fill(own, bytes, types[t].width, me->rank);
            for (round = 0; round < 2; round++) { /* the second call takes the fast path */
                CHECK_OK(dist_all_reduce(me->group, own, result, counts[c], types[t].dtype, operators[o],
                                         operators[o] == DIST_PREMUL_SUM ? &options : NULL, NULL));
                CHECK(get_mode() == mode);
                if (!CHECK(is_same_everywhere(me, result, bytes))) {
                    printf("rank %d of %d, %s: type %d, operator %d, %d elements\n", me->rank, me->size, me->transport,
                           (int)types[t].dtype, (int)operators[o], (int)counts[c]);
                }
            }
        }
    }
}

/* The sum of subnormal numbers is known, so this check does not depend on other ranks. */
static void check_subnormal_sum(const struct rank *me)
{
    uint32_t own[40], sum[40];
    int i, round;
    for (round = 0; round < 3; round++) {
        size_t count = round == 2 ? 40 : 1;
        for (i = 0; i < 40; i++) {
            own[i] = 0x100U + (uint32_t)i;
        }
        CHECK_OK(dist_all_reduce(me->group, own, sum, count, DIST_F32, DIST_SUM, NULL, NULL));
        for (i = 0; i < (int)count; i++) {
            CHECK(sum[i] == own[i] * (uint32_t)me->size);
        }
    }
}

static void check_rank(const struct rank *me)
{
    unsigned char *own = malloc(MOST_ELEMENTS * 16), *result = malloc(MOST_ELEMENTS * 16);
    size_t t;
    REQUIRE(own != NULL && result != NULL);
    set_mode_of_rank(me->rank);
    check_subnormal_sum(me);
    for (t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        check_type(me, t, own, result);
    }
    free(own);
    free(result);
}

int main(int argc, char **argv)
{
    static const char *const transports[] = { "inproc", "shm", "tcp" };
    size_t t;
    if (argc == 2) {
        struct rank me = { NULL, NULL, argv[1], 0, 0, NULL };
        REQUIRE_OK(dist_init(NULL));
        me.group = dist_world();
        me.rank = dist_get_rank(me.group);
        me.size = dist_get_world_size(me.group);
        check_rank(&me);
        CHECK_OK(dist_finalize());
        return check_report();
    }
    for (t = 0; t < sizeof(transports) / sizeof(transports[0]); t++) {
        run_ranks(transports[t], 2, check_rank);
        run_ranks(transports[t], MOST_RANKS, check_rank);
    }
    return check_report();
}
