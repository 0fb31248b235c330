/*
 * Invalid plug-ins, one per variant. The compiler options set ENTRY, the exported name, VERSION,
 * the reported version, and STATUS, the returned status. None sets a back-end name.
 */
#include <dist_backend.h>

#ifndef VERSION
#define VERSION DIST_BACKEND_VERSION
#endif
#ifndef STATUS
#define STATUS DIST_OK
#endif

dist_status_t ENTRY(const dist_backend_host_t *host, dist_backend_plugin_t *plugin, dist_backend_outcome_t *outcome);

dist_status_t ENTRY(const dist_backend_host_t *host, dist_backend_plugin_t *plugin, dist_backend_outcome_t *outcome)
{
    host->log(host->context, DIST_LOG_INFO, "an odd one is being loaded");
    if (STATUS != DIST_OK && outcome->text_cap > 8) {
        outcome->text[0] = 'f';
        outcome->text[1] = 'l';
        outcome->text[2] = 'u';
        outcome->text[3] = '\0';
    }
    plugin->version = VERSION;
    return STATUS;
}
