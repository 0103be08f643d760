// torch.autocast: `autocast("cuda")` without `with` does nothing, unseen.
#![deny(unused_must_use)]

use half::bf16;
use tch::{Device, Tensor};
use tch_amp::autocast::{self, AutocastError};

fn attend(queries: &Tensor, keys: &Tensor) -> Result<Tensor, AutocastError> {
    autocast::enter::<bf16>(Device::Cpu)?;
    Ok(queries.matmul(&keys.tr()))
}

fn main() {}
