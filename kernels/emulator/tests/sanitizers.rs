//! The checks with kernels that AddressSanitizer and UndefinedBehaviorSanitizer watch.
//!
//! AddressSanitizer must come before all else in a process, so that it also has the memory that
//! Rust allocates: each test runs this program once more, with the sanitizer preloaded.

mod common;

use std::{
    env,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::Command,
};

use common::{Fault, SANITIZED, Subject, check_all, compile, compiler};
use tch_amp_emulator::Kernels;

/// What the process that is watched does.
#[test]
#[ignore = "the other tests run it"]
fn watched() {
    let Some(library) = env::var_os(SANITIZED) else { return };
    // SAFETY: a fault leaves the launch as it is.
    let kernels = unsafe { Kernels::open(Path::new(&library)) }.unwrap();
    check_all(&Subject::healthy(&kernels)).unwrap();
}

/// GCC's sanitizers, where they are installed.
fn sanitizers() -> Option<String> {
    let path = |name: &str| {
        let output =
            Command::new(compiler()).arg(format!("-print-file-name={name}")).output().ok()?;
        let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
        // A file that is not found comes back as it was asked for.
        Some(path).filter(|path| path.is_absolute() && path.exists())
    };
    let (address, undefined) = (path("libasan.so")?, path("libubsan.so")?);
    Some(format!("{} {}", address.display(), undefined.display()))
}

/// Whether the checks pass, and what the process wrote; nothing where there are no sanitizers.
fn watch(fault: Option<&Fault>) -> Option<(bool, String)> {
    let Some(preload) = sanitizers() else {
        // Past the harness, which keeps back what a test that passes prints.
        _ = writeln!(io::stderr(), "skipped: {} has no sanitizers", compiler().display());
        return None;
    };
    let folder = tempfile::tempdir().unwrap();
    let flags = ["-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let library = compile(folder.path(), fault, &flags);
    let output = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "watched", "--test-threads=1"])
        .env(SANITIZED, library)
        .env("LD_PRELOAD", preload)
        // What is left at the end is the test harness's; fibers have stacks of their own.
        .env("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=0")
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
}

fn caught(file: &'static str, healthy: &'static str, faulty: &'static str, report: &str) {
    let Some((passed, said)) = watch(Some(&Fault { file, healthy, faulty })) else { return };
    assert!(!passed && said.contains(report), "{said}");
}

#[test]
fn the_kernels_pass() {
    let Some((passed, said)) = watch(None) else { return };
    assert!(passed && said.contains("1 passed"), "{said}");
}

#[test]
fn a_read_of_one_element_too_many() {
    let healthy = "values[k] = i + k < end ?";
    caught("access.cuh", healthy, "values[k] = i + k <= end ?", "heap-buffer-overflow");
}

#[test]
fn a_write_of_one_element_too_many() {
    let healthy = "if (i + k < end) span.first[i + k] =";
    caught("access.cuh", healthy, "if (i + k <= end) span.first[i + k] =", "heap-buffer-overflow");
}

#[test]
fn a_sum_with_too_few_places_in_shared_memory() {
    let healthy = "__shared__ T warps[THREADS / 32];";
    caught("reduce.cuh", healthy, "__shared__ T warps[THREADS / 32 - 1];", "index 7 out of bounds");
}

/// Which a GPU and a CPU do differently.
#[test]
fn a_shift_by_all_bits() {
    let healthy = "(u16)(words[k / 2] >> 16 * (k % 2))";
    caught("access.cuh", healthy, "(u16)(words[k / 2] >> 16 * (k % 4))", "shift exponent 32");
}
