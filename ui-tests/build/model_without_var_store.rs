// Apex: takes the module alone, since a torch module owns its parameters.
use tch::nn::Sequential;
use tch_amp::{Amp, BuildError, O2, optim::AdamW};

fn prepare(net: Sequential) -> Result<(), BuildError> {
    let (_model, _opt) = Amp::<O2>::builder().build(net, AdamW::new(1e-3))?;
    Ok(())
}

fn main() {}
