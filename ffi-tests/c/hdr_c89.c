/* The header alone, twice, in every C standard: its macros, constants and types, without a
 * diagnostic. */
#include <dist.h>
#include <dist.h>
#include <dist_backend.h>
#include <dist_backend.h>

dist_init_options_t init_options = DIST_INIT_OPTIONS_INIT;
dist_group_options_t group_options = DIST_GROUP_OPTIONS_INIT;
dist_store_tcp_options_t store_tcp_options = DIST_STORE_TCP_OPTIONS_INIT;
dist_store_file_options_t store_file_options = DIST_STORE_FILE_OPTIONS_INIT;
dist_call_options_t call_options = DIST_CALL_OPTIONS_INIT;
dist_store_vtable_t store_vtable = DIST_STORE_VTABLE_INIT;
dist_group_new_options_t group_new_options = DIST_GROUP_NEW_OPTIONS_INIT;
dist_shrink_options_t shrink_options = DIST_SHRINK_OPTIONS_INIT;
dist_spawn_options_t spawn_options = DIST_SPAWN_OPTIONS_INIT;
dist_backend_vtable_t backend_vtable = DIST_BACKEND_VTABLE_INIT;
dist_backend_outcome_t backend_outcome = DIST_BACKEND_OUTCOME_INIT;

/* Whole numbers, also for the preprocessor. */
#if DIST_VERSION < 100 || DIST_OK != 0 || DIST_ERR_INVALID_ARGUMENT != -1 || DIST_SUM != 0x200
#error "a constant of the header has changed"
#endif

int hdr_c89(void);

int hdr_c89(void)
{
    dist_init_options_t local = DIST_INIT_OPTIONS_INIT;
    dist_log_fn no_log = 0;
    dist_status_t status = 0 - DIST_ERR_TIMEOUT;
    return local.struct_size == sizeof(local) && no_log == 0 && status == 100;
}
