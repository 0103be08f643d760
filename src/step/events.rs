//! What `tracing` is told of the loss scales.

use super::Overflow;
use crate::scaler::{Left, LossScale, Scaler};

/// Apex's "Gradient overflow", as an INFO; a WARN at 1, 2, 4, 8, … steps in a row with a scale that
/// cannot go lower.
pub(super) fn skipped(scaler: &Scaler, before: f64, overflow: &Overflow) {
    let Overflow { loss, parameter, kind, new_scale } = overflow;
    let scale = match scaler.settings() {
        LossScale::Dynamic(_) if *new_scale < before => format!("goes down to {new_scale}"),
        LossScale::Dynamic(_) => format!("stays at {new_scale}"),
        LossScale::Static(_) => format!("is always {new_scale}"),
    };
    let found =
        format!("{kind:?} in the gradient of `{parameter}`; the scale of loss {loss} {scale}");
    let stuck = scaler.stuck_in_a_row();
    if stuck.is_power_of_two() {
        tracing::warn!(
            target: "tch_amp", loss, scale = new_scale, parameter, ?kind,
            "step skipped, number {stuck} in a row with a loss scale that cannot go lower: {found}"
        );
    } else {
        tracing::info!(
            target: "tch_amp", loss, scale = new_scale, parameter, ?kind, "step skipped: {found}"
        );
    }
}

/// A DEBUG where the end of the step has made the scale grow.
pub(super) fn grown(loss: usize, left: &Left) {
    let scale = left.scaler.scale();
    if let Some(before) = left.updated_from.filter(|before| *before < scale) {
        tracing::debug!(
            target: "tch_amp", loss, scale, "the scale of loss {loss} grows from {before} to {scale}"
        );
    }
}
