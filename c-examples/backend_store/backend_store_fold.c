/*
 * See backend_store_fold.h. Elements may have any alignment, so each is copied out and in again.
 * Integers wrap, which C defines only for unsigned types; a NaN operand gives NaN.
 */
#include "backend_store_fold.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

size_t size_of(dist_dtype_t dtype)
{
    switch (dtype) {
    case DIST_I8:
    case DIST_U8:
    case DIST_BOOL:
    case DIST_F8E4M3:
    case DIST_F8E5M2: return 1;
    case DIST_I16:
    case DIST_U16:
    case DIST_F16:
    case DIST_BF16: return 2;
    case DIST_I32:
    case DIST_U32:
    case DIST_F32: return 4;
    case DIST_I64:
    case DIST_U64:
    case DIST_F64:
    case DIST_C64: return 8;
    case DIST_C128: return 16;
    default: return 0;
    }
}

int can_fold(dist_dtype_t dtype, dist_op_t op)
{
    int is_float = dtype == DIST_F32 || dtype == DIST_F64;
    int is_integer = dtype >= DIST_I8 && dtype <= DIST_U64;
    int is_bitwise = op >= DIST_BAND && op <= DIST_BXOR;
    return (is_integer && op != DIST_PREMUL_SUM) || (is_float && !is_bitwise);
}

/* `none` is the result of MIN and MAX if an operand is NaN. */
#define FOLD_NUMBERS(name, type, wide, none) \
    static type name##_pair(dist_op_t op, type a, type b) \
    { \
        switch (op) { \
        case DIST_PRODUCT: return (type)((wide)a * (wide)b); \
        case DIST_MIN: return a != a || b != b ? (none) : a < b ? a : b; \
        case DIST_MAX: return a != a || b != b ? (none) : a > b ? a : b; \
        default: return (type)((wide)a + (wide)b); \
        } \
    }

#define FOLD_INTEGERS(name, type, wide) \
    FOLD_NUMBERS(name##_number, type, wide, 0) \
    static type name##_pair(dist_op_t op, type a, type b) \
    { \
        switch (op) { \
        case DIST_BAND: return (type)(a & b); \
        case DIST_BOR: return (type)(a | b); \
        case DIST_BXOR: return (type)(a ^ b); \
        default: return name##_number_pair(op, a, b); \
        } \
    }

#define EACH(name, type) \
    static void name##_fold(dist_op_t op, char *into, const char *from, size_t count) \
    { \
        type a, b; \
        size_t i; \
        for (i = 0; i < count; i++, into += sizeof(a), from += sizeof(a)) { \
            memcpy(&a, into, sizeof(a)); \
            memcpy(&b, from, sizeof(b)); \
            a = name##_pair(op, a, b); \
            memcpy(into, &a, sizeof(a)); \
        } \
    } \
    static void name##_divide(char *into, size_t count, int ranks) \
    { \
        type a; \
        size_t i; \
        for (i = 0; i < count; i++, into += sizeof(a)) { \
            memcpy(&a, into, sizeof(a)); \
            a = (type)(a / (type)ranks); \
            memcpy(into, &a, sizeof(a)); \
        } \
    }

FOLD_INTEGERS(i8, int8_t, uint32_t)
FOLD_INTEGERS(u8, uint8_t, uint32_t)
FOLD_INTEGERS(i16, int16_t, uint32_t)
FOLD_INTEGERS(u16, uint16_t, uint32_t)
FOLD_INTEGERS(i32, int32_t, uint32_t)
FOLD_INTEGERS(u32, uint32_t, uint32_t)
FOLD_INTEGERS(i64, int64_t, uint64_t)
FOLD_INTEGERS(u64, uint64_t, uint64_t)
FOLD_NUMBERS(f32, float, float, NAN)
FOLD_NUMBERS(f64, double, double, NAN)
EACH(i8, int8_t)
EACH(u8, uint8_t)
EACH(i16, int16_t)
EACH(u16, uint16_t)
EACH(i32, int32_t)
EACH(u32, uint32_t)
EACH(i64, int64_t)
EACH(u64, uint64_t)
EACH(f32, float)
EACH(f64, double)

struct arithmetic {
    void (*fold)(dist_op_t op, char *into, const char *from, size_t count);
    void (*divide)(char *into, size_t count, int ranks);
};

static const struct arithmetic arithmetics[] = {
    { i8_fold, i8_divide },   { u8_fold, u8_divide },   { i16_fold, i16_divide }, { u16_fold, u16_divide },
    { i32_fold, i32_divide }, { u32_fold, u32_divide }, { i64_fold, i64_divide }, { u64_fold, u64_divide },
    { NULL, NULL },           { NULL, NULL },           { f32_fold, f32_divide }, { f64_fold, f64_divide },
};

void fold(dist_dtype_t dtype, dist_op_t op, void *into, const void *from, size_t count, int is_first)
{
    if (count == 0) {
        return;
    }
    if (is_first) {
        memcpy(into, from, count * size_of(dtype));
    } else {
        arithmetics[dtype - DIST_I8].fold(op, into, from, count);
    }
}

void divide(dist_dtype_t dtype, void *into, size_t count, int ranks)
{
    arithmetics[dtype - DIST_I8].divide(into, count, ranks);
}

void *scale(dist_dtype_t dtype, const void *from, size_t count, double factor)
{
    char *all = malloc(count * size_of(dtype) + 1);
    size_t i;
    for (i = 0; i < count && all != NULL; i++) {
        if (dtype == DIST_F32) {
            float a;
            memcpy(&a, (const char *)from + i * sizeof(a), sizeof(a));
            a = (float)(a * (float)factor);
            memcpy(all + i * sizeof(a), &a, sizeof(a));
        } else {
            double a;
            memcpy(&a, (const char *)from + i * sizeof(a), sizeof(a));
            a *= factor;
            memcpy(all + i * sizeof(a), &a, sizeof(a));
        }
    }
    return all;
}
