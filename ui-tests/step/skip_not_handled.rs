// torch.amp: a skipped step returns None, like a good one; only the scale tells.
use tch::Tensor;
use tch_amp::{AmpOptimizer, O2, StepError, StepOutcome, optim::AdamW};

fn train(opt: &mut AmpOptimizer<O2, AdamW>, loss: &Tensor) -> Result<u64, StepError> {
    match opt.backward_step(loss)?.outcome() {
        StepOutcome::Applied => Ok(1),
    }
}

fn main() {}
