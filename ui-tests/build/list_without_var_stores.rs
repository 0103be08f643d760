// Apex: `initialize([a, b], …)` takes the modules alone, since a torch module owns its parameters.
use tch::nn;
use tch_amp::{Amp, BuildError, O2, optim::Sgd};

fn build(models: Vec<nn::Linear>) -> Result<(), BuildError> {
    let (_models, _opt) = Amp::<O2>::builder().build(models, Sgd::new(0.1))?;
    Ok(())
}

fn main() {}
