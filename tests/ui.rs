//! Programs that must not compile, and what the compiler says to their authors.
//!
//! Only with the feature `doc-only`: without it, trybuild would compile torch-sys's C++ once more.
#![cfg(feature = "doc-only")]

use std::{
    env,
    io::{Write, stderr},
    process::Command,
};

/// The toolchain whose messages are recorded.
const TOOLCHAIN: &str = include_str!("../rust-toolchain.toml");

#[test]
fn wrong_programs_are_rejected_in_the_users_words() {
    let toolchain: toml::Table = toml::from_str(TOOLCHAIN).unwrap();
    let recorded = toolchain["toolchain"]["channel"].as_str().unwrap();
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output().unwrap().stdout;
    let version = String::from_utf8(version).unwrap();
    if version.split_whitespace().nth(1) != Some(recorded) {
        // The test harness shows this, unlike what `println!` says in a test that passes.
        let reason = format!("the messages were recorded with {recorded}, this is {version}");
        writeln!(stderr(), "ui-tests skipped: {reason}").unwrap();
        return;
    }
    trybuild::TestCases::new().compile_fail("ui-tests/*/*.rs");
}
