/* Memory of a program that cannot go on without it. */
#ifndef GPT_MEMORY_H
#define GPT_MEMORY_H

#include <stdio.h>
#include <stdlib.h>

/* `count` elements of `size` bytes, filled with zeros; the caller frees them. Without memory the
 * process ends. */
static inline void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count > 0 ? count : 1, size);
    if (memory == NULL) {
        fprintf(stderr, "gpt: out of memory (%zu elements of %zu bytes)\n", count, size);
        exit(2);
    }
    return memory;
}

#endif
