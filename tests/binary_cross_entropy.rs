//! `binary_cross_entropy`, which libtorch refuses under CUDA autocast, runs in regions on CUDA.
//!
//! Without a GPU: this thread sends the operations of CPU tensors through CUDA's autocast kernels.
//! Those cast CUDA tensors only, so what is seen is which kernel runs, not its casts.
#![cfg(not(target_env = "msvc"))]

use std::ffi::{CStr, c_char};

use half::bf16;
use tch::{Device, Kind, Reduction, TchError, Tensor};
use tch_amp::autocast;

const CUDA: i8 = 1;

unsafe extern "C" {
    #[link_name = "_ZN3c108toStringENS_11DispatchKeyE"]
    safe fn name_of_key(key: u16) -> *const c_char;
    #[link_name = "_ZN3c104impl29tls_set_dispatch_key_includedENS_11DispatchKeyEb"]
    safe fn include_key(key: u16, included: bool);
    #[link_name = "_ZN2at8autocast20set_autocast_enabledEN3c1010DeviceTypeEb"]
    safe fn set_autocast_enabled(device: i8, enabled: bool);
}

/// Runs `body` with CPU operations dispatched as if they were CUDA's, as far as autocast goes.
fn as_on_cuda<R>(body: impl FnOnce() -> R) -> R {
    // SAFETY: the names of dispatch keys are static C strings.
    let name = |key| unsafe { CStr::from_ptr(name_of_key(key)) };
    let key = (1..200).find(|key| name(*key) == c"AutocastCUDA").unwrap();
    include_key(key, true);
    let result = body();
    include_key(key, false);
    result
}

/// −(y·ln p + (1−y)·ln(1−p)) for p = 1/4, y = 1: ln 4.
fn loss() -> Result<Tensor, TchError> {
    let [p, y] = [0.25f32, 1.0].map(|value| Tensor::from_slice(&[value]));
    p.f_binary_cross_entropy(&y, None::<Tensor>, Reduction::Mean)
}

fn refused() {
    set_autocast_enabled(CUDA, true);
    let error = as_on_cuda(loss).unwrap_err();
    set_autocast_enabled(CUDA, false);
    assert!(error.to_string().contains("unsafe to autocast"), "{error}");
}

fn runs_in_a_region() {
    let region = autocast::enter::<bf16>(Device::Cuda(0)).unwrap();
    let loss = as_on_cuda(loss).unwrap();
    drop(region);
    assert_eq!(loss.kind(), Kind::Float);
    assert!((loss.double_value(&[]) - 4f64.ln()).abs() < 1e-6);
}

#[test]
fn it_runs_in_regions_and_is_refused_outside_them_as_before() {
    refused();
    runs_in_a_region();
    refused();
    runs_in_a_region();
}
