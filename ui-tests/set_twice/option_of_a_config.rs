// Apex: the options are global, and a second `initialize` replaces them, unseen.
use tch_amp::{Amp, AmpConfig, O2, OptionError};

fn with_masters(config: &AmpConfig) -> Result<(), OptionError> {
    let _ = Amp::<O2>::from_config(config)?.master_weights(true);
    Ok(())
}

fn main() {}
