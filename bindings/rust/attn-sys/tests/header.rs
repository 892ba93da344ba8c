// SPDX-License-Identifier: MIT
//! Compares src/lib.rs with the header and with the list of exported symbols, as text:
//! each function with the types of its arguments, each constant with its number.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

fn read(path: &str) -> String {
    let path = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn header() -> String {
    let mut text = read("../../../include/attn.h");
    while let Some(begin) = text.find("/*") {
        let end = begin + text[begin..].find("*/").expect("an open comment") + 2;
        text.replace_range(begin..end, " ");
    }
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines.collect::<Vec<_>>().join(" ")
}

/// `const float *const w` or `const int64_t dims[4]` as Rust writes its type.
fn rust_type(declaration: &str) -> String {
    let spaced = declaration.replace('*', " * ").replace('[', " * [");
    let mut constant = false;
    let mut rust = String::new();
    for word in spaced.split_whitespace() {
        let name = match word {
            "const" => {
                constant = true;
                continue;
            }
            "*" => {
                rust = format!("*{} {rust}", if constant { "const" } else { "mut" });
                constant = false;
                continue;
            }
            "int64_t" => "i64",
            "int32_t" => "i32",
            "uint8_t" => "u8",
            "size_t" => "usize",
            "float" => "f32",
            "double" => "f64",
            "char" => "c_char",
            "void" => "c_void",
            "attn_status" | "attn_op" | "attn_args" | "attn_layer" => word,
            _ => continue, // the name of the argument
        };
        rust = name.to_owned();
    }
    rust
}

/// Name and signature, without the names of arguments.
fn functions_of_header() -> BTreeMap<String, String> {
    let text = header();
    let mut functions = BTreeMap::new();
    for statement in text.split(';').filter(|s| s.contains("ATTN_API ")) {
        let declaration = statement.split("ATTN_API ").last().unwrap();
        let (head, arguments) = declaration.split_once('(').unwrap();
        let name = head.rsplit([' ', '*']).next().unwrap();
        let result = rust_type(head.strip_suffix(name).unwrap());
        let arguments = arguments.trim_end().strip_suffix(')').unwrap();
        let types: Vec<_> =
            arguments.split(',').filter(|a| *a != "void").map(rust_type).collect();
        functions.insert(name.to_owned(), format!("({}) -> {result}", types.join(", ")));
    }
    functions
}

fn functions_of_crate() -> BTreeMap<String, String> {
    let text = read("src/lib.rs");
    let block = text.split_once("extern \"C\" {").unwrap().1;
    let mut functions = BTreeMap::new();
    for statement in block.split(';').filter(|s| s.contains("pub fn ")) {
        let declaration = statement.split_once("pub fn ").unwrap().1;
        let (name, rest) = declaration.split_once('(').unwrap();
        let (arguments, result) = rest.split_once(')').unwrap();
        let result = result.trim().strip_prefix("-> ").unwrap_or("c_void");
        let types: Vec<_> = arguments
            .split(',')
            .filter_map(|argument| argument.split_once(':'))
            .map(|(_, kind)| kind.trim().to_owned())
            .collect();
        functions.insert(name.to_owned(), format!("({}) -> {result}", types.join(", ")));
    }
    functions
}

/// `ATTN_X = 1` of the enums; decimal, hexadecimal or negative.
fn constants_of_header() -> BTreeMap<String, i64> {
    let text = header();
    let enums = text.split("enum {").skip(1).map(|rest| rest.split_once('}').unwrap().0);
    let entries = enums.flat_map(|body| body.split(','));
    entries.filter_map(|entry| entry.split_once('=')).map(constant).collect()
}

fn constants_of_crate() -> BTreeMap<String, i64> {
    let text = read("src/lib.rs");
    let lines = text.lines().filter_map(|line| line.strip_prefix("pub const "));
    let pairs = lines.map(|line| {
        let (name, rest) = line.split_once(':').unwrap();
        (name, rest.trim_end_matches(';').split_once('=').unwrap().1)
    });
    pairs.map(constant).collect()
}

fn constant((name, value): (&str, &str)) -> (String, i64) {
    let value = value.trim().replace('_', "");
    let number = match value.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16),
        None => value.parse(),
    };
    (name.trim().to_owned(), number.unwrap())
}

#[test]
fn every_symbol_is_declared() {
    let text = read("../../../tests/abi/symbols.txt");
    let exported: BTreeSet<_> =
        text.lines().map(|l| l.split('@').next().unwrap().to_owned()).collect();
    let declared: BTreeSet<_> = functions_of_crate().into_keys().collect();
    assert!(exported.len() >= 48);
    assert_eq!(exported, declared);
}

#[test]
fn declarations_are_those_of_the_header() {
    assert_eq!(functions_of_header(), functions_of_crate());
}

#[test]
fn constants_are_those_of_the_header() {
    let constants = constants_of_header();
    assert!(constants.len() >= 30);
    assert_eq!(constants, constants_of_crate());
}

#[test]
fn the_library_answers() {
    // SAFETY: a static string of C.
    let version = unsafe { std::ffi::CStr::from_ptr(attn_sys::attn_version()) };
    assert!(version.to_str().unwrap().starts_with("0."));
}
