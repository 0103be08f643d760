// torch: `optimizer.state_dict()` reads any optimizer's state; a `tch::nn::Optimizer` has none that can be read.
use tch_amp::{AmpModel, AmpOptimizer, Checkpoint, O2, checkpoint::SaveError};

fn save(model: &AmpModel<O2, ()>, opt: &mut AmpOptimizer<O2>) -> Result<(), SaveError> {
    Checkpoint::new(model, opt).save("run.safetensors", &())
}

fn main() {}
