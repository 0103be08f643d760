//! Every legal combination of level, loss scale and `keep_batchnorm_fp32`, on real images: the
//! losses of 50 iterations are bit for bit those of a training loop written out in plain tch.
//! `ui-tests/option/cross_product.rs` has the others.

#[path = "cross_product/by_hand.rs"]
mod by_hand;
mod common;
#[path = "cross_product/net.rs"]
mod net;

use by_hand::{Recipe, Scale};
use half::{bf16, f16};
use net::ResNet;
use tch::{Kind, Tensor, nn::ModuleT};
use tch_amp::{
    Amp, AmpBuilder, Dynamic, LossScale, LowPrecision, O0, O1, O2, O3, OptLevel, Static,
    StepOutcome,
    builder::state::State,
    optim::Sgd,
    option::{self, AllowsKeepBatchnormFp32, Unset},
};

const ITERATIONS: i64 = 50;
/// What the loss is multiplied by, so that large loss scales overflow.
const LOSS_WEIGHT: f64 = 64.0;
const LR: f64 = 0.1 / LOSS_WEIGHT;
const MOMENTUM: f64 = 0.9;
const WEIGHT_DECAY: f64 = 1e-3 * LOSS_WEIGHT;

/// A training, as far as it can be seen from outside.
#[derive(Debug, Default, PartialEq)]
struct Training {
    /// The bits of each iteration's loss, skipped ones included.
    losses: Vec<u64>,
    skipped: Vec<bool>,
    /// The last loss scale.
    scale: f64,
    /// The last weights and running statistics.
    variables: Vec<(String, common::Bits)>,
}

/// What `.loss_scale(…)` is called with, if at all.
#[derive(Debug, Clone, Copy)]
enum LossScaleOption {
    Default,
    Static(f64),
    Dynamic,
    /// Starts too high, and soon grows too high again.
    Overflowing {
        init: f64,
    },
}

impl LossScaleOption {
    fn setting(self) -> Option<LossScale> {
        match self {
            Self::Default => None,
            Self::Static(scale) => Some(Static::new(scale).into()),
            Self::Dynamic => Some(Dynamic::new().into()),
            Self::Overflowing { init } => {
                let dynamic = Dynamic::new().max_loss_scale(TWO_TO_127);
                Some(dynamic.init_scale(init).growth_interval(4).into())
            }
        }
    }

    /// The same by hand; `default` is the level's.
    fn by_hand(self, default: Scale) -> Scale {
        match self {
            Self::Default => default,
            Self::Static(scale) => Scale::Static(scale),
            Self::Dynamic => DYNAMIC,
            Self::Overflowing { init } => {
                Scale::Dynamic { scale: init, window: 4, max: TWO_TO_127 }
            }
        }
    }
}

/// Apex's default.
const DYNAMIC: Scale = Scale::Dynamic { scale: 65_536.0, window: 2000, max: 16_777_216.0 };

fn train<L: OptLevel, S: State>(builder: AmpBuilder<L, S>, data: &[(Tensor, Tensor)]) -> Training {
    let own = Sgd::new(LR).momentum(MOMENTUM).weight_decay(WEIGHT_DECAY);
    let (model, mut opt) = builder.build(ResNet::seeded(), own).unwrap();
    let mut training = Training::default();
    for (xs, digits) in data {
        let loss = model.forward_t(xs, true).cross_entropy_for_logits(digits) * LOSS_WEIGHT;
        training.losses.push(loss.double_value(&[]).to_bits());
        let outcome = opt.backward_step(&loss).unwrap().outcome();
        training.skipped.push(matches!(outcome, StepOutcome::Skipped { .. }));
    }
    training.scale = opt.scalers()[0].scale();
    training.variables = common::snapshot(model.variables());
    training
}

/// One combination, both ways; tells which steps were skipped.
fn agrees<L: OptLevel, S: State>(
    builder: AmpBuilder<L, S>,
    scale: LossScaleOption,
    recipe: Recipe,
    data: &[(Tensor, Tensor)],
) -> Vec<bool>
where
    S::LossScale: Unset<option::loss_scale>,
{
    // The tensors are small: several threads would mostly wait for each other.
    tch::set_num_threads(1);
    let recipe = Recipe { scale: scale.by_hand(recipe.scale), ..recipe };
    let actual = match scale.setting() {
        Some(setting) => train(builder.loss_scale(setting), data),
        None => train(builder, data),
    };
    let expected = by_hand::train(recipe, data);
    assert_eq!(actual, expected, "{scale:?}, {recipe:?}");
    let sum = |losses: &[u64]| losses.iter().map(|bits| f64::from_bits(*bits)).sum::<f64>();
    let (first, last) = (sum(&expected.losses[10..20]), sum(&expected.losses[40..]));
    assert!(last < 0.9 * first, "the loss sank from {first} to {last} only: {recipe:?}");
    let skipped = expected.skipped.iter().filter(|skipped| **skipped).count();
    if let LossScaleOption::Overflowing { .. } = scale {
        assert!((5..25).contains(&skipped), "{skipped} steps were skipped: {recipe:?}");
    }
    expected.skipped
}

/// `keep_batchnorm_fp32` left out, true and false.
fn agrees_for_each_keep<L: AllowsKeepBatchnormFp32>(
    scale: LossScaleOption,
    recipe: Recipe,
    data: &[(Tensor, Tensor)],
) {
    agrees(Amp::<L>::builder(), scale, recipe, data);
    for keep in [true, false] {
        let recipe = Recipe { keep_norm: keep, ..recipe };
        agrees(Amp::<L>::builder().keep_batchnorm_fp32(keep), scale, recipe, data);
    }
}

/// `O0`'s row of Apex's table of defaults.
const PLAIN: Recipe = Recipe {
    weights: Kind::Float,
    keep_norm: false,
    masters: false,
    region: None,
    scale: Scale::Off,
};

fn o1<H: LowPrecision>(default_scale: Scale) -> Recipe {
    Recipe { region: Some(H::KIND), scale: default_scale, ..PLAIN }
}

fn o2<H: LowPrecision>(default_scale: Scale) -> Recipe {
    Recipe { weights: H::KIND, keep_norm: true, masters: true, scale: default_scale, ..PLAIN }
}

fn o3<H: LowPrecision>() -> Recipe {
    Recipe { weights: H::KIND, scale: Scale::Static(1.0), ..PLAIN }
}

/// The largest power of two in FP32 and BF16.
const TWO_TO_127: f64 = f32::MAX as f64 / (2.0 - f32::EPSILON as f64);

/// No FP16 gradient of these losses is finite when multiplied by it.
const TWO_TO_24: f64 = 16_777_216.0;

/// All settings of the loss scale; the last one starts at `too_high`.
const fn scales(too_high: f64) -> [LossScaleOption; 5] {
    [
        LossScaleOption::Default,
        LossScaleOption::Static(1.0),
        LossScaleOption::Static(128.0),
        LossScaleOption::Dynamic,
        LossScaleOption::Overflowing { init: too_high },
    ]
}

#[test]
fn o0() {
    let data = net::batches(ITERATIONS, 8);
    for scale in scales(TWO_TO_127) {
        agrees(Amp::<O0>::builder(), scale, PLAIN, &data);
    }
}

#[test]
fn o1_bf16() {
    let data = net::batches(ITERATIONS, 8);
    for scale in scales(TWO_TO_127) {
        agrees(Amp::<O1<bf16>>::builder(), scale, o1::<bf16>(Scale::Static(1.0)), &data);
    }
}

#[test]
fn o2_bf16() {
    let data = net::batches(ITERATIONS, 8);
    for scale in scales(TWO_TO_127) {
        agrees_for_each_keep::<O2<bf16>>(scale, o2::<bf16>(Scale::Static(1.0)), &data);
    }
}

#[test]
fn o3_bf16() {
    let data = net::batches(ITERATIONS, 8);
    for scale in scales(TWO_TO_127) {
        agrees_for_each_keep::<O3<bf16>>(scale, o3::<bf16>(), &data);
    }
}

/// FP16 is slow on the CPU: the batches are small.
#[test]
fn o1_f16() {
    let data = net::batches(ITERATIONS, 4);
    for scale in scales(TWO_TO_24) {
        agrees(Amp::<O1<f16>>::builder(), scale, o1::<f16>(DYNAMIC), &data);
    }
}

#[test]
fn o2_f16() {
    let data = net::batches(ITERATIONS, 4);
    for scale in scales(TWO_TO_24) {
        agrees_for_each_keep::<O2<f16>>(scale, o2::<f16>(DYNAMIC), &data);
    }
}

#[test]
fn o3_f16() {
    let data = net::batches(ITERATIONS, 4);
    for scale in scales(TWO_TO_24) {
        agrees_for_each_keep::<O3<f16>>(scale, o3::<f16>(), &data);
    }
}

/// Batch norm's statistics are NaN after the forward pass, and back to what they were after the
/// step.
#[test]
fn a_batch_that_overflows_is_skipped_at_every_level() {
    let mut data = net::batches(ITERATIONS, 8);
    data[7].0 = &data[7].0 * 1e38;
    let scale = LossScaleOption::Static(128.0);
    let one = Scale::Static(1.0);
    for skipped in [
        agrees(Amp::<O0>::builder(), scale, PLAIN, &data),
        agrees(Amp::<O1<bf16>>::builder(), scale, o1::<bf16>(one), &data),
        agrees(Amp::<O2<bf16>>::builder(), scale, o2::<bf16>(one), &data),
        agrees(Amp::<O3<bf16>>::builder(), scale, o3::<bf16>(), &data),
    ] {
        assert_eq!(skipped, (0..ITERATIONS).map(|n| n == 7).collect::<Vec<_>>());
    }
}
