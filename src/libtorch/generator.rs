//! libtorch's random-number generators.

use std::ptr;

use tch::{Device, Kind, TchError, Tensor};

use super::ffi;

/// The state of the generator that libtorch uses on a device, as bytes.
///
/// All threads share it.
pub(crate) fn generator_state(device: Device) -> Result<Tensor, TchError> {
    let on_device = Tensor::f_empty([0], (Kind::Float, device))?;
    let mut state = ptr::null_mut();
    // SAFETY: both pointers are valid for this call, and the message is passed on at once.
    unsafe { ffi::check(ffi::tch_amp_generator_state(on_device.as_ptr(), &mut state)) }?;
    // SAFETY: on success, the shim has made a new tensor that nobody else owns.
    Ok(unsafe { Tensor::from_ptr(state) })
}

/// Puts the generator of a device into a state that [`generator_state`] returned.
///
/// # Errors
///
/// When the bytes are no such state. The generator is then as before.
pub(crate) fn set_generator_state(device: Device, state: &Tensor) -> Result<(), TchError> {
    let on_device = Tensor::f_empty([0], (Kind::Float, device))?;
    // SAFETY: both pointers are valid for this call, and the message is passed on at once.
    unsafe { ffi::check(ffi::tch_amp_set_generator_state(on_device.as_ptr(), state.as_ptr())) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_state_is_refused() {
        let bytes = Tensor::zeros([3], (Kind::Uint8, Device::Cpu));
        assert!(set_generator_state(Device::Cpu, &bytes).is_err());
        let floats = Tensor::zeros([5056], (Kind::Float, Device::Cpu));
        assert!(set_generator_state(Device::Cpu, &floats).is_err());
    }
}
