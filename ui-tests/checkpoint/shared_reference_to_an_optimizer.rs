// torch: `load_state_dict` changes an optimizer through any name for it.
use tch_amp::{AmpModel, AmpOptimizer, Checkpoint, O2, checkpoint::LoadError, optim::AdamW};

fn load(model: &AmpModel<O2, ()>, opt: &AmpOptimizer<O2, AdamW>) -> Result<(), LoadError> {
    Checkpoint::new(model, opt).load("run.safetensors")
}

fn main() {}
