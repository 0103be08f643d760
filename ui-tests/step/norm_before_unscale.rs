// torch.amp: the norm that is logged is 65536 times too large, unseen.
use tch::Tensor;
use tch_amp::{AmpOptimizer, O2, StepError, optim::AdamW};

fn train(opt: &mut AmpOptimizer<O2, AdamW>, loss: &Tensor) -> Result<(), StepError> {
    let mut step = opt.begin();
    step.backward(loss)?;
    println!("gradient norm: {}", step.grad_norm()?);
    let _ = step.unscale()?.step()?;
    Ok(())
}

fn main() {}
