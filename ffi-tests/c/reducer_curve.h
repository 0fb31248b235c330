/*
 * A small network that is trained with a reducer, for one floating-point type: REAL, with the
 * element type DTYPE. The functions have names with the suffix NAME.
 */
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define FN(name) JOIN(name, NAME)

struct FN(network) {
    REAL w1[HIDDEN * INPUTS], b1[HIDDEN], w2[HIDDEN], b2[1];
    REAL *g[4]; /* gradients, in memory of the reducer */
};

/* Input k of sample n, and the value that the network is to learn for it. */
static REAL FN(input)(int n, int k)
{
    return (REAL)sin(0.37 * (n + 1) * (k + 1) + k);
}

static REAL FN(target)(int n)
{
    return (REAL)cos(0.11 * n);
}

static void FN(initialise)(struct FN(network) *net)
{
    int i;
    memset(net, 0, sizeof(*net));
    for (i = 0; i < HIDDEN * INPUTS; i++) {
        net->w1[i] = (REAL)(0.3 * sin(1.7 * i + 1));
    }
    for (i = 0; i < HIDDEN; i++) {
        net->w2[i] = (REAL)(0.3 * cos(2.3 * i));
    }
}

/* Adds the gradients of one sample; its loss. */
static double FN(backward)(struct FN(network) *net, int n, REAL scale)
{
    REAL h[HIDDEN], out = net->b2[0], error;
    int j, k;
    for (j = 0; j < HIDDEN; j++) {
        REAL sum = net->b1[j];
        for (k = 0; k < INPUTS; k++) {
            sum += net->w1[j * INPUTS + k] * FN(input)(n, k);
        }
        h[j] = (REAL)tanh((double)sum);
        out += net->w2[j] * h[j];
    }
    error = out - FN(target)(n);
    net->g[3][0] += scale * error;
    for (j = 0; j < HIDDEN; j++) {
        REAL inner = scale * error * net->w2[j] * (1 - h[j] * h[j]);
        net->g[2][j] += scale * error * h[j];
        net->g[1][j] += inner;
        for (k = 0; k < INPUTS; k++) {
            net->g[0][j * INPUTS + k] += inner * FN(input)(n, k);
        }
    }
    return (double)(error * error) / 2;
}

static dist_reducer_t *FN(make_reducer)(struct FN(network) *net, dist_group_t *group, uint64_t flags)
{
    static const dist_param_t init = DIST_PARAM_INIT;
    static const char *const names[4] = { "w1", "b1", "w2", "b2" };
    static const size_t counts[4] = { HIDDEN * INPUTS, HIDDEN, HIDDEN, 1 };
    REAL *data[4];
    dist_param_t params[4];
    dist_reducer_options_t options = DIST_REDUCER_OPTIONS_INIT;
    dist_reducer_t *reducer = NULL;
    size_t p;
    data[0] = net->w1;
    data[1] = net->b1;
    data[2] = net->w2;
    data[3] = net->b2;
    for (p = 0; p < 4; p++) {
        params[p] = init;
        params[p].name = names[p];
        params[p].data = data[p];
        params[p].count = counts[p];
        params[p].dtype = DTYPE;
    }
    options.flags = flags;
    options.bucket_bytes = 300;
    REQUIRE_OK(dist_reducer_create(group, params, 4, &options, &reducer));
    for (p = 0; p < 4; p++) {
        void *grad = NULL;
        REQUIRE_OK(dist_reducer_grad(reducer, p, &grad, NULL));
        net->g[p] = grad;
    }
    return reducer;
}

/* One step on the rank's share of a batch; the mean loss of all ranks. */
static double FN(train_step)(struct FN(network) *net, dist_reducer_t *reducer, const struct place *me, int step)
{
    const size_t counts[4] = { HIDDEN * INPUTS, HIDDEN, HIDDEN, 1 };
    REAL *data[4];
    int share = BATCH / me->size, n;
    double loss = 0;
    size_t p, i;
    data[0] = net->w1;
    data[1] = net->b1;
    data[2] = net->w2;
    data[3] = net->b2;
    REQUIRE_OK(dist_reducer_begin(reducer, 0, 0));
    for (p = 0; p < 4; p++) {
        memset(net->g[p], 0, counts[p] * sizeof(REAL));
    }
    for (n = 0; n < share; n++) {
        loss += FN(backward)(net, (step % 5) * BATCH + me->rank * share + n, (REAL)1 / (REAL)share);
    }
    for (p = 4; p-- > 0;) {
        CHECK_OK(dist_reducer_ready(reducer, p));
    }
    REQUIRE_OK(dist_reducer_end(reducer, DIST_VOTE_COMMIT, NULL, NULL));
    for (p = 0; p < 4; p++) {
        for (i = 0; i < counts[p]; i++) {
            data[p][i] -= (REAL)0.05 * net->g[p][i];
        }
    }
    REQUIRE_OK(dist_all_reduce(me->group, &loss, &loss, 1, DIST_F64, DIST_SUM, NULL, NULL));
    return loss / BATCH;
}

static void FN(train)(struct place *me)
{
    struct FN(network) net;
    dist_blob_t *differences = NULL;
    dist_reducer_t *reducer;
    int step;
    FN(initialise)(&net);
    reducer = FN(make_reducer)(&net, me->group, me->flags);
    for (step = 0; step < STEPS; step++) {
        me->losses[step] = FN(train_step)(&net, reducer, me, step);
        if (step % EPOCH == EPOCH - 1) {
            REQUIRE_OK(dist_reducer_check(reducer, DIST_REDUCER_PARAMS, &differences));
            CHECK(dist_blob_count(differences) == 0);
            CHECK_OK(dist_blob_release(differences));
        }
    }
    me->hash = hash_bytes(&net, offsetof(struct FN(network), g));
    CHECK_OK(dist_reducer_release(reducer));
}

#undef FN
#undef JOIN
#undef JOIN_
#undef REAL
#undef DTYPE
#undef NAME
