// Apex: the level is a text, so a typo in it is a RuntimeError in `initialize`.
use tch_amp::{OptLevel, with_level};

fn main() {
    let brief = with_level!("O2", L => L::BRIEF);
    println!("{brief}");
}
