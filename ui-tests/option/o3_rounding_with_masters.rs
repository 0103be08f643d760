// Apex and torch have master weights, or none, and no stochastic rounding to stand in for them.
use tch_amp::{Amp, O3, Rounding, bf16};

fn main() {
    let _ = Amp::<O3<bf16>>::builder().master_weights(true).rounding(Rounding::Stochastic { seed: 1 });
    let _ = Amp::<O3<bf16>>::builder().rounding(Rounding::Stochastic { seed: 1 }).master_weights(true);
}
