// SPDX-License-Identifier: MIT
//! Asks pkg-config where libattn is and passes the answer to the linker.
//!
//! `LIBATTN_STATIC=1` links `libattn.a`; OpenBLAS stays what the linker finds.

use std::env;
use std::process::{exit, Command};

const WANTED: &str = "libattn >= 0.1.0";

const HELP: &str = "\
attn-sys links with the C library libattn, 0.1.0 or newer, and asks pkg-config where it is.
Install libattn (and pkg-config); where it lies outside the usual directories, set
PKG_CONFIG_PATH to the directory that holds libattn.pc.";

fn main() {
    for name in ["PKG_CONFIG", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR", "LIBATTN_STATIC"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    let fixed = env::var("LIBATTN_STATIC").map_or(false, |v| !v.is_empty() && v != "0");
    let mode: &[&str] = if fixed { &["--static", "--libs"] } else { &["--libs"] };
    for flag in pkg_config(mode).split_whitespace() {
        if let Some(dir) = flag.strip_prefix("-L") {
            println!("cargo:rustc-link-search=native={dir}");
        } else if let Some(name) = flag.strip_prefix("-l") {
            link(name, fixed);
        }
    }
    // For build scripts that depend on this one: DEP_ATTN_INCLUDE, DEP_ATTN_VERSION.
    println!("cargo:include={}", pkg_config(&["--variable=includedir"]).trim());
    println!("cargo:version={}", pkg_config(&["--modversion"]).trim());
}

fn link(name: &str, fixed: bool) {
    match name {
        "attn" if fixed => println!("cargo:rustc-link-lib=static=attn"),
        // Only a static OpenBLAS needs it, and few machines have it.
        "gfortran" => {}
        _ => println!("cargo:rustc-link-lib={name}"),
    }
}

fn pkg_config(arguments: &[&str]) -> String {
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let output = Command::new(&program).args(arguments).arg(WANTED).output();
    let said = match output {
        Ok(output) if output.status.success() => {
            return String::from_utf8_lossy(&output.stdout).into_owned();
        }
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => format!("{}: {error}", program.to_string_lossy()),
    };
    eprintln!("{HELP}\n\nIt said: {said}");
    exit(1)
}
