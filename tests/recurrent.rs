//! Recurrent layers train at every level, with their states.

mod common;

use common::{mse, noise, relative_error, values};
use half::{bf16, f16};
use tch::{
    Device, Kind, Tensor,
    nn::{self, Module, Path, RNN, RNNConfig, VarStore},
};
use tch_amp::{Amp, Castable, O0, O1, O2, O3, OptLevel, Static, autocast, optim::Adam};

const BATCH: i64 = 4;
const TIME: i64 = 6;
const FEATURES: i64 = 3;
const HIDDEN: i64 = 8;
const STEPS: usize = 10;

/// Elman's network, which tch has as an operation only.
#[derive(Debug)]
struct Elman {
    weights: Vec<Tensor>,
    config: RNNConfig,
}

impl Elman {
    fn new(path: &Path, inputs: i64, hidden: i64, config: RNNConfig) -> Self {
        let directions = 1 + i64::from(config.bidirectional);
        let mut weights = Vec::new();
        for layer in 0..config.num_layers {
            let inputs = if layer == 0 { inputs } else { hidden * directions };
            for direction in 0..directions {
                let mut add = |name: &str, size: &[i64]| {
                    let name = format!("{name}_l{layer}_{direction}");
                    weights.push(path.var(&name, size, nn::init::DEFAULT_KAIMING_UNIFORM));
                };
                add("w_ih", &[hidden, inputs]);
                add("w_hh", &[hidden, hidden]);
                add("b_ih", &[hidden]);
                add("b_hh", &[hidden]);
            }
        }
        Self { weights, config }
    }
}

impl RNN for Elman {
    type State = Tensor;

    fn zero_state(&self, batch: i64) -> Tensor {
        let layers = self.config.num_layers * (1 + i64::from(self.config.bidirectional));
        Tensor::zeros([layers, batch, HIDDEN], (self.weights[0].kind(), Device::Cpu))
    }

    fn step(&self, input: &Tensor, state: &Tensor) -> Tensor {
        self.seq_init(&input.unsqueeze(1), state).1
    }

    fn seq_init(&self, input: &Tensor, state: &Tensor) -> (Tensor, Tensor) {
        let RNNConfig { num_layers, bidirectional, batch_first, .. } = self.config;
        input.rnn_tanh(state, &self.weights, true, num_layers, 0., true, bidirectional, batch_first)
    }
}

/// A recurrent layer, and a linear one on its outputs.
#[derive(Debug)]
struct Net<R> {
    layer: R,
    head: nn::Linear,
}

type Layer<R> = fn(&Path, i64, i64, RNNConfig) -> R;

impl<R: RNN> Net<R> {
    fn new(layer: Layer<R>, config: RNNConfig) -> (VarStore, Self) {
        let store = VarStore::new(Device::Cpu);
        let layer = layer(&(store.root() / "layer"), FEATURES, HIDDEN, config);
        let outputs = HIDDEN * (1 + i64::from(config.bidirectional));
        let head = nn::linear(store.root() / "head", outputs, 1, Default::default());
        common::fill(&store, 5);
        (store, Self { layer, head })
    }
}

/// Trains on sequences that come in two chunks, the state after the first being where the second
/// begins. Returns the losses.
fn train<L: OptLevel, R>(layer: Layer<R>, config: RNNConfig) -> Vec<f64>
where
    R: RNN<State: Castable<Cast = R::State>>,
{
    let builder = Amp::<L>::builder().loss_scale(Static::new(8.0));
    let (model, mut opt) = builder.build(Net::new(layer, config), Adam::new(1e-2)).unwrap();
    let xs = noise(1, &[BATCH, 2 * TIME, FEATURES]);
    let ys = xs.mean_dim(2, true, Kind::Float).cumsum(1, Kind::Float);
    let chunk = |whole: &Tensor, n: i64| whole.narrow(1, n * TIME, TIME);
    let train_step = |_| {
        let (first, state) = model.forward_with(chunk(&xs, 0), |net, xs| {
            let (ys, state) = net.layer.seq(&xs);
            assert_eq!(ys.kind(), L::LOW_PRECISION.unwrap_or(Kind::Float));
            (net.head.forward(&ys), state)
        });
        let (second, _) = model.forward_with((chunk(&xs, 1), &state), |net, (xs, state)| {
            let (ys, state) = net.layer.seq_init(&xs, &state);
            (net.head.forward(&ys), state)
        });
        state.map_tensors(&mut |tensor| {
            assert_eq!(tensor.kind(), Kind::Float);
            tensor.shallow_clone()
        });
        assert_eq!((first.kind(), second.kind()), (Kind::Float, Kind::Float));
        let loss = mse(&first, &chunk(&ys, 0)) + mse(&second, &chunk(&ys, 1));
        assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
        loss.double_value(&[])
    };
    (0..STEPS).map(train_step).collect()
}

/// Half a unit in the last place, relative to the number.
fn rounding(kind: Kind) -> f64 {
    match kind {
        Kind::Half => 2f64.powi(-11),
        _ => 2f64.powi(-8),
    }
}

fn agrees_with_fp32<L: OptLevel, R>(layer: Layer<R>, expected: &[f64], config: RNNConfig)
where
    R: RNN<State: Castable<Cast = R::State>>,
{
    let losses = train::<L, R>(layer, config);
    // Two roundings for each step of the optimizer that led to a loss.
    let allowed = 2.0 * STEPS as f64 * rounding(L::LOW_PRECISION.unwrap());
    for (loss, expected) in losses.iter().zip(expected) {
        let error = (loss - expected).abs() / expected;
        assert!(error < allowed, "{} is off by {error:e} at {config:?}", L::DEFAULTS.opt_level);
    }
}

fn trains_at_every_level<R>(layer: Layer<R>)
where
    R: RNN<State: Castable<Cast = R::State>>,
{
    for (num_layers, bidirectional) in [(1, false), (1, true), (2, false), (2, true)] {
        let config = RNNConfig { num_layers, bidirectional, ..Default::default() };
        let expected = train::<O0, R>(layer, config);
        assert!(expected[STEPS - 1] < 0.9 * expected[0], "{expected:?}");
        agrees_with_fp32::<O1<bf16>, R>(layer, &expected, config);
        agrees_with_fp32::<O1<f16>, R>(layer, &expected, config);
        agrees_with_fp32::<O2<bf16>, R>(layer, &expected, config);
        agrees_with_fp32::<O2<f16>, R>(layer, &expected, config);
        agrees_with_fp32::<O3<bf16>, R>(layer, &expected, config);
        agrees_with_fp32::<O3<f16>, R>(layer, &expected, config);
    }
}

#[test]
fn rnn_trains_at_every_level() {
    trains_at_every_level(Elman::new);
}

#[test]
fn lstm_trains_at_every_level() {
    trains_at_every_level(|path, inputs, hidden, config| nn::lstm(path, inputs, hidden, config));
}

#[test]
fn gru_trains_at_every_level() {
    trains_at_every_level(|path, inputs, hidden, config| nn::gru(path, inputs, hidden, config));
}

/// Weights of a cell with `gates` gates, for inputs and for the state, and both biases.
fn cell(gates: i64) -> [Tensor; 4] {
    let rows = gates * HIDDEN;
    let shapes = [vec![rows, FEATURES], vec![rows, HIDDEN], vec![rows], vec![rows]];
    let mut seed = 0;
    shapes.map(|shape| {
        seed += 1;
        (noise(seed, &shape) * 0.5).set_requires_grad(true)
    })
}

/// Runs a cell over a sequence, in FP32 and in a region, and compares its last state and the
/// gradients of its weights.
fn cell_agrees_with_fp32(gates: i64, step: fn(&Tensor, &[Tensor; 2], &[Tensor; 4]) -> [Tensor; 2]) {
    let run = || {
        let weights = cell(gates);
        let zeros = || Tensor::zeros([BATCH, HIDDEN], (Kind::Float, Device::Cpu));
        let mut state = [zeros(), zeros()];
        for x in noise(9, &[TIME, BATCH, FEATURES]).unbind(0) {
            state = step(&x, &state, &weights);
        }
        state[0].square().sum(Kind::Float).backward();
        (state, weights.map(|weight| weight.grad()))
    };
    let (expected_state, expected_grads) = run();
    let (state, grads) = {
        let _region = autocast::enter::<bf16>(Device::Cpu).unwrap();
        run()
    };
    assert_eq!(state[0].kind(), Kind::BFloat16);
    let allowed = 2.0 * TIME as f64 * rounding(Kind::BFloat16);
    let error = relative_error(&values(&state[0]), &values(&expected_state[0]));
    assert!(error < allowed, "the state is off by {error:e}");
    for (grad, expected) in grads.iter().zip(&expected_grads) {
        assert_eq!(grad.kind(), Kind::Float);
        let error = relative_error(&values(grad), &values(expected));
        assert!(error < allowed, "a gradient is off by {error:e}");
    }
}

#[test]
fn an_rnn_cell_runs_in_16_bits_in_a_region() {
    cell_agrees_with_fp32(1, |x, [h, unused], [w_ih, w_hh, b_ih, b_hh]| {
        [x.rnn_tanh_cell(h, w_ih, w_hh, Some(b_ih), Some(b_hh)), unused.shallow_clone()]
    });
}

#[test]
fn an_lstm_cell_runs_in_16_bits_in_a_region() {
    cell_agrees_with_fp32(4, |x, state, [w_ih, w_hh, b_ih, b_hh]| {
        let state = state.each_ref();
        x.lstm_cell(&state, w_ih, w_hh, Some(b_ih), Some(b_hh)).into()
    });
}

#[test]
fn a_gru_cell_runs_in_16_bits_in_a_region() {
    cell_agrees_with_fp32(3, |x, [h, unused], [w_ih, w_hh, b_ih, b_hh]| {
        [x.gru_cell(h, w_ih, w_hh, Some(b_ih), Some(b_hh)), unused.shallow_clone()]
    });
}
