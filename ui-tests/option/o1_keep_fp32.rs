// Apex: has no such option; by hand, `module.float()` after `initialize` goes unseen.
use tch_amp::{Amp, O1};

fn main() {
    let _ = Amp::<O1>::builder().keep_fp32(["norm"]);
}
