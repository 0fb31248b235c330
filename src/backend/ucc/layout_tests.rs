//! Compares the declarations of [`super::functions`] and [`super::types`] with UCC's real headers.
//! `cargo xtask ucc` compiles `ffi-tests/ucc/layout.c` with these headers, and passes its output.

use super::functions::*;
use super::types::{OPERATOR_NUMBERS, TYPE_NUMBERS};
use std::collections::BTreeMap;
use std::mem::offset_of;

/// The variable with the path of the output of `layout.c`.
const OUTPUT: &str = "DIST_TEST_UCC_LAYOUT";

/// The sizes and offsets of the structs.
fn layouts() -> Vec<(&'static str, usize)> {
    let mut all = vec![
        ("size ucc_lib_params_t", size_of::<LibraryParameters>()),
        ("offset ucc_lib_params_t.thread_mode", offset_of!(LibraryParameters, thread_mode)),
        ("offset ucc_lib_params_t.coll_types", offset_of!(LibraryParameters, coll_types)),
        ("offset ucc_lib_params_t.sync_type", offset_of!(LibraryParameters, sync_type)),
        ("size ucc_lib_attr_t", size_of::<LibraryAttributes>()),
        ("offset ucc_lib_attr_t.thread_mode", offset_of!(LibraryAttributes, thread_mode)),
        ("offset ucc_lib_attr_t.coll_types", offset_of!(LibraryAttributes, coll_types)),
        ("size ucc_oob_coll_t", size_of::<OobCollectives>()),
        ("offset ucc_oob_coll_t.coll_info", offset_of!(OobCollectives, info)),
        ("offset ucc_oob_coll_t.n_oob_eps", offset_of!(OobCollectives, endpoints)),
        ("offset ucc_oob_coll_t.oob_ep", offset_of!(OobCollectives, endpoint)),
        ("size ucc_context_params_t", size_of::<ContextParameters>()),
        ("offset ucc_context_params_t.type", offset_of!(ContextParameters, context_type)),
        ("offset ucc_context_params_t.oob", offset_of!(ContextParameters, oob)),
        ("offset ucc_context_params_t.mem_params", offset_of!(ContextParameters, memory)),
        ("size ucc_team_params_t", size_of::<TeamParameters>()),
        ("offset ucc_team_params_t.ep", offset_of!(TeamParameters, endpoint)),
        ("offset ucc_team_params_t.ep_range", offset_of!(TeamParameters, endpoint_range)),
        ("offset ucc_team_params_t.team_size", offset_of!(TeamParameters, size)),
        ("offset ucc_team_params_t.oob", offset_of!(TeamParameters, oob)),
        ("offset ucc_team_params_t.p2p_conn", offset_of!(TeamParameters, peer_connections)),
        ("offset ucc_team_params_t.ep_map", offset_of!(TeamParameters, endpoint_map)),
        ("offset ucc_team_params_t.id", offset_of!(TeamParameters, id)),
    ];
    all.extend([
        ("offset ucc_coll_args_t.coll_type", offset_of!(CollectiveArguments, coll_type)),
        ("offset ucc_coll_args_t.src", offset_of!(CollectiveArguments, src)),
        ("offset ucc_coll_args_t.dst", offset_of!(CollectiveArguments, dst)),
        ("offset ucc_coll_args_t.op", offset_of!(CollectiveArguments, op)),
        ("offset ucc_coll_args_t.flags", offset_of!(CollectiveArguments, flags)),
        ("offset ucc_coll_args_t.root", offset_of!(CollectiveArguments, root)),
        ("offset ucc_coll_args_t.tag", offset_of!(CollectiveArguments, tag)),
        ("offset ucc_coll_args_t.cb", offset_of!(CollectiveArguments, callback)),
        ("offset ucc_coll_args_t.timeout", offset_of!(CollectiveArguments, timeout)),
        ("offset ucc_coll_args_t.active_set", offset_of!(CollectiveArguments, active_set)),
        ("size ucc_coll_buffer_info_t", size_of::<PlainBuffer>()),
        ("offset ucc_coll_buffer_info_t.count", offset_of!(PlainBuffer, count)),
        ("offset ucc_coll_buffer_info_t.datatype", offset_of!(PlainBuffer, datatype)),
        ("offset ucc_coll_buffer_info_t.mem_type", offset_of!(PlainBuffer, memory_type)),
        ("size ucc_coll_buffer_info_v_t", size_of::<BlockBuffer>()),
        ("offset ucc_coll_buffer_info_v_t.counts", offset_of!(BlockBuffer, counts)),
        ("offset ucc_coll_buffer_info_v_t.displacements", offset_of!(BlockBuffer, displacements)),
        ("offset ucc_coll_buffer_info_v_t.datatype", offset_of!(BlockBuffer, datatype)),
        ("offset ucc_coll_buffer_info_v_t.mem_type", offset_of!(BlockBuffer, memory_type)),
        ("offset ucc_coll_req_t.status", 0),
        ("size ucc_reduce_cb_params_t", size_of::<ReduceCallbackParameters>()),
        (
            "offset ucc_reduce_cb_params_t.n_vectors",
            offset_of!(ReduceCallbackParameters, n_vectors),
        ),
        ("offset ucc_reduce_cb_params_t.stride", offset_of!(ReduceCallbackParameters, stride)),
        ("offset ucc_reduce_cb_params_t.dt", offset_of!(ReduceCallbackParameters, dt)),
        ("size ucc_generic_dt_ops_t", size_of::<GenericTypeOperations>()),
        (
            "offset ucc_generic_dt_ops_t.contig_size",
            offset_of!(GenericTypeOperations, element_bytes),
        ),
        ("offset ucc_generic_dt_ops_t.reduce.cb", offset_of!(GenericTypeOperations, reduce)),
    ]);
    all
}

/// The values of constants.
fn values() -> Vec<(&'static str, i64)> {
    let bit = |mask: u64| mask.cast_signed();
    let mut all = vec![
        ("UCC_OK", OK.into()),
        ("UCC_INPROGRESS", IN_PROGRESS.into()),
        ("UCC_ERR_NOT_SUPPORTED", ERR_NOT_SUPPORTED.into()),
        ("UCC_ERR_NOT_IMPLEMENTED", ERR_NOT_IMPLEMENTED.into()),
        ("UCC_ERR_NO_MEMORY", ERR_NO_MEMORY.into()),
        ("UCC_ERR_NO_MESSAGE", ERR_NO_MESSAGE.into()),
        ("UCC_THREAD_SINGLE", THREAD_SINGLE.into()),
        ("UCC_THREAD_MULTIPLE", THREAD_MULTIPLE.into()),
        ("UCC_LIB_PARAM_FIELD_THREAD_MODE", bit(LIBRARY_THREAD_MODE)),
        ("UCC_LIB_ATTR_FIELD_COLL_TYPES", bit(LIBRARY_COLL_TYPES)),
        ("UCC_CONTEXT_PARAM_FIELD_TYPE", bit(CONTEXT_TYPE)),
        ("UCC_CONTEXT_SHARED", CONTEXT_SHARED.into()),
        ("UCC_TEAM_PARAM_FIELD_EP", bit(TEAM_EP)),
        ("UCC_TEAM_PARAM_FIELD_EP_RANGE", bit(TEAM_EP_RANGE)),
        ("UCC_TEAM_PARAM_FIELD_TEAM_SIZE", bit(TEAM_SIZE)),
        ("UCC_TEAM_PARAM_FIELD_OOB", bit(TEAM_OOB)),
        ("UCC_TEAM_PARAM_FIELD_ID", bit(TEAM_ID)),
        ("UCC_COLLECTIVE_EP_RANGE_CONTIG", EP_RANGE_CONTIGUOUS.into()),
        ("UCC_COLL_TYPE_ALLGATHER", ALL_GATHER.into()),
        ("UCC_COLL_TYPE_ALLGATHERV", ALL_GATHER_V.into()),
        ("UCC_COLL_TYPE_ALLREDUCE", ALL_REDUCE.into()),
        ("UCC_COLL_TYPE_ALLTOALL", ALL_TO_ALL.into()),
        ("UCC_COLL_TYPE_ALLTOALLV", ALL_TO_ALL_V.into()),
        ("UCC_COLL_TYPE_BARRIER", BARRIER.into()),
        ("UCC_COLL_TYPE_BCAST", BROADCAST.into()),
        ("UCC_COLL_TYPE_GATHER", GATHER.into()),
        ("UCC_COLL_TYPE_GATHERV", GATHER_V.into()),
        ("UCC_COLL_TYPE_REDUCE", REDUCE.into()),
        ("UCC_COLL_TYPE_REDUCE_SCATTER", REDUCE_SCATTER.into()),
        ("UCC_COLL_TYPE_REDUCE_SCATTERV", REDUCE_SCATTER_V.into()),
        ("UCC_COLL_TYPE_SCATTERV", SCATTER_V.into()),
        ("UCC_MEMORY_TYPE_HOST", MEMORY_HOST.into()),
        ("UCC_MEMORY_TYPE_CUDA", MEMORY_CUDA.into()),
        ("UCC_COLL_ARGS_FIELD_FLAGS", bit(ARGUMENTS_FLAGS)),
        ("UCC_COLL_ARGS_FLAG_IN_PLACE", bit(IN_PLACE)),
        ("UCC_COLL_ARGS_FLAG_COUNT_64BIT", bit(COUNT_64BIT)),
        ("UCC_COLL_ARGS_FLAG_DISPLACEMENTS_64BIT", bit(DISPLACEMENTS_64BIT)),
        ("UCC_GENERIC_DT_OPS_FIELD_FLAGS", bit(GENERIC_TYPE_FLAGS)),
        ("UCC_GENERIC_DT_OPS_FLAG_CONTIG", bit(GENERIC_TYPE_CONTIGUOUS)),
        ("UCC_GENERIC_DT_OPS_FLAG_REDUCE", bit(GENERIC_TYPE_REDUCES)),
    ];
    all.extend(OPERATOR_NUMBERS.map(|(name, op)| (name, op.into())));
    all.extend(TYPE_NUMBERS.map(|(name, datatype)| (name, bit(datatype))));
    all
}

#[test]
#[ignore = "needs the headers of UCC: cargo xtask ucc --prefix FOLDER"]
fn layouts_match_the_headers() {
    let path = std::env::var(OUTPUT).expect("the output of layout.c");
    let text = std::fs::read_to_string(path).unwrap();
    let mut expected: BTreeMap<String, i64> = text
        .lines()
        .map(|line| {
            let (name, number) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), number.parse().unwrap())
        })
        .collect();
    for (name, own) in layouts() {
        let own = i64::try_from(own).unwrap();
        assert_eq!(expected.remove(name), Some(own), "{name}");
    }
    for (name, own) in values() {
        assert_eq!(expected.remove(&format!("value {name}")), Some(own), "{name}");
    }
    // UCC copies the arguments in the size of its own version.
    let size = expected.remove("size ucc_coll_args_t").unwrap();
    assert!(size <= i64::try_from(size_of::<CollectiveArguments>()).unwrap(), "{size}");
    assert!(expected.is_empty(), "not compared: {expected:?}");
    println!("{} layouts and {} values are those of the headers", layouts().len(), values().len());
}
