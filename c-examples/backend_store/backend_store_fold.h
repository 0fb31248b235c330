/*
 * The arithmetic of backend_store.c: reduces elements by type and operator. Types without
 * arithmetic in C (half precision, complex numbers) and averages of integers are not supported,
 * and can_reduce returns 0 for them.
 */
#ifndef BACKEND_STORE_FOLD_H
#define BACKEND_STORE_FOLD_H

#include <dist_backend.h>

/* Returns the size of an element in bytes; 0 for a barrier, which has no elements. */
size_t element_size(dist_dtype_t dtype);

int can_reduce(dist_dtype_t dtype, dist_op_t op);

/* Sets into[i] = into[i] op from[i], or from[i] if it is the first operand. */
void reduce_elements(dist_dtype_t dtype, dist_op_t op, void *into, const void *from, size_t count, int is_first);

/* Multiplies elements of type DIST_F32 or DIST_F64 by a factor. */
void scale_elements(dist_dtype_t dtype, void *elements, size_t count, double factor);

#endif
