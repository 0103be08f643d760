//! Parameters whose gradients are given, for comparisons with a rule in FP64.

use proptest::{collection::vec, prelude::*};
use tch::{Device, Kind, Tensor, nn::VarStore};
use tch_amp::{
    Amp, AmpModel, AmpOptimizer, O0, OptLevel, Optimizer,
    builder::{AmpBuilder, state::State},
};

use super::{noise, values};

/// One parameter's value and param group.
#[derive(Debug, Clone)]
pub struct Start {
    pub group: usize,
    pub values: Vec<f32>,
}

/// The gradients of one step; `None` where a parameter has none.
pub type Grads = Vec<Option<Vec<f32>>>;

/// A model that is nothing but its parameters, `0`, `1` and so on, and its optimizer.
pub struct Given<L: OptLevel, O: Optimizer> {
    pub parameters: Vec<Tensor>,
    pub opt: AmpOptimizer<L, O>,
    _model: AmpModel<L, ()>,
}

impl<O: Optimizer> Given<O0, O> {
    pub fn new(starts: &[Start], own: O) -> Self {
        Self::build(Amp::<O0>::builder(), starts, own)
    }
}

impl<L: OptLevel, O: Optimizer> Given<L, O> {
    pub fn build<S: State>(builder: AmpBuilder<L, S>, starts: &[Start], own: O) -> Self {
        let store = VarStore::new(Device::Cpu);
        let parameter = |(n, start): (usize, &Start)| {
            let path = store.root().set_group(start.group);
            path.var_copy(&n.to_string(), &Tensor::from_slice(&start.values))
        };
        let parameters = starts.iter().enumerate().map(parameter).collect();
        let (_model, opt) = builder.build((store, ()), own).unwrap();
        Self { parameters, opt, _model }
    }

    /// A step on the sum of the products of parameters and gradients.
    pub fn step(&mut self, grads: &Grads) {
        let products = self.parameters.iter().zip(grads).filter_map(|(parameter, grad)| {
            let grad = Tensor::from_slice(grad.as_ref()?);
            Some((parameter.to_kind(Kind::Float) * grad).sum(Kind::Float))
        });
        let loss = products.reduce(|a, b| a + b).unwrap();
        assert!(self.opt.backward_step(&loss).unwrap().outcome().is_applied());
    }

    /// What the optimizer updates.
    pub fn masters(&self) -> Vec<Vec<f32>> {
        let mut masters = vec![Vec::new(); self.parameters.len()];
        for (name, master) in self.opt.master_params() {
            masters[name.parse::<usize>().unwrap()] = values(master);
        }
        masters
    }

    /// Compares with the values of a rule in FP64.
    pub fn assert_close(&self, expected: &[Vec<f64>], allowed: f64) {
        for (n, (actual, expected)) in self.masters().iter().zip(expected).enumerate() {
            assert_eq!(actual.len(), expected.len());
            for (i, (&actual, &expected)) in actual.iter().zip(expected).enumerate() {
                let error = (f64::from(actual) - expected).abs() / expected.abs().max(1.0);
                assert!(error <= allowed, "{n}[{i}] is {actual}, not {expected}: off by {error:e}");
            }
        }
    }
}

/// A param group, and for each element its value and its gradients by step.
type Drawn = (usize, Vec<(f32, Vec<f32>)>);

/// A few parameters in groups 0 and 1, and gradients for a few steps, the first of which has all.
/// Values and gradients are multiples of 1/16, so that no sum of a gradient and a decay is a near
/// miss of zero, which FP32 would normalize to noise.
pub fn training() -> impl Strategy<Value = (Vec<Start>, Vec<Grads>)> {
    let sixteenths = |most: i8| (-most..=most).prop_map(|n| f32::from(n) / 16.0);
    let start = move || (0..2usize, vec((sixteenths(32), vec(sixteenths(48), 5)), 1..40));
    let present = vec(vec(prop::bool::weighted(0.8), 4), 1..=5);
    (vec(start(), 1..=4), present).prop_map(|(parameters, present)| {
        let starts = parameters.iter().map(|(group, elements)| Start {
            group: *group,
            values: elements.iter().map(|(value, _)| *value).collect(),
        });
        let steps = present.iter().enumerate().map(|(step, present)| {
            let grad = |(n, (_, elements)): (usize, &Drawn)| {
                let grad = elements.iter().map(|(_, grads)| grads[step]).collect();
                Some(grad).filter(|_| step == 0 || n == 0 || present[n])
            };
            parameters.iter().enumerate().map(grad).collect()
        });
        (starts.collect(), steps.collect())
    })
}

/// Values in [0, 1), as of `torch.rand`.
pub fn rand(seed: u64, elements: usize) -> Vec<f32> {
    values(&(noise(seed, &[elements as i64]) * 0.5 + 0.5))
}

/// A parameter of a few thousand elements, group 0.
pub fn random(seed: u64, elements: usize) -> Start {
    Start { group: 0, values: rand(seed, elements) }
}

pub fn in_fp64(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}
