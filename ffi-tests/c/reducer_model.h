/*
 * A model with four parameters and a buffer, and a reducer of its gradients.
 */
#ifndef REDUCER_MODEL_H
#define REDUCER_MODEL_H

#include "ranks.h"

#include <math.h>

#define PARAMS 4

static const size_t counts[PARAMS] = { 5, 0, 1000, 300 };
static const char *const names[PARAMS] = { "embed", "empty", "body", "head" };

/* A model. Every rank has its own copy. */
struct model {
    float *data[PARAMS];
    float *grad[PARAMS];
    float running_mean[3];
    dist_param_t params[PARAMS + 1];
};

static inline void make_model(struct model *m, int rank, int own_grads)
{
    static const dist_param_t init = DIST_PARAM_INIT;
    size_t p, i;
    memset(m, 0, sizeof(*m));
    for (p = 0; p < PARAMS; p++) {
        m->data[p] = malloc(sizeof(float) * (counts[p] + 1));
        m->grad[p] = own_grads ? malloc(sizeof(float) * (counts[p] + 1)) : NULL;
        REQUIRE(m->data[p] != NULL);
        for (i = 0; i < counts[p]; i++) {
            m->data[p][i] = (float)(100 * rank + (int)i);
        }
        m->params[p] = init;
        m->params[p].name = names[p];
        m->params[p].data = m->data[p];
        m->params[p].grad = m->grad[p];
        m->params[p].count = counts[p];
        m->params[p].dtype = DIST_F32;
    }
    for (i = 0; i < 3; i++) {
        m->running_mean[i] = (float)rank;
    }
    m->params[PARAMS] = init;
    m->params[PARAMS].name = "running_mean";
    m->params[PARAMS].data = m->running_mean;
    m->params[PARAMS].count = 3;
    m->params[PARAMS].dtype = DIST_F32;
    m->params[PARAMS].flags = DIST_PARAM_BUFFER;
}

static inline void free_model(struct model *m)
{
    size_t p;
    for (p = 0; p < PARAMS; p++) {
        free(m->data[p]);
        free(m->grad[p]);
    }
}

static inline dist_reducer_t *make_reducer(const struct rank *me, struct model *m, uint64_t flags, int32_t divide, int32_t missing)
{
    dist_reducer_options_t options = DIST_REDUCER_OPTIONS_INIT;
    dist_reducer_t *reducer = NULL;
    options.flags = flags;
    options.divide = divide;
    options.missing = missing;
    options.bucket_bytes = 2000;
    REQUIRE_OK(dist_reducer_create(me->group, m->params, PARAMS + 1, &options, &reducer));
    return reducer;
}

static inline void fill(dist_reducer_t *reducer, size_t param, float value)
{
    void *grad = NULL;
    size_t count = 99, i;
    REQUIRE_OK(dist_reducer_grad(reducer, param, &grad, &count));
    CHECK(count == counts[param]);
    for (i = 0; i < count; i++) {
        ((float *)grad)[i] = value + (float)(i % 7);
    }
}

/* Returns true if a reduced gradient has the expected values. */
static inline int has(dist_reducer_t *reducer, size_t param, double value, double step)
{
    void *grad = NULL;
    size_t count = 0, i;
    REQUIRE_OK(dist_reducer_result(reducer, param, &grad, &count));
    for (i = 0; i < count; i++) {
        double expected = value + step * (double)(i % 7);
        if (fabs(((float *)grad)[i] - expected) > 1e-5 * (1 + fabs(expected))) {
            printf("param %lu [%lu] is %g, not %g\n", (unsigned long)param, (unsigned long)i, ((float *)grad)[i], expected);
            return 0;
        }
    }
    return 1;
}

#endif
