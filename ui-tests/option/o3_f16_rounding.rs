// torch: torchao's optimizers ignore `bf16_stochastic_round` for weights in half precision.
use tch_amp::{Amp, O3, Rounding};

fn main() {
    let _ = Amp::<O3>::builder().rounding(Rounding::Stochastic { seed: 1 });
}
