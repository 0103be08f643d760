//! Checkpoints: what is in the file, and what loading does with it.

mod common;

use std::collections::BTreeMap;

use common::{Net, batches, mse, snapshot};
use half::bf16;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde::{Deserialize, Serialize};
use tch::{
    Device, Kind, Tensor,
    nn::{self, ModuleT, VarStore},
};
use tch_amp::{
    Amp, AmpModel, AmpOptimizer, Checkpoint, O0, O2,
    checkpoint::{LoadError, Progress, SaveError},
    optim::{AdamW, Sgd},
};
use tempfile::tempdir;

type Run = (AmpModel<O2<bf16>, Net>, AmpOptimizer<O2<bf16>, AdamW>);

fn build(seed: u64) -> Run {
    Amp::<O2<bf16>>::builder().build(Net::seeded(seed), AdamW::new(1e-3)).unwrap()
}

fn train((model, opt): &mut Run, steps: usize) {
    for (xs, ys) in batches(steps) {
        opt.backward_step(&mse(&model.forward_t(&xs, true), &ys)).unwrap();
    }
}

#[test]
fn loading_brings_back_every_bit() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let mut run = build(1);
    train(&mut run, 3);
    Checkpoint::new(&run.0, &mut run.1).save(&path, &7u32).unwrap();
    let mut other = build(2);
    let value: u32 = Checkpoint::new(&other.0, &mut other.1).load(&path).unwrap();
    assert_eq!(value, 7);
    assert_eq!(snapshot(other.0.variables()), snapshot(run.0.variables()));
    train(&mut run, 2);
    train(&mut other, 2);
    assert_eq!(snapshot(other.0.variables()), snapshot(run.0.variables()));
}

/// Decimal numbers in the file are read back to the last bit.
#[test]
fn settings_of_param_groups_come_back_exactly() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let make = |lr| {
        let opt = AdamW::new(lr).group(1, |group| group.weight_decay(lr).betas(lr, 0.99));
        let store = VarStore::new(Device::Cpu);
        let _ = store.root().var("w", &[1], nn::Init::Const(1.0));
        let _ = store.root().set_group(1).var("b", &[1], nn::Init::Const(1.0));
        Amp::<O0>::builder().build((store, ()), opt).unwrap()
    };
    for n in 1..200u32 {
        let lr = 1.0 / (f64::from(n) * 1.7 + f64::from(n).sqrt());
        let (model, mut opt) = make(lr);
        Checkpoint::new(&model, &mut opt).save(&path, &()).unwrap();
        let (other, mut other_opt) = make(0.5);
        Checkpoint::new(&other, &mut other_opt).load::<()>(&path).unwrap();
        assert_eq!(other_opt.settings(0), opt.settings(0));
        assert_eq!(other_opt.settings(1), opt.settings(1));
        assert_eq!((opt.settings(0).lr, opt.settings(1).weight_decay), (lr, lr));
    }
}

/// The same state makes the same file.
#[test]
fn saving_a_loaded_run_again_makes_the_same_file() {
    let folder = tempdir().unwrap();
    let (path, again) = (folder.path().join("a.safetensors"), folder.path().join("b.safetensors"));
    let mut run = build(1);
    train(&mut run, 3);
    Checkpoint::new(&run.0, &mut run.1).save(&path, &()).unwrap();
    let mut other = build(2);
    Checkpoint::new(&other.0, &mut other.1).load::<()>(&path).unwrap();
    Checkpoint::new(&other.0, &mut other.1).save(&again, &()).unwrap();
    // All but the generator, which other tests use at the same time, and the last checksums.
    let bytes = |path| std::fs::read(path).unwrap();
    let (a, b) = (bytes(&path), bytes(&again));
    let header = 8 + u64::from_le_bytes(a[..8].try_into().unwrap()) as usize;
    let weights: usize = run.1.state_bytes() + 2 * 32 * 4;
    assert!(a[..header + weights] == b[..header + weights]);
    assert_eq!(a.len(), b.len());
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Position {
    epoch: u32,
    best: f64,
    last: f32,
    seen: BTreeMap<u64, String>,
    note: Option<String>,
}

/// Infinities and NaN are kept: the best loss before the first epoch is infinite.
#[test]
fn a_value_of_any_type_comes_back() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let (model, mut opt) = build(1);
    let position = Position {
        epoch: 3,
        best: f64::INFINITY,
        last: 0.1,
        seen: [(u64::MAX, "ä".to_owned())].into(),
        note: None,
    };
    Checkpoint::new(&model, &mut opt).save(&path, &position).unwrap();
    let loaded: Position = Checkpoint::new(&model, &mut opt).load(&path).unwrap();
    assert_eq!(loaded, position);
    Checkpoint::new(&model, &mut opt).save(&path, &f64::NAN).unwrap();
    assert!(Checkpoint::new(&model, &mut opt).load::<f64>(&path).unwrap().is_nan());
}

#[test]
fn a_value_of_another_type_is_an_error_and_nothing_is_changed() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let (model, mut opt) = build(1);
    Checkpoint::new(&model, &mut opt).save(&path, &"text").unwrap();
    let (other, mut other_opt) = build(2);
    let before = snapshot(other.variables());
    let error = Checkpoint::new(&other, &mut other_opt).load::<Position>(&path).unwrap_err();
    assert!(matches!(error, LoadError::Value { .. }), "{error}");
    assert_eq!(snapshot(other.variables()), before);
}

#[test]
fn a_value_that_cannot_be_saved_is_an_error_and_the_old_file_stays() {
    struct Refuses;
    impl Serialize for Refuses {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("not today"))
        }
    }
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let (model, mut opt) = build(1);
    Checkpoint::new(&model, &mut opt).save(&path, &1).unwrap();
    let error = Checkpoint::new(&model, &mut opt).save(&path, &Refuses).unwrap_err();
    assert!(error.to_string().contains("not today"), "{error}");
    assert_eq!(Checkpoint::new(&model, &mut opt).load::<i32>(&path).unwrap(), 1);
}

/// All but the state of the optimizer is in the file.
#[test]
fn a_tch_optimizer_is_saved_without_its_state() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let make = |seed| {
        let (store, net) = Net::seeded(seed);
        let opt = tch::nn::OptimizerConfig::build(nn::Adam::default(), &store, 1e-2).unwrap();
        Amp::<O2<bf16>>::builder().build((store, net), opt).unwrap()
    };
    let (model, mut opt) = make(1);
    let (xs, ys) = &batches(1)[0];
    opt.backward_step(&mse(&model.forward_t(xs, true), ys)).unwrap();
    Checkpoint::new(&model, &mut opt).save_without_optimizer(&path, &3).unwrap();
    let (other, mut other_opt) = make(2);
    let checkpoint = Checkpoint::new(&other, &mut other_opt);
    assert_eq!(checkpoint.load_without_optimizer::<i32>(&path).unwrap(), 3);
    let masters = |opt: &AmpOptimizer<_, _>| -> Vec<_> {
        opt.master_params().map(|(name, tensor)| (name.to_owned(), common::bits(tensor))).collect()
    };
    assert_eq!(masters(&other_opt), masters(&opt));
    assert_eq!(snapshot(other.variables()), snapshot(model.variables()));

    let (model, mut opt) = build(1);
    let error = Checkpoint::new(&model, &mut opt).load::<i32>(&path).unwrap_err();
    assert!(matches!(error, LoadError::WithoutState { optimizer: 0, .. }), "{error}");
}

#[test]
fn progress_is_told_from_the_first_bytes_to_the_last() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let store = VarStore::new(Device::Cpu);
    let _ = store.root().var("w", &[300_000], nn::Init::Const(1.0));
    let (model, mut opt) = Amp::<O0>::builder().build((store, ()), Sgd::new(0.1)).unwrap();
    let mut told: Vec<Progress> = Vec::new();
    let checkpoint = Checkpoint::new(&model, &mut opt).on_progress(|progress| told.push(progress));
    checkpoint.save(&path, &()).unwrap();
    let size = std::fs::metadata(&path).unwrap().len();
    let rises = |told: &[Progress]| told.windows(2).all(|pair| pair[0].bytes < pair[1].bytes);
    assert!(rises(&told) && told.len() > 4);
    assert!(told.iter().all(|progress| progress.total == size));
    assert_eq!(told.last().unwrap().bytes, size);

    let mut told: Vec<Progress> = Vec::new();
    let checkpoint = Checkpoint::new(&model, &mut opt).on_progress(|progress| told.push(progress));
    checkpoint.load::<()>(&path).unwrap();
    assert!(rises(&told) && told.len() > 8);
    assert_eq!(told.last().unwrap().bytes, told.last().unwrap().total);
}

/// A checkpoint holds no more than training needs: at `O2` the FP32 weights are the masters.
#[test]
fn no_tensor_is_in_the_file_twice() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let mut run = build(1);
    train(&mut run, 1);
    Checkpoint::new(&run.0, &mut run.1).save(&path, &()).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let parameters = 32 * 16 + 2 * 32 + 4 * 32 + 4;
    let statistics = 2 * 32;
    let floats = 3 * parameters + statistics;
    let generator = Tensor::from_slice(&[0u8; 5056]).numel();
    let tensors = 3 * 5 + 2 + 2;
    let checksums = 4 * (tensors + 2);
    assert_eq!(bytes.len() - header, 4 * floats + generator + 1 + checksums);
}

#[test]
fn a_type_that_safetensors_does_not_have_is_an_error_that_names_the_variable() {
    let folder = tempdir().unwrap();
    let (store, weights) = common::weights(&[1.0]);
    let complex = Tensor::zeros([1], (Kind::ComplexFloat, Device::Cpu));
    store.variables_.lock().unwrap().named_variables.insert("phase".to_owned(), complex);
    let model = Amp::<O0>::builder().build_model((store, weights)).unwrap();
    let path = folder.path().join("w.safetensors");
    let error = Checkpoint::new(&model, ()).save(&path, &()).unwrap_err();
    assert!(matches!(&error, SaveError::Kind { name, .. } if name == "phase"), "{error}");
}

#[test]
fn a_variable_with_the_name_of_a_state_tensor_is_an_error() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let store = VarStore::new(Device::Cpu);
    let w = store.root().var("w", &[1], nn::Init::Const(1.0));
    let _ = store.root().var("optimizer/momentum_buffer/w", &[1], nn::Init::Const(1.0));
    let (model, mut opt) = Amp::<O0>::builder().build((store, ()), Sgd::new(0.1)).unwrap();
    opt.backward_step(&w.sum(Kind::Float)).unwrap();
    let error = Checkpoint::new(&model, &mut opt).save(&path, &()).unwrap_err();
    assert!(matches!(&error, SaveError::Name { name } if name.ends_with("/w")), "{error}");
    assert!(!path.exists());
}

/// safetensors does not say that a boolean is 0 or 1; libtorch's is.
#[test]
fn any_byte_but_zero_is_true() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let mask = TensorView::new(Dtype::BOOL, vec![3], &[2, 0, 255]).unwrap();
    safetensors::serialize_to_file([("mask", mask)], None, &path).unwrap();
    let store = VarStore::new(Device::Cpu);
    let mask = Tensor::from_slice(&[false, true, false]);
    store.variables_.lock().unwrap().named_variables.insert("mask".to_owned(), mask);
    let model = Amp::<O0>::builder().build_model((store, ())).unwrap();
    Checkpoint::new(&model, ()).load_weights(&path).unwrap();
    let mask = &model.variables()["mask"];
    assert_eq!(common::bits(mask), common::bits(&Tensor::from_slice(&[true, false, true])));
}

/// Programs that map a file into memory read tensors from where they are.
#[test]
fn tensors_are_aligned() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let (store, net) = Net::seeded(1);
    for bytes in 1..9 {
        let name = format!("a{bytes}");
        let buffer = Tensor::from_slice(&vec![0u8; bytes]);
        store.variables_.lock().unwrap().named_variables.insert(name.clone(), buffer);
        let count = Tensor::from_slice(&[0i64]);
        store.variables_.lock().unwrap().named_variables.insert(name + "count", count);
    }
    let model = Amp::<O0>::builder().build_model((store, net)).unwrap();
    Checkpoint::new(&model, ()).save(&path, &()).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let (header, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(header % 8, 0);
    for (name, info) in metadata.tensors() {
        assert_eq!(info.data_offsets.0 % (info.dtype.bitsize() / 8), 0, "{name}");
    }
}
