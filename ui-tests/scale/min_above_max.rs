// Apex: `min_loss_scale` above `max_loss_scale` passes; the scale jumps between the two.
use tch_amp::{Amp, Dynamic, O2};

const SCALE: Dynamic = Dynamic::new().max_loss_scale(128.0).min_loss_scale(1024.0);

fn main() {
    let _ = Amp::<O2>::builder().loss_scale(SCALE);
}
