// Apex: a `scale_loss` context may stay open; its gradients then stay scaled, unseen.
use tch::Tensor;
use tch_amp::{AmpOptimizer, O2, Step, StepError, optim::AdamW};

struct Trainer<'a> {
    opt: AmpOptimizer<O2, AdamW>,
    step: Option<Step<'a, O2, AdamW>>,
}

impl<'a> Trainer<'a> {
    fn micro_batch(&mut self, loss: &Tensor) -> Result<(), StepError> {
        self.step.get_or_insert_with(|| self.opt.begin()).backward(loss)
    }
}

fn main() {}
