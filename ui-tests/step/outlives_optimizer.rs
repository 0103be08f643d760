// torch.amp: the scaler keeps the state of a freed optimizer by its `id`; another may inherit it.
use tch::nn::{Sequential, VarStore};
use tch_amp::{Amp, BuildError, O2, Step, optim::AdamW};

fn begin(net: (VarStore, Sequential)) -> Result<Step<'static, O2, AdamW>, BuildError> {
    let (_model, mut opt) = Amp::<O2>::builder().build(net, AdamW::new(1e-3))?;
    Ok(opt.begin())
}

fn main() {}
