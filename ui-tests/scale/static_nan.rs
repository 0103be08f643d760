// Apex: `loss_scale=float("nan")` passes; all weights are NaN after the first step.
use tch_amp::{Amp, O2, Static};

const SCALE: Static = Static::new(f64::NAN);

fn main() {
    let _ = Amp::<O2>::builder().loss_scale(SCALE);
}
