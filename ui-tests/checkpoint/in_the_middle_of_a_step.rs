// Apex: a checkpoint between `scale_loss` and `step` holds a scale that the gradients do not have.
use tch::Tensor;
use tch_amp::{AmpModel, AmpOptimizer, Checkpoint, O2, optim::AdamW};

fn train(
    model: &AmpModel<O2, ()>,
    opt: &mut AmpOptimizer<O2, AdamW>,
    loss: &Tensor,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut step = opt.begin();
    step.backward(loss)?;
    Checkpoint::new(model, &mut *opt).save("run.safetensors", &())?;
    let _ = step.unscale()?.step()?;
    Ok(())
}

fn main() {}
