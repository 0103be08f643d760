// torch: a forgotten `state_dict` of one of several optimizers is noticed by nobody.
use tch_amp::{AmpModel, AmpOptimizer, Checkpoint, O2, checkpoint::LoadError, optim::Adam};

fn load(
    models: &[AmpModel<O2, ()>; 2],
    mut opt_a: AmpOptimizer<O2, Adam>,
    mut opt_b: AmpOptimizer<O2>,
) -> Result<u32, LoadError> {
    Checkpoint::new(models, (&mut opt_a, &mut opt_b)).load("run.safetensors")
}

fn main() {}
