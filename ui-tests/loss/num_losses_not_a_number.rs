// Apex: `num_losses="2"` is a TypeError in `initialize`.
use tch_amp::{Amp, O2};

fn main() {
    let _ = Amp::<O2>::builder().num_losses::<usize>();
}
