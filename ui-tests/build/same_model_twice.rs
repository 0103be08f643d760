// Apex: "Found param … with type torch.cuda.HalfTensor", a RuntimeError in the second `initialize`.
use tch::nn::{Sequential, VarStore};
use tch_amp::{Amp, BuildError, O2, O3, optim::AdamW};

fn compare(net: (VarStore, Sequential)) -> Result<(), BuildError> {
    let (_with_masters, _opt) = Amp::<O2>::builder().build(net, AdamW::new(1e-3))?;
    let (_without, _opt) = Amp::<O3>::builder().build(net, AdamW::new(1e-3))?;
    Ok(())
}

fn main() {}
