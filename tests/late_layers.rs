//! Layers that are added after `build`, and settings of their param groups: Apex's
//! test_add_param_group, and more.

use tch::{
    Device, Kind, Tensor,
    nn::{self, Module, ModuleT, OptimizerConfig, VarStore},
};
use tch_amp::{
    Amp, BuildError, O0, O1, O2, O3, OptLevel, SettingError, Static, StepError, bf16, f16,
    optim::{AdamW, Sgd},
};

mod common;
use common::{Net, values};

/// `x ↦ Σ x·w` over the weights there are.
#[derive(Debug, Default)]
struct Weights(Vec<Tensor>);

impl Module for Weights {
    fn forward(&self, xs: &Tensor) -> Tensor {
        self.0.iter().map(|w| (xs * w).sum(Kind::Float)).sum()
    }
}

fn one_weight() -> (VarStore, Weights) {
    let store = VarStore::new(Device::Cpu);
    let w = store.root().ones("first", &[2]);
    (store, Weights(vec![w]))
}

fn add(weights: &mut Weights, path: &nn::Path<'_>) {
    weights.0.push(path.var("late", &[2], nn::Init::Const(2.0)));
}

/// Rates 0.25 and 0.5, momentum 0.125, scale 4; with and without accumulation of two passes.
#[test]
fn an_added_group_trains_like_any_other() {
    fn check<L: OptLevel>(passes: u32) {
        let sgd = Sgd::new(0.25).momentum(0.125);
        let builder = Amp::<L>::builder().loss_scale(Static::new(4.0));
        let (mut model, mut opt) = builder.build(one_weight(), sgd).unwrap();
        let xs = Tensor::from_slice(&[0.25f32, 0.5]);
        let mut train = |model: &tch_amp::AmpModel<L, Weights>, rate: Option<f64>| {
            let mut step = opt.begin();
            for _ in 0..passes {
                step.backward(&model.forward(&xs)).unwrap();
            }
            assert!(step.unscale().unwrap().step().unwrap().is_applied());
            if let Some(rate) = rate {
                opt.update_settings(1, |group| group.lr = rate).unwrap();
            }
        };
        train(&model, None);
        model.add_layers(|weights, path| add(weights, &path.set_group(1))).unwrap();
        let low = model.inner().0[1].kind();
        assert_eq!(low, model.inner().0[0].kind());
        // The first step of the new group has the rate of the optimizer.
        train(&model, Some(0.5));
        train(&model, None);
        let mut reference = [[1.0, 1.0], [2.0, 2.0]];
        let mut momentum = [[0.0; 2]; 2];
        for rates in [[Some(0.25), None], [Some(0.25), Some(0.25)], [Some(0.25), Some(0.5)]] {
            for (group, rate) in rates.into_iter().enumerate() {
                let Some(rate) = rate else { continue };
                for (i, x) in [0.25, 0.5].into_iter().enumerate() {
                    momentum[group][i] = 0.125 * momentum[group][i] + x * passes as f32;
                    reference[group][i] -= rate * momentum[group][i];
                }
            }
        }
        for (weight, expected) in opt.master_params().map(|p| values(p.1)).zip(reference) {
            let tolerance = if low == Kind::BFloat16 { 1.6e-2 } else { 1e-3 };
            for (w, e) in weight.iter().zip(expected) {
                assert!((w - e).abs() <= tolerance * e.abs() + 1e-5, "{}: {w} {e}", L::NAME);
            }
        }
    }
    for passes in [1, 2] {
        check::<O0>(passes);
        check::<O1<f16>>(passes);
        check::<O2<f16>>(passes);
        check::<O2<bf16>>(passes);
        check::<O3<f16>>(passes);
    }
}

/// 1 + 2⁻²⁰ does not survive 16 bits, and the master has it.
#[test]
fn the_master_of_an_added_weight_has_all_its_bits() {
    let (mut model, mut opt) =
        Amp::<O2<bf16>>::builder().build(one_weight(), Sgd::new(0.5)).unwrap();
    let exact = 1.0 + 2f32.powi(-20);
    model
        .add_layers(|weights, path| {
            weights.0.push(path.var("late", &[1], nn::Init::Const(f64::from(exact))));
        })
        .unwrap();
    let loss = model.forward(&Tensor::zeros([1], (Kind::Float, Device::Cpu)));
    assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
    assert_eq!(values(opt.master_params().last().unwrap().1), [exact]);
    assert_eq!(values(&model.inner().0[1]), [1.0]);
}

#[test]
fn added_batch_norm_stays_in_fp32_and_comes_back_after_a_skip() {
    let (mut model, mut opt) =
        Amp::<O2<bf16>>::builder().build(Net::seeded(1), Sgd::new(0.1)).unwrap();
    let norm = model.add_layers(|_, path| nn::batch_norm1d(path / "late", 4, Default::default()));
    let norm = norm.unwrap();
    let kinds: Vec<_> = model.variables().into_iter().filter(|v| v.0.starts_with("late")).collect();
    assert_eq!(kinds.len(), 4);
    assert!(kinds.iter().all(|(_, tensor)| tensor.kind() == Kind::Float));
    let xs = Tensor::ones([4, Net::INPUTS], (Kind::Float, Device::Cpu));
    let mean = norm.running_mean.copy();
    let ys = model.run(|net| net.forward_t(&model.cast_input(&xs), true).apply_t(&norm, true));
    assert!(norm.running_mean.ne_tensor(&mean).any().int64_value(&[]) == 1);
    let loss = ys.sum(Kind::Float) * f64::NAN;
    assert!(!opt.backward_step(&loss).unwrap().outcome().is_applied());
    assert_eq!(values(&norm.running_mean), values(&mean));
}

#[test]
fn paths_in_fp32_hold_for_added_layers() {
    let builder = Amp::<O2<bf16>>::builder().keep_fp32(["first"]);
    let (mut model, _opt) = builder.build(one_weight(), Sgd::new(0.5)).unwrap();
    let (kept, cast) = model
        .add_layers(|_, path| {
            let kept = (path / "first" / "late").ones("w", &[1]);
            (kept, (path / "second").ones("w", &[1]))
        })
        .unwrap();
    assert_eq!((kept.kind(), cast.kind()), (Kind::Float, Kind::BFloat16));
}

#[test]
fn an_added_layer_goes_to_the_optimizer_of_its_path() {
    let optimizers = (Sgd::new(0.5).only(["first"]), Sgd::new(0.25).only(["second"]));
    let store = VarStore::new(Device::Cpu);
    let first = (store.root() / "first").ones("w", &[1]);
    let _second = (store.root() / "second").ones("w", &[1]);
    let (mut model, (_, mut second)) =
        Amp::<O2<bf16>>::builder().build((store, Weights(vec![first])), optimizers).unwrap();
    model.add_layers(|weights, path| weights.0.push((path / "second").ones("late", &[1]))).unwrap();
    let loss = model.forward(&Tensor::ones([1], (Kind::Float, Device::Cpu)));
    assert!(second.backward_step(&loss).unwrap().outcome().is_applied());
    let names: Vec<_> = second.master_params().map(|(name, _)| name).collect();
    assert_eq!(names, ["second.w", "second.late"]);
    assert_eq!(values(&model.inner().0[1]), [0.75]);
    let error = model.add_layers(|_, path| (path / "third").ones("w", &[1])).unwrap_err();
    let BuildError::WithoutOptimizer { name } = error else { panic!("{error}") };
    assert_eq!(name, "third.w");
}

#[test]
fn an_added_layer_that_is_not_fp32_is_refused_by_name() {
    let (mut model, mut opt) =
        Amp::<O2<bf16>>::builder().build(one_weight(), Sgd::new(0.5)).unwrap();
    let error = model
        .add_layers(|_, path| {
            let half = Tensor::ones([1], (Kind::Half, Device::Cpu));
            path.add("late", half, true)
        })
        .unwrap_err();
    let BuildError::NotFloat { name, kind } = error else { panic!("{error}") };
    assert_eq!((name.as_str(), kind), ("late", Kind::Half));
    let loss = model.forward(&Tensor::ones([2], (Kind::Float, Device::Cpu)));
    let error = opt.backward_step(&loss).unwrap_err();
    assert!(matches!(error, StepError::AddedLayer { .. }), "{error}");
    assert_eq!(values(&model.inner().0[0]), [1.0, 1.0]);
}

/// Behind the model's back, as `tch` allows: taken up by the next step all the same.
#[test]
fn a_variable_that_appears_in_the_var_store_is_trained() {
    let (store, module) = one_weight();
    let variables = std::sync::Arc::clone(&store.variables_);
    let (_model, mut opt) =
        Amp::<O1<bf16>>::builder().build((store, module), Sgd::new(0.5)).unwrap();
    let other = VarStore::new(Device::Cpu);
    let late = other.root().ones("late", &[1]);
    {
        let (mut variables, mut other) =
            (variables.lock().unwrap(), other.variables_.lock().unwrap());
        variables.named_variables.insert("late".to_owned(), late.shallow_clone());
        variables.trainable_variables.append(&mut other.trainable_variables);
    }
    assert!(opt.backward_step(&late.sum(Kind::Float)).unwrap().outcome().is_applied());
    assert_eq!(values(&late), [0.5]);
}

#[test]
fn a_tch_optimizer_takes_up_added_layers_too() {
    let (store, module) = one_weight();
    let sgd = nn::Sgd::default().build(&store, 0.5).unwrap();
    let (mut model, mut opt) = Amp::<O2<bf16>>::builder().build((store, module), sgd).unwrap();
    model.add_layers(add).unwrap();
    let loss = model.forward(&Tensor::ones([2], (Kind::Float, Device::Cpu)));
    assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
    assert_eq!(values(&model.inner().0[1]), [1.5, 1.5]);
    assert!(opt.master_params().all(|(_, master)| master.kind() == Kind::Float));
}

#[test]
fn layers_can_be_added_within_a_step() {
    let (mut model, mut opt) =
        Amp::<O2<bf16>>::builder().build(one_weight(), Sgd::new(0.5)).unwrap();
    let xs = Tensor::ones([2], (Kind::Float, Device::Cpu));
    let mut step = opt.begin();
    step.backward(&model.forward(&xs)).unwrap();
    model.add_layers(add).unwrap();
    step.backward(&model.forward(&xs)).unwrap();
    assert!(step.unscale().unwrap().step().unwrap().is_applied());
    let weights: Vec<_> = model.inner().0.iter().map(|w| values(w)[0]).collect();
    assert_eq!(weights, [0.0, 1.5]);
}

/// A frozen weight is left alone, and goes on from where it is.
#[test]
fn weights_freeze_and_thaw_between_steps() {
    fn check<L: OptLevel>() {
        let (mut model, mut opt) = Amp::<L>::builder()
            .loss_scale(Static::new(2.0))
            .build(one_weight(), Sgd::new(0.25))
            .unwrap();
        model.add_layers(add).unwrap();
        let xs = Tensor::ones([2], (Kind::Float, Device::Cpu));
        let mut train = |model: &tch_amp::AmpModel<L, Weights>| {
            assert!(opt.backward_step(&model.forward(&xs)).unwrap().outcome().is_applied());
        };
        let now = |model: &tch_amp::AmpModel<L, Weights>| {
            model.inner().0.iter().map(|w| values(w)[0]).collect::<Vec<_>>()
        };
        train(&model);
        assert_eq!(now(&model), [0.75, 1.75]);
        let frozen = model.inner().0[0].set_requires_grad(false);
        train(&model);
        assert_eq!(now(&model), [0.75, 1.5]);
        let _ = frozen.set_requires_grad(true);
        train(&model);
        assert_eq!(now(&model), [0.5, 1.25]);
    }
    check::<O0>();
    check::<O1<bf16>>();
    check::<O2<f16>>();
    check::<O2<bf16>>();
    check::<O3<bf16>>();
}

/// At O2 a weight that was frozen at `build` has no master; thawed, it gets one.
#[test]
fn a_thawed_weight_gets_a_master() {
    let (store, module) = one_weight();
    let late = store.root().ones("late", &[1]).set_requires_grad(false);
    let (_model, mut opt) =
        Amp::<O2<bf16>>::builder().build((store, module), Sgd::new(0.5)).unwrap();
    let master = |opt: &tch_amp::AmpOptimizer<_, _>| opt.master_params().last().unwrap().1.kind();
    assert_eq!(master(&opt), Kind::BFloat16);
    let late = late.set_requires_grad(true);
    assert!(opt.backward_step(&late.sum(Kind::Float)).unwrap().outcome().is_applied());
    assert_eq!((master(&opt), late.kind()), (Kind::Float, Kind::BFloat16));
    assert_eq!(values(&late), [0.5]);
}

#[test]
fn settings_of_a_group_are_read_and_changed() {
    let (store, module) = one_weight();
    let late = store.root().set_group(1).ones("late", &[1]);
    let sgd = Sgd::new(0.5).group(1, |group| group.weight_decay(0.5));
    let (_model, mut opt) = Amp::<O0>::builder().build((store, module), sgd).unwrap();
    assert_eq!((opt.settings(0).weight_decay, opt.settings(1).weight_decay), (0.0, 0.5));
    opt.update_settings(1, |group| (group.lr, group.weight_decay) = (0.25, 0.0)).unwrap();
    assert_eq!((opt.settings(0).lr, opt.settings(1).lr), (0.5, 0.25));
    assert!(opt.backward_step(&late.sum(Kind::Float)).unwrap().outcome().is_applied());
    assert_eq!(values(&late), [0.75]);
}

#[test]
fn settings_out_of_range_change_nothing() {
    let (_model, mut opt) = Amp::<O0>::builder().build(one_weight(), AdamW::new(0.5)).unwrap();
    let before = *opt.settings(0);
    let error = opt.update_settings(0, |group| group.beta1 = 1.0).unwrap_err();
    let expected = "AdamW: `beta1` is 1: it must be at least 0 and less than 1";
    assert_eq!(error.to_string(), expected);
    let error = opt.update_settings(3, |group| group.lr = 0.1).unwrap_err();
    assert_eq!(error, SettingError::UnknownGroup { group: 3 });
    assert_eq!(*opt.settings(0), before);
}

#[test]
fn settings_of_a_tch_optimizer_are_set() {
    let (store, module) = one_weight();
    let late = store.root().set_group(1).ones("late", &[1]);
    let sgd = nn::Sgd::default().build(&store, 0.5).unwrap();
    let (_model, mut opt) = Amp::<O0>::builder().build((store, module), sgd).unwrap();
    opt.set_weight_decay(0.25).unwrap();
    opt.set_weight_decay_group(1, 0.5).unwrap();
    opt.set_momentum(0.5).unwrap();
    let w = values(&late)[0];
    for _ in 0..2 {
        assert!(opt.backward_step(&late.sum(Kind::Float)).unwrap().outcome().is_applied());
    }
    // g = 1 + 0.5·1; w = 1 - 0.5·1.5; g = 1 + 0.5·0.25; b = 0.5·1.5 + 1.125; w = 0.25 - 0.5·1.875
    assert_eq!((w, values(&late)[0]), (1.0, -0.6875));
    assert!(opt.set_momentum(f64::NAN).is_err() && opt.set_weight_decay(-1.0).is_err());
    assert!(opt.set_weight_decay_group(2, 0.1).is_err());
}
