// Apex: `opt_level="O6"` is a RuntimeError in `initialize`.
use tch_amp::Amp;

struct O6;

fn main() {
    let _ = Amp::<O6>::builder();
}
