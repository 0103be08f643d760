//! Compiled kernels as `cuobjdump -res-usage -sass` prints them.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

/// What a kernel takes of a multiprocessor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Resources {
    /// Registers of a thread.
    pub(super) registers: u32,
    /// Bytes of a thread's stack, which lies in local memory.
    pub(super) stack: u32,
    /// Bytes of a block's shared memory.
    pub(super) shared: u32,
    /// Bytes of a thread's local memory.
    pub(super) local: u32,
}

/// A compiled kernel.
#[derive(Debug)]
pub(super) struct Kernel {
    /// Its name.
    pub(super) name: String,
    /// What it takes.
    pub(super) resources: Resources,
    /// Its instructions, by address.
    pub(super) code: Vec<Instruction>,
}

/// One instruction.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    /// Where it is.
    address: u64,
    /// The operation and its modifiers, such as `LDG.E.128`.
    pub(super) operation: String,
    /// Where a branch goes.
    target: Option<u64>,
}

/// Reads the kernels of one cubin.
pub(super) fn parse(text: &str) -> Result<Vec<Kernel>> {
    let mut resources = BTreeMap::new();
    let mut kernels: Vec<Kernel> = Vec::new();
    let mut lines = text.lines().map(str::trim);
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix("Function : ") {
            let resources = *resources
                .get(name)
                .with_context(|| format!("cuobjdump tells no resources of {name}"))?;
            kernels.push(Kernel { name: name.to_owned(), resources, code: Vec::new() });
        } else if let Some(name) = line.strip_prefix("Function ") {
            let usage = lines.next().unwrap_or_default();
            let used = used(usage).with_context(|| format!("resources of {name}: `{usage}`"))?;
            resources.insert(name.trim_end_matches(':').to_owned(), used);
        } else if let (Some(kernel), Some(instruction)) = (kernels.last_mut(), instruction(line)) {
            kernel.code.push(instruction);
        }
    }
    Ok(kernels)
}

/// Reads a line such as `REG:32 STACK:0 SHARED:36 LOCAL:0 CONSTANT[0]:32608`.
fn used(line: &str) -> Option<Resources> {
    let of = |name: &str| {
        let mut values = line.split(' ').filter_map(|word| word.strip_prefix(name));
        values.next()?.strip_prefix(':')?.parse().ok()
    };
    Some(Resources {
        registers: of("REG")?,
        stack: of("STACK")?,
        shared: of("SHARED")?,
        local: of("LOCAL")?,
    })
}

/// Reads a line such as `/*0050*/  @P0 BRA 0x90 ;  /* 0x... */`.
fn instruction(line: &str) -> Option<Instruction> {
    let (address, rest) = line.strip_prefix("/*")?.split_once("*/")?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let (text, _) = rest.split_once(';')?;
    let mut words = text.split_whitespace().skip_while(|word| word.starts_with('@'));
    let operation = words.next()?.to_owned();
    let target = match operation.split('.').next() {
        Some("BRA") => words.last().and_then(|word| word.strip_prefix("0x")),
        _ => None,
    };
    let target = target.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    Some(Instruction { address, operation, target })
}

impl Instruction {
    /// Tells whether the operation is one of these, with whatever modifiers.
    pub(super) fn is(&self, names: &[&str]) -> bool {
        self.operation.split('.').next().is_some_and(|name| names.contains(&name))
    }

    /// Tells whether it reads or writes global memory, or may do so.
    pub(super) fn is_global_access(&self) -> bool {
        self.is(&["LDG", "STG", "LD", "ST"])
    }

    /// Tells whether it moves 16 bytes or more at a time.
    pub(super) fn is_wide(&self) -> bool {
        self.operation.split('.').any(|modifier| matches!(modifier, "128" | "256"))
    }
}

impl Kernel {
    /// Returns the main loop: of the innermost loops with wide global accesses, the one with most of them.
    pub(super) fn main_loop(&self) -> Option<&[Instruction]> {
        let mut ends = BTreeMap::new();
        for instruction in &self.code {
            if let Some(start) = instruction.target.filter(|start| *start < instruction.address) {
                ends.insert(start, instruction.address);
            }
        }
        let wide = |body: &[Instruction]| {
            body.iter().filter(|one| one.is_global_access() && one.is_wide()).count()
        };
        let loops: Vec<_> = ends
            .into_iter()
            .map(|(start, end)| (start, end, self.between(start, end)))
            .filter(|(.., body)| wide(body) > 0)
            .collect();
        let holds_another = |start, end| {
            loops.iter().any(|&(s, e, _)| (s, e) != (start, end) && start <= s && e <= end)
        };
        let innermost = loops.iter().filter(|(start, end, _)| !holds_another(*start, *end));
        innermost.map(|(.., body)| *body).max_by_key(|body| wide(body))
    }

    /// Returns the instructions from one address to another.
    fn between(&self, start: u64, end: u64) -> &[Instruction] {
        let first = self.code.partition_point(|one| one.address < start);
        let last = self.code.partition_point(|one| one.address <= end);
        &self.code[first..last]
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the dump of a kernel with these resources and instructions.
    pub(in super::super) fn dump(name: &str, usage: &str, code: &[&str]) -> String {
        let lines = code.iter().enumerate().map(|(n, text)| {
            let address = 16 * n;
            format!(
                "        /*{address:04x}*/                   {text} ;           /* 0x00000a00ff017b82 */\n\
                 {:90}/* 0x000ff00000000800 */\n",
                ""
            )
        });
        let code: String = lines.collect();
        format!(
            "Resource usage:\n Common:\n  GLOBAL:38 CONSTANT[4]:152\n Function {name}:\n  {usage} \
             CONSTANT[0]:32608 TEXTURE:0\n\n\tcode for sm_90\n\t\tFunction : {name}\n\
             \t.headerflags\t@\"EF_CUDA_SM90\"\n{code}"
        )
    }

    #[test]
    fn resources_and_instructions_are_read() {
        let code = ["LDC R1, c[0x0][0x28]", "@!P0 BRA 0x0", "EXIT"];
        let text = dump("adam_f32", "REG:80 STACK:8 SHARED:1060 LOCAL:4", &code);
        let kernels = parse(&text).unwrap();
        assert_eq!(kernels.len(), 1);
        assert_eq!(kernels[0].name, "adam_f32");
        let resources = Resources { registers: 80, stack: 8, shared: 1060, local: 4 };
        assert_eq!(kernels[0].resources, resources);
        let branch = Instruction { address: 16, operation: "BRA".to_owned(), target: Some(0) };
        assert_eq!(kernels[0].code.len(), 3);
        assert_eq!(kernels[0].code[1], branch);
    }

    #[test]
    fn a_kernel_without_resources_is_an_error() {
        let text = dump("adam_f32", "REG:80 SHARED:1060 LOCAL:4", &["EXIT"]);
        assert!(parse(&text).unwrap_err().to_string().contains("adam_f32"));
        assert!(parse("Function : lost\n").unwrap_err().to_string().contains("lost"));
    }

    #[test]
    fn the_main_loop_is_the_innermost_with_most_wide_accesses() {
        let code = [
            "MOV R0, RZ",                           // 00
            "LDG.E.64 R2, desc[UR4][R2.64]",        // 10: the outer loop
            "LDG.E.EF.128 R4, desc[UR4][R2.64]",    // 20: the main loop
            "LDG.E.EF.128 R8, desc[UR4][R2.64]",    // 30
            "STG.E.EF.128 desc[UR4][R2.64], R4",    // 40
            "@P0 BRA 0x20",                         // 50
            "LDG.E.EF.128 R4, desc[UR4][R2.64+16]", // 60: what is left of an unrolled loop
            "@P1 BRA 0x60",                         // 70
            "LDG.E.U16 R4, desc[UR4][R2.64]",       // 80: a loop without wide accesses
            "@P2 BRA 0x80",                         // 90
            "@P3 BRA 0x10",                         // a0
            "BRA 0xb0",                             // b0
        ];
        let usage = "REG:80 STACK:0 SHARED:0 LOCAL:0";
        let kernels = parse(&dump("check_f16", usage, &code)).unwrap();
        let operations: Vec<_> =
            kernels[0].main_loop().unwrap().iter().map(|one| one.operation.as_str()).collect();
        assert_eq!(operations, ["LDG.E.EF.128", "LDG.E.EF.128", "STG.E.EF.128", "BRA"]);
    }

    #[test]
    fn a_kernel_may_have_no_main_loop() {
        let usage = "REG:80 STACK:0 SHARED:0 LOCAL:0";
        let code = ["LDG.E.128 R4, desc[UR4][R2.64]", "LDS R2, [R3]", "@P0 BRA 0x10", "BRA 0x40"];
        assert_eq!(parse(&dump("decide", usage, &code)).unwrap()[0].main_loop(), None);
    }
}
