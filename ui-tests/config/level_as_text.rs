// Apex: `opt_level="02"`, with a zero, is a RuntimeError in `initialize`.
use tch_amp::AmpConfig;

fn main() {
    let _ = AmpConfig { opt_level: "02", ..AmpConfig::default() };
}
