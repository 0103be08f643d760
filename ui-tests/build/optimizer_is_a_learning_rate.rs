// Apex: TypeError in `initialize`: the optimizers must be an optimizer or a list of them.
use tch::nn::{Sequential, VarStore};
use tch_amp::{Amp, BuildError, O2};

fn prepare(net: (VarStore, Sequential)) -> Result<(), BuildError> {
    let (_model, _opt) = Amp::<O2>::builder().build(net, 1e-3)?;
    Ok(())
}

fn main() {}
