//! Gradient penalty: gradients of scaled losses that have a graph of their own.

use tch::{Kind, Tensor, nn::ModuleT};
use tch_amp::{
    Amp, Dynamic, O0, O1, O2, O3, OptLevel, Static, StepError, StepOutcome, bf16, f16, optim::Sgd,
};

mod common;
use common::{Net, batches, mse, relative_error, values, weights};

/// `loss = Σ (x·w)²`, so that its gradient is `2·x²·w`, and the penalty `Σ grad²` has the gradient
/// `8·x⁴·w`.
#[test]
fn the_penalty_is_on_true_gradients() {
    fn check<L: OptLevel>(scale: f64) {
        let builder = Amp::<L>::builder().loss_scale(Static::new(scale));
        let (model, mut opt) = builder.build(weights(&[0.5, 1.0]), Sgd::new(0.125)).unwrap();
        let xs = Tensor::from_slice(&[1f32, 0.5]);
        let mut step = opt.begin();
        let loss = model.forward(&xs).square().sum(Kind::Float);
        let grads = step.scale_loss(&loss).unwrap().grad(&[&model.inner().0]).unwrap();
        assert_eq!((values(&grads[0]), grads[0].kind()), (vec![1.0, 0.5], Kind::Float));
        step.backward(&(loss + grads[0].square().sum(Kind::Float))).unwrap();
        let mut grads = step.unscale().unwrap();
        // 2·x²·w + 8·x⁴·w
        assert_eq!(values(grads.grads().unwrap()[0].1), [1.0 + 4.0, 0.5 + 0.5]);
        assert!(grads.step().unwrap().is_applied());
        assert_eq!(values(opt.master_params().next().unwrap().1), [0.5 - 0.625, 1.0 - 0.125]);
    }
    for scale in [1.0, 128.0] {
        check::<O0>(scale);
        check::<O1<bf16>>(scale);
        check::<O2<f16>>(scale);
        check::<O2<bf16>>(scale);
        check::<O3<bf16>>(scale);
    }
}

/// torch's test_grad_scaling_penalty: a net, at O1 against plain FP32.
#[test]
fn a_net_with_penalty_trains_like_fp32() {
    fn train<L: OptLevel>() -> Vec<f32> {
        let (model, mut opt) = Amp::<L>::builder().build(Net::seeded(1), Sgd::new(0.05)).unwrap();
        for (xs, ys) in batches(8) {
            let inputs = xs.set_requires_grad(true);
            let mut step = opt.begin();
            let output = model.forward_t(&inputs, true);
            let loss = mse(&output, &ys);
            let grads = step.scale_loss(&loss).unwrap().grad(&[&inputs]).unwrap();
            let penalty = grads[0].square().sum(Kind::Float).sqrt();
            step.backward(&(loss + penalty)).unwrap();
            assert!(step.unscale().unwrap().step().unwrap().is_applied());
        }
        opt.master_params().flat_map(|(_, master)| values(master)).collect()
    }
    let expected = train::<O0>();
    assert!(relative_error(&train::<O1<bf16>>(), &expected) < 0.01);
    assert!(relative_error(&train::<O2<bf16>>(), &expected) < 0.01);
}

/// An infinite gradient makes an infinite penalty, and the step is skipped.
#[test]
fn an_overflow_in_the_penalty_skips_the_step() {
    let scale = Dynamic::new().init_scale(65_536.0);
    let (model, mut opt) =
        Amp::<O2<f16>>::builder().loss_scale(scale).build(weights(&[1.0]), Sgd::new(1.0)).unwrap();
    let mut step = opt.begin();
    let loss = model.forward(&Tensor::from_slice(&[2f32])).square().sum(Kind::Float);
    let grads = step.scale_loss(&loss).unwrap().grad(&[&model.inner().0]).unwrap();
    assert_eq!(values(&grads[0]), [f32::INFINITY]);
    step.backward(&(loss + grads[0].square().sum(Kind::Float))).unwrap();
    assert!(matches!(step.unscale().unwrap().step().unwrap(), StepOutcome::Skipped { .. }));
    assert_eq!(opt.scalers()[0].scale(), 32_768.0);
}

#[test]
fn an_input_that_the_loss_does_not_depend_on_is_refused() {
    let (model, mut opt) =
        Amp::<O2<bf16>>::builder().build(weights(&[1.0]), Sgd::new(1.0)).unwrap();
    let other = Tensor::from_slice(&[1f32]).set_requires_grad(true);
    let xs = Tensor::from_slice(&[1f32]);
    let loss = model.forward(&xs).sum(Kind::Float);
    let mut step = opt.begin();
    let scaled = step.scale_loss(&loss).unwrap();
    let error = scaled.grad(&[&model.inner().0, &other]).unwrap_err();
    assert!(matches!(error, StepError::UnusedInput { index: 1 }), "{error}");
    let error = step.scale_loss(&loss).unwrap().grad(&[&xs]).unwrap_err();
    assert!(matches!(error, StepError::Torch(_)), "{error}");
    step.backward(&loss).unwrap();
    assert!(step.unscale().unwrap().step().unwrap().is_applied());
}

#[test]
fn the_gradients_of_no_input_are_none() {
    let (model, mut opt) =
        Amp::<O2<bf16>>::builder().build(weights(&[1.0]), Sgd::new(1.0)).unwrap();
    let loss = model.forward(&Tensor::from_slice(&[1f32])).sum(Kind::Float);
    let mut step = opt.begin();
    assert!(step.scale_loss(&loss).unwrap().grad::<Tensor>(&[]).unwrap().is_empty());
}
