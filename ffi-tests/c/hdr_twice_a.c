/* The header in two translation units of one program: nothing in it is defined twice. */
#include <dist.h>

uint32_t version_in_b(void);

int main(void)
{
    return dist_version() == version_in_b() && version_in_b() == DIST_VERSION ? 0 : 1;
}
