//! What every kernel keeps to.

use super::gpu::Gpu;
use super::sass::Kernel;

/// What the kernels whose names begin alike promise.
#[derive(Clone, Copy, Debug)]
struct Family {
    /// What the kernels' names begin with; the first family that fits holds.
    name: &'static str,
    /// Blocks of a multiprocessor at a time, where it has threads for as many.
    blocks: u32,
    /// Elements of one pass through the main loop; `None` for kernels that work on few values.
    elements: Option<u32>,
}

/// The promises.
///
/// To keep a GPU's memory busy takes some 32 KiB in flight on each multiprocessor. An update reads 64 to 128 bytes for
/// eight elements in each of a block's 256 threads, so that two blocks have it.
const FAMILIES: [Family; 9] = [
    Family { name: "check", blocks: 4, elements: Some(32) },
    Family { name: "scale", blocks: 4, elements: Some(8) },
    Family { name: "accumulate", blocks: 4, elements: Some(8) },
    Family { name: "decide", blocks: 1, elements: None },
    Family { name: "lamb_grad_norm", blocks: 1, elements: None },
    Family { name: "lamb_norms", blocks: 4, elements: None },
    Family { name: "adagrad", blocks: 4, elements: Some(8) },
    Family { name: "adam", blocks: 2, elements: Some(8) },
    Family { name: "sgd", blocks: 4, elements: Some(8) },
];

/// What kernels of any other name promise.
const OTHERS: Family = Family { name: "", blocks: 2, elements: Some(8) };

/// Returns the promise of a kernel.
fn promise(kernel: &str) -> Family {
    FAMILIES.into_iter().find(|one| kernel.starts_with(one.name)).unwrap_or(OTHERS)
}

/// A kernel's figures on one kind of GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figures {
    /// Registers of a thread.
    pub(super) registers: u32,
    /// Blocks of a multiprocessor at a time.
    pub(super) blocks: u32,
    /// Instructions of the main loop for one element.
    pub(super) instructions: Option<f64>,
}

/// Measures a kernel, and returns what it breaks.
pub(super) fn judge(kernel: &Kernel, gpu: &Gpu) -> (Figures, Vec<String>) {
    let promise = promise(&kernel.name);
    let blocks = gpu.blocks(&kernel.resources);
    let mut faults = Vec::new();

    let memory = kernel.resources.stack + kernel.resources.local;
    let spills = kernel.code.iter().filter(|one| one.is(&["LDL", "STL"])).count();
    if memory > 0 || spills > 0 {
        faults.push(format!("uses local memory: {memory} bytes, {spills} instructions"));
    }
    let promised = promise.blocks.min(gpu.most_blocks());
    if blocks < promised {
        faults.push(format!(
            "runs {blocks} blocks at a time instead of {promised}: {} registers, {} bytes of shared memory",
            kernel.resources.registers, kernel.resources.shared
        ));
    }
    let mut instructions = None;
    if let Some(elements) = promise.elements {
        match kernel.main_loop() {
            None => faults.push("has no loop with 128-bit accesses".to_owned()),
            Some(code) => {
                instructions = Some(code.len() as f64 / f64::from(elements));
                let mut narrow: Vec<_> = code
                    .iter()
                    .filter(|one| one.is_global_access() && !one.is_wide())
                    .map(|one| one.operation.as_str())
                    .collect();
                narrow.sort_unstable();
                narrow.dedup();
                if !narrow.is_empty() {
                    let narrow = narrow.join(", ");
                    faults.push(format!("has accesses below 128 bits in its main loop: {narrow}"));
                }
            }
        }
    }
    let registers = kernel.resources.registers;
    (Figures { registers, blocks, instructions }, faults)
}

#[cfg(test)]
mod tests {
    use super::super::gpu::GPUS;
    use super::super::sass::{self, tests::dump};
    use super::*;

    const LOOP: [&str; 5] = [
        "LDG.E.EF.128 R4, desc[UR4][R2.64]",
        "FMUL R4, R4, R5",
        "STG.E.EF.128 desc[UR4][R2.64], R4",
        "@P0 BRA 0x0",
        "EXIT",
    ];
    const USAGE: &str = "REG:64 STACK:0 SHARED:1044 LOCAL:0";

    /// Judges a kernel on Hopper.
    fn judged(name: &str, usage: &str, code: &[&str]) -> (Figures, Vec<String>) {
        judge(&sass::parse(&dump(name, usage, code)).unwrap()[0], &GPUS[2])
    }

    /// Returns all that is wrong with a kernel.
    fn faults(name: &str, usage: &str, code: &[&str]) -> String {
        judged(name, usage, code).1.join("; ")
    }

    #[test]
    fn a_good_kernel_is_measured() {
        let (figures, faults) = judged("sgd_f32_f32", USAGE, &LOOP);
        assert!(faults.is_empty(), "{faults:?}");
        assert_eq!(figures, Figures { registers: 64, blocks: 4, instructions: Some(0.5) });
        let (figures, faults) = judged("check_f32", USAGE, &LOOP);
        assert!(faults.is_empty(), "{faults:?}");
        assert_eq!(figures.instructions, Some(0.125));
    }

    #[test]
    fn wider_accesses_than_128_bits_are_good() {
        let code = LOOP.map(|line| line.replace("EF.128", "ENL2.256"));
        assert_eq!(faults("sgd_f32_f32", USAGE, &code.each_ref().map(String::as_str)), "");
    }

    #[test]
    fn local_memory_is_a_fault() {
        let stack = faults("sgd_f32_f32", "REG:64 STACK:8 SHARED:0 LOCAL:0", &LOOP);
        assert_eq!(stack, "uses local memory: 8 bytes, 0 instructions");
        let local = faults("sgd_f32_f32", "REG:64 STACK:0 SHARED:0 LOCAL:4", &LOOP);
        assert_eq!(local, "uses local memory: 4 bytes, 0 instructions");
        let spill = [&LOOP[..], &["@!PT LDL.64 R2, [R1]", "STL [R1+0x4], R3"]].concat();
        let spill = faults("sgd_f32_f32", USAGE, &spill);
        assert_eq!(spill, "uses local memory: 0 bytes, 2 instructions");
    }

    #[test]
    fn narrow_accesses_in_the_main_loop_are_a_fault() {
        for narrow in ["LDG.E", "LDG.E.EF.64", "LDG.E.U16", "STG.E", "LD.E", "ST.E.U16"] {
            let line = format!("@P1 {narrow} R6, desc[UR4][R2.64]");
            let inside = [&[line.as_str()], &LOOP[..]].concat();
            let found = faults("sgd_f32_f32", USAGE, &inside);
            assert_eq!(found, format!("has accesses below 128 bits in its main loop: {narrow}"));
            let after = [&LOOP[..], &[line.as_str()]].concat();
            assert_eq!(faults("sgd_f32_f32", USAGE, &after), "");
        }
        assert_eq!(faults("sgd_f32_f32", USAGE, &["LDS R2, [R3]", LOOP[0], "@P0 BRA 0x0"]), "");
    }

    #[test]
    fn low_occupancy_is_a_fault() {
        let found = faults("sgd_f32_f32", "REG:65 STACK:0 SHARED:20 LOCAL:0", &LOOP);
        let expected =
            "runs 3 blocks at a time instead of 4: 65 registers, 20 bytes of shared memory";
        assert_eq!(found, expected);
    }

    #[test]
    fn a_family_that_is_not_listed_promises_two_blocks_and_a_main_loop() {
        assert_eq!(faults("new_f32", "REG:128 STACK:0 SHARED:0 LOCAL:0", &LOOP), "");
        let found = faults("new_f32", "REG:129 STACK:0 SHARED:0 LOCAL:0", &["EXIT"]);
        assert!(found.starts_with("runs 1 blocks at a time instead of 2"), "{found}");
        assert!(found.ends_with("has no loop with 128-bit accesses"), "{found}");
    }

    #[test]
    fn kernels_of_few_values_need_no_main_loop() {
        assert_eq!(faults("decide_step", USAGE, &["EXIT"]), "");
    }
}
