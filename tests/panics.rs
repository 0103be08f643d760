//! A panic inside a forward pass, a backward pass or a step leaves everything as it was.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};

use common::{Net, batches, bits, mse, snapshot, values};
use half::bf16;
use tch::{
    Device, Kind, Tensor,
    nn::{ModuleT, OptimizerConfig, VarStore},
};
use tch_amp::{Amp, O1, O2, Static, StepOutcome, optim::Sgd};

#[derive(Debug)]
struct Panics(Tensor);

impl ModuleT for Panics {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        assert!(!train, "the forward pass panics");
        xs.matmul(&self.0)
    }
}

fn caught<R>(f: impl FnOnce() -> R) -> bool {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let caught = catch_unwind(AssertUnwindSafe(f)).is_err();
    std::panic::set_hook(hook);
    caught
}

fn product_kind() -> Kind {
    let one = Tensor::ones([2, 2], (Kind::Float, Device::Cpu));
    one.matmul(&one).kind()
}

fn records_gradients() -> bool {
    let leaf = Tensor::ones([1], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    (leaf * 2.0).requires_grad()
}

#[test]
fn panic_in_the_forward_pass_leaves_autocast_off() {
    let store = VarStore::new(Device::Cpu);
    let w = store.root().ones("w", &[2, 2]);
    let (model, _opt) =
        Amp::<O1<bf16>>::builder().build((store, Panics(w)), Sgd::new(0.1)).unwrap();
    let xs = Tensor::ones([2, 2], (Kind::Float, Device::Cpu));
    assert!(caught(|| model.forward_t(&xs, true)));
    assert_eq!(product_kind(), Kind::Float);
    assert!(records_gradients());
    assert!(caught(|| model.run(|_| panic!("user code panics"))));
    assert_eq!(product_kind(), Kind::Float);
    assert_eq!(model.run(|m| xs.matmul(&m.0)).kind(), Kind::BFloat16);
}

#[test]
fn panic_between_backward_and_step_drops_the_step() {
    let (model, mut opt) = Amp::<O2<bf16>>::builder().build(Net::seeded(5), Sgd::new(0.1)).unwrap();
    let (xs, ys) = &batches(1)[0];
    let before =
        snapshot(model.variables().into_iter().filter(|(n, _)| !n.contains("running")).collect());
    assert!(caught(|| {
        let mut step = opt.begin();
        step.backward(&mse(&model.forward_t(xs, true), ys)).unwrap();
        let _grads = step.unscale().unwrap();
        panic!("user code panics");
    }));
    let after =
        snapshot(model.variables().into_iter().filter(|(n, _)| !n.contains("running")).collect());
    assert_eq!(after, before);
    assert_eq!(opt.scalers()[0].unskipped(), 0);
    assert!(records_gradients());
    let loss = mse(&model.forward_t(xs, true), ys);
    assert_eq!(opt.backward_step(&loss).unwrap().outcome(), StepOutcome::Applied);
}

/// An error of libtorch in the backward pass: the graph was freed by a pass before.
#[test]
fn error_in_the_backward_pass_is_returned_and_leaves_no_trace() {
    let builder = Amp::<O2<bf16>>::builder().loss_scale(Static::new(8.0));
    let (model, mut opt) = builder.build(Net::seeded(5), Sgd::new(0.1)).unwrap();
    let (xs, ys) = &batches(1)[0];
    let loss = mse(&model.forward_t(xs, true), ys);
    loss.backward();
    let mut step = opt.begin();
    let error = step.backward(&loss).unwrap_err().to_string();
    assert!(error.starts_with("libtorch: "), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    step.backward(&mse(&model.forward_t(xs, true), ys)).unwrap();
    assert!(step.unscale().unwrap().step().unwrap().is_applied());
    assert_eq!(opt.scalers()[0].unskipped(), 1);
}

/// A `tch` optimizer panics on its own errors, e.g. a learning rate for a group that is not there;
/// while it steps, the weights' memory is the masters', and has to come back.
#[test]
fn panic_in_a_tch_optimizer_gives_the_weights_back() {
    let store = VarStore::new(Device::Cpu);
    let w = store.root().ones("w", &[2]);
    let foreign = tch::nn::Sgd::default().build(&store, 0.5).unwrap();
    let variables = std::sync::Arc::clone(&store.variables_);
    let (_model, mut opt) = Amp::<O2<bf16>>::builder().build((store, ()), foreign).unwrap();
    let loss = || (w.to_kind(Kind::Float) * 0.5).sum(Kind::Float);
    let before = bits(&w);
    // `step` locks the VarStore, and panics when the lock is poisoned.
    let poison = std::sync::Arc::clone(&variables);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let _ = std::thread::spawn(move || {
        let _lock = poison.lock();
        panic!("poison the lock");
    })
    .join();
    std::panic::set_hook(hook);
    assert!(caught(|| opt.backward_step(&loss())));
    assert_eq!((w.kind(), bits(&w)), (Kind::BFloat16, before));
    variables.clear_poison();
    assert!(opt.backward_step(&loss()).unwrap().outcome().is_applied());
    assert_eq!(values(&w), [0.75, 0.75]);
}
