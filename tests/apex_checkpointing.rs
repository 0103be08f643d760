//! The parts of Apex's `test_checkpointing` that save nothing: scales that decrease one by one, and
//! losses that sink.

mod common;

use common::{Net, mse, noise};
use half::{bf16, f16};
use tch::{
    Device, Tensor,
    nn::{self, ModuleT, VarStore},
};
use tch_amp::{
    Amp, AmpModel, AmpOptimizer, Dynamic, O0, O1, O2, OptLevel, StepOutcome,
    loss::LossId,
    optim::{Adam, Sgd},
};
use typenum::{U0, U1, U2, U3};

type Model<L> = AmpModel<L, nn::Linear>;
type Optimizer<L> = AmpOptimizer<L, Sgd, U3>;

/// One step with one loss; its input is multiplied by `factor`.
fn step<L: OptLevel, I: LossId<U3>>(
    model: &Model<L>,
    opt: &mut Optimizer<L>,
    factor: f64,
) -> StepOutcome {
    let xs = Tensor::ones([4, 8], (tch::Kind::Float, Device::Cpu)) * factor;
    let loss = mse(&model.forward_t(&xs, true), &Tensor::from(0f32));
    let mut step = opt.begin();
    step.backward_of::<I>(&loss).unwrap();
    step.unscale().unwrap().step().unwrap()
}

/// Each loss overflows as often as its id says: 2^17 is no FP16 number.
fn scales_decrease<L: OptLevel>() {
    let store = VarStore::new(Device::Cpu);
    let linear = nn::linear(store.root(), 8, 4, Default::default());
    common::fill(&store, 1);
    let builder = Amp::<L>::builder().num_losses::<U3>();
    let (model, mut opt) = builder.build((store, linear), Sgd::new(1e-3)).unwrap();
    let init = Dynamic::new().init_scale(65_536.0);
    assert!(opt.scalers().iter().all(|scaler| scaler.settings() == init.into()));
    let overflow = 2f64.powi(17);
    for outcome in [
        step::<L, U1>(&model, &mut opt, overflow),
        step::<L, U2>(&model, &mut opt, overflow),
        step::<L, U2>(&model, &mut opt, overflow),
    ] {
        assert!(matches!(outcome, StepOutcome::Skipped { .. }));
    }
    let scales = |opt: &Optimizer<L>| opt.scalers().iter().map(|s| s.scale()).collect::<Vec<_>>();
    assert_eq!(scales(&opt), [65_536.0, 65_536.0 / 2.0, 65_536.0 / 4.0]);
    assert!(opt.scalers().iter().all(|scaler| scaler.unskipped() == 0));
    // A good step of one loss counts for that loss alone.
    assert!(step::<L, U0>(&model, &mut opt, 1e-3).is_applied());
    assert_eq!(scales(&opt), [65_536.0, 65_536.0 / 2.0, 65_536.0 / 4.0]);
    assert_eq!(opt.scalers().iter().map(|s| s.unskipped()).collect::<Vec<_>>(), [1, 0, 0]);
}

#[test]
fn each_overflow_halves_the_scale_of_its_loss_at_o1() {
    scales_decrease::<O1<f16>>();
}

#[test]
fn each_overflow_halves_the_scale_of_its_loss_at_o2() {
    scales_decrease::<O2<f16>>();
}

/// Ten steps of Adam on one batch.
fn loss_sinks<L: OptLevel>() {
    let (model, mut opt) = Amp::<L>::builder().build(Net::seeded(6), Adam::new(1e-3)).unwrap();
    let (xs, ys) = (noise(7, &[16, Net::INPUTS]), noise(8, &[16, Net::OUTPUTS]));
    let mut last = f64::INFINITY;
    for n in 0..10 {
        let loss = mse(&model.forward_t(&xs, true), &ys);
        assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
        let loss = loss.double_value(&[]);
        assert!(loss < last, "{}: {last} was followed by {loss} in step {n}", L::NAME);
        last = loss;
    }
}

#[test]
fn the_loss_sinks_in_each_step() {
    loss_sinks::<O0>();
    loss_sinks::<O1<f16>>();
    loss_sinks::<O1<bf16>>();
    loss_sinks::<O2<f16>>();
    loss_sinks::<O2<bf16>>();
}
