/*
 * Prints the layouts and values of UCC's real headers that libdist declares by hand
 * (src/backend/ucc/functions.rs and types.rs): one line for each, "name value". The unit test
 * `layouts_match_the_headers` compares them.
 */
#include <stddef.h>
#include <stdio.h>
#include <ucc/api/ucc.h>

#define SIZE(type) printf("size " #type " %zu\n", sizeof(type))
#define FIELD(type, field) printf("offset " #type "." #field " %zu\n", offsetof(type, field))
#define VALUE(name) printf("value " #name " %lld\n", (long long)(name))

int main(void)
{
    SIZE(ucc_lib_params_t);
    FIELD(ucc_lib_params_t, thread_mode);
    FIELD(ucc_lib_params_t, coll_types);
    FIELD(ucc_lib_params_t, sync_type);
    SIZE(ucc_lib_attr_t);
    FIELD(ucc_lib_attr_t, thread_mode);
    FIELD(ucc_lib_attr_t, coll_types);
    SIZE(ucc_oob_coll_t);
    FIELD(ucc_oob_coll_t, coll_info);
    FIELD(ucc_oob_coll_t, n_oob_eps);
    FIELD(ucc_oob_coll_t, oob_ep);
    SIZE(ucc_context_params_t);
    FIELD(ucc_context_params_t, type);
    FIELD(ucc_context_params_t, oob);
    FIELD(ucc_context_params_t, mem_params);
    SIZE(ucc_team_params_t);
    FIELD(ucc_team_params_t, ep);
    FIELD(ucc_team_params_t, ep_range);
    FIELD(ucc_team_params_t, team_size);
    FIELD(ucc_team_params_t, oob);
    FIELD(ucc_team_params_t, p2p_conn);
    FIELD(ucc_team_params_t, ep_map);
    FIELD(ucc_team_params_t, id);
    FIELD(ucc_coll_args_t, coll_type);
    FIELD(ucc_coll_args_t, src);
    FIELD(ucc_coll_args_t, dst);
    FIELD(ucc_coll_args_t, op);
    FIELD(ucc_coll_args_t, flags);
    FIELD(ucc_coll_args_t, root);
    FIELD(ucc_coll_args_t, tag);
    FIELD(ucc_coll_args_t, cb);
    FIELD(ucc_coll_args_t, timeout);
    FIELD(ucc_coll_args_t, active_set);
    SIZE(ucc_coll_args_t);
    SIZE(ucc_coll_buffer_info_t);
    FIELD(ucc_coll_buffer_info_t, count);
    FIELD(ucc_coll_buffer_info_t, datatype);
    FIELD(ucc_coll_buffer_info_t, mem_type);
    SIZE(ucc_coll_buffer_info_v_t);
    FIELD(ucc_coll_buffer_info_v_t, counts);
    FIELD(ucc_coll_buffer_info_v_t, displacements);
    FIELD(ucc_coll_buffer_info_v_t, datatype);
    FIELD(ucc_coll_buffer_info_v_t, mem_type);
    FIELD(ucc_coll_req_t, status);
    SIZE(ucc_reduce_cb_params_t);
    FIELD(ucc_reduce_cb_params_t, n_vectors);
    FIELD(ucc_reduce_cb_params_t, stride);
    FIELD(ucc_reduce_cb_params_t, dt);
    SIZE(ucc_generic_dt_ops_t);
    FIELD(ucc_generic_dt_ops_t, contig_size);
    FIELD(ucc_generic_dt_ops_t, reduce.cb);
    VALUE(UCC_OK);
    VALUE(UCC_INPROGRESS);
    VALUE(UCC_ERR_NOT_SUPPORTED);
    VALUE(UCC_ERR_NOT_IMPLEMENTED);
    VALUE(UCC_ERR_NO_MEMORY);
    VALUE(UCC_ERR_NO_MESSAGE);
    VALUE(UCC_THREAD_SINGLE);
    VALUE(UCC_THREAD_MULTIPLE);
    VALUE(UCC_LIB_PARAM_FIELD_THREAD_MODE);
    VALUE(UCC_LIB_ATTR_FIELD_COLL_TYPES);
    VALUE(UCC_CONTEXT_PARAM_FIELD_TYPE);
    VALUE(UCC_CONTEXT_SHARED);
    VALUE(UCC_TEAM_PARAM_FIELD_EP);
    VALUE(UCC_TEAM_PARAM_FIELD_EP_RANGE);
    VALUE(UCC_TEAM_PARAM_FIELD_TEAM_SIZE);
    VALUE(UCC_TEAM_PARAM_FIELD_OOB);
    VALUE(UCC_TEAM_PARAM_FIELD_ID);
    VALUE(UCC_COLLECTIVE_EP_RANGE_CONTIG);
    VALUE(UCC_COLL_TYPE_ALLGATHER);
    VALUE(UCC_COLL_TYPE_ALLGATHERV);
    VALUE(UCC_COLL_TYPE_ALLREDUCE);
    VALUE(UCC_COLL_TYPE_ALLTOALL);
    VALUE(UCC_COLL_TYPE_ALLTOALLV);
    VALUE(UCC_COLL_TYPE_BARRIER);
    VALUE(UCC_COLL_TYPE_BCAST);
    VALUE(UCC_COLL_TYPE_GATHER);
    VALUE(UCC_COLL_TYPE_GATHERV);
    VALUE(UCC_COLL_TYPE_REDUCE);
    VALUE(UCC_COLL_TYPE_REDUCE_SCATTER);
    VALUE(UCC_COLL_TYPE_REDUCE_SCATTERV);
    VALUE(UCC_COLL_TYPE_SCATTERV);
    VALUE(UCC_MEMORY_TYPE_HOST);
    VALUE(UCC_MEMORY_TYPE_CUDA);
    VALUE(UCC_COLL_ARGS_FIELD_FLAGS);
    VALUE(UCC_COLL_ARGS_FLAG_IN_PLACE);
    VALUE(UCC_COLL_ARGS_FLAG_COUNT_64BIT);
    VALUE(UCC_COLL_ARGS_FLAG_DISPLACEMENTS_64BIT);
    VALUE(UCC_GENERIC_DT_OPS_FIELD_FLAGS);
    VALUE(UCC_GENERIC_DT_OPS_FLAG_CONTIG);
    VALUE(UCC_GENERIC_DT_OPS_FLAG_REDUCE);
    VALUE(UCC_OP_SUM);
    VALUE(UCC_OP_PROD);
    VALUE(UCC_OP_MAX);
    VALUE(UCC_OP_MIN);
    VALUE(UCC_OP_LAND);
    VALUE(UCC_OP_LOR);
    VALUE(UCC_OP_LXOR);
    VALUE(UCC_OP_BAND);
    VALUE(UCC_OP_BOR);
    VALUE(UCC_OP_BXOR);
    VALUE(UCC_OP_AVG);
    VALUE(UCC_DT_INT8);
    VALUE(UCC_DT_INT64);
    VALUE(UCC_DT_UINT8);
    VALUE(UCC_DT_UINT64);
    VALUE(UCC_DT_FLOAT16);
    VALUE(UCC_DT_FLOAT32);
    VALUE(UCC_DT_FLOAT64);
    VALUE(UCC_DT_BFLOAT16);
    VALUE(UCC_DT_FLOAT32_COMPLEX);
    VALUE(UCC_DT_FLOAT64_COMPLEX);
    return 0;
}
