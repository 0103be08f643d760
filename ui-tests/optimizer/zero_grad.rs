// Apex: at O2, `zero_grad(set_to_none=True)` is a TypeError; forgetting `zero_grad` adds old gradients, unseen.
use tch::Tensor;
use tch_amp::{AmpOptimizer, O2, StepError, optim::AdamW};

fn train(opt: &mut AmpOptimizer<O2, AdamW>, loss: &Tensor) -> Result<(), StepError> {
    opt.zero_grad();
    opt.backward_step(loss)?;
    Ok(())
}

fn main() {}
