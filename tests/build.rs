//! What `build` casts, recognises, and refuses without changing anything.

mod common;

use common::{Net, bits, values};
use half::{bf16, f16};
use tch::{
    Device, Kind, Tensor,
    nn::{self, ModuleT, OptimizerConfig, VarStore},
};
use tch_amp::{
    Amp, BuildError, Dynamic, O0, O1, O2, O3, OptLevel, Static,
    optim::{AdamW, Sgd},
};

fn kinds(store: &VarStore) -> Vec<(String, Kind)> {
    let mut kinds: Vec<_> = store.variables().into_iter().map(|(n, t)| (n, t.kind())).collect();
    kinds.sort_by(|a, b| a.0.cmp(&b.0));
    kinds
}

/// The kind of each variable after a build at `O2<bf16>`.
fn kinds_at_o2(make: impl FnOnce(&nn::Path)) -> Vec<(String, Kind)> {
    let store = VarStore::new(Device::Cpu);
    make(&store.root());
    let model = Amp::<O2<bf16>>::builder().build_model((store, ())).unwrap();
    let mut kinds: Vec<_> = model.variables().into_iter().map(|(n, t)| (n, t.kind())).collect();
    kinds.sort_by(|a, b| a.0.cmp(&b.0));
    kinds
}

fn fp32(kinds: &[(String, Kind)]) -> Vec<&str> {
    kinds.iter().filter(|(_, k)| *k == Kind::Float).map(|(n, _)| n.as_str()).collect()
}

#[test]
fn batch_norm_of_every_dimension_stays_fp32() {
    let kinds = kinds_at_o2(|p| {
        let _ = nn::batch_norm1d(p / "one", 2, Default::default());
        let _ = nn::batch_norm2d(p / "two", 2, Default::default());
        let _ = nn::batch_norm3d(p / "three", 2, Default::default());
    });
    assert!(kinds.iter().all(|(_, kind)| *kind == Kind::Float), "{kinds:?}");
    assert_eq!(kinds.len(), 12);
}

/// NVIDIA/apex#133: without affine parameters it is batch norm all the same.
#[test]
fn batch_norm_without_affine_parameters_is_recognised() {
    let config = nn::BatchNormConfig { affine: false, ..Default::default() };
    let kinds = kinds_at_o2(|p| {
        let _ = nn::batch_norm1d(p / "bn", 1, config);
    });
    assert_eq!(fp32(&kinds), ["bn.running_mean", "bn.running_var"]);
}

/// Its statistics keep more digits than fp16 has: 12000.9 would be stored as 12000.
#[test]
fn batch_norm_statistics_keep_fp32_precision() {
    let config = nn::BatchNormConfig { affine: false, ..Default::default() };
    let store = VarStore::new(Device::Cpu);
    let net = nn::batch_norm1d(store.root() / "bn", 1, config);
    let model = Amp::<O2>::builder().build_model((store, net)).unwrap();
    let xs = Tensor::from_slice(&[0f32, 600.0, 0.0, 600.0]).reshape([4, 1]);
    let ys = model.forward_t(&xs, true);
    // mean 300, unbiased variance 120000, momentum 0.1: 0.9·0 + 30 and 0.9·1 + 12000
    assert_eq!(values(&model.variables()["bn.running_mean"]), [30.0]);
    assert!((values(&model.variables()["bn.running_var"])[0] - 12_000.9).abs() < 0.01);
    assert!(values(&ys).iter().all(|y| (y.abs() - 1.0).abs() < 2e-3));
}

/// `(root / "bn1").half()` of `tch` casts `bn10` too; names here end at the dot.
#[test]
fn neighbours_of_batch_norm_are_cast() {
    let kinds = kinds_at_o2(|p| {
        let _ = nn::batch_norm1d(p / "bn1", 2, Default::default());
        let _ = nn::linear(p / "bn10", 2, 2, Default::default());
        let _ = nn::layer_norm(p / "norm", vec![2], Default::default());
        let _ = nn::group_norm(p / "group", 1, 2, Default::default());
    });
    assert_eq!(fp32(&kinds), ["bn1.bias", "bn1.running_mean", "bn1.running_var", "bn1.weight"]);
}

/// Two layers on one path: `tch` renames the second's variables to `weight__2` and so on.
#[test]
fn batch_norm_that_shares_its_path_is_recognised() {
    let kinds = kinds_at_o2(|p| {
        let _ = nn::linear(p / "x", 3, 2, Default::default());
        let _ = nn::batch_norm1d(p / "x", 2, Default::default());
        let _ = nn::batch_norm1d(p / "x", 2, Default::default());
    });
    let cast: Vec<_> = kinds.iter().filter(|(_, k)| *k == Kind::BFloat16).collect();
    assert_eq!(fp32(&kinds).len(), 8 + usize::from(fp32(&kinds).contains(&"x.bias")), "{kinds:?}");
    assert!(cast.iter().any(|(name, _)| name == "x.weight"), "{kinds:?}");
}

#[test]
fn batch_norm_is_cast_where_it_is_not_kept() {
    let store = VarStore::new(Device::Cpu);
    let norm = nn::batch_norm1d(store.root() / "bn", 2, Default::default());
    let builder = Amp::<O2<bf16>>::builder().keep_batchnorm_fp32(false);
    let model = builder.build_model((store, norm)).unwrap();
    assert!(model.variables().values().all(|t| t.kind() == Kind::BFloat16));
    let store = VarStore::new(Device::Cpu);
    let norm = nn::batch_norm1d(store.root() / "bn", 2, Default::default());
    let builder = Amp::<O3<bf16>>::builder().keep_batchnorm_fp32(true);
    let model = builder.build_model((store, norm)).unwrap();
    assert!(model.variables().values().all(|t| t.kind() == Kind::Float));
}

/// NVIDIA/apex#330: only batch norm stays FP32; a net with all kinds of norms runs.
#[test]
fn net_with_all_norms_trains_at_o2() {
    let store = VarStore::new(Device::Cpu);
    let p = store.root();
    let net = nn::seq_t()
        .add(nn::linear(&p / "in", 4, 4, Default::default()))
        .add(nn::batch_norm1d(&p / "bn", 4, Default::default()))
        .add(nn::layer_norm(&p / "ln", vec![4], Default::default()))
        .add(nn::group_norm(&p / "gn", 2, 4, Default::default()))
        .add(nn::linear(&p / "out", 4, 1, Default::default()));
    let (model, mut opt) = Amp::<O2<bf16>>::builder().build((store, net), Sgd::new(0.1)).unwrap();
    let xs = common::noise(3, &[8, 4]);
    let ys = model.forward_t(&xs, true);
    assert_eq!(ys.kind(), Kind::Float);
    let loss = ys.square().mean(Kind::Float);
    assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
}

/// Token ids, masks and lengths arrive as they are; FP32 and FP64 features are cast.
#[test]
fn only_floating_inputs_are_cast() {
    let model = Amp::<O2>::builder().build_model((VarStore::new(Device::Cpu), ())).unwrap();
    let ids = Tensor::from_slice(&[0i64, 2049, 70_000]);
    let mask = Tensor::from_slice(&[true, false]);
    let lengths = Tensor::from_slice(&[3i32, 5]);
    for input in [&ids, &mask, &lengths] {
        let cast = model.cast_input(input);
        assert_eq!((cast.kind(), bits(&cast)), (input.kind(), bits(input)));
    }
    for input in [Tensor::from_slice(&[1f32]), Tensor::from_slice(&[1f64])] {
        assert_eq!(model.cast_input(&input).kind(), Kind::Half);
    }
}

#[test]
fn outputs_have_the_chosen_type() {
    fn output<L: OptLevel, T: tch_amp::option::OutputType>() -> Kind {
        let builder = Amp::<L>::builder().cast_model_outputs::<T>();
        let model = builder.build_model(Net::seeded(1)).unwrap();
        let xs = Tensor::ones([2, Net::INPUTS], (Kind::Float, Device::Cpu));
        tch::no_grad(|| model.forward_t(&xs, false)).kind()
    }
    assert_eq!(output::<O0, f16>(), Kind::Half);
    assert_eq!(output::<O1<bf16>, bf16>(), Kind::BFloat16);
    assert_eq!(output::<O2<bf16>, f16>(), Kind::Half);
    assert_eq!(output::<O3<bf16>, f32>(), Kind::Float);
}

#[test]
fn integer_outputs_are_left_alone() {
    let store = VarStore::new(Device::Cpu);
    let net = nn::func(|xs| xs.argmax(1, false));
    let model = Amp::<O2<bf16>>::builder().build_model((store, net)).unwrap();
    let xs = Tensor::from_slice(&[1f32, 3.0, 2.0]).reshape([1, 3]);
    assert_eq!(model.forward(&xs).kind(), Kind::Int64);
}

#[test]
fn casting_keeps_handles_and_integer_variables() {
    let store = VarStore::new(Device::Cpu);
    let linear = nn::linear(store.root() / "fc", 2, 2, Default::default());
    let counter = Tensor::zeros([1], (Kind::Int64, Device::Cpu));
    let name = "counter".to_owned();
    store.variables_.lock().unwrap().named_variables.insert(name, counter.shallow_clone());
    let weight = linear.ws.shallow_clone();
    let (model, _opt) = Amp::<O2>::builder().build((store, linear), Sgd::new(0.1)).unwrap();
    assert_eq!(weight.kind(), Kind::Half);
    assert!(weight.requires_grad() && weight.is_leaf());
    assert_eq!(model.inner().ws.data_ptr(), weight.data_ptr());
    assert_eq!(counter.kind(), Kind::Int64);
}

/// An FP32 parameter with a 16-bit gradient, or the other way round, cannot be.
#[test]
fn gradients_from_before_are_dropped() {
    let (store, module) = common::weights(&[1.0]);
    let w = module.0.shallow_clone();
    w.sum(Kind::Float).backward();
    let (_model, _opt) = Amp::<O2>::builder().build((store, module), Sgd::new(0.1)).unwrap();
    assert!(!w.grad().defined());
}

#[test]
fn model_that_is_not_fp32_is_refused_untouched() {
    for kind in [Kind::Half, Kind::BFloat16, Kind::Double] {
        let mut store = VarStore::new(Device::Cpu);
        let linear = nn::linear(store.root() / "fc", 2, 2, Default::default());
        store.set_kind(kind);
        let weight = linear.ws.shallow_clone();
        let expected = kinds(&store);
        let error = Amp::<O2>::builder().build((store, linear), Sgd::new(0.1)).unwrap_err();
        let BuildError::NotFloat { name, kind: found } = &error else { panic!("{error}") };
        assert!(["fc.weight", "fc.bias"].contains(&name.as_str()));
        assert_eq!(*found, kind);
        assert_eq!(weight.kind(), expected[1].1);
    }
}

#[test]
fn optimizer_of_another_model_is_refused_by_name() {
    let (store, net) = Net::seeded(1);
    let (other, _other_net) = Net::seeded(2);
    let weight = store.variables()["first.weight"].shallow_clone();
    let foreign = nn::Adam::default().build(&other, 1e-3).unwrap();
    let error = Amp::<O2>::builder().build((store, net), foreign).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the optimizer does not hold variable `first.weight`: build it on the VarStore that is \
         passed with the model"
    );
    assert_eq!(weight.kind(), Kind::Float);
    assert!(!weight.grad().defined());
}

#[test]
fn model_without_variables_cannot_be_trained() {
    let empty = (VarStore::new(Device::Cpu), ());
    let error = Amp::<O2>::builder().build(empty, AdamW::new(1e-3)).unwrap_err();
    assert!(matches!(error, BuildError::NoTrainableVariables { optimizer: 0 }), "{error}");
}

#[test]
fn inference_needs_no_optimizer() {
    fn outputs<L: OptLevel>() -> Vec<f32> {
        let model = Amp::<L>::builder().build_model(Net::seeded(9)).unwrap();
        let xs = Tensor::ones([3, Net::INPUTS], (Kind::Float, Device::Cpu));
        values(&tch::no_grad(|| model.forward_t(&xs, false)))
    }
    let expected = outputs::<O0>();
    for actual in [outputs::<O1<bf16>>(), outputs::<O2<bf16>>(), outputs::<O3<bf16>>()] {
        assert!(common::relative_error(&actual, &expected) < 0.03, "{actual:?} {expected:?}");
    }
}

/// The three variants of the customer's line.
#[test]
fn options_are_in_force() {
    let builder = Amp::<O2>::builder().keep_batchnorm_fp32(true).master_weights(false);
    let (model, opt) = builder.build(Net::seeded(1), Sgd::new(0.1)).unwrap();
    assert_eq!(opt.state_bytes(), 0);
    assert_eq!(opt.master_params().next().unwrap().1.kind(), Kind::Half);
    assert_eq!(model.properties().keep_batchnorm_fp32, Some(true));
    let builder = Amp::<O3<bf16>>::builder().master_weights(true).loss_scale(Dynamic::new());
    let (_, opt) = builder.build(Net::seeded(1), Sgd::new(0.1)).unwrap();
    assert_eq!(opt.scalers()[0].scale(), 65_536.0);
    assert!(opt.master_params().all(|(_, master)| master.kind() == Kind::Float));
    let builder =
        Amp::<O1<bf16>>::builder().patch_torch_functions(false).loss_scale(Static::new(8.0));
    let (model, _) = builder.build(Net::seeded(1), Sgd::new(0.1)).unwrap();
    assert!(model.autocast().is_none());
}

#[test]
fn frozen_model_can_be_built() {
    let (mut store, net) = Net::seeded(1);
    store.freeze();
    let (mut model, mut opt) =
        Amp::<O2<bf16>>::builder().build((store, net), Sgd::new(0.1)).unwrap();
    assert_eq!(opt.state_bytes(), 0);
    model.unfreeze();
    let xs = Tensor::ones([4, Net::INPUTS], (Kind::Float, Device::Cpu));
    let loss = model.forward_t(&xs, true).square().mean(Kind::Float);
    assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
}

/// A path ends at the dot, and covers all that lies under it.
#[test]
fn further_paths_can_be_kept_in_fp32() {
    let store = VarStore::new(Device::Cpu);
    let p = store.root();
    let _ = nn::layer_norm(&p / "norm", vec![2], Default::default());
    let _ = nn::linear(&p / "norms", 2, 2, Default::default());
    let _ = nn::linear(&p / "head" / "out", 2, 2, Default::default());
    let builder = Amp::<O2<bf16>>::builder().keep_fp32(["norm", "head"]);
    let (model, opt) = builder.build((store, ()), Sgd::new(0.1)).unwrap();
    for (name, tensor) in model.variables() {
        let kept = !name.starts_with("norms");
        assert_eq!(tensor.kind() == Kind::Float, kept, "{name}");
    }
    // Only the two variables under `norms` have masters: 4 + 2 elements.
    assert_eq!(opt.state_bytes(), 6 * 4);
}

#[test]
fn path_that_leads_nowhere_is_refused_by_name() {
    let (store, net) = Net::seeded(1);
    let weight = store.variables()["first.weight"].shallow_clone();
    let builder = Amp::<O2<bf16>>::builder().keep_fp32(["firs"]);
    let error = builder.build((store, net), Sgd::new(0.1)).unwrap_err();
    assert_eq!(error.to_string(), "`keep_fp32`: there is no variable under `firs`");
    assert_eq!(weight.kind(), Kind::Float);
}

/// Models and optimizers can be moved to the thread that trains them.
#[test]
fn models_and_optimizers_are_send() {
    fn send<T: Send>(_: &T) {}
    let (model, opt) = Amp::<O2<bf16>>::builder().build(Net::seeded(1), AdamW::new(0.1)).unwrap();
    send(&model);
    send(&opt);
    let trained = std::thread::spawn(move || {
        let (model, mut opt) = (model, opt);
        let (xs, ys) = &common::batches(1)[0];
        let loss = common::mse(&model.forward_t(xs, true), ys);
        opt.backward_step(&loss).unwrap().outcome()
    });
    assert!(trained.join().unwrap().is_applied());
}
