// Apex and torch know no rounding but to nearest; torchao's `bf16_stochastic_round` belongs to its optimizers.
use tch_amp::{Amp, O2, Rounding, bf16};

fn main() {
    let _ = Amp::<O2<bf16>>::builder().rounding(Rounding::Stochastic { seed: 1 });
}
