//! Reads the constants, types and functions of the C interface from `src/ffi`, and converts them to
//! plain Rust items that cbindgen understands.

use quote::ToTokens as _;
use std::path::Path;
use syn::parse::Parser as _;

/// The files in `src/ffi` that define the C interface. Within a section of a header, items appear
/// in the order of these files.
const FFI_FILES: &[&str] = &[
    "constants",
    "types",
    "store_types",
    "backend_operation_types",
    "backend_types",
    "train_types",
    "shard_types",
    "outer_types",
    "runtime",
    "backend",
    "spawn",
    "log",
    "debug",
    "blob",
    "store_create",
    "store",
    "store_handle",
    "store_queue",
    "store_custom",
    "group",
    "group_new",
    "group_shrink",
    "collective",
    "collective_blocks",
    "collective_v",
    "tensor_list",
    "operator",
    "bytes",
    "monitored",
    "point_to_point",
    "message",
    "batch",
    "work",
    "work_list",
    "callbacks",
    "completion",
    "culprit",
    "memory",
    "outer",
    "reducer",
    "reducer_step",
    "shard",
    "sampler",
    "trace",
];

/// Functions whose status a caller may ignore, because a failure loses no operation. The same holds
/// for all `_release` functions.
const IGNORABLE_STATUS_FUNCTIONS: &[&str] = &[
    "dist_group_abort",
    "dist_callbacks_start",
    "dist_set_log_callback",
    "dist_set_log_level",
    "dist_set_debug_level",
    "dist_set_debug_level_from_env",
    "dist_mem_free",
];

/// A constant, type or function of the C interface.
pub(crate) struct InterfaceItem {
    pub(crate) name: String,
    pub(crate) item: syn::Item,
}

/// Reads all items of the source tree at `root`, in the order of the files.
pub(crate) fn read_items(root: &Path) -> Vec<InterfaceItem> {
    let mut items = Vec::new();
    for name in FFI_FILES {
        let path = root.join("src/ffi").join(format!("{name}.rs"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        let file = syn::parse_file(&text).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        let has_types = *name == "constants" || name.ends_with("types");
        items.extend(
            file.items.into_iter().filter_map(|item| {
                if has_types { type_item(item) } else { exported_function(item) }
            }),
        );
    }
    items
}

/// Returns the names of the exported functions.
pub(crate) fn exported_names(items: &[InterfaceItem]) -> Vec<String> {
    let functions = items.iter().filter(|item| matches!(item.item, syn::Item::Fn(_)));
    functions.map(|item| item.name.clone()).collect()
}

/// Returns a constant or type. Removes the attribute `repr` of an incomplete type, so that cbindgen
/// only declares the type.
fn type_item(item: syn::Item) -> Option<InterfaceItem> {
    let (name, item) = match item {
        syn::Item::Struct(mut item) => {
            let is_opaque =
                item.fields.iter().any(|f| f.ident.as_ref().is_some_and(|i| i == "_opaque"));
            if is_opaque {
                item.attrs.retain(|attribute| !attribute.path().is_ident("repr"));
            }
            (item.ident.to_string(), syn::Item::Struct(item))
        }
        syn::Item::Type(item) => (item.ident.to_string(), syn::Item::Type(item)),
        syn::Item::Const(item) if item.ident != "_" => {
            (item.ident.to_string(), syn::Item::Const(item))
        }
        _ => return None,
    };
    Some(InterfaceItem { name, item })
}

/// Returns the function inside a `dist_export!` invocation as a plain Rust function, which cbindgen
/// can read.
fn exported_function(item: syn::Item) -> Option<InterfaceItem> {
    let syn::Item::Macro(invocation) = item else { return None };
    if !invocation.mac.path.is_ident("dist_export") {
        return None;
    }
    let parse = <syn::ItemFn as syn::parse::Parse>::parse;
    let mut function = parse
        .parse2(invocation.mac.tokens)
        .unwrap_or_else(|e| panic!("a dist_export! does not hold one function: {e}"));
    let is_for_rust = |path: &syn::Path| {
        ["on_error", "anywhere", "in_progress", "wait_slice"].iter().any(|name| path.is_ident(name))
    };
    function.attrs.retain(|attribute| !is_for_rust(attribute.path()));
    function.attrs.push(syn::parse_quote!(#[unsafe(no_mangle)]));
    function.sig.abi = Some(syn::parse_quote!(extern "C"));
    function.block = syn::parse_quote!({});
    let name = function.sig.ident.to_string();
    let has_status = matches!(&function.sig.output, syn::ReturnType::Type(_, ty)
        if ty.to_token_stream().to_string() == "dist_status_t");
    if has_status
        && !name.ends_with("_release")
        && !IGNORABLE_STATUS_FUNCTIONS.contains(&name.as_str())
    {
        function.attrs.push(syn::parse_quote!(#[must_use]));
    }
    Some(InterfaceItem { name, item: syn::Item::Fn(function) })
}
