// Apex: a level of one's own is a RuntimeError in `initialize`: "Unexpected optimization level".
use tch::Kind;
use tch_amp::{O2, OptLevel, Properties};

#[derive(Debug, Clone, Copy, Default)]
struct O6;

impl OptLevel for O6 {
    const NAME: &'static str = "O6";
    const BRIEF: &'static str = "everything in 8 bits";
    const LOW_PRECISION: Option<Kind> = Some(Kind::Float8e4m3fn);
    const DEFAULTS: Properties = <O2>::DEFAULTS;
    const REFUSES: &'static [&'static str] = &[];
}

fn main() {}
