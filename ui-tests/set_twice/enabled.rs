// Apex: `initialize(**config, enabled=…)` is a TypeError if `config` sets it too.
use tch_amp::{Amp, O1};

fn main() {
    let _ = Amp::<O1>::builder().enabled(true).enabled(false);
}
