// Apex: RuntimeError in the second `initialize`: an optimizer can be passed only once.
use tch::nn::{Sequential, VarStore};
use tch_amp::{Amp, BuildError, O2, optim::AdamW};

fn prepare(
    generator: (VarStore, Sequential),
    discriminator: (VarStore, Sequential),
) -> Result<(), BuildError> {
    let adam = AdamW::new(2e-4);
    let (_generator, _opt) = Amp::<O2>::builder().build(generator, adam)?;
    let (_discriminator, _opt) = Amp::<O2>::builder().build(discriminator, adam)?;
    Ok(())
}

fn main() {}
