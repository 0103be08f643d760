//! A step of this crate: gradients in 16 bits, FP32 masters, weights in 16 bits.

use tch::{
    Kind, Tensor,
    nn::{Module, VarStore},
};
use tch_amp::{Amp, AmpModel, AmpOptimizer, Dynamic, LowPrecision, O2, optim::AdamW};

use crate::{Outcome, Shape, peers::SCALE, timed};

/// The sum of all weights: each has gradient 1.
#[derive(Debug)]
struct Sum(Vec<Tensor>);

impl Module for Sum {
    fn forward(&self, factor: &Tensor) -> Tensor {
        let sums = self.0.iter().map(|weight| weight.sum(Kind::Float) * factor);
        Tensor::stack(&sums.collect::<Vec<_>>(), 0).sum(Kind::Float)
    }
}

pub struct Ours<H: LowPrecision> {
    model: AmpModel<O2<H>, Sum>,
    opt: AmpOptimizer<O2<H>, AdamW>,
    factor: Tensor,
}

impl<H: LowPrecision> Ours<H> {
    pub fn new(shape: Shape) -> Outcome<Self> {
        let store = VarStore::new(shape.device);
        let weight = |n: usize| store.root().ones(&n.to_string(), &[shape.elements]);
        let weights = (0..shape.tensors).map(weight).collect();
        let scale = Dynamic::new().init_scale(SCALE);
        let builder = Amp::<O2<H>>::builder().loss_scale(scale);
        let (model, opt) = builder.build((store, Sum(weights)), AdamW::new(1e-3))?;
        let factor = Tensor::f_ones([], (Kind::Float, shape.device))?;
        Ok(Self { model, opt, factor })
    }

    /// The seconds from gradients to new weights.
    pub fn step(&mut self) -> Outcome<f64> {
        let loss = self.model.forward(&self.factor);
        let mut step = self.opt.begin();
        step.backward(&loss)?;
        timed(self.factor.device(), || {
            let outcome = step.unscale()?.step()?;
            match outcome.is_applied() {
                true => Ok(()),
                false => Err(format!("{outcome:?}").into()),
            }
        })
    }
}
