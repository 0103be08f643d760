// Apex: `FusedAdam(amsgrad=True)` is a RuntimeError.
use tch_amp::optim::Adam;

fn main() {
    let _ = Adam::new(1e-3).amsgrad(true);
}
