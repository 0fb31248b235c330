//! The sections of the headers in their order, and the assignment of constants, types and functions
//! to sections.
//!
//! A name belongs to the section with its longest matching prefix. The generator fails if no prefix
//! matches a name. For example, `dist_group_fd` matches `dist_group_` (Groups) and `dist_group_fd`
//! (Works), so it belongs to the section Works.

/// A part of a header about one subject.
pub(crate) struct HeaderSection {
    pub(crate) title: &'static str,
    /// The purpose of the section in one sentence.
    pub(crate) about: &'static str,
    /// The prefixes of the names in this section.
    pub(crate) prefixes: &'static [&'static str],
}

/// The sections of `include/dist.h`, in the order of use.
pub(crate) const DIST_SECTIONS: &[HeaderSection] = &[
    HeaderSection {
        title: "Status and errors",
        about: "The outcomes of calls, the messages of errors, and the version of the library.",
        prefixes: &[
            "dist_status_",
            "DIST_OK",
            "DIST_IN_PROGRESS",
            "DIST_ERR_",
            "dist_last_error",
            "dist_version",
            "DIST_WAIT_FOREVER",
            "DIST_NO_WAIT",
        ],
    },
    HeaderSection {
        title: "Byte strings",
        about: "Lists of byte strings that the library makes and the caller releases.",
        prefixes: &["dist_blob_"],
    },
    HeaderSection {
        title: "Initialization",
        about: "Functions that create and end the world, the group of all ranks of the job.",
        prefixes: &[
            "dist_init",
            "dist_finalize",
            "dist_is_",
            "dist_spawn",
            "DIST_FIELD_",
            "DIST_DEVICE_HOST",
            "dist_store_t",
        ],
    },
    HeaderSection {
        title: "Groups",
        about: "Groups of ranks: queries, creation of new groups, and failures.",
        prefixes: &[
            "dist_group_",
            "dist_get_rank",
            "dist_get_world_size",
            "dist_world",
            "DIST_NO_COLOR",
            "dist_shrink_",
            "dist_culprit_",
            "DIST_CULPRIT_",
        ],
    },
    HeaderSection {
        title: "Element types and operators",
        about: "The types of the elements of vectors, and the operators of reductions.",
        prefixes: &[
            "dist_dtype_",
            "dist_op_",
            "DIST_I8",
            "DIST_U8",
            "DIST_I16",
            "DIST_U16",
            "DIST_I32",
            "DIST_U32",
            "DIST_I64",
            "DIST_U64",
            "DIST_F16",
            "DIST_BF16",
            "DIST_F32",
            "DIST_F64",
            "DIST_C64",
            "DIST_C128",
            "DIST_BOOL",
            "DIST_F8",
            "DIST_OPAQUE",
            "DIST_SUM",
            "DIST_PRODUCT",
            "DIST_MIN",
            "DIST_MAX",
            "DIST_AVG",
            "DIST_BAND",
            "DIST_BOR",
            "DIST_BXOR",
            "DIST_PREMUL_SUM",
            "DIST_OP_",
        ],
    },
    HeaderSection {
        title: "Collectives",
        about: "Operations that all ranks of a group call in the same order.",
        prefixes: &[
            "dist_work_t",
            "dist_call_options_t",
            "DIST_CALL_",
            "DIST_LABEL_",
            "dist_all_",
            "dist_reduce",
            "dist_broadcast",
            "dist_barrier",
            "dist_gather",
            "dist_scatter",
            "dist_monitored_barrier",
            "dist_scan",
            "dist_exscan",
            "dist_batch_",
            "dist_tensor_",
        ],
    },
    HeaderSection {
        title: "Messages",
        about: "Messages that one rank sends to another rank.",
        prefixes: &["DIST_ANY_", "dist_send", "dist_recv", "dist_probe", "dist_message_"],
    },
    HeaderSection {
        title: "Works",
        about: "A work is an operation that a call has issued and that may still be running.",
        prefixes: &["dist_work_", "dist_callbacks_", "dist_group_fd", "dist_group_take_done"],
    },
    HeaderSection {
        title: "Stores",
        about: "Key-value stores, through which ranks find each other; programs may use them, too.",
        prefixes: &["dist_store_", "DIST_KEY_", "dist_key_"],
    },
    HeaderSection {
        title: "Memory",
        about: "Memory that operations access without a copy.",
        prefixes: &["dist_mem_"],
    },
    HeaderSection {
        title: "Training",
        about: "The functions that data-parallel trainers need.",
        prefixes: &[
            "dist_sampler_",
            "DIST_SAMPLER_",
            "dist_reducer_",
            "DIST_REDUCER_",
            "dist_param_t",
            "DIST_PARAM_",
            "dist_bucket_",
            "dist_hook_",
            "dist_shard_",
            "dist_outer_",
            "DIST_DIVIDE_",
            "DIST_MISSING_",
            "DIST_STEP_",
            "DIST_VOTE_",
        ],
    },
    HeaderSection {
        title: "Back ends",
        about: "Queries about back ends; authors of back ends use the interface in dist_backend.h.",
        prefixes: &[
            "dist_backend_is_available",
            "dist_backend_supports",
            "dist_backend_load",
            "DIST_KIND_",
        ],
    },
    HeaderSection {
        title: "Diagnostics",
        about: "Logs, debug levels, the flight recorder and traces.",
        prefixes: &[
            "DIST_LOG_",
            "dist_log_",
            "dist_set_log_",
            "DIST_DEBUG_",
            "dist_set_debug_",
            "dist_get_debug_",
            "dist_flight_recorder_",
            "dist_trace_",
        ],
    },
];

/// The sections of `include/dist_backend.h`.
pub(crate) const BACKEND_SECTIONS: &[HeaderSection] = &[HeaderSection {
    title: "The interface of back ends",
    about: "The services of the library for a plug-in, and the functions that a plug-in provides.",
    prefixes: &["DIST_BACKEND_", "dist_backend_"],
}];

/// Returns the indices of the header and the section of a name.
pub(crate) fn section_of(name: &str) -> (usize, usize) {
    let all = [DIST_SECTIONS, BACKEND_SECTIONS];
    let matches = all.iter().enumerate().flat_map(|(header, sections)| {
        sections.iter().enumerate().flat_map(move |(section, it)| {
            it.prefixes
                .iter()
                .filter(|&&start| name.starts_with(start))
                .map(move |start| (start.len(), (header, section)))
        })
    });
    let longest = matches.max_by_key(|&(length, _)| length);
    longest
        .unwrap_or_else(|| panic!("{name} is in no section: add it to headers/src/sections.rs"))
        .1
}
