// torch.amp: `state_dict` in the middle of an iteration saves a scale without what its `update` will do.
use tch::Tensor;
use tch_amp::{AmpOptimizer, O2, optim::AdamW};

fn train(opt: &mut AmpOptimizer<O2, AdamW>, loss: &Tensor) -> Result<(), Box<dyn std::error::Error>> {
    let mut step = opt.begin();
    step.backward(loss)?;
    let saved = opt.save_scalers()?;
    let _ = step.unscale()?.step()?;
    println!("{saved:?}");
    Ok(())
}

fn main() {}
