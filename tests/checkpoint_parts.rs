//! The models and optimizers of a checkpoint: which belong together, and which a file is for.

mod common;

use common::{Net, batches, mse, snapshot};
use half::bf16;
use tch::{
    Device,
    nn::{self, ModuleT, VarStore},
};
use tch_amp::{
    Amp, AmpModel, Checkpoint, O0, O1, O2,
    checkpoint::{LoadError, PartsError, SaveError},
    joint,
    optim::{Adam, AdamW, Sgd},
};
use tempfile::tempdir;
use typenum::{U0, U2};

fn linear(seed: u64) -> (VarStore, nn::Linear) {
    let store = VarStore::new(Device::Cpu);
    let linear = nn::linear(store.root(), 3, 2, Default::default());
    common::fill(&store, seed);
    (store, linear)
}

#[test]
fn several_models_and_optimizers_are_one_file() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let make = |seed| {
        let builder = Amp::<O1<bf16>>::builder().num_losses::<U2>();
        let models = (linear(seed), [linear(seed + 1), linear(seed + 2)]);
        builder.build(models, (Adam::new(1e-2), Sgd::new(0.1))).unwrap()
    };
    let ((a, rest), (mut opt_a, mut opt_b)) = make(1);
    let xs = common::noise(3, &[4, 3]);
    let loss =
        a.forward(&xs).sum(None) + rest[0].forward(&xs).sum(None) + rest[1].forward(&xs).sum(None);
    let (mut step_a, mut step_b) = (opt_a.begin(), opt_b.begin());
    joint((&mut step_a, &mut step_b)).backward_of::<U0>(&loss).unwrap();
    for outcome in [step_a.unscale().unwrap().step(), step_b.unscale().unwrap().step()] {
        assert!(outcome.unwrap().is_applied());
    }
    // In any order and arrangement.
    Checkpoint::new((&rest[1], &a, &rest[0]), [(&mut opt_b)].into_iter().collect::<Vec<_>>())
        .save(&path, &())
        .expect_err("an optimizer is missing");
    Checkpoint::new((&rest, &a), (&mut opt_b, &mut opt_a)).save(&path, &()).unwrap();
    let (others, mut opts) = make(5);
    Checkpoint::new(&others, &mut opts).load::<()>(&path).unwrap();
    assert_eq!(snapshot(others.0.variables()), snapshot(a.variables()));
    for n in [0, 1] {
        assert_eq!(snapshot(others.1[n].variables()), snapshot(rest[n].variables()));
    }
}

#[test]
fn parts_that_are_missing_or_do_not_belong_together_are_named() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let make = || {
        let models = (linear(1), linear(2));
        Amp::<O0>::builder().build(models, (Adam::new(1e-2), Sgd::new(0.1))).unwrap()
    };
    let ((a, b), (mut opt_a, mut opt_b)) = make();
    let ((c, _), _) = make();
    let parts = |error| match error {
        SaveError::Parts(error) => error,
        other => panic!("{other}"),
    };
    let error = parts(Checkpoint::new(&a, (&mut opt_a, &mut opt_b)).save(&path, &()).unwrap_err());
    assert!(matches!(error, PartsError::MissingModel { model: 1 }), "{error}");
    let error = parts(Checkpoint::new((&a, &b), &mut opt_a).save(&path, &()).unwrap_err());
    assert!(matches!(error, PartsError::MissingOptimizer { model: 1, optimizer: 1 }), "{error}");
    let error = parts(
        Checkpoint::new((&a, &b), ())
            .export_weights(&path, tch_amp::config::DType::F32)
            .unwrap_err(),
    );
    assert!(matches!(error, PartsError::MissingOptimizer { model: 0, optimizer: 0 }), "{error}");
    let opts = (&mut opt_a, &mut opt_b);
    let error = parts(Checkpoint::new((&a, &b, &b), opts).save(&path, &()).unwrap_err());
    assert!(matches!(error, PartsError::Twice), "{error}");
    let opts = (&mut opt_a, &mut opt_b);
    let error = parts(Checkpoint::new((&a, &b, &c), opts).save(&path, &()).unwrap_err());
    assert!(matches!(error, PartsError::OtherBuild), "{error}");
    let opts = (&mut opt_a, &mut opt_b);
    let error =
        parts(Checkpoint::new(Vec::<&AmpModel<O0, ()>>::new(), opts).save(&path, &()).unwrap_err());
    assert!(matches!(error, PartsError::NoModels), "{error}");
    let ((d, e), (mut opt_d, _)) = make();
    let opts = (&mut opt_d, &mut opt_b);
    let error = parts(Checkpoint::new((&d, &e), opts).save(&path, &()).unwrap_err());
    assert!(matches!(error, PartsError::OtherBuild), "{error}");
    assert!(!path.exists());
}

#[test]
fn other_optimizers_or_groups_are_errors_that_name_them() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let builder = || Amp::<O2<bf16>>::builder();
    let (model, mut opt) = builder().build(Net::seeded(1), AdamW::new(1e-3)).unwrap();
    let (xs, ys) = &batches(1)[0];
    opt.backward_step(&mse(&model.forward_t(xs, true), ys)).unwrap();
    Checkpoint::new(&model, &mut opt).save(&path, &()).unwrap();
    let (model, mut opt) = builder().build(Net::seeded(1), Adam::new(1e-3)).unwrap();
    let error = Checkpoint::new(&model, &mut opt).load::<()>(&path).unwrap_err();
    assert!(error.to_string().starts_with("optimizer 0 is Adam, in `"), "{error}");
    Checkpoint::new(&model, &mut opt).load_without_optimizer::<()>(&path).unwrap();

    let opts = (AdamW::new(1e-3).only(["first", "norm"]), AdamW::new(1e-3).only(["last"]));
    let (model, (mut a, mut b)) = builder().build(Net::seeded(1), opts).unwrap();
    let error = Checkpoint::new(&model, (&mut a, &mut b)).load::<()>(&path).unwrap_err();
    assert!(matches!(error, LoadError::OptimizerCount { saved: 1, here: 2, .. }), "{error}");

    let store = VarStore::new(Device::Cpu);
    let net = Net::new(&store.root().set_group(1));
    let (model, mut opt) = builder().build((store, net), AdamW::new(1e-3)).unwrap();
    let error = Checkpoint::new(&model, &mut opt).load::<()>(&path).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("parameter `first.weight` is in group 1 of optimizer 0, in `"),
        "{text}"
    );
    assert!(text.ends_with("` it is in group 0 of optimizer 0"), "{text}");
}
