/*
 * See backend_store_fold.h. Elements may have any alignment, so each is copied out and in again.
 * Integers wrap, which C defines only for unsigned types; a NaN operand gives NaN.
 */
#include "backend_store_fold.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

size_t element_size(dist_dtype_t dtype)
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

int can_reduce(dist_dtype_t dtype, dist_op_t op)
{
    int is_float = dtype == DIST_F32 || dtype == DIST_F64;
    int is_integer = dtype >= DIST_I8 && dtype <= DIST_U64;
    int is_bitwise = op >= DIST_BAND && op <= DIST_BXOR;
    /* An average of integers needs the exact sum, which takes a wider type. */
    return (is_integer && op != DIST_PREMUL_SUM && op != DIST_AVG) || (is_float && !is_bitwise);
}

/* `nan_result` is the result of MIN and MAX if an operand is NaN. */
#define DEFINE_NUMBER_OP(name, type, wide, nan_result) \
    static type name##_pair(dist_op_t op, type a, type b) \
    { \
        switch (op) { \
        case DIST_PRODUCT: return (type)((wide)a * (wide)b); \
        case DIST_MIN: return a != a || b != b ? (nan_result) : a < b ? a : b; \
        case DIST_MAX: return a != a || b != b ? (nan_result) : a > b ? a : b; \
        default: return (type)((wide)a + (wide)b); \
        } \
    }

#define DEFINE_INTEGER_OP(name, type, wide) \
    DEFINE_NUMBER_OP(name##_number, type, wide, 0) \
    static type name##_pair(dist_op_t op, type a, type b) \
    { \
        switch (op) { \
        case DIST_BAND: return (type)(a & b); \
        case DIST_BOR: return (type)(a | b); \
        case DIST_BXOR: return (type)(a ^ b); \
        default: return name##_number_pair(op, a, b); \
        } \
    }

#define DEFINE_ARRAY_OPS(name, type) \
    static void name##_reduce(dist_op_t op, char *into, const char *from, size_t count) \
    { \
        type a, b; \
        size_t i; \
        for (i = 0; i < count; i++, into += sizeof(a), from += sizeof(a)) { \
            memcpy(&a, into, sizeof(a)); \
            memcpy(&b, from, sizeof(b)); \
            a = name##_pair(op, a, b); \
            memcpy(into, &a, sizeof(a)); \
        } \
    }

DEFINE_INTEGER_OP(i8, int8_t, uint32_t)
DEFINE_INTEGER_OP(u8, uint8_t, uint32_t)
DEFINE_INTEGER_OP(i16, int16_t, uint32_t)
DEFINE_INTEGER_OP(u16, uint16_t, uint32_t)
DEFINE_INTEGER_OP(i32, int32_t, uint32_t)
DEFINE_INTEGER_OP(u32, uint32_t, uint32_t)
DEFINE_INTEGER_OP(i64, int64_t, uint64_t)
DEFINE_INTEGER_OP(u64, uint64_t, uint64_t)
DEFINE_NUMBER_OP(f32, float, float, NAN)
DEFINE_NUMBER_OP(f64, double, double, NAN)
DEFINE_ARRAY_OPS(i8, int8_t)
DEFINE_ARRAY_OPS(u8, uint8_t)
DEFINE_ARRAY_OPS(i16, int16_t)
DEFINE_ARRAY_OPS(u16, uint16_t)
DEFINE_ARRAY_OPS(i32, int32_t)
DEFINE_ARRAY_OPS(u32, uint32_t)
DEFINE_ARRAY_OPS(i64, int64_t)
DEFINE_ARRAY_OPS(u64, uint64_t)
DEFINE_ARRAY_OPS(f32, float)
DEFINE_ARRAY_OPS(f64, double)

typedef void (*reduce_function)(dist_op_t op, char *into, const char *from, size_t count);

static const reduce_function reduce_functions[] = {
    i8_reduce,  u8_reduce,  i16_reduce, u16_reduce, i32_reduce, u32_reduce,
    i64_reduce, u64_reduce, NULL,       NULL,       f32_reduce, f64_reduce,
};

void reduce_elements(dist_dtype_t dtype, dist_op_t op, void *into, const void *from, size_t count, int is_first)
{
    if (count == 0) {
        return;
    }
    if (is_first) {
        memcpy(into, from, count * element_size(dtype));
    } else {
        reduce_functions[dtype - DIST_I8](op, into, from, count);
    }
}

void scale_elements(dist_dtype_t dtype, void *elements, size_t count, double factor)
{
    char *element = elements;
    size_t i;
    for (i = 0; i < count; i++, element += element_size(dtype)) {
        if (dtype == DIST_F32) {
            float a;
            memcpy(&a, element, sizeof(a));
            a = (float)(a * (float)factor);
            memcpy(element, &a, sizeof(a));
        } else {
            double a;
            memcpy(&a, element, sizeof(a));
            a *= factor;
            memcpy(element, &a, sizeof(a));
        }
    }
}
