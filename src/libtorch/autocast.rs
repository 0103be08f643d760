//! The autocast state of the current thread.

use tch::{Kind, TchError};

use super::ffi::{self, AutocastDevice};

/// What autocast does on this thread to the operations of one kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AutocastState(ffi::Autocast);

impl AutocastState {
    /// Casts by the O1 lists, with `Half` or `BFloat16` as the 16-bit type; `None` for other types.
    pub(crate) fn o1(kind: Kind) -> Option<Self> {
        let dtype = match kind {
            Kind::Half => ffi::HALF,
            Kind::BFloat16 => ffi::BFLOAT16,
            _ => return None,
        };
        Some(Self(ffi::Autocast { dtype, enabled: true, o1_lists: true }))
    }

    /// The 16-bit type in which the O1 lists are in force; `None` where they are not.
    pub(crate) fn o1_kind(self) -> Option<Kind> {
        match self.0 {
            ffi::Autocast { enabled: true, o1_lists: true, dtype: ffi::HALF } => Some(Kind::Half),
            ffi::Autocast { enabled: true, o1_lists: true, dtype: ffi::BFLOAT16 } => {
                Some(Kind::BFloat16)
            }
            _ => None,
        }
    }

    /// The same state with autocast switched off.
    pub(crate) fn disabled(self) -> Self {
        Self(ffi::Autocast { enabled: false, o1_lists: false, ..self.0 })
    }
}

/// Completes libtorch's lists for a device to the O1 lists, once per process. What is added acts on
/// threads whose state is [`AutocastState::o1`].
///
/// # Errors
///
/// When libtorch refuses a registration.
pub(crate) fn register_o1_lists(device: AutocastDevice) -> Result<(), TchError> {
    let message = ffi::tch_amp_register_o1_lists(device);
    // SAFETY: the message comes from the shim and is passed on at once.
    unsafe { ffi::check(message) }
}

/// Returns the state of a device.
pub(crate) fn autocast(device: AutocastDevice) -> AutocastState {
    let mut state = ffi::Autocast { dtype: ffi::FLOAT, enabled: false, o1_lists: false };
    ffi::tch_amp_autocast_get(device, &mut state);
    AutocastState(state)
}

/// Sets the state of a device.
pub(crate) fn set_autocast(device: AutocastDevice, state: AutocastState) {
    ffi::tch_amp_autocast_set(device, &state.0);
}

/// Whether autocast keeps casts of weights on this thread.
pub(crate) fn cast_cache() -> bool {
    ffi::tch_amp_cast_cache()
}

/// Sets whether autocast keeps casts of weights on this thread.
pub(crate) fn set_cast_cache(enabled: bool) {
    ffi::tch_amp_set_cast_cache(enabled);
}

/// Counts one more region on this thread.
pub(crate) fn nest_autocast() {
    ffi::tch_amp_autocast_nest();
}

/// Counts one region less; after the last one, forgets all kept casts.
pub(crate) fn unnest_autocast() {
    ffi::tch_amp_autocast_unnest();
}
