//! What the crate costs where it does nothing.

use tch::{
    Device, Kind, Tensor,
    nn::{self, ModuleT, OptimizerConfig, Sequential, VarStore},
};
use tch_amp::{Amp, O0};

use crate::{Outcome, median, timed};

const STEPS: usize = 20;

fn net(device: Device) -> (VarStore, Sequential) {
    let store = VarStore::new(device);
    let root = store.root();
    let layer = |n, inputs, outputs| nn::linear(&root / n, inputs, outputs, Default::default());
    let net = nn::seq()
        .add(layer(0, 256, 512))
        .add_fn(|xs| xs.relu())
        .add(layer(1, 512, 512))
        .add_fn(|xs| xs.relu())
        .add(layer(2, 512, 10));
    (store, net)
}

/// The time of a training step at `O0` with tch's own AdamW, divided by that of plain tch.
pub fn of_plain_tch(rounds: u32, device: Device) -> Outcome<f64> {
    let options = (Kind::Float, device);
    let (xs, ys) = (Tensor::f_randn([128, 256], options)?, Tensor::f_randn([128, 10], options)?);
    let (store, plain) = net(device);
    let mut plain_opt = nn::AdamW::default().build(&store, 1e-3)?;
    let (store, ours) = net(device);
    let opt = nn::AdamW::default().build(&store, 1e-3)?;
    let (ours, mut ours_opt) = Amp::<O0>::builder().build((store, ours), opt)?;
    let mut plain_step = || -> Outcome {
        let loss = (plain.forward_t(&xs, true) - &ys).square().mean(Kind::Float);
        plain_opt.backward_step(&loss);
        Ok(())
    };
    let mut our_step = || -> Outcome {
        let loss = (ours.forward_t(&xs, true) - &ys).square().mean(Kind::Float);
        ours_opt.backward_step(&loss)?;
        Ok(())
    };
    let timed = |step: &mut dyn FnMut() -> Outcome| -> Outcome<f64> {
        timed(device, || (0..STEPS).try_for_each(|_| step()))
    };
    let mut ratios = Vec::new();
    for _ in 0..=10 * rounds {
        let ours = timed(&mut our_step)?;
        ratios.push(ours / timed(&mut plain_step)?);
    }
    Ok(median(&mut ratios[1..]))
}
