// Apex: `initialize(**config, master_weights=…)` is a TypeError if `config` sets it too.
use tch_amp::{Amp, O3};

fn main() {
    let _ = Amp::<O3>::builder().master_weights(true).master_weights(true);
}
