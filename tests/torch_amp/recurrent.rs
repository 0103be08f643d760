//! torch's `test_autocast_rnn`: recurrent layers in a region against the same layers in 16 bits,
//! bit by bit, in all layouts and with all mixtures of types.

use half::{bf16, f16};
use tch::{Device, Kind, Tensor};
use tch_amp::{LowPrecision, autocast};

use crate::common::{bits, noise};

const TIME: i64 = 3;
const BATCH: i64 = 4;
const FEATURES: i64 = 5;
const HIDDEN: i64 = 6;

#[derive(Debug, Clone, Copy)]
enum Cell {
    Tanh,
    Relu,
    Gru,
    Lstm,
}

#[derive(Debug, Clone, Copy)]
enum Layout {
    SequenceFirst,
    BatchFirst,
    /// Sequences of 3, 3, 2 and 1 steps.
    Packed,
}

#[derive(Debug, Clone, Copy)]
struct Layer {
    cell: Cell,
    layers: i64,
    bias: bool,
    layout: Layout,
    bidirectional: bool,
}

/// The arguments of a recurrent layer.
struct Arguments {
    input: Tensor,
    state: Vec<Tensor>,
    weights: Vec<Tensor>,
}

impl Layer {
    fn arguments(self, [input, state, weights]: [Kind; 3]) -> Arguments {
        let directions = 1 + i64::from(self.bidirectional);
        let (gates, states) = match self.cell {
            Cell::Tanh | Cell::Relu => (1, 1),
            Cell::Gru => (3, 1),
            Cell::Lstm => (4, 2),
        };
        let shape: &[i64] = match self.layout {
            Layout::SequenceFirst => &[TIME, BATCH, FEATURES],
            Layout::BatchFirst => &[BATCH, TIME, FEATURES],
            Layout::Packed => &[9, FEATURES],
        };
        let mut shapes = Vec::new();
        for n in 0..self.layers * directions {
            let inputs = if n < directions { FEATURES } else { HIDDEN * directions };
            shapes.extend([vec![gates * HIDDEN, inputs], vec![gates * HIDDEN, HIDDEN]]);
            if self.bias {
                shapes.extend([vec![gates * HIDDEN], vec![gates * HIDDEN]]);
            }
        }
        let weight = |(n, shape): (usize, Vec<i64>)| {
            (noise(20 + n as u64, &shape) * 0.4).to_kind(weights).set_requires_grad(true)
        };
        let first = |n| noise(n, &[self.layers * directions, BATCH, HIDDEN]).to_kind(state);
        Arguments {
            input: noise(1, shape).to_kind(input),
            state: (2..2 + states).map(first).collect(),
            weights: shapes.into_iter().enumerate().map(weight).collect(),
        }
    }

    /// The outputs, and the last state.
    fn call(self, Arguments { input, state, weights }: &Arguments) -> Vec<Tensor> {
        let Self { cell, layers, bias, layout, bidirectional } = self;
        let first = matches!(layout, Layout::BatchFirst);
        let sizes = Tensor::from_slice(&[4i64, 3, 2]);
        let packed = matches!(layout, Layout::Packed);
        if let Cell::Lstm = cell {
            let (output, state, last) = match packed {
                true => Tensor::lstm_data(
                    input,
                    &sizes,
                    state,
                    weights,
                    bias,
                    layers,
                    0.0,
                    true,
                    bidirectional,
                ),
                false => input.lstm(state, weights, bias, layers, 0.0, true, bidirectional, first),
            };
            return vec![output, state, last];
        }
        let state = &state[0];
        let (output, state) = if packed {
            let call = match cell {
                Cell::Tanh => Tensor::rnn_tanh_data,
                Cell::Relu => Tensor::rnn_relu_data,
                _ => Tensor::gru_data,
            };
            call(input, &sizes, state, weights, bias, layers, 0.0, true, bidirectional)
        } else {
            let call = match cell {
                Cell::Tanh => Tensor::rnn_tanh,
                Cell::Relu => Tensor::rnn_relu,
                _ => Tensor::gru,
            };
            call(input, state, weights, bias, layers, 0.0, true, bidirectional, first)
        };
        vec![output, state]
    }
}

fn agrees<H: LowPrecision>(layer: Layer, kinds: [Kind; 3]) {
    let inside = layer.arguments(kinds);
    let results = {
        let _region = autocast::enter::<H>(Device::Cpu).unwrap();
        layer.call(&inside)
    };
    results[0].sum(Kind::Float).backward();
    // Rounded once, so that 16-bit arguments are those that the region makes.
    let control = layer.arguments([H::KIND; 3]);
    let expected = layer.call(&control);
    expected[0].sum(Kind::Float).backward();
    assert_eq!(results.len(), expected.len());
    for (result, expected) in results.iter().zip(&expected) {
        assert_eq!((result.kind(), expected.kind()), (H::KIND, H::KIND), "{layer:?} {kinds:?}");
        assert_eq!(bits(result), bits(expected), "{layer:?} {kinds:?}");
    }
    for (weight, control) in inside.weights.iter().zip(&control.weights) {
        assert_eq!(weight.grad().kind(), weight.kind());
        let grad = weight.grad().to_kind(H::KIND);
        assert_eq!(bits(&grad), bits(&control.grad()), "{layer:?} {kinds:?}");
    }
}

fn all_agree(cell: Cell) {
    let layouts = [Layout::SequenceFirst, Layout::BatchFirst, Layout::Packed];
    for n in 0..8 {
        let [two, bias, bidirectional] = [1, 2, 4].map(|bit| n & bit != 0);
        for layout in layouts {
            let layer = Layer { cell, layers: 1 + i64::from(two), bias, layout, bidirectional };
            for n in 0..8 {
                let kinds = |low| [1, 2, 4].map(|bit| if n & bit != 0 { low } else { Kind::Float });
                agrees::<f16>(layer, kinds(Kind::Half));
                agrees::<bf16>(layer, kinds(Kind::BFloat16));
            }
        }
    }
}

#[test]
fn rnn_with_tanh_is_that_in_16_bits() {
    all_agree(Cell::Tanh);
}

#[test]
fn rnn_with_relu_is_that_in_16_bits() {
    all_agree(Cell::Relu);
}

#[test]
fn gru_is_that_in_16_bits() {
    all_agree(Cell::Gru);
}

#[test]
fn lstm_is_that_in_16_bits() {
    all_agree(Cell::Lstm);
}
