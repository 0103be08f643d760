// torch.autocast: `dtype=torch.float32` is a warning, and nothing is cast.
use tch::Device;
use tch_amp::autocast::{self, AutocastError};

fn main() -> Result<(), AutocastError> {
    let _region = autocast::enter::<f32>(Device::Cpu)?;
    Ok(())
}
