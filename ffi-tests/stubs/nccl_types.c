/*
 * Arithmetic of the stub libnccl: every type and operation, rounded to the type after every
 * step, like a ring of GPUs. Integers wrap; 8-bit floats saturate.
 */
#include "nccl_internal.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    size_t size;
} types[ncclNumTypes] = {
    [ncclInt8] = { "i8", 1 },       [ncclUint8] = { "u8", 1 },       [ncclInt32] = { "i32", 4 },
    [ncclUint32] = { "u32", 4 },    [ncclInt64] = { "i64", 8 },      [ncclUint64] = { "u64", 8 },
    [ncclFloat16] = { "f16", 2 },   [ncclFloat32] = { "f32", 4 },    [ncclFloat64] = { "f64", 8 },
    [ncclBfloat16] = { "bf16", 2 }, [ncclFloat8e4m3] = { "f8e4m3", 1 }, [ncclFloat8e5m2] = { "f8e5m2", 1 },
};

size_t type_size(ncclDataType_t type)
{
    return (unsigned)type < ncclNumTypes ? types[type].size : 0;
}

const char *type_name(int type)
{
    return (unsigned)type < ncclNumTypes ? types[type].name : "no type";
}

/* A float with fewer than 32 bits. `overflow` replaces values above the largest number. */
struct format {
    int mantissa;
    int bias;
    unsigned exponent_mask;
    unsigned overflow;
    unsigned largest;
    unsigned nan;
};

static const struct format formats[ncclNumTypes] = {
    [ncclFloat16] = { 10, 15, 0x1f, 0x7c00, 0x7bff, 0x7e00 },
    [ncclBfloat16] = { 7, 127, 0xff, 0x7f80, 0x7f7f, 0x7fc0 },
    [ncclFloat8e4m3] = { 3, 7, 0x0f, 0x7e, 0x7e, 0x7f },
    [ncclFloat8e5m2] = { 2, 15, 0x1f, 0x7b, 0x7b, 0x7f },
};

static double decode(ncclDataType_t type, unsigned bits)
{
    const struct format *format = &formats[type];
    unsigned exponent = bits >> format->mantissa & format->exponent_mask;
    unsigned mantissa = bits & ((1u << format->mantissa) - 1);
    unsigned sign = bits >> (8 * type_size(type) - 1);
    double value;
    if (type == ncclFloat8e4m3 ? (bits & 0x7f) == 0x7f : exponent == format->exponent_mask) {
        value = mantissa == 0 ? INFINITY : NAN;
    } else if (exponent == 0) {
        value = ldexp(mantissa, 1 - format->bias - format->mantissa);
    } else {
        mantissa += 1u << format->mantissa;
        value = ldexp(mantissa, (int)exponent - format->bias - format->mantissa);
    }
    return sign ? -value : value;
}

static unsigned encode(ncclDataType_t type, double value)
{
    const struct format *format = &formats[type];
    unsigned sign = signbit(value) ? 1u << (8 * type_size(type) - 1) : 0;
    value = fabs(value);
    if (isnan(value)) {
        return sign | format->nan;
    }
    if (isinf(value)) {
        return sign | format->overflow;
    }
    int smallest = 1 - format->bias;
    int exponent = value == 0 || ilogb(value) < smallest ? smallest : ilogb(value);
    if (exponent > format->bias + 1) {
        return sign | format->overflow;
    }
    /* Rounds to units of the last place, to nearest even; a carry increments the exponent. */
    unsigned units = (unsigned)nearbyint(ldexp(value, format->mantissa - exponent));
    unsigned bits = units + ((unsigned)(exponent - smallest) << format->mantissa);
    return sign | (bits > format->largest ? format->overflow : bits);
}

static int is_floating(ncclDataType_t type)
{
    return type >= ncclFloat16;
}

static double load_float(ncclDataType_t type, const unsigned char *from)
{
    if (type == ncclFloat64) {
        double value;
        memcpy(&value, from, sizeof value);
        return value;
    }
    if (type == ncclFloat32) {
        float value;
        memcpy(&value, from, sizeof value);
        return (double)value;
    }
    unsigned bits = from[0];
    if (type_size(type) == 2) {
        bits |= (unsigned)from[1] << 8;
    }
    return decode(type, bits);
}

static void store_float(ncclDataType_t type, unsigned char *into, double value)
{
    if (type == ncclFloat64) {
        memcpy(into, &value, sizeof value);
    } else if (type == ncclFloat32) {
        float rounded = (float)value;
        memcpy(into, &rounded, sizeof rounded);
    } else {
        unsigned bits = encode(type, value);
        into[0] = (unsigned char)bits;
        if (type_size(type) == 2) {
            into[1] = (unsigned char)(bits >> 8);
        }
    }
}

static int is_signed(ncclDataType_t type)
{
    return type == ncclInt8 || type == ncclInt32 || type == ncclInt64;
}

/* Loads an integer with sign extension to 64 bits. */
static uint64_t load_integer(ncclDataType_t type, const unsigned char *from)
{
    size_t size = type_size(type);
    uint64_t value = 0;
    memcpy(&value, from, size);
    uint64_t sign = (uint64_t)1 << (8 * size - 1);
    return is_signed(type) ? (value ^ sign) - sign : value;
}

static void store_integer(ncclDataType_t type, unsigned char *into, uint64_t value)
{
    memcpy(into, &value, type_size(type));
}

static uint64_t combine_integers(ncclDataType_t type, ncclRedOp_t op, uint64_t a, uint64_t b)
{
    int is_less = is_signed(type) ? (int64_t)a < (int64_t)b : a < b;
    switch (op) {
    case ncclProd:
        return a * b;
    case ncclMax:
        return is_less ? b : a;
    case ncclMin:
        return is_less ? a : b;
    default:
        return a + b;
    }
}

static double combine_floats(ncclRedOp_t op, double a, double b)
{
    switch (op) {
    case ncclProd:
        return a * b;
    case ncclMax:
        return fmax(a, b);
    case ncclMin:
        return fmin(a, b);
    default:
        return a + b;
    }
}

void type_combine(ncclDataType_t type, ncclRedOp_t op, void *into, const void *from, size_t n)
{
    size_t size = type_size(type);
    unsigned char *a = into;
    const unsigned char *b = from;
    for (size_t i = 0; i < n * size; i += size) {
        if (is_floating(type)) {
            store_float(type, a + i, combine_floats(op, load_float(type, a + i), load_float(type, b + i)));
        } else {
            uint64_t left = load_integer(type, a + i);
            store_integer(type, a + i, combine_integers(type, op, left, load_integer(type, b + i)));
        }
    }
}

void type_scale(ncclDataType_t type, void *into, const void *from, const void *factor, size_t n)
{
    size_t size = type_size(type);
    unsigned char *a = into;
    const unsigned char *b = from;
    for (size_t i = 0; i < n * size; i += size) {
        if (is_floating(type)) {
            store_float(type, a + i, load_float(type, b + i) * load_float(type, factor));
        } else {
            store_integer(type, a + i, load_integer(type, b + i) * load_integer(type, factor));
        }
    }
}

int type_average_factor(ncclDataType_t type, int nranks, unsigned char *factor)
{
    if (is_floating(type)) {
        store_float(type, factor, 1.0 / nranks);
    }
    return is_floating(type);
}

void type_divide(ncclDataType_t type, void *into, int nranks, size_t n)
{
    size_t size = type_size(type);
    unsigned char *a = into;
    for (size_t i = 0; i < n * size; i += size) {
        uint64_t value = load_integer(type, a + i);
        value = is_signed(type) ? (uint64_t)((int64_t)value / nranks) : value / (uint64_t)nranks;
        store_integer(type, a + i, value);
    }
}
