// Apex: raises from `initialize`, so that there is no result to open.
use tch::nn::{ModuleT, Sequential, VarStore};
use tch_amp::{Amp, O2, optim::AdamW};

fn prepare(net: (VarStore, Sequential)) -> impl ModuleT {
    let (model, _opt) = Amp::<O2>::builder().build(net, AdamW::new(1e-3));
    model
}

fn main() {}
