/*
 * Forward and backward pass of causal self-attention, head by head. See attention.h.
 */
#include "attention.h"

#include "layers.h"

#include <math.h>
#include <string.h>

/* One head of one sequence. The distance from a position to the next one is 3 * width in qkv,
 * width in y. */
typedef struct head {
    size_t first;         /* number of the sequence's first row */
    size_t column;        /* the head's first number in a row */
    size_t size;          /* numbers of a query, key or value */
    size_t probabilities; /* where those of this head begin; context x context */
    float scale;          /* of the product of a query and a key */
} head_t;

size_t attention_probabilities(const attention_shape_t *shape)
{
    return shape->sequences * shape->heads * shape->context * shape->context;
}

static head_t make_head(const attention_shape_t *shape, size_t index)
{
    head_t head;
    head.first = index / shape->heads * shape->context;
    head.size = shape->width / shape->heads;
    head.column = index % shape->heads * head.size;
    head.probabilities = index * shape->context * shape->context;
    head.scale = 1.0f / sqrtf((float)head.size);
    return head;
}

static void head_forward(float *y, float *probabilities, const float *qkv, const attention_shape_t *shape, head_t head)
{
    const size_t width = shape->width;
    const float *queries = qkv + head.first * 3 * width + head.column;
    const float *keys = queries + width;
    const float *values = queries + 2 * width;
    for (size_t t = 0; t < shape->context; t++) {
        float *attention_row = probabilities + head.probabilities + t * shape->context;
        for (size_t u = 0; u <= t; u++) {
            attention_row[u] = head.scale * dot_product(queries + t * 3 * width, keys + u * 3 * width, head.size);
        }
        softmax(attention_row, t + 1);
        float *result = y + (head.first + t) * width + head.column;
        memset(result, 0, head.size * sizeof *result);
        for (size_t u = 0; u <= t; u++) {
            add_scaled(result, attention_row[u], values + u * 3 * width, head.size);
        }
    }
}

static void head_backward(float *d_qkv, const float *d_y, const float *probabilities, const float *qkv, float *scratch,
                          const attention_shape_t *shape, head_t head)
{
    const size_t width = shape->width;
    const size_t offset = head.first * 3 * width + head.column;
    const float *queries = qkv + offset, *keys = queries + width, *values = queries + 2 * width;
    float *d_queries = d_qkv + offset, *d_keys = d_queries + width, *d_values = d_queries + 2 * width;
    for (size_t t = 0; t < shape->context; t++) {
        const float *attention_row = probabilities + head.probabilities + t * shape->context;
        const float *d_result = d_y + (head.first + t) * width + head.column;
        for (size_t u = 0; u <= t; u++) {
            scratch[u] = dot_product(d_result, values + u * 3 * width, head.size);
            add_scaled(d_values + u * 3 * width, attention_row[u], d_result, head.size);
        }
        softmax_backward(scratch, scratch, attention_row, t + 1);
        for (size_t u = 0; u <= t; u++) {
            float gradient = scratch[u] * head.scale;
            add_scaled(d_queries + t * 3 * width, gradient, keys + u * 3 * width, head.size);
            add_scaled(d_keys + u * 3 * width, gradient, queries + t * 3 * width, head.size);
        }
    }
}

void attention_forward(float *y, float *probabilities, const float *qkv, const attention_shape_t *shape)
{
    for (size_t i = 0; i < shape->sequences * shape->heads; i++) {
        head_forward(y, probabilities, qkv, shape, make_head(shape, i));
    }
}

void attention_backward(float *d_qkv, const float *d_y, const float *probabilities, const float *qkv, float *scratch,
                        const attention_shape_t *shape)
{
    memset(d_qkv, 0, shape->sequences * shape->context * 3 * shape->width * sizeof *d_qkv);
    for (size_t i = 0; i < shape->sequences * shape->heads; i++) {
        head_backward(d_qkv, d_y, probabilities, qkv, scratch, shape, make_head(shape, i));
    }
}
