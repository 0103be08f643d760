// Apex: raises from `initialize`, so there is no result to forget.
use tch_amp::{Amp, AmpConfig, O2};

fn prepare(config: &AmpConfig) {
    let _ = Amp::<O2>::from_config(config).properties();
}

fn main() {}
