//! Memory that saving and loading take besides the tensors, each in a process of its own.

use std::{env, fs, path::Path, process::Command};

use clap::ValueEnum;
use tch_amp::{Checkpoint, config::DType};

use crate::{Outcome, net};

/// In the order in which they find their files.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Case {
    TchSave,
    TchLoad,
    Export,
    LoadWeights,
    ExportFrom16Bits,
    LoadWeightsTo16Bits,
    Save,
    Load,
}

impl Case {
    fn shown(self) -> &'static str {
        match self {
            Self::TchSave => "`VarStore::save`",
            Self::TchLoad => "`VarStore::load`",
            Self::Export => "`export_weights`",
            Self::LoadWeights => "`load_weights`",
            Self::ExportFrom16Bits => "`export_weights` in `f32` at `O3<bf16>`",
            Self::LoadWeightsTo16Bits => "`load_weights` of `f32` at `O3<bf16>`",
            Self::Save => "`save`",
            Self::Load => "`load`",
        }
    }
}

/// Has each case measured in a fresh process and prints a table.
pub fn table(folder: &Path, layers: u32) -> Outcome {
    let folder = tempfile::tempdir_in(folder)?;
    println!(
        "\npeak of memory above that before (the largest tensor: {}):\n",
        mb(net::largest_tensor())
    );
    println!("| what | growth |");
    println!("| --- | --- |");
    for case in Case::value_variants() {
        let name = case.to_possible_value().ok_or("a case has no name")?;
        let output = Command::new(env::current_exe()?)
            .args(["--memory-of", name.get_name(), "--layers", &layers.to_string(), "--folder"])
            .arg(folder.path())
            .output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into());
        }
        println!("| {} | {} |", case.shown(), String::from_utf8_lossy(&output.stdout).trim());
    }
    Ok(())
}

/// Prints by how much the peak of memory grows.
pub fn measure(case: Case, layers: u32, folder: &Path) -> Outcome {
    let path = folder.join("file.safetensors");
    let growth = match case {
        Case::TchSave => {
            let (store, _net) = net::store(layers);
            growth(|| Ok(store.save(&path)?))
        }
        Case::TchLoad => {
            let (mut store, _net) = net::store(layers);
            growth(|| Ok(store.load(&path)?))
        }
        Case::Export => {
            let model = net::model(layers)?;
            growth(|| Ok(Checkpoint::new(&model, ()).export_weights(&path, DType::F32)?))
        }
        Case::LoadWeights => {
            let model = net::model(layers)?;
            growth(|| Ok(Checkpoint::new(&model, ()).load_weights(&path)?))
        }
        Case::ExportFrom16Bits => {
            let model = net::model_in_16_bits(layers)?;
            growth(|| Ok(Checkpoint::new(&model, ()).export_weights(&path, DType::F32)?))
        }
        Case::LoadWeightsTo16Bits => {
            let model = net::model_in_16_bits(layers)?;
            growth(|| Ok(Checkpoint::new(&model, ()).load_weights(&path)?))
        }
        Case::Save => {
            let (model, mut opt) = net::trained(layers)?;
            growth(|| Ok(Checkpoint::new(&model, &mut opt).save(&path, &())?))
        }
        Case::Load => {
            let (model, mut opt) = net::trained(layers)?;
            growth(|| Ok(Checkpoint::new(&model, &mut opt).load::<()>(&path)?))
        }
    };
    println!("{}", growth?.map_or("not known here".to_owned(), mb));
    Ok(())
}

/// By how much the peak is above the memory in use before; `None` where it cannot be set back.
fn growth(work: impl FnOnce() -> Outcome) -> Outcome<Option<u64>> {
    // 5 sets the peak back to what is in use.
    let set_back = fs::write("/proc/self/clear_refs", "5").is_ok();
    let before = status("VmHWM:");
    work()?;
    let after = status("VmHWM:");
    Ok(before.zip(after).filter(|_| set_back).map(|(before, after)| after - before))
}

/// Bytes of a line of /proc/self/status, which gives kB.
fn status(key: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kb| kb * 1024)
}

fn mb(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
