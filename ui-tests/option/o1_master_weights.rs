// Apex: RuntimeError in `initialize`: "It doesn't make sense to use master_weights with O1".
use tch_amp::{Amp, O1};

fn main() {
    let _ = Amp::<O1>::builder().master_weights(true);
}
