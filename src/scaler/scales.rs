//! The scales of all losses of one `build`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{LossScale, SavedScalers, Scaler, ScalerLayout, StateError, restored};

/// The scales of all losses of one `build`, shared by its optimizers.
///
/// A step joins a loss when it first gets gradients from it, and leaves it at its end. From the
/// first to join until the last has left, the loss is multiplied by one and the same scale, and the
/// scale is updated once.
#[derive(Debug)]
pub(crate) struct Scales(Mutex<Vec<Shared>>);

#[derive(Debug, Clone)]
struct Shared {
    scaler: Scaler,
    in_use: Option<Use>,
}

/// The use of a scale by steps that have not ended.
#[derive(Debug, Clone, Copy)]
struct Use {
    scale: f64,
    steps: usize,
    /// Whether a step has ended well.
    good: bool,
    /// Whether a step has ended with an overflow, which has updated the scale.
    overflowed: bool,
}

/// A scale after a step has left.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) scaler: Scaler,
    /// The scale before, if the end of the step has updated it.
    pub(crate) updated_from: Option<f64>,
}

impl Scales {
    pub(crate) fn new(settings: LossScale, losses: usize) -> Self {
        let shared = Shared { scaler: Scaler::new(settings), in_use: None };
        Self(Mutex::new(vec![shared; losses]))
    }

    pub(crate) fn all(&self) -> Vec<Scaler> {
        scalers(&self.lock())
    }

    /// The state of all, between steps.
    pub(crate) fn save(&self) -> Result<SavedScalers, StateError> {
        Ok(SavedScalers::of(&unused(&self.lock())?))
    }

    /// Loads the state of all, or of those that both sides have.
    pub(crate) fn load(
        &self,
        layout: &(impl ScalerLayout + ?Sized),
        partial: bool,
    ) -> Result<(), StateError> {
        let restored = self.restored(layout, partial)?;
        self.set(restored);
        Ok(())
    }

    /// What [`load`](Self::load) would make of the scales.
    pub(crate) fn restored(
        &self,
        layout: &(impl ScalerLayout + ?Sized),
        partial: bool,
    ) -> Result<Vec<Scaler>, StateError> {
        restored(&unused(&self.lock())?, layout, partial)
    }

    /// Replaces the scales.
    pub(crate) fn set(&self, scalers: Vec<Scaler>) {
        for (shared, scaler) in self.lock().iter_mut().zip(scalers) {
            shared.scaler = scaler;
        }
    }

    /// What the loss is multiplied by.
    pub(crate) fn of(&self, loss: usize) -> f64 {
        self.lock()[loss].current()
    }

    pub(crate) fn join(&self, loss: usize) {
        let shared = &mut self.lock()[loss];
        let scale = shared.current();
        let unused = Use { scale, steps: 0, good: false, overflowed: false };
        shared.in_use.get_or_insert(unused).steps += 1;
    }

    /// `overflow` tells whether the loss's gradients in this step were not finite; `None` for a
    /// step that was given up before that was known.
    pub(crate) fn leave(&self, loss: usize, overflow: Option<bool>) -> Left {
        let Shared { scaler, in_use } = &mut self.lock()[loss];
        let before = scaler.scale();
        let mut updated = false;
        if let Some(Use { steps, good, overflowed, .. }) = in_use {
            *steps -= 1;
            *good |= overflow == Some(false);
            if overflow == Some(true) && !*overflowed {
                scaler.update(true);
                (*overflowed, updated) = (true, true);
            }
            if *steps == 0 {
                if *good && !*overflowed {
                    scaler.update(false);
                    updated = true;
                }
                *in_use = None;
            }
        }
        Left { scaler: scaler.clone(), updated_from: updated.then_some(before) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Shared>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn scalers(shared: &[Shared]) -> Vec<Scaler> {
    shared.iter().map(|shared| shared.scaler.clone()).collect()
}

/// The scales, unless a step uses one of them.
fn unused(shared: &[Shared]) -> Result<Vec<Scaler>, StateError> {
    match shared.iter().position(|shared| shared.in_use.is_some()) {
        Some(loss) => Err(StateError::InUse { loss }),
        None => Ok(scalers(shared)),
    }
}

impl Shared {
    fn current(&self) -> f64 {
        self.in_use.map_or(self.scaler.scale(), |in_use| in_use.scale)
    }
}
