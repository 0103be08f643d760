// Apex: `model.half()` after `initialize` goes unseen, and the masters no longer fit the weights.
use tch::nn::{Sequential, VarStore};
use tch_amp::{Amp, BuildError, O2, optim::AdamW};

fn prepare(mut store: VarStore, net: Sequential) -> Result<(), BuildError> {
    let (_model, _opt) = Amp::<O2>::builder().build((store, net), AdamW::new(1e-3))?;
    store.half();
    Ok(())
}

fn main() {}
