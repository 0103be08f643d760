//! Lamb: the norm of all gradients, the moments with the norms of each tensor, the step.
#![allow(unsafe_code, reason = "hands addresses of tensors to kernels")]

use tch::TchError;

use super::{
    Kernels,
    layout::{Decision, State},
    sources::{GRADIENTS, LAMB},
    table::{Tables, Weight, address, upload},
    update::{DeviceSettings, Rows, each_table},
};

/// Applies the rule to all tensors. All numbers stay on the device.
pub(super) fn lamb(
    kernels: &Kernels,
    tables: &Tables,
    rows: &Rows,
    settings: &[DeviceSettings],
    factor: f32,
) -> Result<(), TchError> {
    let state = upload(&State { factor, ..State::default() }, kernels.device)?;
    let state = address(&state);
    each_table(kernels, tables, rows, settings, state, |table, grads, _| {
        for (grad, chunks) in table.by_grad() {
            let (name, mut part) = (format!("check_{}", grad.name()), table.part(&chunks));
            let mut how = Decision::default();
            // SAFETY: the tensors live, and are only used by libtorch, in the same stream.
            unsafe { kernels.look(&GRADIENTS, &name, grads, &mut part, &mut how, state)? };
        }
        // SAFETY: the same.
        unsafe { kernels.summarise(&LAMB, "lamb_grad_norm", &mut table.whole(), state, true) }
    })?;
    each_table(kernels, tables, rows, settings, state, |table, grads, step| {
        for (types, chunks) in table.by_types() {
            let read = match types.weight {
                Weight::Plain(weight) => weight.name(),
                Weight::Stochastic => "bf16",
                Weight::Master(_) | Weight::None => "f32",
            };
            let name = format!("lamb_moments_{}_{read}", types.grad.name());
            // SAFETY: the same.
            unsafe { kernels.update(&LAMB, &name, grads, &mut table.part(chunks), step)? };
        }
        // SAFETY: the same.
        unsafe { kernels.summarise(&LAMB, "lamb_norms", &mut table.whole(), state, false)? };
        for (types, chunks) in table.by_types() {
            let name = format!("lamb_step_{}", types.weight.suffix());
            // SAFETY: the same.
            unsafe { kernels.update(&LAMB, &name, grads, &mut table.part(chunks), step)? };
        }
        Ok(())
    })
}
