//! Generates Rust bindings of dist_backend.h, and compiles constants.c with MPI's own compiler.

use std::path::Path;
use std::{env, error::Error};

fn main() -> Result<(), Box<dyn Error>> {
    let header = "../../include/dist_backend.h";
    println!("cargo:rerun-if-changed=../../include");
    println!("cargo:rerun-if-changed=src/mpi/constants.c");
    println!("cargo:rerun-if-env-changed=MPICC");
    let out = env::var("OUT_DIR")?;
    bindgen::builder()
        .header(header)
        .allowlist_type("dist_backend_.*")
        .allowlist_var("DIST_.*")
        .default_macro_constant_type(bindgen::MacroTypeVariation::Signed)
        .layout_tests(false)
        .generate()?
        .write_to_file(Path::new(&out).join("dist.rs"))?;
    // The same rule by which mpi-sys finds the compiler.
    let mpicc = env::var("MPICC").unwrap_or_else(|_| "mpicc".to_owned());
    cc::Build::new()
        .compiler(mpicc)
        .file("src/mpi/constants.c")
        .try_compile("dist_mpi_constants")?;
    Ok(())
}
