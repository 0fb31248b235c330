/*
 * LightGBM's communication over a group of libdist.
 */
#ifndef GROUP_NETWORK_H
#define GROUP_NETWORK_H

#include <dist.h>

/* Lets LightGBM communicate over `group` in the calling thread, which then trains. The group must
 * stay valid until group_network_end(). If a call of libdist fails, the process ends: LightGBM
 * takes no error from the functions that communicate. */
void group_network_begin(dist_group_t *group);

/* Ends LightGBM's use of the group. */
void group_network_end(void);

#endif
