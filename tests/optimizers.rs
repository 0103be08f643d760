//! The crate's optimizers against libtorch's own, and against the formulas in plain tch.

mod common;

use common::{Net, batches, mse, relative_error, values};
use tch::nn::{self, ModuleT, OptimizerConfig, VarStore};
use tch_amp::{
    Amp, AmpModel, AmpOptimizer, BuildError, O0, Optimizer,
    optim::{Adam, AdamW, Sgd},
};

const STEPS: usize = 200;

/// Trains with an optimizer of the crate at `O0` and with libtorch's, and compares all weights.
fn agree(own: impl Optimizer, torch: impl OptimizerConfig, lr: f64) {
    let data = batches(STEPS);
    let (store, net) = Net::seeded(3);
    let mut reference = torch.build(&store, lr).unwrap();
    for (xs, ys) in &data {
        reference.backward_step(&mse(&net.forward_t(xs, true), ys));
    }
    let (model, _) = train(own, &data);
    for (name, expected) in store.variables() {
        let actual = values(&model.variables()[&name]);
        let error = relative_error(&actual, &values(&expected));
        assert!(error <= 1e-6, "{name} is off by {error:e}");
    }
}

fn train<O: Optimizer>(
    own: O,
    data: &[(tch::Tensor, tch::Tensor)],
) -> (AmpModel<O0, Net>, AmpOptimizer<O0, O>) {
    let (model, mut opt) = Amp::<O0>::builder().build(Net::seeded(3), own).unwrap();
    for (xs, ys) in data {
        let outcome = opt.backward_step(&mse(&model.forward_t(xs, true), ys)).unwrap();
        assert!(outcome.outcome().is_applied());
    }
    (model, opt)
}

#[test]
fn sgd_agrees_with_libtorch() {
    agree(Sgd::new(0.05), nn::Sgd::default(), 0.05);
}

#[test]
fn sgd_with_momentum_dampening_and_decay_agrees_with_libtorch() {
    let own = Sgd::new(0.02).momentum(0.9).dampening(0.1).weight_decay(0.01);
    agree(own, nn::sgd(0.9, 0.1, 0.01, false), 0.02);
}

#[test]
fn sgd_with_nesterov_momentum_agrees_with_libtorch() {
    let own = Sgd::new(0.02).momentum(0.9).nesterov(true).weight_decay(0.001);
    agree(own, nn::sgd(0.9, 0.0, 0.001, true), 0.02);
}

#[test]
fn adam_agrees_with_libtorch() {
    agree(Adam::new(1e-3), nn::Adam::default(), 1e-3);
}

#[test]
fn adam_with_betas_eps_and_decay_agrees_with_libtorch() {
    let own = Adam::new(1e-3).betas(0.8, 0.95).eps(1e-6).weight_decay(0.05);
    agree(own, nn::adam(0.8, 0.95, 0.05).eps(1e-6), 1e-3);
}

#[test]
fn adamw_agrees_with_libtorch() {
    let own = AdamW::new(1e-3).weight_decay(0.1);
    agree(own, nn::adamw(0.9, 0.999, 0.1), 1e-3);
}

/// Each group has its own rate and decay; libtorch is told the same through its setters.
#[test]
fn param_groups_agree_with_libtorch() {
    let grouped = || {
        let store = VarStore::new(tch::Device::Cpu);
        let root = store.root();
        let first = nn::linear(root.sub("first"), Net::INPUTS, 8, Default::default());
        let second =
            nn::linear(root.sub("second").set_group(1), 8, Net::OUTPUTS, Default::default());
        common::fill(&store, 5);
        (store, nn::seq().add(first).add_fn(|x| x.tanh()).add(second))
    };
    let data = batches(STEPS);
    let (store, net) = grouped();
    let mut reference = nn::adamw(0.9, 0.999, 0.1).build(&store, 1e-3).unwrap();
    reference.set_lr_group(1, 3e-3);
    reference.set_weight_decay_group(1, 0.0);
    for (xs, ys) in &data {
        reference.backward_step(&mse(&net.forward_t(xs, true), ys));
    }
    let own = AdamW::new(1e-3).weight_decay(0.1).group(1, |g| g.weight_decay(0.0));
    let (model, mut opt) = Amp::<O0>::builder().build(grouped(), own).unwrap();
    opt.set_lr_group(1, 3e-3).unwrap();
    for (xs, ys) in &data {
        let _ = opt.backward_step(&mse(&model.forward_t(xs, true), ys)).unwrap();
    }
    for (name, expected) in store.variables() {
        let error = relative_error(&values(&model.variables()[&name]), &values(&expected));
        assert!(error <= 1e-6, "{name} is off by {error:e}");
    }
    assert_eq!((opt.settings(0).lr, opt.settings(1).lr), (1e-3, 3e-3));
}

/// torch's rule: a parameter without a gradient is neither decayed nor pushed by momentum.
#[test]
fn parameter_without_gradient_is_left_alone() {
    let store = VarStore::new(tch::Device::Cpu);
    let a = store.root().ones("a", &[1]);
    let b = store.root().ones("b", &[1]);
    let own = Sgd::new(0.1).momentum(0.9).weight_decay(0.1);
    let (_, mut opt) = Amp::<O0>::builder().build((store, ()), own).unwrap();
    let _ = opt.backward_step(&(&a + &b).sum(tch::Kind::Float)).unwrap();
    // g = 1 + 0.1·1 = 1.1; b = 1.1; w = 1 - 0.11
    assert!((values(&b)[0] - 0.89).abs() < 1e-6);
    let before = common::bits(&b);
    let _ = opt.backward_step(&a.sum(tch::Kind::Float)).unwrap();
    // g = 1 + 0.1·0.89 = 1.089; buffer = 0.9·1.1 + 1.089 = 2.079; w = 0.89 - 0.2079
    assert!((values(&a)[0] - 0.6821).abs() < 1e-6);
    assert_eq!(common::bits(&b), before);
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    let refused = |message: &str, built: Result<_, BuildError>| {
        let error: BuildError = match built {
            Ok(()) => panic!("expected: {message}"),
            Err(error) => error,
        };
        assert_eq!(error.to_string(), message);
    };
    fn build(own: impl Optimizer) -> Result<(), BuildError> {
        Amp::<O0>::builder().build(Net::seeded(1), own).map(|_| ())
    }
    refused("Sgd: `lr` is -1: it must be finite and not negative", build(Sgd::new(-1.0)));
    refused(
        "Sgd: `momentum` is 1: it must be at least 0 and less than 1",
        build(Sgd::new(0.1).momentum(1.0)),
    );
    refused(
        "Sgd: `nesterov` is 1: it needs momentum and no dampening",
        build(Sgd::new(0.1).nesterov(true)),
    );
    refused(
        "Adam: `eps` is NaN: it must be finite and not negative",
        build(Adam::new(0.1).eps(f64::NAN)),
    );
    refused(
        "AdamW: `beta2` is 1: it must be at least 0 and less than 1",
        build(AdamW::new(0.1).betas(0.9, 1.0)),
    );
    refused(
        "no variable of the optimizer is in group 7: see `nn::Path::set_group`",
        build(AdamW::new(0.1).group(7, |g| g.weight_decay(0.0))),
    );
}

#[test]
fn learning_rates_that_make_no_sense_are_refused_and_change_nothing() {
    fn refuses<O: Optimizer>(built: (VarStore, Net), own: O) {
        let (_, mut opt) = Amp::<O0>::builder().build(built, own).unwrap();
        let error = opt.set_lr(-1.0).unwrap_err().to_string();
        assert!(error.ends_with(": `lr` is -1: it must be finite and not negative"), "{error}");
        assert!(opt.set_lr(f64::NAN).is_err() && opt.set_lr_group(0, f64::INFINITY).is_err());
        let expected = "no variable of the optimizer is in group 9: see `nn::Path::set_group`";
        assert_eq!(opt.set_lr_group(9, 0.1).unwrap_err().to_string(), expected);
    }
    refuses(Net::seeded(1), AdamW::new(0.5));
    let (store, net) = Net::seeded(1);
    let foreign = nn::Sgd::default().build(&store, 0.5).unwrap();
    refuses((store, net), foreign);
    let (_, mut opt) = Amp::<O0>::builder().build(Net::seeded(1), Sgd::new(0.5)).unwrap();
    assert!(opt.set_lr(-1.0).is_err());
    assert_eq!(opt.settings(0).lr, 0.5);
    opt.set_lr(0.25).unwrap();
    assert_eq!(opt.settings(0).lr, 0.25);
}
