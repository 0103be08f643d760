// torch.amp: `optimizer.step()` without the scaler applies scaled gradients, unseen.
use tch::nn::{Optimizer, Sequential, VarStore};
use tch_amp::{Amp, BuildError, O2};

fn prepare(net: (VarStore, Sequential), mut adam: Optimizer) -> Result<(), BuildError> {
    let (_model, _opt) = Amp::<O2>::builder().build(net, adam)?;
    adam.step();
    Ok(())
}

fn main() {}
