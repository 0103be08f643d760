//! `O3<bf16>` with stochastic rounding: small updates add up, and a seed is a training.

mod common;

use common::{Bits, Net, batches, bits, mse, snapshot, values};
use tch::{
    Device, Kind, Tensor,
    nn::{self, ModuleT, OptimizerConfig, VarStore},
};
use tch_amp::{
    Amp, AmpBuilder, AmpModel, AmpOptimizer, O2, O3, OptLevel, Optimizer, Rounding, bf16,
    builder::state::{Fresh, SetRounding, State},
    optim::{Adagrad, Adam, AdamW, Lamb, NovoGrad, Sgd},
};

fn stochastic(seed: u64) -> AmpBuilder<O3<bf16>, SetRounding<Fresh>> {
    Amp::<O3<bf16>>::builder().rounding(Rounding::Stochastic { seed })
}

/// One step with the gradient 1 for each element of `w`.
fn step<L: OptLevel, O: Optimizer>(
    model: &AmpModel<L, common::Weights>,
    opt: &mut AmpOptimizer<L, O>,
) {
    let loss = model.inner().0.sum(Kind::Float);
    assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
}

/// 1 - 1000 · 0.001. Half the distance from 1 to the next smaller bf16 number is 0.002.
#[test]
fn small_updates_add_up() {
    const N: usize = 4096;
    let train = |builder: AmpBuilder<O3<bf16>, _>| {
        let (model, mut opt) = builder.build(common::weights(&[1.0; N]), Sgd::new(1e-3)).unwrap();
        (0..1000).for_each(|_| step(&model, &mut opt));
        values(&model.inner().0)
    };
    let nearest = train(Amp::<O3<bf16>>::builder().rounding(Rounding::Nearest));
    assert_eq!(nearest, [1.0; N]);
    let stochastic = train(Amp::<O3<bf16>>::builder().rounding(Rounding::Stochastic { seed: 1 }));
    // A step's rounding error has a variance of at most 0.001 · (2^-8 - 0.001) where w is below 1.
    let deviation = (1000.0 * 0.001 * (2f64.powi(-8) - 0.001)).sqrt();
    let mean = stochastic.iter().map(|&w| f64::from(w)).sum::<f64>() / N as f64;
    assert!(mean.abs() < 5.0 * deviation / (N as f64).sqrt(), "the mean is {mean}");
    let farthest = stochastic.iter().fold(0f32, |farthest, w| farthest.max(w.abs()));
    assert!(f64::from(farthest) < 6.0 * deviation, "one weight is {farthest}");
}

/// Weights after a few steps on batches of a regression.
fn trained<O: Optimizer>(seed: u64, optimizer: fn(&VarStore) -> O) -> Vec<(String, Bits)> {
    let (store, net) = Net::seeded(3);
    let optimizer = optimizer(&store);
    let (model, mut opt) = stochastic(seed).build((store, net), optimizer).unwrap();
    for (xs, ys) in batches(6) {
        let loss = mse(&model.forward_t(&xs, true), &ys);
        assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
    }
    snapshot(model.variables())
}

fn seed_decides<O: Optimizer>(optimizer: fn(&VarStore) -> O) {
    let first = trained(1, optimizer);
    assert_eq!(trained(1, optimizer), first);
    assert_ne!(trained(2, optimizer), first);
}

#[test]
fn seed_decides_every_bit_with_every_optimizer() {
    seed_decides(|_| Sgd::new(0.01).momentum(0.9));
    seed_decides(|_| Adam::new(1e-3));
    seed_decides(|_| AdamW::new(1e-3));
    seed_decides(|_| Adagrad::new(1e-3));
    seed_decides(|_| NovoGrad::new(1e-3));
    seed_decides(|_| Lamb::new(1e-3));
    seed_decides(|store| nn::Sgd::default().build(store, 0.01).unwrap());
}

/// Plain descent is the same FP32 arithmetic in both.
#[test]
fn own_optimizer_and_that_of_tch_round_alike() {
    let own = trained(1, |_| Sgd::new(0.01));
    assert_eq!(trained(1, |store| nn::Sgd::default().build(store, 0.01).unwrap()), own);
}

/// `w` alone, and `w` after another parameter that has gradients only now and then.
#[test]
fn other_parameters_do_not_change_the_bits_of_one() {
    let alone = {
        let (model, mut opt) =
            stochastic(5).build(common::weights(&[1.0; 100]), Sgd::new(1e-3)).unwrap();
        (0..10).for_each(|_| step(&model, &mut opt));
        bits(&model.inner().0)
    };
    let store = VarStore::new(Device::Cpu);
    let other = store.root().ones("another", &[7]);
    let w = store.root().ones("w", &[100]);
    let (_model, mut opt) = stochastic(5).build((store, ()), Sgd::new(1e-3)).unwrap();
    for n in 0..10 {
        let loss = w.sum(Kind::Float);
        let loss = if n % 3 == 0 { loss + other.sum(Kind::Float) } else { loss };
        assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
    }
    assert_eq!(bits(&w), alone);
}

#[test]
fn skipped_steps_use_no_random_bits() {
    let train = |overflow_at: Option<usize>| {
        let (model, mut opt) =
            stochastic(5).build(common::weights(&[1.0; 100]), Sgd::new(1e-3)).unwrap();
        for n in 0..10 {
            if overflow_at == Some(n) {
                let loss = (&model.inner().0 * f64::NAN).sum(Kind::Float);
                assert!(!opt.backward_step(&loss).unwrap().outcome().is_applied());
            }
            step(&model, &mut opt);
        }
        bits(&model.inner().0)
    };
    let straight = train(None);
    assert_eq!(train(Some(4)), straight);
}

/// Batch norm that is kept in FP32 is not rounded at all, nor is a model that is not cast.
#[test]
fn fp32_weights_are_not_rounded() {
    let store = VarStore::new(Device::Cpu);
    let kept = store.root().ones("kept", &[100]);
    let builder = stochastic(1).keep_fp32(["kept"]);
    let (_model, mut opt) = builder.build((store, ()), Sgd::new(1e-4)).unwrap();
    let _ = opt.backward_step(&kept.sum(Kind::Float)).unwrap();
    assert_eq!(values(&kept), [1.0 - 1e-4; 100]);

    let builder = stochastic(1).enabled(false);
    let (model, mut opt) = builder.build(common::weights(&[1.0; 100]), Sgd::new(1e-4)).unwrap();
    step(&model, &mut opt);
    assert_eq!(values(&model.inner().0), [1.0 - 1e-4; 100]);
}

/// Weights in another memory format get the same bits for the same elements.
#[test]
fn layout_does_not_change_the_bits() {
    let train = |format: fn(Tensor) -> Tensor| {
        let store = VarStore::new(Device::Cpu);
        let mut w = store.root().ones("w", &[3, 5, 4, 2]);
        w.set_data(&format(w.detach().copy()));
        let (_model, mut opt) = stochastic(1).build((store, ()), Sgd::new(1e-3)).unwrap();
        let _ = opt.backward_step(&w.sum(Kind::Float)).unwrap();
        bits(&w.contiguous())
    };
    let dense = train(|w| w);
    let transposed = |w: Tensor| w.permute([3, 2, 1, 0]).contiguous().permute([3, 2, 1, 0]);
    assert_eq!(train(transposed), dense);
}

/// With an Adam whose updates are below half a bf16 step of most weights, training goes on, and
/// comes close to `O2`, which has masters; to nearest, it stops.
#[test]
fn training_goes_on_where_rounding_to_nearest_stops() {
    fn last_loss<S: State, L: OptLevel>(builder: AmpBuilder<L, S>) -> f64 {
        let (model, mut opt) = builder.build(Net::seeded(3), Adam::new(2e-4)).unwrap();
        let data = batches(4);
        for (xs, ys) in data.iter().cycle().take(600) {
            let _ = opt.backward_step(&mse(&model.forward_t(xs, true), ys)).unwrap();
        }
        let loss = |(xs, ys): &(Tensor, Tensor)| mse(&model.forward_t(xs, true), ys);
        data.iter().map(|batch| loss(batch).double_value(&[])).sum::<f64>() / data.len() as f64
    }
    let masters = last_loss(Amp::<O2<bf16>>::builder());
    let nearest = last_loss(Amp::<O3<bf16>>::builder());
    let stochastic = last_loss(stochastic(1));
    println!("masters {masters}, nearest {nearest}, stochastic {stochastic}");
    assert!(nearest > 1.5 * masters, "masters {masters}, nearest {nearest}");
    assert!(stochastic < 1.1 * masters, "masters {masters}, stochastic {stochastic}");
}
