// Apex: `model.half()` after `initialize` casts batch norm too, which was to stay in FP32, unseen.
use tch::nn::{Sequential, VarStore};
use tch_amp::{Amp, BuildError, O2, optim::AdamW};

fn prepare(mut store: VarStore, net: Sequential) -> Result<(), BuildError> {
    let (_model, _opt) = Amp::<O2>::builder().build((store, net), AdamW::new(1e-3))?;
    store.half();
    Ok(())
}

fn main() {}
