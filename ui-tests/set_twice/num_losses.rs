// Apex: `initialize(**config, num_losses=…)` is a TypeError if `config` sets it too.
use tch_amp::{Amp, O1};
use typenum::{U2, U3};

fn main() {
    let _ = Amp::<O1>::builder().num_losses::<U2>().num_losses::<U3>();
}
