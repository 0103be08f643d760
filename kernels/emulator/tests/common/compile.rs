//! Compiles the kernels to a shared library, with a fault in the sources.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A piece of a source file that occurs once, and what takes its place.
pub struct Fault {
    pub file: &'static str,
    pub healthy: &'static str,
    pub faulty: &'static str,
}

pub fn compiler() -> OsString {
    env::var_os("CXX").unwrap_or_else(|| "c++".into())
}

/// Copies the sources to `folder`, plants the fault, and returns the library.
pub fn compile(folder: &Path, fault: Option<&Fault>, flags: &[&str]) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let host = Path::new("emulator/host");
    fs::create_dir_all(folder.join(host)).unwrap();
    for part in [Path::new(""), host] {
        for file in fs::read_dir(sources.join(part)).unwrap() {
            let file = file.unwrap();
            if file.file_type().unwrap().is_file() {
                fs::copy(file.path(), folder.join(part).join(file.file_name())).unwrap();
            }
        }
    }
    if let Some(Fault { file, healthy, faulty }) = fault {
        let text = fs::read_to_string(folder.join(file)).unwrap();
        assert_eq!(text.matches(healthy).count(), 1, "{file} has this once: {healthy}");
        fs::write(folder.join(file), text.replace(healthy, faulty)).unwrap();
    }
    let library = folder.join("kernels.so");
    // Hidden, so that two libraries in one process share no state.
    let status = Command::new(compiler())
        .args(["-std=c++17", "-ffp-contract=off", "-w", "-DTCH_AMP_EMULATOR"])
        .args(["-shared", "-fPIC", "-fvisibility=hidden", "-I"])
        .arg(folder)
        .args(flags)
        .arg(folder.join(host).join("kernels.cpp"))
        .arg("-o")
        .arg(&library)
        .status()
        .unwrap();
    assert!(status.success(), "the kernels do not compile");
    library
}
