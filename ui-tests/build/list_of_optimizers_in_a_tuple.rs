// Apex: `initialize(models, [[a, b], c])` is an AttributeError: a list has no `param_groups`.
use tch::nn::{self, VarStore};
use tch_amp::{Amp, BuildError, O2, optim::Sgd};

type Model = (VarStore, nn::Linear);

fn build(a: Model, b: Model) -> Result<(), BuildError> {
    let nested = ([Sgd::new(0.1), Sgd::new(0.1)], Sgd::new(0.1));
    let (_models, _opts) = Amp::<O2>::builder().build((a, b), nested)?;
    Ok(())
}

fn main() {}
