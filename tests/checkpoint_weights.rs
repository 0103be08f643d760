//! Weights from and for other programs, and what of them does not fit.

mod common;

use std::{collections::HashMap, path::Path};

use common::{Net, batches, bits, mse, noise, relative_error, snapshot, values};
use half::{bf16, f16};
use safetensors::SafeTensors;
use tch::{
    Device, Kind, Tensor,
    nn::{ModuleT, VarStore},
};
use tch_amp::{
    Amp, AmpModel, AmpOptimizer, Checkpoint, O0, O1, O2,
    checkpoint::{LoadError, SaveError, TensorProblem},
    config::DType,
    optim::Sgd,
};
use tempfile::tempdir;

type Run = (AmpModel<O2<bf16>, Net>, AmpOptimizer<O2<bf16>, Sgd>);

fn build(seed: u64) -> Run {
    Amp::<O2<bf16>>::builder().build(Net::seeded(seed), Sgd::new(0.1)).unwrap()
}

fn load((model, opt): &mut Run, path: &Path) -> Result<(), LoadError> {
    Checkpoint::new(&*model, opt).load_weights(path)
}

/// The masters are those of the store, the weights their rounded values.
fn assert_loaded((model, opt): &Run, store: &VarStore) {
    let (expected, variables) = (store.variables(), model.variables());
    for (name, master) in opt.master_params() {
        assert_eq!(bits(master), bits(&expected[name]), "{name}");
    }
    for (name, variable) in variables {
        let expected = expected[&name].to_kind(variable.kind());
        assert_eq!(bits(&variable), bits(&expected), "{name}");
    }
}

#[test]
fn files_that_tch_writes_are_read() {
    let folder = tempdir().unwrap();
    let (store, _net) = Net::seeded(1);
    let _no_grad = tch::no_grad_guard();
    store.variables()["norm.running_mean"].shallow_clone().copy_(&noise(5, &[32]));
    for file in ["w.safetensors", "w.ot"] {
        let path = folder.path().join(file);
        store.save(&path).unwrap();
        let mut run = build(2);
        load(&mut run, &path).unwrap();
        assert_loaded(&run, &store);
    }
    let path = folder.path().join("w.npz");
    let tensors: Vec<_> = store.variables().into_iter().collect();
    Tensor::write_npz(&tensors, &path).unwrap();
    let mut run = build(2);
    load(&mut run, &path).unwrap();
    assert_loaded(&run, &store);
}

/// A file that PyTorch wrote, in which some tensors are FP16, BF16 or FP64.
#[test]
fn a_state_dict_of_pytorch_is_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/state_dict.pt");
    let mut run = build(1);
    load(&mut run, &path).unwrap();
    let variables = run.0.variables();
    let masters: HashMap<_, _> = run.1.master_params().collect();
    for (name, precision) in [
        ("first.weight", 1e-6),
        ("norm.weight", 1.0 / 2048.0),
        ("norm.bias", 1.0 / 256.0),
        ("norm.running_mean", 1e-6),
        ("norm.running_var", 1e-6),
        ("last.weight", 1e-6),
        ("last.bias", 1e-6),
    ] {
        let tensor = masters.get(name).map_or(&variables[name], |master| *master);
        let numbers = Tensor::arange(tensor.numel() as i64, (Kind::Float, Device::Cpu));
        let mut expected: Tensor = (numbers * 12.9898 + 1).sin();
        if name == "norm.running_var" {
            expected = expected.abs();
        }
        let error = relative_error(&values(tensor), &values(&expected));
        assert!(error < precision, "{name}: {error}");
    }
}

#[test]
fn an_export_is_a_file_that_tch_reads() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let (model, mut opt) = build(1);
    for (xs, ys) in batches(2) {
        opt.backward_step(&mse(&model.forward_t(&xs, true), &ys)).unwrap();
    }
    Checkpoint::new(&model, &mut opt).export_weights(&path, DType::F32).unwrap();
    let (mut store, _net) = Net::seeded(2);
    store.load(&path).unwrap();
    assert_loaded(&(model, opt), &store);
}

/// `VarStore::load` changes the model's type to the file's, and stops half-way.
#[test]
fn all_that_does_not_fit_is_named_and_nothing_is_changed() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let tensor = |shape: &[i64], kind| Tensor::ones(shape, (kind, Device::Cpu));
    let tensors = [
        ("first.weight", tensor(&[32, 16], Kind::Float)),
        ("norm.weight", tensor(&[31], Kind::Float)),
        ("norm.bias", tensor(&[32], Kind::Int64)),
        ("norm.running_mean", tensor(&[32, 1], Kind::Int)),
        ("norm.running_var", tensor(&[32], Kind::Double)),
        ("last.bias", tensor(&[4], Kind::Half)),
        ("head.weight", tensor(&[1], Kind::Float)),
        ("optimizer/rate", tensor(&[1], Kind::Float)),
    ];
    Tensor::write_safetensors(&tensors, &path).unwrap();
    let mut run = build(1);
    let before = snapshot(run.0.variables());
    let error = load(&mut run, &path).unwrap_err();
    let text = error.to_string();
    let LoadError::Tensors { problems, .. } = error else { panic!("{text}") };
    let (missing, unexpected) = ("last.weight".to_owned(), "head.weight".to_owned());
    assert!(problems.contains(&TensorProblem::Missing { name: missing }), "{text}");
    assert!(problems.contains(&TensorProblem::Unexpected { name: unexpected }), "{text}");
    assert_eq!(problems.len(), 7, "{text}");
    let lines = [
        "`last.weight` is missing in the file",
        "`head.weight` is in the file only",
        "`optimizer/rate` is in the file only",
        "`norm.weight` has shape [31] in the file, [32] here",
        "`norm.bias` is I64 in the file, and must be F32",
        "`norm.running_mean` has shape [32, 1] in the file, [32] here",
        "`norm.running_mean` is I32 in the file, and must be F32",
    ];
    for line in lines {
        assert!(text.contains(&format!("\n  {line}")), "{line}:\n{text}");
    }
    assert_eq!(snapshot(run.0.variables()), before);

    let checkpoint = Checkpoint::new(&run.0, &mut run.1);
    assert!(checkpoint.load_common_weights(&path).is_err(), "shapes must fit all the same");
    assert_eq!(snapshot(run.0.variables()), before);
}

#[test]
fn common_weights_are_loaded_and_the_others_named() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let tensors = [
        ("last.bias", Tensor::from_slice(&[1f64, 2.0, 3.0, 4.0])),
        ("head.weight", Tensor::ones([1], (Kind::Float, Device::Cpu))),
    ];
    Tensor::write_safetensors(&tensors, &path).unwrap();
    let (model, mut opt) = build(1);
    let before = model.variables()["first.weight"].copy();
    let missing = Checkpoint::new(&model, &mut opt).load_common_weights(&path).unwrap();
    let expected = [
        "first.weight",
        "norm.weight",
        "norm.bias",
        "last.weight",
        "norm.running_mean",
        "norm.running_var",
    ];
    assert_eq!(missing, expected);
    assert_eq!(values(&model.variables()["last.bias"]), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(bits(&model.variables()["first.weight"]), bits(&before));
}

#[test]
fn a_file_that_is_none_is_an_error_that_names_it() {
    let folder = tempdir().unwrap();
    for file in ["w.ot", "w.pt", "w.npz", "w.safetensors"] {
        let path = folder.path().join(file);
        let error = load(&mut build(1), &path).unwrap_err();
        assert!(error.to_string().contains(file), "{error}");
        std::fs::write(&path, "nothing of the kind").unwrap();
        let error = load(&mut build(1), &path).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(file) && !text.contains('\n'), "{text}");
    }
}

/// A whole checkpoint is a file of weights too.
#[test]
fn the_weights_of_a_checkpoint_can_be_loaded_alone() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let (model, mut opt) = Amp::<O0>::builder().build(Net::seeded(1), Sgd::new(0.1)).unwrap();
    Checkpoint::new(&model, &mut opt).save(&path, &()).unwrap();
    let mut run = build(2);
    load(&mut run, &path).unwrap();
    assert_loaded(&run, &Net::seeded(1).0);
    let inference = Amp::<O1<bf16>>::builder().build_model(Net::seeded(3)).unwrap();
    Checkpoint::new(&inference, ()).load_weights(&path).unwrap();
    assert_eq!(snapshot(inference.variables()), snapshot(model.variables()));

    let mut bytes = std::fs::read(&path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[8 + header + 100] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert!(matches!(load(&mut run, &path).unwrap_err(), LoadError::Damaged { .. }));
}

/// Tensors of any layout and type: what is not FP32 and row-major takes a detour.
#[test]
fn buffers_and_views_of_all_kinds_come_back() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let make = |seed: u64| {
        let store = VarStore::new(Device::Cpu);
        let root = store.root();
        let transposed = root.var_copy("w", &noise(seed, &[3, 5]));
        transposed.shallow_clone().set_data(&noise(seed, &[5, 3]).tr());
        let channels = noise(seed, &[2, 3, 4, 5]);
        let conv = root.var_copy("conv", &channels);
        conv.shallow_clone()
            .set_data(&channels.permute([0, 2, 3, 1]).contiguous().permute([0, 3, 1, 2]));
        let _ = root.var_copy("empty", &Tensor::zeros([0, 7], (Kind::Float, Device::Cpu)));
        let _ = root.var_copy("scalar", &noise(seed, &[1]).squeeze());
        let seed = seed as i64;
        let mut buffers = store.variables_.lock().unwrap();
        for (name, buffer) in [
            ("count", Tensor::from_slice(&[seed, i64::MAX])),
            ("mask", Tensor::from_slice(&[seed == 1, true, false])),
            ("bytes", Tensor::from_slice(&[seed as u8, 255])),
        ] {
            buffers.named_variables.insert(name.to_owned(), buffer);
        }
        drop(buffers);
        let builder = Amp::<O2<f16>>::builder().keep_fp32(["w"]);
        builder.build((store, ()), Sgd::new(0.1)).unwrap()
    };
    let ((model, mut opt), (other, mut other_opt)) = (make(1), make(2));
    let layout = |model: &AmpModel<_, ()>| {
        let all = model.variables();
        (all["w"].stride(), all["conv"].stride(), all["mask"].kind(), all["conv"].kind())
    };
    assert_eq!(layout(&model), (vec![1, 3], vec![60, 1, 15, 3], Kind::Bool, Kind::Half));
    Checkpoint::new(&model, &mut opt).save(&path, &()).unwrap();
    Checkpoint::new(&other, &mut other_opt).load::<()>(&path).unwrap();
    assert_eq!(snapshot(other.variables()), snapshot(model.variables()));
    assert_eq!(layout(&other), layout(&model));

    let (other, mut other_opt) = make(3);
    Checkpoint::new(&other, &mut other_opt).load_weights(&path).unwrap();
    assert_eq!(snapshot(other.variables()), snapshot(model.variables()));
    assert_eq!(layout(&other), layout(&model));
}

/// A tied weight is in the file once; files of tch's hold it under each name.
#[test]
fn a_tied_weight_goes_by_any_of_its_names() {
    let folder = tempdir().unwrap();
    let (path, of_tch) = (folder.path().join("run.safetensors"), folder.path().join("w.ot"));
    let make = |value: f32| {
        let store = VarStore::new(Device::Cpu);
        let tied = store.root().var_copy("embedding", &Tensor::from_slice(&[value]));
        store.variables_.lock().unwrap().named_variables.insert("head".to_owned(), tied);
        store
    };
    make(3.0).save(&of_tch).unwrap();
    let build = |value| Amp::<O2<bf16>>::builder().build((make(value), ()), Sgd::new(0.1)).unwrap();
    let (model, mut opt) = build(1.0);
    Checkpoint::new(&model, &mut opt).load_weights(&of_tch).unwrap();
    assert_eq!(values(&model.variables()["head"]), [3.0]);
    Checkpoint::new(&model, &mut opt).save(&path, &()).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    assert!(file.tensor("embedding").is_ok() && file.tensor("head").is_err());

    let only_head = folder.path().join("head.safetensors");
    Tensor::write_safetensors(&[("head", Tensor::from_slice(&[5f32]))], &only_head).unwrap();
    Checkpoint::new(&model, &mut opt).load_weights(&only_head).unwrap();
    assert_eq!(values(&model.variables()["embedding"]), [5.0]);
}

#[test]
fn a_weight_beyond_the_range_of_f16_is_not_exported_as_infinite() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let (store, weights) = common::weights(&[65_504.0, -65_520.0]);
    let model = Amp::<O0>::builder().build_model((store, weights)).unwrap();
    let error = Checkpoint::new(&model, ()).export_weights(&path, DType::F16).unwrap_err();
    assert!(matches!(&error, SaveError::OutOfRange { name, .. } if name == "w"), "{error}");
    assert!(!path.exists());
    Checkpoint::new(&model, ()).export_weights(&path, DType::Bf16).unwrap();
    // What is infinite already stays so.
    let (store, weights) = common::weights(&[f32::INFINITY, f32::NAN]);
    let model = Amp::<O0>::builder().build_model((store, weights)).unwrap();
    Checkpoint::new(&model, ()).export_weights(&path, DType::F16).unwrap();
}
