//! Files go to Python's safetensors package and come from it.
//!
//! `cargo xtask test` installs the package. Where it is not, these tests say that they are skipped.

mod common;

use std::{
    collections::BTreeMap,
    env,
    io::{self, Write},
    path::{Path, PathBuf},
    process::Command,
};

use common::{Net, batches, mse};
use half::bf16;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tch::{Kind, Tensor, nn::ModuleT};
use tch_amp::{Amp, Checkpoint, O2, optim::AdamW};
use tempfile::tempdir;

/// Runs `tests/data/peer.py`; `None`, after a line that says so, where Python or a package is absent.
fn peer(command: &str, path: &Path) -> Option<String> {
    let named = env::var_os("TCH_AMP_PYTHON");
    let new = || {
        let mut python = Command::new(named.clone().unwrap_or("python3".into()));
        if let Some(packages) = env::var_os("TCH_AMP_PYTHON_PACKAGES") {
            python.env("PYTHONPATH", packages);
        }
        python
    };
    let import = new().args(["-c", "import cbor2, numpy, safetensors.numpy"]).output();
    if named.is_none() && !import.is_ok_and(|output| output.status.success()) {
        let line = "skipped: there is no `python3` with safetensors, numpy and cbor2 (`cargo xtask \
                    test` installs them)\n";
        // Not captured, as what eprintln! prints would be.
        io::stderr().write_all(line.as_bytes()).unwrap();
        return None;
    }
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/peer.py");
    let output = new().arg(script).arg(command).arg(path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

/// A checkpoint as Python sees it.
#[derive(Debug, Deserialize)]
struct Seen {
    tensors: BTreeMap<String, Array>,
    metadata: BTreeMap<String, String>,
    value: String,
    sums: Vec<u32>,
    expected_sums: Vec<u32>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Array {
    dtype: String,
    shape: Vec<i64>,
    bytes: String,
}

impl Array {
    fn of(tensor: &Tensor) -> Self {
        assert_eq!(tensor.kind(), Kind::Float);
        let values = Vec::<f32>::try_from(tensor.flatten(0, -1)).unwrap();
        let bytes = values.into_iter().flat_map(f32::to_le_bytes);
        Self {
            dtype: "float32".to_owned(),
            shape: tensor.size(),
            bytes: bytes.map(|byte| format!("{byte:02x}")).collect(),
        }
    }
}

#[derive(Serialize)]
struct Position {
    epoch: u64,
    best: f64,
    note: Option<String>,
}

#[test]
fn python_reads_a_checkpoint() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let (model, mut opt) =
        Amp::<O2<bf16>>::builder().build(Net::seeded(1), AdamW::new(1e-3)).unwrap();
    for (xs, ys) in batches(3) {
        opt.backward_step(&mse(&model.forward_t(&xs, true), &ys)).unwrap();
    }
    let position = Position { epoch: u64::MAX, best: f64::INFINITY, note: Some("ä".to_owned()) };
    Checkpoint::new(&model, &mut opt).save(&path, &position).unwrap();
    let Some(json) = peer("read", &path) else { return };
    let mut seen: Seen = serde_json::from_str(&json).unwrap();

    // Masters in place of 16-bit weights, everything else as it is.
    let masters: BTreeMap<_, _> = opt.master_params().collect();
    assert!(masters.len() > 1);
    for (name, tensor) in model.variables() {
        let full = masters.get(name.as_str()).copied().unwrap_or(&tensor);
        assert_eq!(seen.tensors.remove(&name), Some(Array::of(full)), "{name}");
    }
    for name in ["first.weight", "norm.weight", "norm.bias", "last.weight", "last.bias"] {
        for state in ["exp_avg", "exp_avg_sq"] {
            let moment = seen.tensors.remove(&format!("optimizer/{state}/{name}")).unwrap();
            assert_eq!(moment.dtype, "float32");
        }
    }
    let rest: Vec<_> = seen.tensors.iter().map(|(name, array)| (&**name, &*array.dtype)).collect();
    let raw = ["generator/cpu", "tch-amp/checksums", "tch-amp/value"].map(|name| (name, "uint8"));
    assert_eq!(rest, raw);

    assert_eq!(seen.value, format!("{{'epoch': {}, 'best': inf, 'note': 'ä'}}", u64::MAX));
    assert_eq!(seen.sums, seen.expected_sums);
    assert_eq!(seen.metadata["format"], "pt");
    let about: Value = serde_json::from_str(&seen.metadata["tch-amp"]).unwrap();
    assert_eq!(about["version"], 1);
    assert_eq!(about["level"], "O2<bf16>");
    assert_eq!(about["masters"], json!(["first.weight", "last.bias", "last.weight"]));
    assert_eq!(about["optimizers"][0]["kind"], "AdamW");
    assert_eq!(about["optimizers"][0]["state"]["steps"]["last.bias"], 3);
}

#[test]
fn weights_written_by_python_are_loaded() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    if peer("write", &path).is_none() {
        return;
    }
    let (model, mut opt) =
        Amp::<O2<bf16>>::builder().build(Net::seeded(1), AdamW::new(1e-3)).unwrap();
    Checkpoint::new(&model, &mut opt).load_weights(&path).unwrap();
    let masters: BTreeMap<_, _> = opt.master_params().collect();
    for (name, tensor) in model.variables() {
        let count = tensor.numel() as i64;
        let expected = Tensor::arange(count, (Kind::Float, tensor.device())) / 8 - 4;
        let expected = if name == "norm.running_var" { expected.abs() } else { expected };
        let expected = expected.view_as(&tensor);
        let full = masters.get(name.as_str()).copied().unwrap_or(&tensor);
        assert!(full.equal(&expected), "{name}");
        assert!(tensor.equal(&expected.to_kind(tensor.kind())), "{name}");
    }
}
