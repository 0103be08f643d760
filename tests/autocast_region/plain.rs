//! libtorch's own CPU autocast, which tch has no functions for.

use std::ffi::c_int;

use tch::Kind;

const CPU: i8 = 0;

unsafe extern "C" {
    #[link_name = "_ZN2at8autocast20set_autocast_enabledEN3c1010DeviceTypeEb"]
    safe fn set_autocast_enabled(device: i8, enabled: bool);
    #[link_name = "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE"]
    safe fn is_autocast_enabled(device: i8) -> bool;
    #[link_name = "_ZN2at8autocast18set_autocast_dtypeEN3c1010DeviceTypeENS1_10ScalarTypeE"]
    safe fn set_autocast_dtype(device: i8, dtype: i8);
    #[link_name = "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE"]
    safe fn get_autocast_dtype(device: i8) -> i8;
    #[link_name = "_ZN2at8autocast26set_autocast_cache_enabledEb"]
    safe fn set_autocast_cache_enabled(enabled: bool);
    #[link_name = "_ZN2at8autocast25is_autocast_cache_enabledEv"]
    safe fn is_autocast_cache_enabled() -> bool;
    #[link_name = "_ZN2at8autocast17increment_nestingEv"]
    safe fn increment_nesting() -> c_int;
    #[link_name = "_ZN2at8autocast17decrement_nestingEv"]
    safe fn decrement_nesting() -> c_int;
}

/// This thread's state for the CPU: whether autocast is on, its type, whether casts are kept, and
/// how many regions are open.
pub fn state() -> (bool, i8, bool, c_int) {
    let nesting = increment_nesting() - 1;
    decrement_nesting();
    (is_autocast_enabled(CPU), get_autocast_dtype(CPU), is_autocast_cache_enabled(), nesting)
}

/// Switches libtorch's autocast on for this thread.
pub fn enable(kind: Kind) {
    set_autocast_enabled(CPU, true);
    set_autocast_dtype(CPU, if kind == Kind::Half { 5 } else { 15 });
}

pub fn disable() {
    set_autocast_enabled(CPU, false);
}

/// Has libtorch keep casts of weights on this thread.
pub fn keep_casts() {
    set_autocast_cache_enabled(true);
}
