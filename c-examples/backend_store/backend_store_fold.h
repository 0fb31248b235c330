/*
 * The arithmetic of backend_store.c: what it folds elements with, by type and operator. Types that C has no arithmetic
 * for (half precision, complex numbers) are left out, and said to be.
 */
#ifndef BACKEND_STORE_FOLD_H
#define BACKEND_STORE_FOLD_H

#include <dist_backend.h>

/* The size of an element in bytes; 0 for a barrier, which has none. */
size_t size_of(dist_dtype_t dtype);

int can_fold(dist_dtype_t dtype, dist_op_t op);

/* into[i] = into[i] op from[i], or from[i] if it is the first. */
void fold(dist_dtype_t dtype, dist_op_t op, void *into, const void *from, size_t count, int is_first);

/* Divides a sum by the number of ranks. */
void divide(dist_dtype_t dtype, void *into, size_t count, int ranks);

/* A copy of the elements times a factor, released with free; NULL if there is no memory. */
void *scale(dist_dtype_t dtype, const void *from, size_t count, double factor);

#endif
