//! Composes the headers. cbindgen writes the C declarations of each section. This module adds the
//! text around the sections: the head, the include guard and the section titles.

use crate::initializer;
use crate::items::{self, InterfaceItem};
use crate::sections::{self, HeaderSection};
use quote::ToTokens as _;
use std::path::Path;

/// Returns the texts of `dist.h` and `dist_backend.h`. Writes the items of each section into the
/// folder `out`.
pub(crate) fn generate_headers(root: &Path, out: &Path) -> [String; 2] {
    let items = &items::read_items(root);
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml");
    let frame = |text: &Option<String>| text.clone().unwrap_or_default();
    let definitions = frame(&config.after_includes)
        .replace("@MAJOR@", env!("CARGO_PKG_VERSION_MAJOR"))
        .replace("@MINOR@", env!("CARGO_PKG_VERSION_MINOR"))
        .replace("@PATCH@", env!("CARGO_PKG_VERSION_PATCH"));
    let dist = header_text(
        &frame(&config.header),
        "DIST_H",
        &format!("#include <stddef.h>\n#include <stdint.h>\n\n{}", definitions.trim()),
        &sections_text(sections::DIST_SECTIONS, 0, items, &config, out),
    );
    let backend = header_text(
        &frame(&config.trailer),
        "DIST_BACKEND_H",
        "#include \"dist.h\"",
        &sections_text(sections::BACKEND_SECTIONS, 1, items, &config, out),
    );
    [dist, backend]
}

/// Returns the text of one header.
fn header_text(head: &str, guard: &str, includes: &str, body: &str) -> String {
    format!(
        "{}\n\n#ifndef {guard}\n#define {guard}\n\n{includes}\n\n\
         #ifdef __cplusplus\nextern \"C\" {{\n#endif\n{body}\n\
         #ifdef __cplusplus\n}}\n#endif\n\n#endif /* {guard} */\n",
        head.trim()
    )
}

/// Returns the text of all sections of a header.
fn sections_text(
    sections: &[HeaderSection],
    header: usize,
    items: &[InterfaceItem],
    config: &cbindgen::Config,
    out: &Path,
) -> String {
    let mut text = String::new();
    for (number, section) in sections.iter().enumerate() {
        let section_items: Vec<&InterfaceItem> = items
            .iter()
            .filter(|item| sections::section_of(&item.name) == (header, number))
            .collect();
        let initializers: String =
            section_items.iter().filter_map(|item| initializer::init_macro(&item.item)).collect();
        text += &format!("\n/*\n * {}\n *\n * {}\n */\n\n", section.title, section.about);
        text += section_text(
            &section_items,
            config,
            &out.join(format!("section_{header}_{number}.rs")),
        )
        .trim();
        text += "\n";
        if !initializers.is_empty() {
            text +=
                &format!("\n/* All defaults; assign the fields that differ. */\n{initializers}");
        }
    }
    text
}

/// Returns cbindgen's output for the items of a section. cbindgen sees only these items, so it uses
/// the types of other sections by their names.
fn section_text(items: &[&InterfaceItem], config: &cbindgen::Config, source: &Path) -> String {
    let plain = items.iter().map(|item| item.item.to_token_stream().to_string());
    std::fs::write(source, plain.collect::<Vec<_>>().join("\n")).expect("writing a section");
    let is_type =
        |item: &&&InterfaceItem| matches!(item.item, syn::Item::Struct(_) | syn::Item::Type(_));
    let mut config = config.clone();
    (config.header, config.after_includes, config.trailer) = (None, None, None);
    // Without this list, cbindgen would omit the types that no function of the section uses.
    config.export.include = items.iter().filter(is_type).map(|item| item.name.clone()).collect();
    let bindings = cbindgen::Builder::new().with_config(config).with_src(source).generate();
    let mut text = Vec::new();
    bindings.expect("generating a section").write(&mut text);
    String::from_utf8(text).expect("a header is text")
}
