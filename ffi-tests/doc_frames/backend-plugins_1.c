/* ranks: 1
 * prints: done
 */
#include "frame.h"
#include <dist_backend.h>
#include <string.h>

static const dist_backend_vtable_t functions = { .struct_size = sizeof(dist_backend_vtable_t) };

dist_status_t dist_backend_plugin_v2(const dist_backend_host_t *host, dist_backend_plugin_t *plugin,
                                     dist_backend_outcome_t *outcome);

#include "block.inc"

int main(void)
{
    dist_backend_plugin_t plugin;
    memset(&plugin, 0, sizeof(plugin));
    check(dist_backend_plugin_v2(NULL, &plugin, NULL) == DIST_OK, "the plug-in");
    check(strcmp(plugin.name, "mine") == 0 && plugin.functions == &functions, "its description");
    puts("done");
    return 0;
}
