//! Puts the headers together: cbindgen writes the items of each section, and the frame around them
//! is text.

use crate::items::Item;
use crate::sections::{self, Section};
use crate::{initializer, variable};
use quote::ToTokens as _;
use std::path::Path;

/// `dist.h` and `dist_backend.h`.
pub(crate) fn write(items: &[Item], out: &Path) -> [String; 2] {
    let config = cbindgen::Config::from_file("cbindgen.toml").expect("cbindgen.toml");
    let frame = |text: &Option<String>| text.clone().unwrap_or_default();
    let definitions = frame(&config.after_includes)
        .replace("@MAJOR@", &variable("CARGO_PKG_VERSION_MAJOR"))
        .replace("@MINOR@", &variable("CARGO_PKG_VERSION_MINOR"))
        .replace("@PATCH@", &variable("CARGO_PKG_VERSION_PATCH"));
    let dist = framed(
        &frame(&config.header),
        "DIST_H",
        &format!("#include <stddef.h>\n#include <stdint.h>\n\n{}", definitions.trim()),
        &body(sections::DIST, 0, items, &config, out),
    );
    let backend = framed(
        &frame(&config.trailer),
        "DIST_BACKEND_H",
        "#include \"dist.h\"",
        &body(sections::BACKEND, 1, items, &config, out),
    );
    [dist, backend]
}

/// A whole header.
fn framed(head: &str, guard: &str, includes: &str, body: &str) -> String {
    format!(
        "{}\n\n#ifndef {guard}\n#define {guard}\n\n{includes}\n\n\
         #ifdef __cplusplus\nextern \"C\" {{\n#endif\n{body}\n\
         #ifdef __cplusplus\n}}\n#endif\n\n#endif /* {guard} */\n",
        head.trim()
    )
}

/// All sections of a header.
fn body(
    sections: &[Section],
    header: usize,
    items: &[Item],
    config: &cbindgen::Config,
    out: &Path,
) -> String {
    let mut text = String::new();
    for (number, section) in sections.iter().enumerate() {
        let here: Vec<&Item> = items
            .iter()
            .filter(|item| sections::place_of(&item.name) == (header, number))
            .collect();
        let initializers: String =
            here.iter().filter_map(|item| initializer::of(&item.item)).collect();
        text += &format!("\n/*\n * {}\n *\n * {}\n */\n\n", section.title, section.about);
        text +=
            section_text(&here, config, &out.join(format!("section_{header}_{number}.rs"))).trim();
        text += "\n";
        if !initializers.is_empty() {
            text +=
                &format!("\n/* All defaults; assign the fields that differ. */\n{initializers}");
        }
    }
    text
}

/// What cbindgen makes of some items. Types of other sections are known by name only.
fn section_text(items: &[&Item], config: &cbindgen::Config, source: &Path) -> String {
    let plain = items.iter().map(|item| item.item.to_token_stream().to_string());
    std::fs::write(source, plain.collect::<Vec<_>>().join("\n")).expect("writing a section");
    let is_type = |item: &&&Item| matches!(item.item, syn::Item::Struct(_) | syn::Item::Type(_));
    let mut config = config.clone();
    (config.header, config.after_includes, config.trailer) = (None, None, None);
    // Also types that no function of the section uses.
    config.export.include = items.iter().filter(is_type).map(|item| item.name.clone()).collect();
    let bindings = cbindgen::Builder::new().with_config(config).with_src(source).generate();
    let mut text = Vec::new();
    bindings.expect("generating a section").write(&mut text);
    String::from_utf8(text).expect("a header is text")
}
