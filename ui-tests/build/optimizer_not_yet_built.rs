// Apex: passing the class instead of an optimizer is a TypeError in `initialize`.
use tch::nn::{self, Sequential, VarStore};
use tch_amp::{Amp, BuildError, O2};

fn prepare(net: (VarStore, Sequential)) -> Result<(), BuildError> {
    let (_model, _opt) = Amp::<O2>::builder().build(net, nn::AdamW::default())?;
    Ok(())
}

fn main() {}
