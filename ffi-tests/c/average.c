/*
 * Averages of large elements, whose sum exceeds the type: each form of each reduction, with few and
 * many elements, over each transport, and on two hosts with one and with two ranks.
 *
 *   average               ranks are threads
 *   average BACKEND       the process is a rank of a job, with this back end
 */
#include "check.h"

#define RANKS 4
/* Calls of one element take the fast path; the longest vectors are cut into pieces. */
#define MOST_ELEMENTS 40000
static const size_t counts[] = { 1, 3, 700, MOST_ELEMENTS };
#define COUNTS (sizeof(counts) / sizeof(counts[0]))

struct rank {
    dist_store_t *store;
    dist_group_t *group;
    const char *transport;
    const char *hosts; /* a letter for each rank, or NULL */
    int rank;
    int size;
};

/* The sums of these values over the ranks exceed the type. A value of rank r is `first` minus r. */
struct sample {
    dist_dtype_t dtype;
    size_t width;
    double first;
};
static const struct sample samples[] = {
    { DIST_F32, 4, 3e38 }, { DIST_F64, 8, 1.5e308 },     { DIST_I8, 1, 100 },   { DIST_I8, 1, -120 },
    { DIST_U8, 1, 255 },   { DIST_I16, 2, -32760 },      { DIST_U16, 2, 65535 }, { DIST_I32, 4, 2147483647 },
    { DIST_I32, 4, -7 },   { DIST_U32, 4, 4294967295.0 },
};
#define SAMPLES (sizeof(samples) / sizeof(samples[0]))

static double value_of(const struct sample *sample, int rank)
{
    /* Neighbouring floats are equal; they differ by less than one unit in the last place. */
    return sample->first - rank;
}

static void store_value(const struct sample *sample, void *to, double value)
{
    union {
        float f32;
        double f64;
        int32_t i32;
        uint32_t u32;
        int16_t i16;
        uint16_t u16;
        int8_t i8;
        uint8_t u8;
    } element;
    memset(&element, 0, sizeof(element));
    switch (sample->dtype) {
    case DIST_F32: element.f32 = (float)value; break;
    case DIST_F64: element.f64 = value; break;
    case DIST_I32: element.i32 = (int32_t)value; break;
    case DIST_U32: element.u32 = (uint32_t)value; break;
    case DIST_I16: element.i16 = (int16_t)value; break;
    case DIST_U16: element.u16 = (uint16_t)value; break;
    case DIST_I8: element.i8 = (int8_t)value; break;
    default: element.u8 = (uint8_t)value; break;
    }
    memcpy(to, &element, sample->width);
}

/* Returns the expected average: of the floats, which are equal, or of the integers, rounded towards
 * zero by the conversion to int64_t. */
static double average_of(const struct sample *sample, int size)
{
    double sum = 0;
    int r;
    if (sample->dtype == DIST_F32 || sample->dtype == DIST_F64) {
        return sample->first;
    }
    for (r = 0; r < size; r++) {
        sum += value_of(sample, r);
    }
    return (double)((int64_t)sum / size);
}

static void fill(const struct sample *sample, char *memory, size_t count, double value)
{
    size_t i;
    for (i = 0; i < count; i++) {
        store_value(sample, memory + i * sample->width, value);
    }
}

/* A factor of 1/3 is rounded, so averages of floats are checked on 1, 2 and 4 ranks. */
static int is_average(const struct sample *sample, int size, const char *memory, size_t count)
{
    char element[8];
    size_t i;
    store_value(sample, element, average_of(sample, size));
    for (i = 0; i < count; i++) {
        if (memcmp(memory + i * sample->width, element, sample->width) != 0) {
            printf("type %d, first value %g, %d ranks, element %d of %d\n", (int)sample->dtype, sample->first, size,
                   (int)i, (int)count);
            return 0;
        }
    }
    return 1;
}

static void check_sample(const struct rank *me, const struct sample *sample, size_t count, char *own, char *result)
{
    const dist_dtype_t dtype = sample->dtype;
    const void *sends[RANKS];
    size_t lens[RANKS];
    int r, n = me->size;
    fill(sample, own, count * (size_t)n, value_of(sample, me->rank));
    fill(sample, result, count, 0);
    for (r = 0; r < 3; r++) { /* the first call prepares the fast path, which the next ones take */
        CHECK_OK(dist_all_reduce(me->group, own, result, count, dtype, DIST_AVG, NULL, NULL));
        CHECK(is_average(sample, n, result, count));
    }
    for (r = 0; r < n; r++) {
        fill(sample, result, count, 0);
        CHECK_OK(dist_reduce(me->group, own, result, count, dtype, DIST_AVG, r, NULL, NULL));
        CHECK(me->rank != r || is_average(sample, n, result, count));
        sends[r] = own + (size_t)r * count * sample->width;
        lens[r] = count / ((size_t)r + 1);
    }
    CHECK_OK(dist_reduce_scatter(me->group, own, result, count, dtype, DIST_AVG, NULL, NULL));
    CHECK(is_average(sample, n, result, count));
    fill(sample, result, count, 0);
    CHECK_OK(dist_reduce_scatter_v(me->group, sends, lens, result, dtype, DIST_AVG, NULL, NULL));
    CHECK(is_average(sample, n, result, lens[me->rank]));
    /* A batch, whose calls may be merged. */
    CHECK_OK(dist_batch_begin(NULL, 0));
    for (r = 0; r < 3; r++) {
        char *part = result + (size_t)r * count * sample->width;
        CHECK_OK(dist_all_reduce(me->group, own, part, count, dtype, DIST_AVG, NULL, NULL));
    }
    CHECK_OK(dist_batch_end(NULL));
    for (r = 0; r < 3; r++) {
        CHECK(is_average(sample, n, result + (size_t)r * count * sample->width, count));
    }
    CHECK_OK(dist_all_reduce(me->group, own, own, count, dtype, DIST_AVG, NULL, NULL));
    CHECK(is_average(sample, n, own, count));
}

/* The values of 64 bits exceed the precision of a double. */
static void check_long_integers(const struct rank *me)
{
    int64_t low = me->rank == 0 ? INT64_MIN : INT64_MIN + 2, high = INT64_MAX - me->rank, mean[2], own[2];
    int64_t n = me->size;
    uint64_t top = UINT64_MAX - (uint64_t)me->rank, top_mean = 0;
    own[0] = low;
    own[1] = high;
    CHECK_OK(dist_all_reduce(me->group, own, mean, 2, DIST_I64, DIST_AVG, NULL, NULL));
    /* The averages are INT64_MIN + 2 (n - 1) / n and INT64_MAX - (n - 1) / 2, rounded to zero. */
    CHECK(mean[0] == INT64_MIN + (n == 1 ? 0 : n == 2 ? 1 : 2));
    CHECK(mean[1] == INT64_MAX - n / 2);
    CHECK_OK(dist_all_reduce(me->group, &top, &top_mean, 1, DIST_U64, DIST_AVG, NULL, NULL));
    CHECK(top_mean == UINT64_MAX - (uint64_t)(n / 2));
}

/* Elements without a type in C: the codes of 60,000 in f16, of the largest finite number in bf16,
 * of 448 in f8e4m3 and of 57,344 in f8e5m2. */
static void check_small_floats(const struct rank *me)
{
    static const struct {
        dist_dtype_t dtype;
        size_t width;
        uint16_t code;
    } small[] = { { DIST_F16, 2, 0x7b53 }, { DIST_BF16, 2, 0x7f7f }, { DIST_F8E4M3, 1, 0x7e }, { DIST_F8E5M2, 1, 0x7b } };
    size_t t;
    for (t = 0; t < sizeof(small) / sizeof(small[0]); t++) {
        unsigned char own[2], mean[2] = { 0, 0 };
        memcpy(own, &small[t].code, 2);
        if (small[t].width == 1) {
            own[0] = (unsigned char)small[t].code;
        }
        CHECK_OK(dist_all_reduce(me->group, own, mean, 1, small[t].dtype, DIST_AVG, NULL, NULL));
        CHECK(memcmp(own, mean, small[t].width) == 0);
    }
}

static void check_averages(const struct rank *me)
{
    char *own = malloc(RANKS * MOST_ELEMENTS * sizeof(double));
    char *result = malloc(RANKS * MOST_ELEMENTS * sizeof(double));
    size_t s, c;
    REQUIRE(own != NULL && result != NULL);
    for (s = 0; s < SAMPLES; s++) {
        int is_float = samples[s].dtype == DIST_F32 || samples[s].dtype == DIST_F64;
        for (c = 0; c < COUNTS && !(is_float && me->size == 3); c++) {
            check_sample(me, &samples[s], counts[c], own, result);
        }
    }
    check_long_integers(me);
    if (me->size != 3) {
        check_small_floats(me);
    }
    free(own);
    free(result);
}

static void *rank_main(void *arg)
{
    struct rank *me = arg;
    char options_text[64];
    dist_group_options_t options = DIST_GROUP_OPTIONS_INIT;
    if (me->hosts != NULL) {
        sprintf(options_text, "host_id=%c", me->hosts[me->rank]);
    } else {
        sprintf(options_text, "transport=%s", me->transport);
    }
    options.store = me->store;
    options.name = "average";
    options.fields = DIST_FIELD_RANK;
    options.rank = me->rank;
    options.world_size = me->size;
    options.backend_options = options_text;
    options.connect_timeout_ms = LIMIT_MS;
    options.timeout_ms = LIMIT_MS;
    REQUIRE_OK(dist_group_create(&options, &me->group));
    check_averages(me);
    CHECK_OK(dist_group_release(me->group));
    return NULL;
}

static void run_threads(const char *transport, const char *hosts, int size)
{
    struct rank ranks[RANKS];
    pthread_t threads[RANKS];
    dist_store_t *store = new_store();
    int r;
    for (r = 0; r < size; r++) {
        struct rank rank = { store, NULL, transport, hosts, r, size };
        ranks[r] = rank;
        REQUIRE(pthread_create(&threads[r], NULL, rank_main, &ranks[r]) == 0);
    }
    for (r = 0; r < size; r++) {
        REQUIRE(pthread_join(threads[r], NULL) == 0);
    }
    CHECK_OK(dist_store_release(store));
}

static void run_rank_of_job(const char *backend)
{
    struct rank me = { NULL, NULL, NULL, NULL, 0, 0 };
    dist_init_options_t options = DIST_INIT_OPTIONS_INIT;
    options.backend = backend;
    options.timeout_ms = LIMIT_MS;
    REQUIRE_OK(dist_init(&options));
    me.group = dist_world();
    me.rank = dist_get_rank(me.group);
    me.size = dist_get_world_size(me.group);
    REQUIRE(me.size <= RANKS);
    check_averages(&me);
    CHECK_OK(dist_finalize());
}

int main(int argc, char **argv)
{
    static const char *const transports[] = { "inproc", "shm", "tcp" };
    size_t t;
    int size;
    if (argc == 2) {
        run_rank_of_job(argv[1]);
        return check_report();
    }
    for (t = 0; t < sizeof(transports) / sizeof(transports[0]); t++) {
        for (size = 1; size <= RANKS; size++) {
            run_threads(transports[t], NULL, size);
        }
    }
    run_threads(NULL, "ab", 2);
    run_threads(NULL, "aab", 3);
    run_threads(NULL, "aabb", 4);
    run_threads(NULL, "abba", 4);
    return check_report();
}
