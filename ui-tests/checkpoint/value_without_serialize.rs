// torch: `torch.save` pickles any object, and fails to load it when its class has moved.
use tch_amp::{AmpModel, AmpOptimizer, Checkpoint, O2, checkpoint::SaveError, optim::AdamW};

struct Position {
    epoch: u32,
}

fn save(model: &AmpModel<O2, ()>, opt: &mut AmpOptimizer<O2, AdamW>) -> Result<(), SaveError> {
    let position = Position { epoch: 3 };
    println!("{}", position.epoch);
    Checkpoint::new(model, opt).save("run.safetensors", &position)
}

fn main() {}
