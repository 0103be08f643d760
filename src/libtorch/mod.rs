//! libtorch beyond `tch`: the only C++ and the only torch FFI of the crate.
//!
//! `shim.cpp` calls libtorch and lets no exception out; `ffi` declares its functions; what the rest
//! of the crate sees is safe.
#![allow(unsafe_code, reason = "calls C++: each block says why it is sound")]

mod autocast;
mod cuda;
mod data;
mod ffi;
mod generator;
mod tensor;
mod threads;

pub(crate) use autocast::{
    AutocastState, autocast, cast_cache, nest_autocast, register_o1_lists, set_autocast,
    set_cast_cache, unnest_autocast,
};
pub(crate) use cuda::{Memory, current_stream, folder, memory};
pub(crate) use data::{bytes, bytes_mut, slice, slice_mut};
pub(crate) use ffi::AutocastDevice;
pub(crate) use generator::{generator_state, set_generator_state};
pub(crate) use tensor::{TensorId, backward, grad_enabled, set_grad, take_grad, tensor_id};
pub(crate) use threads::for_each;
