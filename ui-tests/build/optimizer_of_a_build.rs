// Apex: a `FP16_Optimizer` passed to `initialize` is a RuntimeError: it scales losses already.
use tch::nn::{Sequential, VarStore};
use tch_amp::{Amp, AmpOptimizer, BuildError, O2, optim::AdamW};

fn prepare(
    net: (VarStore, Sequential),
    opt: AmpOptimizer<O2, AdamW>,
) -> Result<(), BuildError> {
    let (_model, _opt) = Amp::<O2>::builder().build(net, opt)?;
    Ok(())
}

fn main() {}
