// Apex: `initialize(model, optimizer)` without a level is silently O1.
use tch_amp::Amp;

fn main() {
    let _ = Amp::builder().enabled(true);
}
