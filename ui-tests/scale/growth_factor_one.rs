// torch.amp: `GradScaler(growth_factor=1.0)` is an AssertionError.
use tch_amp::{Amp, Dynamic, O2};

const SCALE: Dynamic = Dynamic::new().growth_factor(1.0);

fn main() {
    let _ = Amp::<O2>::builder().loss_scale(SCALE);
}
