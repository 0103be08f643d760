//! Compiles the kernels for the host.

fn main() {
    println!("cargo::rerun-if-changed=..");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .include("..")
        .file("host/kernels.cpp")
        .define("TCH_AMP_EMULATOR", None)
        .flag("-ffp-contract=off")
        .flag("-Wno-unknown-pragmas")
        .opt_level(2)
        .warnings(false)
        .compile("tch_amp_kernels");
}
