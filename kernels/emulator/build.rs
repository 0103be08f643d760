//! Compiles the kernels for the host: as a part of this crate, and as a CUDA driver.

use std::{env, path::Path};

fn main() {
    println!("cargo::rerun-if-changed=..");
    kernels("host/kernels.cpp").compile("tch_amp_kernels");
    if let Some(out) = env::var_os("OUT_DIR") {
        driver(&Path::new(&out).join("libtch_amp_emulated_driver.so"));
    }
}

fn kernels(file: &str) -> cc::Build {
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .include("..")
        .file(file)
        .define("TCH_AMP_EMULATOR", None)
        .flag("-ffp-contract=off")
        .flag("-Wno-unknown-pragmas")
        .opt_level(2)
        .warnings(false);
    build
}

/// A library that is loaded at run time, which `cc` does not link.
fn driver(library: &Path) {
    println!("cargo::rustc-env=TCH_AMP_EMULATED_DRIVER={}", library.display());
    let mut command = kernels("host/driver.cpp").get_compiler().to_command();
    command.args(["-shared", "-fPIC", "-o"]).arg(library).arg("host/driver.cpp");
    match command.status() {
        Ok(status) if status.success() => {}
        status => println!("cargo::error=the emulated driver does not compile: {status:?}"),
    }
}
