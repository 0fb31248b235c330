//! Link arguments of the shared library, and the C header.
//!
//! cbindgen does not look into macros, so the exported functions, each defined by one invocation of
//! `dist_export!`, are unwrapped into a source file of plain functions first. From the same pass comes
//! the list of exports that a test compares with the built library. Everything goes to `OUT_DIR`;
//! `cargo xtask header` copies the header to `include/`.
#![allow(clippy::panic, clippy::expect_used, reason = "a build script fails by panicking")]

use quote::ToTokens as _;
use std::path::{Path, PathBuf};
use syn::parse::Parser as _;

const FFI: &str = "src/ffi";

/// The files of that folder that the header is made of, in its order.
const FILES: &[&str] = &[
    "constants",
    "types",
    "backend_types",
    "runtime",
    "backend",
    "spawn",
    "log",
    "debug",
    "blob",
    "store_create",
    "store",
    "store_queue",
    "store_custom",
    "group",
    "group_new",
    "group_shrink",
    "collective",
    "collective_v",
    "bytes",
    "monitored",
    "point_to_point",
    "batch",
    "work",
    "memory",
    "trace",
];

fn main() {
    println!("cargo::rerun-if-changed={FFI}");
    println!("cargo::rerun-if-changed=cbindgen.toml");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libdist.so.0");
    // Threads and thread-locals of the library must survive a dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");

    let out = PathBuf::from(variable("OUT_DIR"));
    let (source, exports) = unwrap_exports();
    let plain = out.join("exports.rs");
    std::fs::write(&plain, source).expect("writing exports.rs");
    std::fs::write(out.join("exports.txt"), exports.join("\n")).expect("writing exports.txt");
    std::fs::write(out.join("dist.h"), header(&plain)).expect("writing dist.h");
}

#[allow(
    clippy::disallowed_methods,
    reason = "cargo speaks to build scripts through the environment"
)]
fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("cargo did not set {name}"))
}

/// The types of the C interface and its functions as plain source, and the names of the functions.
fn unwrap_exports() -> (String, Vec<String>) {
    let mut functions = Vec::new();
    let mut types = String::new();
    for name in FILES {
        let path = Path::new(FFI).join(format!("{name}.rs"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        let file = syn::parse_file(&text).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        if ["constants", "types", "backend_types"].contains(name) {
            types += &plain_types(file);
        } else {
            functions.extend(file.items.iter().filter_map(exported));
        }
    }
    let names = functions.iter().map(|function| function.sig.ident.to_string()).collect();
    let source = functions.into_iter().map(|f| f.into_token_stream().to_string());
    (types + &source.collect::<Vec<_>>().join("\n"), names)
}

/// The type file without what only Rust needs; incomplete types lose their representation, so that
/// cbindgen only declares them.
fn plain_types(file: syn::File) -> String {
    let keep = |item: &syn::Item| {
        matches!(item, syn::Item::Struct(_) | syn::Item::Type(_))
            || matches!(item, syn::Item::Const(constant) if constant.ident != "_")
    };
    let plain = |item: syn::Item| match item {
        syn::Item::Struct(mut item)
            if item.fields.iter().any(|f| f.ident.as_ref().is_some_and(|i| i == "_opaque")) =>
        {
            item.attrs.retain(|attribute| !attribute.path().is_ident("repr"));
            syn::Item::Struct(item)
        }
        other => other,
    };
    let items = file.items.into_iter().filter(keep).map(plain);
    items.map(|item| item.into_token_stream().to_string()).collect::<Vec<_>>().join("\n")
}

/// The function inside a `dist_export!`, as cbindgen wants to see it.
fn exported(item: &syn::Item) -> Option<syn::ItemFn> {
    let syn::Item::Macro(invocation) = item else { return None };
    if !invocation.mac.path.is_ident("dist_export") {
        return None;
    }
    let parse = <syn::ItemFn as syn::parse::Parse>::parse;
    let mut function = parse
        .parse2(invocation.mac.tokens.clone())
        .unwrap_or_else(|e| panic!("a dist_export! does not hold one function: {e}"));
    let is_for_rust = |path: &syn::Path| {
        ["on_error", "anywhere", "in_progress"].iter().any(|name| path.is_ident(name))
    };
    function.attrs.retain(|attribute| !is_for_rust(attribute.path()));
    function.attrs.push(syn::parse_quote!(#[unsafe(no_mangle)]));
    function.sig.abi = Some(syn::parse_quote!(extern "C"));
    function.block = syn::parse_quote!({});
    Some(function)
}

fn header(source: &Path) -> String {
    let mut config = cbindgen::Config::from_file("cbindgen.toml").expect("cbindgen.toml");
    config.after_includes = config.after_includes.map(|text| {
        text.replace("@MAJOR@", &variable("CARGO_PKG_VERSION_MAJOR"))
            .replace("@MINOR@", &variable("CARGO_PKG_VERSION_MINOR"))
            .replace("@PATCH@", &variable("CARGO_PKG_VERSION_PATCH"))
    });
    let bindings = cbindgen::Builder::new().with_config(config).with_src(source).generate();
    let mut text = Vec::new();
    bindings.expect("generating dist.h").write(&mut text);
    // C89 knows no line comments, and cbindgen writes two all the same.
    let text = String::from_utf8(text).expect("dist.h is text");
    text.replace("// __cplusplus", "/* __cplusplus */").replace("#endif  /*", "#endif /*")
}
