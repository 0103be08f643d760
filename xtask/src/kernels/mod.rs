//! The gate for the CUDA kernels: compiles them for every kind of GPU, and looks at what came out.

mod gate;
mod gpu;
#[allow(dead_code, reason = "the library also looks for it, and asks for its version")]
#[path = "../../../src/multi_tensor/cuda/nvrtc.rs"]
mod nvrtc;
mod ptx;
mod sass;
mod table;
mod tools;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};

use crate::workspace::Workspace;

use self::gate::Figures;
use self::gpu::GPUS;
use self::nvrtc::Nvrtc;
use self::table::Table;
pub(crate) use self::tools::Tools;

/// What is done with the assembly that the library carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ptx {
    /// It is compared with what the sources compile to.
    Compare,
    /// It is written.
    Write,
}

/// The kernels' sources: names and texts.
#[derive(Debug)]
struct Sources {
    /// The files to compile.
    files: Vec<(String, String)>,
    /// The files that they include.
    headers: Vec<(String, String)>,
}

impl Sources {
    /// Reads all that is in a folder.
    fn read(folder: &Path) -> Result<Self> {
        let with_extension = |extension: &str| -> Result<Vec<_>> {
            let mut files = Vec::new();
            for entry in fs::read_dir(folder)? {
                let path = entry?.path();
                if path.extension().is_some_and(|found| found == extension) {
                    let name = path.file_name().unwrap_or_default().display().to_string();
                    files.push((name, fs::read_to_string(&path)?));
                }
            }
            files.sort();
            Ok(files)
        };
        Ok(Self { files: with_extension("cu")?, headers: with_extension("cuh")? })
    }

    /// Compiles one of the files.
    fn compile(&self, nvrtc: &Nvrtc, (name, text): (&str, &str), gpu: &str) -> Result<Vec<u8>> {
        let headers: Vec<_> =
            self.headers.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        nvrtc
            .compile((name, text), &headers, &nvrtc::options(gpu))
            .map_err(|error| anyhow!("{name} does not compile for {gpu}: {error}"))
    }
}

/// Prints the figures of every kernel, and fails where one breaks a promise or the shipped assembly is stale.
pub(crate) fn run(workspace: &Workspace, tools: &Tools, ptx: Ptx) -> Result<()> {
    let folder = workspace.root().join("kernels");
    let sources = Sources::read(&folder)
        .with_context(|| format!("cannot read the kernels in {}", folder.display()))?;
    let cubins = workspace.cubins();
    fs::create_dir_all(&cubins).with_context(|| format!("cannot create {}", cubins.display()))?;
    let nvrtc = tools.nvrtc()?;
    let mut faults = Vec::new();
    for (name, text) in &sources.files {
        let (kernels, found) = measure(&sources, &nvrtc, tools, (name, text), &cubins)?;
        println!("{}\n", Table { file: name, kernels: &kernels });
        faults.extend(found);

        let file = folder.join("ptx").join(name).with_extension("ptx");
        let assembly = sources.compile(&nvrtc, (name, text), ptx::ARCHITECTURE)?;
        let assembly =
            ptx::shipped(std::str::from_utf8(&assembly).context("NVRTC's PTX is no text")?);
        match ptx {
            Ptx::Write => ptx::write(&file, &assembly)?,
            Ptx::Compare if ptx::is_stale(&file, &assembly) => faults.push(format!(
                "{} is not what {name} compiles to: run `cargo xtask kernels --write-ptx`",
                file.display()
            )),
            Ptx::Compare => {}
        }
    }
    if !faults.is_empty() {
        bail!("{} of the kernels' promises are broken:\n  {}", faults.len(), faults.join("\n  "));
    }
    Ok(())
}

/// The figures of a file's kernels by name and architecture, and what they break.
type Measured = (BTreeMap<String, BTreeMap<&'static str, Figures>>, Vec<String>);

/// Compiles one file for every kind of GPU and looks at its kernels.
fn measure(
    sources: &Sources,
    nvrtc: &Nvrtc,
    tools: &Tools,
    (name, text): (&str, &str),
    cubins: &Path,
) -> Result<Measured> {
    let (mut kernels, mut faults): Measured = Default::default();
    for gpu in &GPUS {
        let path = cubins.join(format!("{name}-{}.cubin", gpu.name));
        let cubin = sources.compile(nvrtc, (name, text), gpu.name)?;
        fs::write(&path, cubin).with_context(|| format!("cannot write {}", path.display()))?;
        let found = sass::parse(&tools.dump(&path)?)?;
        if found.is_empty() {
            bail!("{name} has no kernels");
        }
        for kernel in found {
            let (figures, broken) = gate::judge(&kernel, gpu);
            faults.extend(
                broken.iter().map(|fault| format!("{} on {} {fault}", kernel.name, gpu.name)),
            );
            kernels.entry(kernel.name).or_default().insert(gpu.name, figures);
        }
    }
    Ok((kernels, faults))
}
