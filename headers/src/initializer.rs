//! Generates the `DIST_..._INIT` macros, which initialise the structs that a C caller fills.

use quote::ToTokens as _;

/// Structs without a macro, because no caller initialises them: the library fills them, or a
/// plug-in sets them to zero and then fills them.
const FILLED_BY_LIBRARY: &[&str] = &[
    "dist_backend_host_t",
    "dist_backend_setup_t",
    "dist_backend_created_t",
    "dist_backend_operation_t",
    "dist_backend_query_t",
    "dist_backend_plugin_t",
];

/// The fields that the INIT macro sets to -1, which means "unknown". Each entry is a struct and its
/// fields.
const UNKNOWN_FIELDS: &[(&str, &[&str])] =
    &[("dist_backend_outcome_t", &["culprit", "peer", "tag", "len_bytes"])];

/// Returns the macro of a struct. Returns `None` for an item that needs no macro: one that is not a
/// struct, has no size field at the beginning, or is not filled by callers.
pub(crate) fn init_macro(item: &syn::Item) -> Option<String> {
    let syn::Item::Struct(item) = item else { return None };
    let name = item.ident.to_string();
    let names: Vec<String> =
        item.fields.iter().filter_map(|field| Some(field.ident.as_ref()?.to_string())).collect();
    if names.first()? != "struct_size" || FILLED_BY_LIBRARY.contains(&name.as_str()) {
        return None;
    }
    let unknown =
        UNKNOWN_FIELDS.iter().find(|(of, _)| *of == name).map_or(&[][..], |(_, fields)| fields);
    let values = item.fields.iter().zip(&names).map(|(field, field_name)| {
        if field_name == "struct_size" {
            format!("sizeof({name})")
        } else if unknown.contains(&field_name.as_str()) {
            "-1".to_owned()
        } else {
            zero_value(&field.ty).to_owned()
        }
    });
    Some(macro_text(&name, &values.collect::<Vec<_>>()))
}

/// Returns the definition of the macro. Its lines have at most 100 columns.
fn macro_text(name: &str, values: &[String]) -> String {
    let stem = name.trim_start_matches("dist_").trim_end_matches("_t").to_uppercase();
    let mut lines = vec![format!("#define DIST_{stem}_INIT {{ ")];
    for value in values.join(", ~").split('~').chain([" }"]) {
        let last = lines.last_mut().expect("there is a first line");
        // A line has up to 98 columns of text, a space and the backslash.
        if last.len() + value.len() < 98 {
            last.push_str(value);
        } else {
            lines.push(format!("    {}", value.trim_start()));
        }
    }
    lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join(" \\\n") + "\n"
}

/// Returns the zero value of a field's type, in a form without warnings from C and C++ compilers.
fn zero_value(ty: &syn::Type) -> &'static str {
    match ty {
        syn::Type::Ptr(_) => "DIST_NULL",
        syn::Type::Array(_) => "{ 0 }",
        syn::Type::Path(path) => {
            let last = path.path.segments.last().map(|segment| segment.ident.to_string());
            match last.unwrap_or_default().as_str() {
                "f64" => "0.0",
                "Option" => "DIST_NULL",
                alias if alias.ends_with("_fn") => "DIST_NULL",
                _ => "0",
            }
        }
        other => panic!("no INIT value is known for {}", other.to_token_stream()),
    }
}
