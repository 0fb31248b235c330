/* The header alone, twice, in every C++ standard. */
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

/* A function of the interface as a C++ template meets it: with its exact type. */
template <typename T> struct same { static void as(T, T) {} };

int hdr_cxx98()
{
    dist_status_t (*function)(dist_group_t *, const dist_call_options_t *, dist_work_t **) = dist_barrier;
    same<uint32_t (*)()>::as(dist_version, dist_version);
    dist_init_options_t local = DIST_INIT_OPTIONS_INIT;
    return local.struct_size == sizeof(local) && function != DIST_NULL;
}
