// Apex: saving the model that `initialize` got saves weights of which the masters have more bits.
use tch_amp::{AmpOptimizer, Checkpoint, O2, checkpoint::SaveError, optim::AdamW};

struct Net;

fn save(net: &Net, opt: &mut AmpOptimizer<O2, AdamW>) -> Result<(), SaveError> {
    Checkpoint::new(net, opt).save("run.safetensors", &())
}

fn main() {}
