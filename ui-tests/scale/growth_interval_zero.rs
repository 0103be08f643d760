// torch.amp: `GradScaler(growth_interval=0)` passes; the scale never grows.
use tch_amp::{Amp, Dynamic, O2};

const SCALE: Dynamic = Dynamic::new().growth_interval(0);

fn main() {
    let _ = Amp::<O2>::builder().loss_scale(SCALE);
}
