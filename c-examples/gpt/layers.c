/*
 * The arithmetic of the layers, in f32 on one thread. See layers.h.
 */
#include "layers.h"

#include <math.h>
#include <string.h>

/* Partial sums of a dot product. The compiler can keep them in one vector register. */
#define LANES 8

float dot_product(const float *a, const float *b, size_t count)
{
    float sums[LANES] = {0};
    size_t vector_count = count - count % LANES;
    for (size_t i = 0; i < vector_count; i += LANES) {
        for (size_t lane = 0; lane < LANES; lane++) {
            sums[lane] += a[i + lane] * b[i + lane];
        }
    }
    float sum = 0.0f;
    for (size_t lane = 0; lane < LANES; lane++) {
        sum += sums[lane];
    }
    for (size_t i = vector_count; i < count; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

void add_scaled(float *restrict y, float factor, const float *restrict x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        y[i] += factor * x[i];
    }
}

void embed_forward(float *x, const float *token_values, const float *position_values, const uint8_t *tokens, size_t rows,
                   size_t context, size_t width)
{
    for (size_t row = 0; row < rows; row++) {
        const float *token = token_values + tokens[row] * width;
        const float *position = position_values + row % context * width;
        for (size_t i = 0; i < width; i++) {
            x[row * width + i] = token[i] + position[i];
        }
    }
}

void embed_backward(float *d_token_values, float *d_position_values, const float *d_x, const uint8_t *tokens, size_t rows,
                    size_t context, size_t width)
{
    for (size_t row = 0; row < rows; row++) {
        add_scaled(d_token_values + tokens[row] * width, 1.0f, d_x + row * width, width);
        add_scaled(d_position_values + row % context * width, 1.0f, d_x + row * width, width);
    }
}

void layer_norm_forward(float *y, row_stats_t *stats, const float *x, const float *weight, const float *bias, size_t rows,
                        size_t width)
{
    for (size_t row = 0; row < rows; row++, x += width, y += width) {
        float mean = 0.0f;
        for (size_t i = 0; i < width; i++) {
            mean += x[i];
        }
        mean /= (float)width;
        float variance = 0.0f;
        for (size_t i = 0; i < width; i++) {
            variance += (x[i] - mean) * (x[i] - mean);
        }
        variance /= (float)width;
        float scale = 1.0f / sqrtf(variance + 1e-5f);
        for (size_t i = 0; i < width; i++) {
            y[i] = (x[i] - mean) * scale * weight[i] + bias[i];
        }
        stats[row].mean = mean;
        stats[row].scale = scale;
    }
}

void layer_norm_backward(float *d_x, float *d_weight, float *d_bias, const float *d_y, const float *x, const row_stats_t *stats,
                         const float *weight, size_t rows, size_t width)
{
    for (size_t row = 0; row < rows; row++, d_x += width, d_y += width, x += width) {
        float mean = stats[row].mean;
        float scale = stats[row].scale;
        /* Means over the row of the gradient of the normalised values, and of its product with
         * them. */
        float gradient_mean = 0.0f;
        float product_mean = 0.0f;
        for (size_t i = 0; i < width; i++) {
            float normal = (x[i] - mean) * scale;
            gradient_mean += d_y[i] * weight[i];
            product_mean += d_y[i] * weight[i] * normal;
            d_weight[i] += d_y[i] * normal;
            d_bias[i] += d_y[i];
        }
        gradient_mean /= (float)width;
        product_mean /= (float)width;
        for (size_t i = 0; i < width; i++) {
            float normal = (x[i] - mean) * scale;
            d_x[i] += (d_y[i] * weight[i] - gradient_mean - normal * product_mean) * scale;
        }
    }
}

void linear_forward(float *y, const float *x, const float *weight, const float *bias, size_t rows, size_t inputs,
                    size_t outputs)
{
    for (size_t row = 0; row < rows; row++, x += inputs, y += outputs) {
        memcpy(y, bias, outputs * sizeof *y);
        for (size_t i = 0; i < inputs; i++) {
            add_scaled(y, x[i], weight + i * outputs, outputs);
        }
    }
}

void linear_backward(float *d_x, float *d_weight, float *d_bias, const float *d_y, const float *x, const float *weight,
                     size_t rows, size_t inputs, size_t outputs)
{
    for (size_t row = 0; row < rows; row++, d_x += inputs, d_y += outputs, x += inputs) {
        for (size_t i = 0; i < inputs; i++) {
            d_x[i] = dot_product(d_y, weight + i * outputs, outputs);
            add_scaled(d_weight + i * outputs, x[i], d_y, outputs);
        }
        add_scaled(d_bias, 1.0f, d_y, outputs);
    }
}

void unembed_forward(float *logits, const float *x, const float *values, size_t rows, size_t width, size_t tokens)
{
    for (size_t row = 0; row < rows; row++) {
        for (size_t token = 0; token < tokens; token++) {
            logits[row * tokens + token] = dot_product(x + row * width, values + token * width, width);
        }
    }
}

void unembed_backward(float *d_x, float *d_values, const float *d_logits, const float *x, const float *values, size_t rows,
                      size_t width, size_t tokens)
{
    memset(d_x, 0, rows * width * sizeof *d_x);
    for (size_t row = 0; row < rows; row++) {
        for (size_t token = 0; token < tokens; token++) {
            float gradient = d_logits[row * tokens + token];
            add_scaled(d_x + row * width, gradient, values + token * width, width);
            add_scaled(d_values + token * width, gradient, x + row * width, width);
        }
    }
}

/* tanh(GELU_SLOPE * (x + GELU_CUBIC * x^3)) */
#define GELU_SLOPE 0.7978845608f /* sqrt(2 / pi) */
#define GELU_CUBIC 0.044715f

static float gelu_tanh(float x)
{
    return tanhf(GELU_SLOPE * (x + GELU_CUBIC * x * x * x));
}

void gelu_forward(float *y, const float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        y[i] = 0.5f * x[i] * (1.0f + gelu_tanh(x[i]));
    }
}

void gelu_backward(float *d_x, const float *d_y, const float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float t = gelu_tanh(x[i]);
        float slope = GELU_SLOPE * (1.0f + 3.0f * GELU_CUBIC * x[i] * x[i]);
        d_x[i] = d_y[i] * 0.5f * (1.0f + t + x[i] * (1.0f - t * t) * slope);
    }
}

void softmax(float *values, size_t count)
{
    float largest = values[0];
    for (size_t i = 1; i < count; i++) {
        largest = values[i] > largest ? values[i] : largest;
    }
    float sum = 0.0f;
    for (size_t i = 0; i < count; i++) {
        values[i] = expf(values[i] - largest);
        sum += values[i];
    }
    for (size_t i = 0; i < count; i++) {
        values[i] /= sum;
    }
}

void softmax_backward(float *d_values, const float *d_probabilities, const float *probabilities, size_t count)
{
    float mean = dot_product(d_probabilities, probabilities, count);
    for (size_t i = 0; i < count; i++) {
        d_values[i] = probabilities[i] * (d_probabilities[i] - mean);
    }
}

double cross_entropy_forward(float *logits, const uint8_t *targets, size_t rows, size_t tokens)
{
    double loss = 0.0;
    for (size_t row = 0; row < rows; row++, logits += tokens) {
        softmax(logits, tokens);
        loss -= log((double)logits[targets[row]]);
    }
    return loss;
}

void cross_entropy_backward(float *probabilities, const uint8_t *targets, float factor, size_t rows, size_t tokens)
{
    for (size_t row = 0; row < rows; row++, probabilities += tokens) {
        probabilities[targets[row]] -= 1.0f;
        for (size_t token = 0; token < tokens; token++) {
            probabilities[token] *= factor;
        }
    }
}
