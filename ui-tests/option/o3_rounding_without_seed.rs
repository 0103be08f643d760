// torch: torchao's `bf16_stochastic_round=True` takes its random bits from the global generator.
use tch_amp::{Amp, O3, Rounding, bf16};

fn main() {
    let _ = Amp::<O3<bf16>>::builder().rounding(Rounding::Stochastic);
}
