// Apex: `initialize(model, optimizer, loss_scaling=128.0)` is a TypeError.
use tch_amp::{AmpConfig, AnyLevel};

fn main() {
    let _ =
        AmpConfig { opt_level: AnyLevel::O2, loss_scaling: Some(128.0), ..AmpConfig::default() };
}
