// Apex: `load_state_dict` of another dict is a RuntimeError after the scales it knows were loaded.
use tch_amp::{AmpOptimizer, O2, optim::AdamW};

fn resume(opt: &mut AmpOptimizer<O2, AdamW>, json: &str) -> Result<(), Box<dyn std::error::Error>> {
    let state: serde_json::Value = serde_json::from_str(json)?;
    opt.load_scalers(&state)?;
    Ok(())
}

fn main() {}
