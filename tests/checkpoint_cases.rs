//! How a run goes on after something was loaded: cases in which other mixed-precision tools go
//! wrong.

mod common;

use std::path::Path;

use common::{Net, batches, bits, mse, snapshot, values, weights};
use half::{bf16, f16};
use safetensors::SafeTensors;
use tch::{
    Device, Kind, Tensor,
    nn::{self, Module, ModuleT, VarStore},
};
use tch_amp::{
    Amp, AmpModel, AmpOptimizer, Checkpoint, Dynamic, O1, O2, Static,
    checkpoint::LoadError,
    optim::{Adam, AdamW, Sgd},
};
use tempfile::tempdir;

type Run<H, M, O> = (AmpModel<O2<H>, M>, AmpOptimizer<O2<H>, O>);

/// The values of an FP32 tensor in a file.
fn stored(path: &Path, name: &str) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let (numbers, rest) = file.tensor(name).unwrap().data().as_chunks();
    assert!(rest.is_empty());
    numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// Moments that FP16 takes for zero come back in every bit (NVIDIA/apex#480): without the second
/// one, the next update would be a hundred times as large.
#[test]
fn tiny_moments_come_back() {
    const RATE: f64 = 1e-3;
    let folder = tempdir().unwrap();
    let (path, again) = (folder.path().join("a.safetensors"), folder.path().join("b.safetensors"));
    let build = |weight| {
        let builder = Amp::<O2<f16>>::builder().loss_scale(Static::new(1024.0));
        builder.build(weights(&[weight]), Adam::new(RATE)).unwrap()
    };
    let step = |(model, opt): &mut Run<f16, common::Weights, Adam>, gradient: f32| {
        let loss = model.forward(&Tensor::from_slice(&[gradient])).sum(Kind::Float);
        assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
    };
    let master = |(_, opt): &Run<f16, common::Weights, Adam>| {
        values(opt.master_params().next().unwrap().1)[0]
    };

    let mut straight = build(1.0);
    let (first, second) = (1.0 / 1024.0, 1.0 / 131_072.0);
    step(&mut straight, first as f32);
    Checkpoint::new(&straight.0, &mut straight.1).save(&path, &()).unwrap();
    let (mean, square) = (0.1 * first, 0.001 * first * first);
    let moments = ["exp_avg", "exp_avg_sq"].map(|s| stored(&path, &format!("optimizer/{s}/w"))[0]);
    assert!((f64::from(moments[0]) / mean - 1.0).abs() < 1e-6, "{moments:?}");
    assert!((f64::from(moments[1]) / square - 1.0).abs() < 1e-6, "{moments:?}");
    assert_eq!(f16::from_f32(moments[1]), f16::ZERO);

    let mut resumed = build(2.0);
    Checkpoint::new(&resumed.0, &mut resumed.1).load::<()>(&path).unwrap();
    Checkpoint::new(&resumed.0, &mut resumed.1).save(&again, &()).unwrap();
    for state in ["exp_avg", "exp_avg_sq"] {
        let name = format!("optimizer/{state}/w");
        assert_eq!(stored(&again, &name)[0].to_bits(), stored(&path, &name)[0].to_bits());
    }
    let before = master(&resumed);
    step(&mut straight, second as f32);
    step(&mut resumed, second as f32);
    assert_eq!(master(&resumed).to_bits(), master(&straight).to_bits());
    let mean = (0.9 * mean + 0.1 * second) / (1.0 - 0.9 * 0.9);
    let square = (0.999 * square + 0.001 * second * second) / (1.0 - 0.999 * 0.999);
    let expected = RATE * mean / (square.sqrt() + 1e-8);
    let update = f64::from(before) - f64::from(master(&resumed));
    assert!((update / expected - 1.0).abs() < 1e-3, "{update}, not {expected}");
}

/// One step before the scale grows (facebookresearch/metaseq#3 and others: only the scale was saved),
/// and not made anew by what comes first (facebookresearch/fairseq2#1346).
#[test]
fn the_scale_grows_when_it_would_have() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let build = || {
        let scale = Dynamic::new().init_scale(32_768.0).growth_interval(2000);
        Amp::<O2<bf16>>::builder().loss_scale(scale).build(weights(&[1.0]), Sgd::new(0.1)).unwrap()
    };
    let state = |opt: &AmpOptimizer<O2<bf16>, Sgd>| {
        let scaler = opt.scalers().remove(0);
        (scaler.scale(), scaler.unskipped())
    };
    let xs = Tensor::from_slice(&[0.0f32]);
    let (model, mut opt) = build();
    for _ in 0..1999 {
        opt.backward_step(&model.forward(&xs).sum(Kind::Float)).unwrap();
    }
    Checkpoint::new(&model, &mut opt).save(&path, &()).unwrap();

    let (model, mut opt) = build();
    Checkpoint::new(&model, &mut opt).load::<()>(&path).unwrap();
    assert_eq!(state(&opt), (32_768.0, 1999));
    opt.set_lr(0.01).unwrap();
    let loss = model.forward(&xs).sum(Kind::Float);
    assert_eq!(state(&opt), (32_768.0, 1999));
    opt.backward_step(&loss).unwrap();
    assert_eq!(state(&opt), (65_536.0, 0));
}

/// The first step must not bring back the weights from before (NVIDIA/apex#180 and others).
#[test]
fn loaded_weights_are_those_that_are_trained() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    Tensor::write_safetensors(&[("w", Tensor::from_slice(&[3f32]))], &path).unwrap();
    for steps_before in [0, 3] {
        let builder = Amp::<O2<f16>>::builder().loss_scale(Static::new(1024.0));
        let (model, mut opt) = builder.build(weights(&[1.0]), Sgd::new(1.0)).unwrap();
        let step = |opt: &mut AmpOptimizer<_, _>| {
            let loss = model.forward(&Tensor::from_slice(&[0.5f32])).sum(Kind::Float);
            opt.backward_step(&loss).unwrap();
        };
        for _ in 0..steps_before {
            step(&mut opt);
        }
        Checkpoint::new(&model, &mut opt).load_weights(&path).unwrap();
        step(&mut opt);
        let master = values(opt.master_params().next().unwrap().1);
        assert_eq!((master, values(&model.variables()["w"])), (vec![2.5], vec![2.5]));
    }
}

/// One weight `weight`, without bias.
fn linear(weight: f64) -> (VarStore, nn::Linear) {
    let store = VarStore::new(Device::Cpu);
    let ws_init = nn::Init::Const(weight);
    let config = nn::LinearConfig { ws_init, bias: false, ..Default::default() };
    let linear = nn::linear(store.root(), 1, 1, config);
    (store, linear)
}

/// Cast copies of the old weights are not used again (NVIDIA/apex#796), not even within one region.
#[test]
fn cached_casts_of_old_weights_are_let_go() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    Tensor::write_safetensors(&[("weight", Tensor::from_slice(&[2f32]).view([1, 1]))], &path)
        .unwrap();
    for long_region in [false, true] {
        let (model, mut opt) =
            Amp::<O1<bf16>>::builder().build(linear(1.0), Sgd::new(0.1)).unwrap();
        let _no_grad = tch::no_grad_guard();
        let _region = long_region.then(|| model.autocast());
        let xs = Tensor::from_slice(&[1f32]).view([1, 1]);
        let output = || values(&model.forward(&xs));
        assert_eq!(output(), [1.0]);
        Checkpoint::new(&model, &mut opt).load_weights(&path).unwrap();
        assert_eq!(output(), [2.0]);
    }
}

/// A skipped step gives batch norm back the statistics from before its forward pass: after a load,
/// those of the file.
#[test]
fn a_skipped_step_does_not_bring_back_statistics_from_before_the_load() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let build = || Amp::<O2<bf16>>::builder().build(Net::seeded(1), Sgd::new(0.1)).unwrap();
    let (model, mut opt) = build();
    let (xs, ys) = &batches(1)[0];
    opt.backward_step(&mse(&model.forward_t(xs, true), ys)).unwrap();
    Checkpoint::new(&model, &mut opt).save(&path, &()).unwrap();
    let statistics = |model: &AmpModel<_, Net>| {
        let all = model.variables();
        ["norm.running_mean", "norm.running_var"].map(|name| bits(&all[name]))
    };
    let saved = statistics(&model);

    for whole in [true, false] {
        let (model, mut opt) = build();
        // Its statistics are kept aside until a step ends.
        let _ = model.forward_t(xs, true);
        let checkpoint = Checkpoint::new(&model, &mut opt);
        match whole {
            true => checkpoint.load(&path).unwrap(),
            false => checkpoint.load_weights(&path).unwrap(),
        }
        assert_eq!(statistics(&model), saved);
        let loss = mse(&model.forward_t(xs, true), ys) * f64::INFINITY;
        assert!(!opt.backward_step(&loss).unwrap().outcome().is_applied());
        assert_eq!(statistics(&model), saved);
    }
}

/// Layers that were added after `build` are added in the new run too; then all of it goes on.
#[test]
fn layers_that_were_added_are_part_of_the_checkpoint() {
    #[derive(Debug)]
    struct Sum(Vec<Tensor>);
    impl Module for Sum {
        fn forward(&self, xs: &Tensor) -> Tensor {
            self.0.iter().map(|w| (xs * w).square().sum(Kind::Float)).sum()
        }
    }
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let net = || {
        let store = VarStore::new(Device::Cpu);
        let first = store.root().ones("first", &[2]);
        (store, Sum(vec![first]))
    };
    let build = || Amp::<O2<bf16>>::builder().build(net(), AdamW::new(0.25)).unwrap();
    let add = |model: &mut AmpModel<O2<bf16>, Sum>| {
        model.add_layers(|sum, path| sum.0.push(path.ones("late", &[2]))).unwrap();
    };
    let train = |(model, opt): &mut Run<bf16, Sum, AdamW>| {
        let xs = Tensor::from_slice(&[0.25f32, -0.75]);
        opt.backward_step(&model.forward(&xs)).unwrap();
    };
    let mut straight = build();
    train(&mut straight);
    add(&mut straight.0);
    train(&mut straight);
    Checkpoint::new(&straight.0, &mut straight.1).save(&path, &()).unwrap();

    let mut resumed = build();
    let error = Checkpoint::new(&resumed.0, &mut resumed.1).load::<()>(&path).unwrap_err();
    let LoadError::Tensors { .. } = &error else { panic!("{error}") };
    for line in ["`late` is in the file only", "`optimizer/exp_avg/late` is in the file only"] {
        assert!(error.to_string().contains(line), "{error}");
    }
    add(&mut resumed.0);
    Checkpoint::new(&resumed.0, &mut resumed.1).load::<()>(&path).unwrap();
    let (store, sum) = net();
    let variables = store.variables_.clone();
    let inference = Amp::<O2<bf16>>::builder().build_model((store, sum)).unwrap();
    let late = Tensor::ones([2], (Kind::Float, Device::Cpu));
    variables.lock().unwrap().named_variables.insert("late".to_owned(), late);
    Checkpoint::new(&inference, ()).load_weights(&path).unwrap();
    assert_eq!(snapshot(inference.variables()), snapshot(straight.0.variables()));
    for run in [&mut straight, &mut resumed] {
        train(run);
    }
    let masters = |opt: &AmpOptimizer<_, _>| {
        opt.master_params().map(|(name, m)| (name.to_owned(), bits(m))).collect::<Vec<_>>()
    };
    assert_eq!(masters(&resumed.1), masters(&straight.1));
    assert_eq!(snapshot(resumed.0.variables()), snapshot(straight.0.variables()));
}

/// What is frozen is not in the file. A weight that was unfrozen has a master from then on, and gets
/// it back in a run that begins with it frozen.
#[test]
fn a_weight_that_was_unfrozen_goes_on_from_its_master() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let build = || {
        let (store, net) = Net::seeded(1);
        let _ = store.variables()["first.weight"].set_requires_grad(false);
        Amp::<O2<bf16>>::builder().build((store, net), AdamW::new(1e-3)).unwrap()
    };
    let train = |(model, opt): &mut Run<bf16, Net, AdamW>| {
        for (xs, ys) in batches(2) {
            opt.backward_step(&mse(&model.forward_t(&xs, true), &ys)).unwrap();
        }
    };
    let master = |(_, opt): &Run<bf16, Net, AdamW>| {
        opt.master_params().find(|(name, _)| *name == "first.weight").unwrap().1.copy()
    };
    let mut straight = build();
    train(&mut straight);
    straight.0.unfreeze();
    train(&mut straight);
    Checkpoint::new(&straight.0, &mut straight.1).save(&path, &()).unwrap();

    let mut resumed = build();
    Checkpoint::new(&resumed.0, &mut resumed.1).load::<()>(&path).unwrap();
    assert_eq!(master(&resumed).kind(), Kind::Float);
    assert_eq!(bits(&master(&resumed)), bits(&master(&straight)));
    assert!(
        master(&resumed)
            .ne_tensor(&master(&resumed).to_kind(Kind::BFloat16))
            .any()
            .int64_value(&[])
            == 1
    );
    resumed.0.unfreeze();
    for run in [&mut straight, &mut resumed] {
        train(run);
    }
    assert_eq!(bits(&master(&resumed)), bits(&master(&straight)));
    assert_eq!(snapshot(resumed.0.variables()), snapshot(straight.0.variables()));
}
