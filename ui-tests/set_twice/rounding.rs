// Apex: `initialize(**config, …)` is a TypeError if `config` sets an option too.
use tch_amp::{Amp, O3, Rounding, bf16};

fn main() {
    let _ = Amp::<O3<bf16>>::builder().rounding(Rounding::Nearest).rounding(Rounding::Nearest);
}
