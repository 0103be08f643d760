//! The figures of a file's kernels, for people.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use super::gate::Figures;
use super::gpu::{GPUS, THREADS, WARP};

/// The figures of a file's kernels: by kernel, and by architecture.
#[derive(Debug)]
pub(super) struct Table<'a> {
    /// The file.
    pub(super) file: &'a str,
    /// The figures.
    pub(super) kernels: &'a BTreeMap<String, BTreeMap<&'static str, Figures>>,
}

impl Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.kernels.keys().map(String::len).fold(self.file.len(), usize::max);
        write!(f, "{:width$}", self.file)?;
        for gpu in &GPUS {
            write!(f, " │ {:^26}", gpu.name)?;
        }
        write!(f, "\n{:width$}", "")?;
        for _ in &GPUS {
            f.write_str(" │ regs blocks warps instr/el")?;
        }
        for (name, figures) in self.kernels {
            write!(f, "\n{name:width$}")?;
            for gpu in &GPUS {
                match figures.get(gpu.name) {
                    Some(Figures { registers, blocks, instructions }) => {
                        let warps = blocks * THREADS / WARP;
                        write!(f, " │ {registers:4} {blocks:6} {warps:5} ")?;
                        match instructions {
                            Some(instructions) => write!(f, "{instructions:8.1}")?,
                            None => write!(f, "{:>8}", "-")?,
                        }
                    }
                    None => write!(f, " │ {:26}", "")?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_a_kernel() {
        let figures = Figures { registers: 80, blocks: 3, instructions: Some(56.625) };
        let none = Figures { registers: 31, blocks: 8, instructions: None };
        let kernels = BTreeMap::from([
            ("adam_f32".to_owned(), BTreeMap::from([("sm_90", figures)])),
            ("decide".to_owned(), BTreeMap::from([("sm_75", none)])),
        ]);
        let text = Table { file: "adam.cu", kernels: &kernels }.to_string();
        let rows: Vec<Vec<_>> =
            text.lines().map(|line| line.split('│').map(str::trim).collect()).collect();
        assert_eq!(rows[0], ["adam.cu", "sm_75", "sm_80", "sm_90", "sm_100"]);
        assert_eq!(rows[2], ["adam_f32", "", "", "80      3    24     56.6", ""]);
        assert_eq!(rows[3], ["decide", "31      8    64        -", "", "", ""]);
    }
}
