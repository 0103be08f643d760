//! Optimizers under FP16 autocast with a scaler, against plain FP32 and against libtorch's.

use half::f16;
use tch::{
    Reduction, Tensor,
    nn::{self, ModuleT, OptimizerConfig},
};
use tch_amp::{
    Amp, AmpModel, AmpOptimizer, Dynamic, O0, O1, OptLevel, Optimizer,
    optim::{Adam, AdamW, Sgd},
};

use crate::{INIT, SIMPLE, Trained, control, data, difference, layers, scaling};

/// Three good steps and a skipped one.
const LAST_SCALE: f64 = INIT * 8.0 * 0.5;

/// Whether parameters and gradients are those of plain FP32, within an absolute tolerance; the
/// scale has to be exact in any case.
fn is_close<L: OptLevel>(
    own: impl Optimizer,
    torch: impl OptimizerConfig,
    lr: f64,
    atol: f32,
) -> bool {
    let expected = control(SIMPLE, true, torch, lr);
    let (Trained { params, grads }, scale) = scaling::<L>(SIMPLE, true, own);
    assert_eq!(scale, LAST_SCALE);
    let pairs = [(params, expected.params), (grads, expected.grads)];
    pairs.iter().all(|(actual, expected)| difference(actual, expected, atol).is_none())
}

/// The scaler alone: without casts, only the order of operations rounds differently.
#[test]
fn scaling_changes_nothing_in_adam_and_adamw() {
    for lr in [1.0, 0.01] {
        assert!(is_close::<O0>(Adam::new(lr), nn::Adam::default(), lr, 1e-5));
        let adamw = AdamW::new(lr).weight_decay(0.1);
        assert!(is_close::<O0>(adamw, nn::adamw(0.9, 0.999, 0.1), lr, 1e-5));
    }
}

/// test_grad_scaling_autocast, which expects this too: Adam divides a gradient by its own size, so
/// that a step of length 1 has the rounding of FP16 in it however small the gradient is.
#[test]
fn adam_and_adamw_leave_the_tolerance_of_sgd_under_autocast() {
    assert!(is_close::<O1<f16>>(Sgd::new(1.0), nn::Sgd::default(), 1.0, 1e-3));
    assert!(!is_close::<O1<f16>>(Adam::new(1.0), nn::Adam::default(), 1.0, 1e-3));
    assert!(!is_close::<O1<f16>>(AdamW::new(1.0), nn::adamw(0.9, 0.999, 0.01), 1.0, 1e-3));
}

/// The rounding shrinks with the step.
#[test]
fn adam_and_adamw_keep_it_with_shorter_steps() {
    for lr in [0.1, 0.01, 0.001] {
        assert!(is_close::<O1<f16>>(Adam::new(lr), nn::Adam::default(), lr, 1e-3));
        assert!(is_close::<O1<f16>>(AdamW::new(lr), nn::adamw(0.9, 0.999, 0.01), lr, 1e-3));
    }
}

type Built<O> = (AmpModel<O1<f16>, nn::Sequential>, AmpOptimizer<O1<f16>, O>);

fn assert_close(what: &str, actual: &Tensor, expected: &Tensor) {
    // torch's default tolerances for FP32
    assert!(actual.allclose(expected, 1.3e-6, 1e-5, false), "{what}: {actual} is not {expected}");
}

/// One step; returns the loss, and the gradients by the parameter's name if they are to be seen.
fn step<O: Optimizer>(
    (model, opt): &mut Built<O>,
    [xs, ys]: [&Tensor; 2],
    see_grads: bool,
) -> (Tensor, Vec<(String, Tensor)>) {
    let loss = model.forward_t(xs, true).mse_loss(ys, Reduction::Mean);
    let mut step = opt.begin();
    step.backward(&loss).unwrap();
    let mut step = step.unscale().unwrap();
    let grads = match see_grads {
        true => step.grads().unwrap(),
        false => vec![],
    };
    let grads = grads.into_iter().map(|(name, grad)| (name.to_owned(), grad.copy())).collect();
    assert!(step.step().unwrap().is_applied());
    (loss, grads)
}

/// test_grad_scaling_autocast_fused_optimizers: the same loop with two optimizers, compared after
/// each step and set equal for the next.
///
/// Gradients are seen in every other run: where they are not, the optimizer divides by the scale.
/// torch compares the optimizers' states too; libtorch's cannot be read here.
fn agree<O: Optimizer>(own: impl Fn() -> O, torch: impl OptimizerConfig + Copy, lr: f64) {
    for see_grads in [true, false] {
        let builder = || Amp::<O1<f16>>::builder().loss_scale(Dynamic::new().init_scale(INIT));
        let mut own: Built<O> = builder().build(layers(), own()).unwrap();
        let (store, net) = layers();
        let reference = torch.build(&store, lr).unwrap();
        let mut torch: Built<nn::Optimizer> = builder().build((store, net), reference).unwrap();
        for (xs, ys) in data() {
            let (loss, grads) = step(&mut own, [&xs, &ys], see_grads);
            let (expected_loss, expected_grads) = step(&mut torch, [&xs, &ys], see_grads);
            assert_close("loss", &loss, &expected_loss);
            assert_eq!(grads.len(), if see_grads { 4 } else { 0 });
            for ((name, grad), (expected_name, expected)) in grads.iter().zip(&expected_grads) {
                assert_eq!(name, expected_name);
                assert_close(name, grad, expected);
            }
            let params = own.0.variables();
            for (name, expected) in torch.0.variables() {
                assert_close(&name, &params[&name], &expected);
                tch::no_grad(|| params[&name].shallow_clone().copy_(&expected));
            }
        }
    }
}

#[test]
fn sgd_agrees_with_libtorch_in_the_same_loop() {
    let sgd = || Sgd::new(0.01);
    let momentum = || sgd().momentum(0.9);
    agree(|| Sgd::new(1.0), nn::Sgd::default(), 1.0);
    agree(sgd, nn::Sgd::default(), 0.01);
    agree(momentum, nn::sgd(0.9, 0.0, 0.0, false), 0.01);
    agree(|| momentum().dampening(0.5), nn::sgd(0.9, 0.5, 0.0, false), 0.01);
    agree(|| momentum().weight_decay(0.1), nn::sgd(0.9, 0.0, 0.1, false), 0.01);
    agree(|| momentum().nesterov(true).weight_decay(0.1), nn::sgd(0.9, 0.0, 0.1, true), 0.01);
}

#[test]
fn adam_agrees_with_libtorch_in_the_same_loop() {
    agree(|| Adam::new(1.0), nn::Adam::default(), 1.0);
    agree(|| Adam::new(0.01), nn::Adam::default(), 0.01);
    agree(|| Adam::new(1.0).weight_decay(0.1), nn::adam(0.9, 0.999, 0.1), 1.0);
}

#[test]
fn adamw_agrees_with_libtorch_in_the_same_loop() {
    agree(|| AdamW::new(1.0), nn::adamw(0.9, 0.999, 0.01), 1.0);
    agree(|| AdamW::new(0.01), nn::adamw(0.9, 0.999, 0.01), 0.01);
    agree(|| AdamW::new(1.0).weight_decay(0.1), nn::adamw(0.9, 0.999, 0.1), 1.0);
}
