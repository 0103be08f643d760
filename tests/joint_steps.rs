//! One loss that feeds several optimizers, and steps that are open at the same time.

use tch::{
    Device, Kind, Tensor,
    nn::{self, ModuleT, OptimizerConfig, VarStore},
};
use tch_amp::{
    Amp, AmpModel, AmpOptimizer, Dynamic, O0, O1, O2, O3, OptLevel, StepError, StepOutcome, bf16,
    f16, joint, optim::Sgd,
};
use typenum::{U1, U2};

mod common;
use common::{Net, Weights, snapshot, values, weights};

const SCALE: Dynamic = Dynamic::new().init_scale(1024.0).growth_interval(1);

type Pair<L> = [(AmpModel<L, Weights>, AmpOptimizer<L, Sgd, U2>); 2];

/// Two models with one weight of 1 each, and an optimizer of rate 1 each.
fn pair<L: OptLevel>() -> Pair<L> {
    let builder = Amp::<L>::builder().num_losses::<U2>().loss_scale(SCALE);
    let models = [weights(&[1.0]), weights(&[1.0])];
    let ([a, b], [opt_a, opt_b]) = builder.build(models, [Sgd::new(1.0), Sgd::new(1.0)]).unwrap();
    [(a, opt_a), (b, opt_b)]
}

/// A loss with the given gradient for the model's weight.
fn linear<L: OptLevel>(model: &AmpModel<L, Weights>, grad: f32) -> Tensor {
    model.forward(&Tensor::from_slice(&[grad])).sum(Kind::Float)
}

fn scales<L: OptLevel>(opt: &AmpOptimizer<L, Sgd, U2>) -> Vec<f64> {
    opt.scalers().iter().map(|scaler| scaler.scale()).collect()
}

fn weight<L: OptLevel>(model: &AmpModel<L, Weights>) -> f32 {
    values(&model.inner().0)[0]
}

#[test]
fn one_loss_feeds_two_optimizers() {
    fn check<L: OptLevel>() {
        let [(a, mut opt_a), (b, mut opt_b)] = pair::<L>();
        let (mut step_a, mut step_b) = (opt_a.begin(), opt_b.begin());
        let loss = linear(&a, 0.25) + linear(&b, 0.5);
        joint((&mut step_a, &mut step_b)).backward_of::<U1>(&loss).unwrap();
        assert!(step_a.unscale().unwrap().step().unwrap().is_applied());
        assert!(step_b.unscale().unwrap().step().unwrap().is_applied());
        assert_eq!((weight(&a), weight(&b)), (0.75, 0.5));
        // The scale of loss 1 has grown once, not twice.
        assert_eq!(scales(&opt_a), [1024.0, 2048.0]);
        assert_eq!(scales(&opt_b), [1024.0, 2048.0]);
    }
    check::<O0>();
    check::<O1<f16>>();
    check::<O2<f16>>();
    check::<O2<bf16>>();
    check::<O3<bf16>>();
}

/// The first step to end does not wait for the other's check.
#[test]
fn an_overflow_skips_both_in_either_order() {
    for first_is_clean in [false, true] {
        let [(a, mut opt_a), (b, mut opt_b)] = pair::<O2>();
        let (mut step_a, mut step_b) = (opt_a.begin(), opt_b.begin());
        let loss = linear(&a, f32::INFINITY) + linear(&b, 0.5);
        joint((&mut step_a, &mut step_b)).backward(&loss).unwrap();
        let (first, second) = if first_is_clean { (step_b, step_a) } else { (step_a, step_b) };
        for step in [first, second] {
            let outcome = step.unscale().unwrap().step().unwrap();
            let StepOutcome::Skipped { overflows } = outcome else { panic!("{outcome:?}") };
            assert_eq!((overflows.len(), overflows[0].loss), (1, 0));
            assert_eq!(overflows[0].parameter, "0.w");
            assert_eq!(overflows[0].new_scale, 512.0);
        }
        assert_eq!((weight(&a), weight(&b)), (1.0, 1.0));
        assert_eq!(scales(&opt_a), [512.0, 1024.0]);
        assert_eq!(opt_a.scalers()[0].skipped(), 1);
    }
}

#[test]
fn an_optimizer_that_the_overflow_did_not_feed_steps() {
    let [(a, mut opt_a), (b, mut opt_b)] = pair::<O2>();
    let (mut step_a, mut step_b) = (opt_a.begin(), opt_b.begin());
    step_a.backward(&linear(&a, f32::NAN)).unwrap();
    step_b.backward_of::<U1>(&linear(&b, 0.5)).unwrap();
    assert!(!step_a.unscale().unwrap().step().unwrap().is_applied());
    assert!(step_b.unscale().unwrap().step().unwrap().is_applied());
    assert_eq!((weight(&a), weight(&b)), (1.0, 0.5));
    assert_eq!(scales(&opt_b), [512.0, 2048.0]);
}

/// Two optimizers share loss 0 by backward passes of their own.
#[test]
fn a_scale_stands_still_while_a_step_uses_it() {
    let [(a, mut opt_a), (b, mut opt_b)] = pair::<O2>();
    let (mut step_a, mut step_b) = (opt_a.begin(), opt_b.begin());
    step_a.backward(&linear(&a, 0.25)).unwrap();
    step_b.backward(&linear(&b, 0.25)).unwrap();
    assert!(step_a.unscale().unwrap().step().unwrap().is_applied());
    let scaled = step_b.scale_loss(&linear(&b, 0.25)).unwrap();
    assert_eq!(values(scaled.tensor()), [256.0]);
    scaled.backward().unwrap();
    assert!(step_b.unscale().unwrap().step().unwrap().is_applied());
    assert_eq!((weight(&a), weight(&b)), (0.75, 0.5));
    assert_eq!(scales(&opt_a), [2048.0, 1024.0]);
}

/// An overflow lowers the scale at once, for the steps that begin later.
#[test]
fn a_scale_stands_still_for_an_open_step_after_another_has_overflowed() {
    let [(a, mut opt_a), (b, mut opt_b)] = pair::<O2>();
    let (mut step_a, mut step_b) = (opt_a.begin(), opt_b.begin());
    step_a.backward(&linear(&a, f32::NAN)).unwrap();
    step_b.backward(&linear(&b, 0.25)).unwrap();
    assert!(!step_a.unscale().unwrap().step().unwrap().is_applied());
    assert_eq!(scales(&opt_a), [512.0, 1024.0]);
    let scaled = step_b.scale_loss(&linear(&b, 0.25)).unwrap();
    assert_eq!(values(scaled.tensor()), [256.0]);
    scaled.backward().unwrap();
    assert!(step_b.unscale().unwrap().step().unwrap().is_applied());
    assert_eq!((weight(&a), weight(&b)), (1.0, 0.5));
    assert_eq!(scales(&opt_a), [512.0, 1024.0]);
}

#[test]
fn a_step_that_is_given_up_leaves_the_scale_to_the_others() {
    let [(a, mut opt_a), (b, mut opt_b)] = pair::<O2>();
    let (mut step_a, mut step_b) = (opt_a.begin(), opt_b.begin());
    joint((&mut step_a, &mut step_b)).backward(&(linear(&a, 0.25) + linear(&b, 0.25))).unwrap();
    drop(step_a);
    assert!(step_b.unscale().unwrap().step().unwrap().is_applied());
    assert_eq!(scales(&opt_a), [2048.0, 1024.0]);
    let (mut step_a, mut step_b) = (opt_a.begin(), opt_b.begin());
    joint((&mut step_a, &mut step_b)).backward(&(linear(&a, 0.25) + linear(&b, 0.25))).unwrap();
    drop((step_a, step_b));
    assert_eq!(scales(&opt_a), [2048.0, 1024.0]);
}

#[test]
fn an_optimizer_without_gradients_takes_no_part() {
    let [(a, mut opt_a), (b, mut opt_b)] = pair::<O2>();
    let (mut step_a, mut step_b) = (opt_a.begin(), opt_b.begin());
    joint([&mut step_a, &mut step_b]).backward(&linear(&a, 0.25)).unwrap();
    assert!(step_a.unscale().unwrap().step().unwrap().is_applied());
    assert_eq!(step_b.unscale().unwrap().step().unwrap(), StepOutcome::NoGradients);
    assert_eq!((weight(&a), weight(&b)), (0.75, 1.0));
}

/// The gradients that a generator's loss leaves in the discriminator.
#[test]
fn gradients_of_an_optimizer_that_is_not_named_are_dropped() {
    let [(a, mut opt_a), (b, mut opt_b)] = pair::<O2>();
    let mut step_a = opt_a.begin();
    step_a.backward(&(linear(&a, 0.25) + linear(&b, 0.5))).unwrap();
    assert!(step_a.unscale().unwrap().step().unwrap().is_applied());
    assert!(opt_b.backward_step(&linear(&b, 0.125)).unwrap().outcome().is_applied());
    assert_eq!((weight(&a), weight(&b)), (0.75, 0.875));
}

#[test]
fn steps_of_different_builds_are_refused_and_go_on() {
    let [(a, mut opt_a), _] = pair::<O2>();
    let [(b, mut opt_b), _] = pair::<O2>();
    let (mut step_a, mut step_b) = (opt_a.begin(), opt_b.begin());
    let loss = linear(&a, 0.25) + linear(&b, 0.5);
    let error = joint((&mut step_a, &mut step_b)).backward(&loss).unwrap_err();
    assert!(matches!(error, StepError::OfDifferentBuilds), "{error}");
    step_a.backward(&loss).unwrap();
    assert!(step_a.unscale().unwrap().step().unwrap().is_applied());
    assert_eq!((weight(&a), weight(&b)), (0.75, 1.0));
}

#[test]
fn a_loss_without_steps_is_refused() {
    let [(a, opt_a), _] = pair::<O2>();
    let mut opts = [opt_a];
    let mut steps: Vec<_> = opts.iter_mut().map(AmpOptimizer::begin).collect();
    let none: Vec<_> = steps.iter_mut().skip(1).collect();
    let error = joint(none).backward(&linear(&a, 1.0)).unwrap_err();
    assert!(matches!(error, StepError::NoSteps), "{error}");
}

/// torch's test_grad_scaling_multiple goes through one graph twice.
#[test]
fn a_graph_can_be_retained_for_another_loss() {
    let [(a, mut opt_a), (b, mut opt_b)] = pair::<O2>();
    let (mut step_a, mut step_b) = (opt_a.begin(), opt_b.begin());
    let (from_a, from_b) = (linear(&a, 0.5), linear(&b, 0.5));
    let first = &from_a * 0.5 + &from_b * 0.25;
    let second = &from_a * 0.25 - &from_b * 0.5;
    let mut both = joint((&mut step_a, &mut step_b));
    both.scale_loss(&first).unwrap().retain_graph().backward().unwrap();
    both.backward_of::<U1>(&second).unwrap();
    for step in [step_a, step_b] {
        assert!(step.unscale().unwrap().step().unwrap().is_applied());
    }
    // 1 - 0.5·(0.5 + 0.25), 1 - 0.5·(0.25 - 0.5)
    assert_eq!((weight(&a), weight(&b)), (0.625, 1.125));
}

#[test]
fn a_graph_is_freed_unless_it_is_retained() {
    let [(a, mut opt_a), _] = pair::<O2>();
    let mut step = opt_a.begin();
    let loss = linear(&a, 0.5).square();
    step.backward(&loss).unwrap();
    let error = step.backward(&loss).unwrap_err();
    assert!(error.to_string().contains("backward through the graph a second time"), "{error}");
}

/// Batch norm of a model with two optimizers: the statistics come back if either is skipped.
#[test]
fn statistics_are_restored_whichever_step_is_skipped_and_whichever_ends_first() {
    for (skipped, body_first) in [(0, true), (0, false), (1, true), (1, false)] {
        let optimizers = (Sgd::new(0.1).only(["first", "norm"]), Sgd::new(0.1).only(["last"]));
        let builder = Amp::<O2<bf16>>::builder().num_losses::<U2>();
        let (model, (mut body, mut head)) = builder.build(Net::seeded(1), optimizers).unwrap();
        let before = snapshot(model.variables());
        let xs = common::noise(1, &[4, Net::INPUTS]);
        let loss = model.forward_t(&xs, true).square().sum(Kind::Float);
        let (mut step_body, mut step_head) = (body.begin(), head.begin());
        let [for_body, for_head] =
            [0, 1].map(|n| if n == skipped { &loss * f64::NAN } else { &loss * 1.0 });
        step_body.scale_loss(&for_body).unwrap().retain_graph().backward().unwrap();
        step_head.backward_of::<U1>(&for_head).unwrap();
        let mut steps = [step_body, step_head];
        if !body_first {
            steps.reverse();
        }
        let applied = steps.map(|step| step.unscale().unwrap().step().unwrap().is_applied());
        assert_eq!(
            applied,
            if body_first { [skipped != 0, skipped != 1] } else { [skipped != 1, skipped != 0] }
        );
        let changed = before.into_iter().zip(snapshot(model.variables()));
        let changed = changed.filter(|(before, after)| before != after);
        let names: Vec<_> = changed.map(|(before, _)| before.0).collect();
        let expected = match skipped {
            0 => vec!["last.bias", "last.weight"],
            _ => vec!["first.weight", "norm.bias", "norm.weight"],
        };
        assert_eq!(names, expected);
    }
}

/// Each gradient is finite, and their sum, 2·2^127, is not.
#[test]
fn a_sum_that_leaves_fp32_is_an_overflow_of_the_loss_that_was_added() {
    let builder = Amp::<O1<bf16>>::builder().num_losses::<U2>();
    let (model, mut opt) = builder.build(weights(&[1.0]), Sgd::new(1.0)).unwrap();
    let mut step = opt.begin();
    step.backward(&linear(&model, 2f32.powi(127))).unwrap();
    step.backward_of::<U1>(&linear(&model, 2f32.powi(127))).unwrap();
    let outcome = step.unscale().unwrap().step().unwrap();
    let StepOutcome::Skipped { overflows } = outcome else { panic!("{outcome:?}") };
    assert_eq!((overflows.len(), overflows[0].loss), (1, 1));
}

/// A gradient that is spoilt already says nothing of the losses that follow.
#[test]
fn an_overflow_is_blamed_on_its_own_loss_alone() {
    for (first, second, guilty) in [
        (f32::INFINITY, 0.5, vec![0]),
        (0.5, f32::NAN, vec![1]),
        (f32::NAN, f32::INFINITY, vec![0, 1]),
    ] {
        let [(a, mut opt_a), _] = pair::<O2>();
        let mut step = opt_a.begin();
        step.backward(&linear(&a, first)).unwrap();
        step.backward_of::<U1>(&linear(&a, second)).unwrap();
        let outcome = step.unscale().unwrap().step().unwrap();
        let StepOutcome::Skipped { overflows } = outcome else { panic!("{outcome:?}") };
        assert_eq!(overflows.iter().map(|o| o.loss).collect::<Vec<_>>(), guilty);
    }
}

/// torch's test_grad_scaling_multiple: two models, two optimizers, two losses of both models, one
/// optimizer skipped in iteration 2; against plain FP32 training without that update.
#[test]
fn two_optimizers_of_two_losses_train_like_plain_tch() {
    fn layers(seed: u64) -> (VarStore, nn::Sequential) {
        let store = VarStore::new(Device::Cpu);
        let linear = |name| nn::linear(store.root() / name, 8, 8, Default::default());
        let net = nn::seq().add(linear("in")).add(linear("out"));
        common::fill(&store, seed);
        (store, net)
    }
    fn losses([a, b]: [&dyn ModuleT; 2], n: u64) -> [Tensor; 2] {
        let [xs, ys] = [0, 1].map(|k| common::noise(10 * n + k, &[8, 8]));
        let [a, b] = [a, b].map(|model| model.forward_t(&xs, true));
        [common::mse(&(&a * 0.3 + &b * 0.7), &ys), common::mse(&(&a * 0.6 - &b * 0.4), &ys)]
    }
    let scale = Dynamic::new().init_scale(128.0).growth_interval(1);
    let builder = Amp::<O1<f16>>::builder().patch_torch_functions(false).loss_scale(scale);
    let ((a, b), (mut opt_a, mut opt_b)) =
        builder.build((layers(1), layers(2)), (Sgd::new(1.0), Sgd::new(1.0))).unwrap();
    let [plain_a, plain_b] = [layers(1), layers(2)];
    let [mut sgd_a, mut sgd_b] =
        [&plain_a, &plain_b].map(|plain| nn::Sgd::default().build(&plain.0, 1.0).unwrap());
    for n in 0..4 {
        let [loss0, loss1] = losses([&a, &b], n);
        let (mut step_a, mut step_b) = (opt_a.begin(), opt_b.begin());
        let mut both = joint((&mut step_a, &mut step_b));
        both.scale_loss(&loss0).unwrap().retain_graph().backward().unwrap();
        both.backward(&loss1).unwrap();
        if n == 2 {
            let weight = &b.variables()["in.weight"];
            step_b.backward(&(weight * f64::INFINITY).sum(Kind::Float)).unwrap();
        }
        assert!(step_a.unscale().unwrap().step().unwrap().is_applied());
        assert_eq!(step_b.unscale().unwrap().step().unwrap().is_applied(), n != 2);

        let [loss0, loss1] = losses([&plain_a.1, &plain_b.1], n);
        sgd_a.zero_grad();
        sgd_b.zero_grad();
        (loss0 + loss1).backward();
        sgd_a.step();
        if n != 2 {
            sgd_b.step();
        }
    }
    assert_eq!(opt_a.scalers()[0].scale(), 128.0 * 8.0 * 0.5);
    for (model, (plain, _)) in [(a.variables(), plain_a), (b.variables(), plain_b)] {
        for (name, expected) in plain.variables() {
            assert!(model[&name].allclose(&expected, 1e-5, 1e-7, false), "{name}");
        }
    }
}
