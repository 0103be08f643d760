//! What holds for every optimizer of the crate: checkpoints, frozen and late parameters, parameters
//! without gradients, settings of groups.

mod common;

use std::{collections::BTreeMap, path::Path};

use common::{Net, batches, bits, mse, snapshot, values};
use safetensors::SafeTensors;
use tch::{
    Device, Kind, Tensor,
    nn::{self, Module, ModuleT, VarStore},
};
use tch_amp::{
    Amp, AmpModel, AmpOptimizer, AnyLevel, Checkpoint, Dynamic, O0, O2, OptLevel, Rounding, Static,
    bf16, f16,
    optim::{Adagrad, Adam, AdamW, Lamb, NormType, NovoGrad, Sgd},
    optimizer::HasState,
    with_level,
};
use tempfile::tempdir;

/// An optimizer of the crate, with its first settings and others.
trait Own: HasState + Sized {
    /// The names of the state tensors, and whether they have one element alone.
    const STATE: &'static [(&'static str, bool)];

    fn new() -> Self;
    fn other() -> Self;
}

macro_rules! own {
    ($($optimizer:ident: $state:expr, $new:expr, $other:expr;)*) => { $(
        impl Own for $optimizer {
            const STATE: &'static [(&'static str, bool)] = &$state;

            fn new() -> Self {
                $new
            }

            fn other() -> Self {
                $other
            }
        }
    )* };
}

own! {
    Sgd: [("momentum_buffer", false)],
        Sgd::new(0.05).momentum(0.9).weight_decay(0.01),
        Sgd::new(0.5);
    Adam: [("exp_avg", false), ("exp_avg_sq", false)],
        Adam::new(2e-3).weight_decay(0.01),
        Adam::new(0.5).betas(0.1, 0.2);
    AdamW: [("exp_avg", false), ("exp_avg_sq", false)],
        AdamW::new(2e-3).betas(0.8, 0.99),
        AdamW::new(0.5).eps(0.1);
    Adagrad: [("sum", false)],
        Adagrad::new(1e-2).weight_decay(0.01).adagrad_w_mode(true).eps(1e-8),
        Adagrad::new(0.5);
    NovoGrad: [("exp_avg", false), ("exp_avg_sq", true)],
        NovoGrad::new(1e-2)
            .betas(0.8, 0.5)
            .eps(1e-6)
            .weight_decay(0.01)
            .bias_correction(false)
            .reg_inside_moment(true)
            .grad_averaging(false)
            .norm_type(NormType::Max)
            .init_zero(true),
        NovoGrad::new(0.5);
    Lamb: [("exp_avg", false), ("exp_avg_sq", false)],
        Lamb::new(1e-2)
            .betas(0.8, 0.99)
            .eps(1e-5)
            .weight_decay(0.02)
            .bias_correction(false)
            .adam_w_mode(false)
            .grad_averaging(false)
            .max_grad_norm(None)
            .use_nvlamb(true),
        Lamb::new(0.5);
}

/// Calls a check for each optimizer.
macro_rules! for_each_optimizer {
    ($check:ident) => {
        $check::<Sgd>();
        $check::<Adam>();
        $check::<AdamW>();
        $check::<Adagrad>();
        $check::<NovoGrad>();
        $check::<Lamb>();
    };
}

type Run<L, O> = (AmpModel<L, Net>, AmpOptimizer<L, O>);

fn build<L: OptLevel, O: Own>(seed: u64, own: O) -> Run<L, O> {
    let scale = Dynamic::new().init_scale(128.0);
    Amp::<L>::builder().loss_scale(scale).build(Net::seeded(seed), own).unwrap()
}

fn train<L: OptLevel, O: Own>((model, opt): &mut Run<L, O>, data: &[(Tensor, Tensor)]) {
    for (xs, ys) in data {
        let loss = mse(&model.forward_t(xs, true), ys);
        assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
    }
}

fn all_bits<L: OptLevel, O: Own>((model, opt): &Run<L, O>) -> Vec<(String, common::Bits)> {
    let masters = opt.master_params().map(|(name, t)| (format!("master of {name}"), bits(t)));
    snapshot(model.variables()).into_iter().chain(masters).collect()
}

/// What a file says of its optimizers: settings, counts and groups.
fn described(path: &Path) -> serde_json::Value {
    let bytes = std::fs::read(path).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let text = &header.metadata().as_ref().unwrap()["tch-amp"];
    serde_json::from_str::<serde_json::Value>(text).unwrap()["optimizers"].clone()
}

/// Trains and saves; the new run, whose optimizer had other settings, goes on alike.
fn go_on<L: OptLevel, O: Own>(mut there: Run<L, O>, mut here: Run<L, O>) {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let data = batches(6);
    train(&mut there, &data[..3]);
    Checkpoint::new(&there.0, &mut there.1).save(&path, &()).unwrap();
    train(&mut there, &data[3..]);
    Checkpoint::new(&here.0, &mut here.1).load::<()>(&path).unwrap();
    let again = folder.path().join("again.safetensors");
    Checkpoint::new(&here.0, &mut here.1).save(&again, &()).unwrap();
    assert_eq!(described(&again), described(&path));
    train(&mut here, &data[3..]);
    assert_eq!(all_bits(&here), all_bits(&there), "{} {}", L::NAME, std::any::type_name::<O>());
}

/// The sum of some weights times their gradients.
#[derive(Debug)]
struct Sum(Vec<Tensor>);

impl Module for Sum {
    fn forward(&self, grads: &Tensor) -> Tensor {
        let grads = grads.unbind(0);
        let products = self.0.iter().zip(grads).map(|(w, grad)| (w * grad).sum(Kind::Float));
        products.sum()
    }
}

/// So many weights of two elements, the n-th in group n.
fn sum(weights: usize) -> (VarStore, Sum) {
    let store = VarStore::new(Device::Cpu);
    let weight = |n| late(&store.root(), n);
    let weights = (0..weights).map(weight).collect();
    (store, Sum(weights))
}

fn late(path: &nn::Path<'_>, n: usize) -> Tensor {
    path.set_group(n).ones(&n.to_string(), &[2])
}

fn grads(values: &[[f32; 2]]) -> Tensor {
    Tensor::from_slice2(values)
}

fn step<L: OptLevel, O: Own>(
    model: &AmpModel<L, Sum>,
    opt: &mut AmpOptimizer<L, O>,
    grad: &Tensor,
) {
    assert!(opt.backward_step(&model.forward(grad)).unwrap().outcome().is_applied());
}

#[test]
fn a_run_goes_on_in_every_bit_after_a_checkpoint() {
    fn check<O: Own>() {
        for level in AnyLevel::ALL {
            with_level!(level, L => go_on::<L, O>(build(1, O::new()), build(2, O::other())));
        }
    }
    for_each_optimizer!(check);
}

#[test]
fn weights_in_16_bits_that_are_rounded_at_random_go_on_in_every_bit() {
    fn check<O: Own>() {
        let build = |seed, own| {
            let builder = Amp::<tch_amp::O3<bf16>>::builder();
            let builder = builder.rounding(Rounding::Stochastic { seed: 7 });
            builder.build(Net::seeded(seed), own).unwrap()
        };
        go_on(build(1, O::new()), build(2, O::other()));
    }
    for_each_optimizer!(check);
}

#[test]
fn a_checkpoint_has_the_state_under_torchs_names() {
    fn check<O: Own>() {
        let folder = tempdir().unwrap();
        let path = folder.path().join("run.safetensors");
        let mut run = build::<O2<bf16>, O>(1, O::new());
        train(&mut run, &batches(1));
        Checkpoint::new(&run.0, &mut run.1).save(&path, &()).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let found = file.iter().filter(|(name, _)| name.starts_with("optimizer/"));
        let found: BTreeMap<_, _> =
            found.map(|(name, tensor)| (name.to_owned(), tensor.shape().to_vec())).collect();
        let mut expected = BTreeMap::new();
        for (state, one_element) in O::STATE {
            for (name, master) in run.1.master_params() {
                let size = master.size().iter().map(|&n| n as usize).collect();
                let size = if *one_element { Vec::new() } else { size };
                expected.insert(format!("optimizer/{state}/{name}"), size);
            }
        }
        assert_eq!(found, expected);
    }
    for_each_optimizer!(check);
}

#[test]
fn a_frozen_weight_begins_with_a_master_and_a_state_of_its_own() {
    fn check<O: Own>() {
        let builder = || Amp::<O2<f16>>::builder().loss_scale(Static::new(4.0));
        let (store, frozen) = sum(2);
        let mut weight = frozen.0[1].set_requires_grad(false);
        let (frozen, mut opt) = builder().build((store, frozen), O::new()).unwrap();
        for _ in 0..3 {
            step(&frozen, &mut opt, &grads(&[[0.5, 1.0], [1.0, 2.0]]));
        }
        assert_eq!(values(&weight), [1.0, 1.0]);
        weight = weight.set_requires_grad(true);
        // Lamb is told not to clip, so that the other weight's gradients do not matter.
        step(&frozen, &mut opt, &grads(&[[0.5, 1.0], [1.0, 2.0]]));
        let (fresh, mut fresh_opt) = builder().build(sum(2), O::new()).unwrap();
        step(&fresh, &mut fresh_opt, &grads(&[[0.5, 1.0], [1.0, 2.0]]));
        assert_eq!(bits(&weight), bits(&fresh.inner().0[1]));
        let (_, master) = opt.master_params().last().unwrap();
        assert_eq!(bits(master), bits(fresh_opt.master_params().last().unwrap().1));
        assert_eq!(master.kind(), Kind::Float);
    }
    for_each_optimizer!(check);
}

#[test]
fn a_late_layer_trains_as_one_from_the_beginning() {
    fn check<O: Own>() {
        let builder = || Amp::<O2<bf16>>::builder();
        let (mut model, mut opt) = builder().build(sum(1), O::new()).unwrap();
        step(&model, &mut opt, &grads(&[[0.5, 1.0]]));
        model.add_layers(|sum, path| sum.0.push(late(path, 1))).unwrap();
        let (other, mut other_opt) = builder().build(sum(2), O::new()).unwrap();
        for grad in [grads(&[[0.5, 1.0], [1.0, -2.0]]), grads(&[[0.5, 1.0], [3.0, 1.0]])] {
            step(&model, &mut opt, &grad);
            step(&other, &mut other_opt, &grad);
        }
        let [late, early] = [&opt, &other_opt].map(|opt| opt.master_params().last().unwrap());
        assert_eq!((late.0, bits(late.1)), (early.0, bits(early.1)));
        assert_ne!(values(late.1), [1.0, 1.0]);
    }
    for_each_optimizer!(check);
}

#[test]
fn a_parameter_without_a_gradient_is_left_alone() {
    fn check<O: Own>() {
        let (model, mut opt) = Amp::<O0>::builder().build(sum(2), O::new()).unwrap();
        step(&model, &mut opt, &grads(&[[1.0, 2.0], [3.0, 4.0]]));
        let before = bits(&model.inner().0[1]);
        step(&model, &mut opt, &grads(&[[1.0, 2.0]]));
        assert_eq!(bits(&model.inner().0[1]), before);
    }
    for_each_optimizer!(check);
}

#[test]
fn a_group_has_settings_of_its_own() {
    fn check<O: Own>() {
        let moves = |weight: &Tensor| values(weight) != [1.0, 1.0];
        let (model, mut opt) = Amp::<O0>::builder().build(sum(2), O::new()).unwrap();
        opt.set_lr_group(1, 0.0).unwrap();
        step(&model, &mut opt, &grads(&[[1.0, 2.0], [3.0, 4.0]]));
        assert_eq!([0, 1].map(|n| moves(&model.inner().0[n])), [true, false]);
        opt.set_lr(0.25).unwrap();
        step(&model, &mut opt, &grads(&[[1.0, 2.0], [3.0, 4.0]]));
        assert_eq!([0, 1].map(|n| moves(&model.inner().0[n])), [true, true]);
    }
    for_each_optimizer!(check);
}

/// Rows that are not looked up have a gradient of zero.
#[test]
fn sparse_gradients_become_dense() {
    fn check<O: Own>() {
        let trained = |sparse| {
            let store = VarStore::new(Device::Cpu);
            let ws_init = nn::Init::Const(1.0);
            let config = nn::EmbeddingConfig { sparse, ws_init, ..Default::default() };
            let table = nn::embedding(store.root() / "table", 4, 2, config);
            let builder = Amp::<O0>::builder().loss_scale(Static::new(8.0));
            let (model, mut opt) = builder.build((store, table), O::new()).unwrap();
            for ids in [[1i64, 1, 3], [0, 1, 3]] {
                let loss = model.forward_t(&Tensor::from_slice(&ids), true).sum(Kind::Float);
                assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
            }
            values(&model.variables()["table.weight"])
        };
        let table = trained(true);
        assert_eq!(table, trained(false));
        assert_ne!(table, [1.0; 8]);
    }
    for_each_optimizer!(check);
}
