// torch.amp: has no hysteresis; Apex: a count of 0 passes, and means 1.
use tch_amp::{Amp, Dynamic, O2};

const SCALE: Dynamic = Dynamic::new().hysteresis(0);

fn main() {
    let _ = Amp::<O2>::builder().loss_scale(SCALE);
}
