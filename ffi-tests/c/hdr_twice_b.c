/* The other half of hdr_twice_a.c. */
#include <dist.h>

uint32_t version_in_b(void);

uint32_t version_in_b(void)
{
    return dist_version();
}
