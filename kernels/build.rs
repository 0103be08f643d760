//! Compiles the C++ shim against the libtorch that `torch-sys` found, and tells this package's own tests, examples and
//! benchmarks where libtorch lies at run time.
//!
//! With the feature `doc-only` (and on docs.rs) there is no libtorch: nothing is compiled and nothing is linked.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The folder of all C++.
const SHIM_DIR: &str = "src/libtorch";
/// The one file that is compiled; the headers beside it are parts of it.
const SHIM: &str = "src/libtorch/shim.cpp";
/// The static library made of it.
const SHIM_LIB: &str = "tch_amp_shim";
/// Says how to come by libtorch.
const NO_LIBTORCH: &str = "torch-sys did not say where libtorch is (DEP_TCH_LIBTORCH_LIB is not set). Run `cargo xtask \
    libtorch` once, or set LIBTORCH to the folder of libtorch, on Windows too. To type-check without libtorch, enable \
    the feature `doc-only`.";

fn main() {
    println!("cargo::rerun-if-changed=kernels/build.rs");
    watch_shim();
    if env::var_os("CARGO_FEATURE_DOC_ONLY").is_some() || env::var_os("DOCS_RS").is_some() {
        return;
    }
    let Some(lib) = lib_dir() else {
        println!("cargo::error={NO_LIBTORCH}");
        return;
    };
    if let Err(error) = compile_shim(&lib) {
        println!(
            "cargo::error={SHIM} does not compile against the libtorch in {}: {error}",
            lib.display()
        );
        return;
    }
    link(&lib);
}

/// Has cargo run this script again when a C++ file changes, but not when a Rust file beside it does.
fn watch_shim() {
    println!("cargo::rerun-if-changed={SHIM}");
    for file in fs::read_dir(SHIM_DIR).into_iter().flatten().flatten() {
        let path = file.path();
        if path.extension().is_some_and(|ending| ending == "h") {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
}

/// Returns the folder of libtorch's libraries: as torch-sys says, or on Windows, where it says nothing, as it finds it.
fn lib_dir() -> Option<PathBuf> {
    if let Some(lib) = env::var_os("DEP_TCH_LIBTORCH_LIB") {
        return Some(PathBuf::from(lib));
    }
    let windows = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "windows");
    let parent = windows.then(|| variable("LIBTORCH_LIB").or_else(|| variable("LIBTORCH")));
    parent.flatten().map(|parent| Path::new(&parent).join("lib"))
}

/// Compiles the shim into a static library, optimised in debug builds too.
fn compile_shim(lib: &Path) -> Result<(), cc::Error> {
    let abi = variable("LIBTORCH_CXX11_ABI").unwrap_or_else(|| "1".to_owned());
    let include = include_dir(lib);
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").opt_level(2).pic(true);
    build.define("_GLIBCXX_USE_CXX11_ABI", abi.as_str());
    // Torch's headers warn by the page; the compiler's own folder must keep its place in the search order.
    for folder in [include.join("torch/csrc/api/include"), include] {
        if is_msvc() {
            build.include(folder);
        } else if folder != Path::new("/usr/include") {
            build.flag("-isystem").flag(folder);
        }
    }
    build.file(SHIM).try_compile(SHIM_LIB)
}

/// Returns libtorch's `include` folder, by the rules of `torch-sys`: `LIBTORCH_INCLUDE` names its parent.
fn include_dir(lib: &Path) -> PathBuf {
    let named = variable("LIBTORCH_INCLUDE").filter(|_| variable("LIBTORCH_USE_PYTORCH").is_none());
    match (named, lib.parent()) {
        (Some(parent), _) => Path::new(&parent).join("include"),
        (None, Some(parent)) => parent.join("include"),
        (None, None) => PathBuf::from("include"),
    }
}

/// Links the libraries that the shim's symbols come from, and gives this package's own programs their run-time path.
fn link(lib: &Path) {
    println!("cargo::rustc-link-search=native={}", lib.display());
    if variable("LIBTORCH_STATIC")
        .is_none_or(|value| ["0", "false", "FALSE"].contains(&value.as_str()))
    {
        println!("cargo::rustc-link-lib=dylib=torch_cpu");
        println!("cargo::rustc-link-lib=dylib=c10");
    }
    if is_msvc() {
        return;
    }
    println!("cargo::rustc-link-arg=-Wl,-rpath,{}", lib.display());
    // No symbol of ours is in libtorch_cuda: it registers its kernels when it is loaded, so it must stay linked.
    if lib.join("libtorch_cuda.so").exists() {
        println!("cargo::rustc-link-arg=-Wl,--no-as-needed,-ltorch_cuda,--as-needed");
    }
}

/// Tells whether the target is linked by Microsoft's tools, which have options of their own and no run-time path.
fn is_msvc() -> bool {
    env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "msvc")
}

/// Reads a variable and has cargo run this script again when it changes.
fn variable(name: &str) -> Option<String> {
    println!("cargo::rerun-if-env-changed={name}");
    env::var(name).ok()
}
