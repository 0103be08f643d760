// torch.amp: `GradScaler(backoff_factor=1.5)` is an AssertionError.
use tch_amp::{Amp, Dynamic, O2};

const SCALE: Dynamic = Dynamic::new().backoff_factor(1.5);

fn main() {
    let _ = Amp::<O2>::builder().loss_scale(SCALE);
}
