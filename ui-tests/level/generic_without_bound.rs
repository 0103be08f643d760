// Apex: `initialize(opt_level=level, master_weights=True)` fails only in the run whose level is O1.
use tch::{nn::Sequential, nn::VarStore};
use tch_amp::{Amp, AmpModel, AmpOptimizer, BuildError, OptLevel, optim::AdamW};

type Built<L> = (AmpModel<L, Sequential>, AmpOptimizer<L, AdamW>);

fn with_masters<L: OptLevel>(net: (VarStore, Sequential)) -> Result<Built<L>, BuildError> {
    Amp::<L>::builder().master_weights(true).build(net, AdamW::new(1e-3))
}

fn main() {}
