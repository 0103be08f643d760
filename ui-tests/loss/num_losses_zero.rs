// Apex: `num_losses=0` passes; the first `scale_loss` is an IndexError.
use tch_amp::{Amp, O2};
use typenum::U0;

fn main() {
    let _ = Amp::<O2>::builder().num_losses::<U0>();
}
