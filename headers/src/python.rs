//! Generates the C interface for Python's `ctypes`: the module `libdist/_abi.py`, and the stub
//! `libdist/_abi.pyi` for type checkers and editors.
//!
//! Both have the constants, structs and function types of `dist.h`, in the order of its sections.
//! The module also has a table with the result and the parameter types of each function. The stub
//! has each function with the first sentence of its comment.
//!
//! Handles are `c_void_p`, because the library looks handles up and never dereferences them. A
//! pointer to untyped memory is a `c_void_p`, too, so that a caller may pass an address.

use crate::items::{self, InterfaceItem};
use crate::sections::{self, DIST_SECTIONS, HeaderSection};
use quote::ToTokens as _;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

/// The texts of the Python module and of its stub.
#[derive(Debug)]
pub struct PythonInterface {
    /// The text of `_abi.py`.
    pub module: String,
    /// The text of `_abi.pyi`.
    pub stub: String,
}

const MODULE_HEAD: &str = "\
\"\"\"The C interface of libdist for ctypes: constants, structs, function types and signatures.

Generated from the source of the library by `cargo xtask python`; do not edit. The comments are
in include/dist.h.
\"\"\"

# ruff: noqa
# fmt: off

from ctypes import (
    CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_float, c_int32, c_int64,
    c_size_t, c_uint32, c_uint64, c_void_p,
)
";

const STUB_HEAD: &str = "\
# Generated from the source of the library by `cargo xtask python`; do not edit.

from ctypes import Structure
from typing import Any, Final

# An address, a handle, an object of ctypes, or None for NULL.
_Pointer = Any
# A function object of ctypes, or None for NULL.
_Function = Any

FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]]
";

/// Generates the interface for Python from the source tree at `root`.
pub fn generate_python(root: &Path) -> PythonInterface {
    let items = items::read_items(root);
    let generator = Generator::new(&items);
    let mut module = MODULE_HEAD.to_owned();
    let mut stub = STUB_HEAD.to_owned();
    let (mut table, mut methods) = (String::new(), String::new());
    for (number, section) in DIST_SECTIONS.iter().enumerate() {
        let members: Vec<&InterfaceItem> =
            items.iter().filter(|item| sections::section_of(&item.name) == (0, number)).collect();
        section_title(&mut module, section);
        section_title(&mut stub, section);
        writeln!(table, "    # {}", section.title).expect("a text");
        let members = generator.in_order_of_definition(members);
        for item in members {
            match &item.item {
                syn::Item::Const(constant) => write_constant(constant, &mut module, &mut stub),
                syn::Item::Struct(it) => generator.write_struct(it, &mut module, &mut stub),
                syn::Item::Type(it) => generator.write_function_type(it, &mut module, &mut stub),
                syn::Item::Fn(it) => generator.write_function(it, &mut table, &mut methods),
                other => panic!("an item of another kind: {}", other.to_token_stream()),
            }
        }
    }
    write!(
        module,
        "\n# The result and the parameters of each function.\nFUNCTIONS = {{\n{table}}}\n"
    )
    .expect("a text");
    write!(
        stub,
        "\n\nclass Library:\n    \"\"\"The loaded library; each function is an attribute.\"\"\"\n\
         {methods}"
    )
    .expect("a text");
    PythonInterface { module, stub }
}

fn section_title(text: &mut String, section: &HeaderSection) {
    write!(text, "\n\n# {}: {}\n", section.title, lower_first(section.about)).expect("a text");
}

/// Writes the first letter in lower case, because the text follows a colon.
fn lower_first(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map_or_else(String::new, |first| format!("{}{}", first.to_lowercase(), letters.as_str()))
}

/// Writes a constant. Its value is an integer literal, which Python reads as Rust does.
fn write_constant(constant: &syn::ItemConst, module: &mut String, stub: &mut String) {
    let value: String = constant.expr.to_token_stream().to_string().split_whitespace().collect();
    let number = integer_value(&value);
    writeln!(module, "{} = {number}", constant.ident).expect("a text");
    writeln!(stub, "{}: Final = {number}", constant.ident).expect("a text");
}

/// Returns the value of an integer literal of Rust.
fn integer_value(literal: &str) -> i128 {
    let plain = literal.replace('_', "");
    let (negative, digits) = match plain.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, plain.as_str()),
    };
    let value = match digits.strip_prefix("0x") {
        Some(hexadecimal) => i128::from_str_radix(hexadecimal, 16),
        None => digits.parse(),
    };
    let value = value.unwrap_or_else(|_| panic!("{literal} is no integer literal"));
    if negative { -value } else { value }
}

/// The names of the types, which decide how a pointer to a type is written.
struct Generator {
    structs: BTreeSet<String>,
    handles: BTreeSet<String>,
    function_types: BTreeSet<String>,
}

/// A type as ctypes and as type checkers write it.
struct PythonType {
    ctypes: String,
    annotation: String,
}

impl PythonType {
    fn new(ctypes: &str, annotation: &str) -> Self {
        Self { ctypes: ctypes.to_owned(), annotation: annotation.to_owned() }
    }
}

impl Generator {
    fn new(items: &[InterfaceItem]) -> Self {
        let mut names = Self {
            structs: BTreeSet::new(),
            handles: BTreeSet::new(),
            function_types: BTreeSet::new(),
        };
        for item in items {
            match &item.item {
                syn::Item::Struct(it) if is_handle(it) => names.handles.insert(item.name.clone()),
                syn::Item::Struct(_) => names.structs.insert(item.name.clone()),
                syn::Item::Type(it) if bare_function(&it.ty).is_some() => {
                    names.function_types.insert(item.name.clone())
                }
                _ => continue,
            };
        }
        names
    }

    /// Moves each type behind the types that it uses, because Python defines names in order.
    fn in_order_of_definition<'a>(
        &self,
        members: Vec<&'a InterfaceItem>,
    ) -> Vec<&'a InterfaceItem> {
        let mut ordered: Vec<&InterfaceItem> = Vec::new();
        let mut waiting = members;
        while !waiting.is_empty() {
            let missing: BTreeSet<&str> = waiting.iter().map(|item| item.name.as_str()).collect();
            let (ready, later): (Vec<_>, Vec<_>) =
                waiting.iter().partition(|item| !self.uses_one_of(item, &missing));
            assert!(!ready.is_empty(), "these types need each other: {missing:?}");
            ordered.extend(ready);
            waiting = later;
        }
        ordered
    }

    /// Returns whether an item needs one of these structs and function types, except itself.
    fn uses_one_of(&self, item: &InterfaceItem, names: &BTreeSet<&str>) -> bool {
        if matches!(item.item, syn::Item::Const(_) | syn::Item::Fn(_)) {
            return false;
        }
        let text = item.item.to_token_stream().to_string();
        let mut words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.any(|word| {
            let is_type = self.structs.contains(word) || self.function_types.contains(word);
            is_type && word != item.name && names.contains(word)
        })
    }

    /// Writes a struct of `ctypes`. A handle has no struct.
    fn write_struct(&self, item: &syn::ItemStruct, module: &mut String, stub: &mut String) {
        if is_handle(item) {
            return;
        }
        let comment = first_sentence(&item.attrs);
        let name = &item.ident;
        write!(module, "\n\nclass {name}(Structure):\n    _fields_ = [\n").expect("a text");
        write!(stub, "\n\nclass {name}(Structure):\n    \"\"\"{comment}\"\"\"\n").expect("a text");
        for field in &item.fields {
            let field_name = field.ident.as_ref().expect("a field with a name");
            let ty = self.python_type(&field.ty);
            // A function type of several lines is indented by two more steps.
            let ctypes = ty.ctypes.replace('\n', "\n        ");
            writeln!(module, "        (\"{field_name}\", {ctypes}),").expect("a text");
            writeln!(stub, "    {field_name}: {}", ty.annotation).expect("a text");
        }
        module.push_str("    ]\n\n\n");
        stub.push_str("\n\n");
    }

    /// Writes the type of a callback. Other aliases are numbers, and their names are not needed.
    fn write_function_type(&self, item: &syn::ItemType, module: &mut String, stub: &mut String) {
        let Some(function) = bare_function(&item.ty) else { return };
        let result = self.bare_function_type(function);
        writeln!(module, "{} = {result}", item.ident).expect("a text");
        writeln!(stub, "{}: Any", item.ident).expect("a text");
    }

    /// Returns the type of a function pointer for ctypes.
    fn bare_function_type(&self, function: &syn::TypeBareFn) -> String {
        let parameters = function.inputs.iter().map(|input| self.python_type(&input.ty).ctypes);
        let parts: Vec<String> =
            std::iter::once(self.result_type(&function.output).ctypes).chain(parameters).collect();
        wrapped_call("CFUNCTYPE", &parts, 4)
    }

    /// Writes a row of the table of functions, and a method of the stub's class.
    fn write_function(&self, item: &syn::ItemFn, table: &mut String, methods: &mut String) {
        let name = &item.sig.ident;
        let result = self.result_type(&item.sig.output);
        let (mut types, mut parameters) = (Vec::new(), vec!["self".to_owned()]);
        for input in &item.sig.inputs {
            let syn::FnArg::Typed(parameter) = input else { panic!("{name} has a receiver") };
            let ty = self.python_type(&parameter.ty);
            let parameter_name = parameter.pat.to_token_stream().to_string();
            parameters.push(format!("{}: {}", python_name(&parameter_name), ty.annotation));
            types.push(ty.ctypes);
        }
        let tuple = match types.as_slice() {
            [] => "()".to_owned(),
            [only] => format!("({only},)"),
            more => wrapped_call("", more, 8),
        };
        writeln!(table, "    \"{name}\": ({}, {tuple}),", result.ctypes).expect("a text");
        write!(
            methods,
            "\n    def {name}{} -> {}:\n        \"\"\"{}\"\"\"\n",
            wrapped_call("", &parameters, 8),
            result.annotation,
            first_sentence(&item.attrs)
        )
        .expect("a text");
    }

    fn result_type(&self, output: &syn::ReturnType) -> PythonType {
        match output {
            syn::ReturnType::Default => PythonType::new("None", "None"),
            syn::ReturnType::Type(_, ty) => {
                let ty = self.python_type(ty);
                match ty.ctypes.as_str() {
                    // ctypes converts a text to bytes.
                    "c_char_p" => PythonType::new("c_char_p", "bytes | None"),
                    "c_void_p" => PythonType::new("c_void_p", "int | None"),
                    _ => ty,
                }
            }
        }
    }

    fn python_type(&self, ty: &syn::Type) -> PythonType {
        match ty {
            syn::Type::Ptr(pointer) => self.pointer_type(&pointer.elem),
            syn::Type::Array(array) => {
                let element = self.python_type(&array.elem).ctypes;
                let length = array.len.to_token_stream();
                let is_text = element == "c_char";
                let annotation = if is_text { "bytes" } else { "Any" };
                PythonType::new(&format!("{element} * {length}"), annotation)
            }
            syn::Type::Path(path) if bare_function(ty).is_some() => {
                let function = bare_function(ty).unwrap_or_else(|| panic!("{path:?}"));
                PythonType::new(&self.bare_function_type(function), "_Function")
            }
            syn::Type::Path(path) => self.named_type(&last_name(path)),
            other => panic!("no type of Python is known for {}", other.to_token_stream()),
        }
    }

    /// Returns the type of a pointer to `target`.
    fn pointer_type(&self, target: &syn::Type) -> PythonType {
        if let syn::Type::Ptr(inner) = target {
            let is_text = matches!(&*inner.elem, syn::Type::Path(path)
                if last_name(path) == "c_char");
            let element = if is_text { "c_char_p" } else { "c_void_p" };
            return PythonType::new(&format!("POINTER({element})"), "_Pointer");
        }
        let syn::Type::Path(path) = target else {
            panic!("no pointer to {} is known", target.to_token_stream())
        };
        match last_name(path).as_str() {
            "c_char" => PythonType::new("c_char_p", "_Pointer"),
            "c_void" => PythonType::new("c_void_p", "_Pointer"),
            name if self.handles.contains(name) => PythonType::new("c_void_p", "_Pointer"),
            name => {
                PythonType::new(&format!("POINTER({})", self.named_type(name).ctypes), "_Pointer")
            }
        }
    }

    fn named_type(&self, name: &str) -> PythonType {
        let (ctypes, annotation) = match name {
            "dist_status_t" | "dist_dtype_t" | "dist_op_t" | "i32" => ("c_int32", "int"),
            "u32" => ("c_uint32", "int"),
            "i64" => ("c_int64", "int"),
            "u64" => ("c_uint64", "int"),
            "usize" => ("c_size_t", "int"),
            "f32" => ("c_float", "float"),
            "f64" => ("c_double", "float"),
            "c_char" => ("c_char", "bytes"),
            name if self.structs.contains(name) => (name, name),
            name if self.function_types.contains(name) => (name, "_Function"),
            other => panic!("no type of Python is known for {other}"),
        };
        PythonType::new(ctypes, annotation)
    }
}

/// Returns whether a struct is incomplete in C.
fn is_handle(item: &syn::ItemStruct) -> bool {
    item.fields.iter().any(|field| field.ident.as_ref().is_some_and(|name| name == "_opaque"))
}

/// Returns the function of `Option<unsafe extern "C" fn(...)>`.
fn bare_function(ty: &syn::Type) -> Option<&syn::TypeBareFn> {
    let syn::Type::Path(path) = ty else { return None };
    let last = path.path.segments.last()?;
    let syn::PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
    match arguments.args.first()? {
        syn::GenericArgument::Type(syn::Type::BareFn(function)) => Some(function),
        _ => None,
    }
}

fn last_name(path: &syn::TypePath) -> String {
    path.path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default()
}

/// Returns the first sentence of a comment, without the marks of code.
fn first_sentence(attributes: &[syn::Attribute]) -> String {
    let mut text = String::new();
    for attribute in attributes.iter().filter(|it| it.path().is_ident("doc")) {
        let syn::Meta::NameValue(value) = &attribute.meta else { continue };
        let syn::Expr::Lit(literal) = &value.value else { continue };
        let syn::Lit::Str(line) = &literal.lit else { continue };
        let line = line.value();
        let line = line.trim();
        if line.is_empty() {
            break;
        }
        text.push_str(line);
        text.push(' ');
    }
    let text = text.trim().replace('\\', "\\\\").replace('"', "'");
    match text.find(". ") {
        Some(end) => text[..=end].to_owned(),
        None => text,
    }
}

/// Returns a parameter name that is no keyword of Python.
fn python_name(name: &str) -> String {
    let name = name.trim_start_matches('_');
    let is_keyword = ["from", "in", "is", "lambda", "global", "del", "with"].contains(&name);
    if is_keyword { format!("{name}_") } else { name.to_owned() }
}

/// Returns `name(parts)`, on several lines if the parts are long.
fn wrapped_call(name: &str, parts: &[String], indent: usize) -> String {
    let line = parts.join(", ");
    if line.len() <= 60 {
        return format!("{name}({line})");
    }
    let space = " ".repeat(indent);
    let mut text = format!("{name}(\n");
    let mut line = String::new();
    for part in parts {
        if !line.is_empty() && space.len() + line.len() + part.len() > 97 {
            writeln!(text, "{space}{}", line.trim_end()).expect("a text");
            line.clear();
        }
        write!(line, "{part}, ").expect("a text");
    }
    write!(text, "{space}{}\n{})", line.trim_end(), " ".repeat(indent - 4)).expect("a text");
    text
}
