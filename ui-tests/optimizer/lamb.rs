// Apex: `FusedLAMB(amsgrad=True)` is a RuntimeError, as are sparse gradients and types it does not know.
use tch_amp::optim::Lamb;

fn main() {
    let _ = Lamb::new(1e-3).amsgrad(true);
}
