//! Regions: where they begin and end, what they leave behind, and what they do to gradients.

#[path = "autocast_region/autocast_of_libtorch.rs"]
mod autocast_of_libtorch;
#[path = "autocast_region/gradients.rs"]
mod gradients;
#[path = "autocast_region/plain.rs"]
mod plain;
#[path = "autocast_region/types.rs"]
mod types;

use std::{panic, sync::Barrier, thread};

use half::{bf16, f16};
use tch::{Device, Kind, Tensor};
use tch_amp::autocast::{self, AutocastError, AutocastRegion};

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

fn enter_bf16() -> AutocastRegion {
    autocast::enter::<bf16>(Device::Cpu).unwrap()
}

fn enter_f16() -> AutocastRegion {
    autocast::enter::<f16>(Device::Cpu).unwrap()
}

fn disable() -> AutocastRegion {
    autocast::disable(Device::Cpu).unwrap()
}

/// The type in which a matrix product of FP32 matrices runs on this thread.
fn product_kind() -> Kind {
    let xs = Tensor::ones([2, 2], FLOAT);
    xs.mm(&xs).kind()
}

/// The type in which `exp` of a BF16 tensor runs on this thread.
fn exp_kind() -> Kind {
    Tensor::ones([2], (Kind::BFloat16, Device::Cpu)).exp().kind()
}

fn weight(value: f64) -> Tensor {
    Tensor::full([1, 1], value, FLOAT).set_requires_grad(true)
}

fn set(weight: &Tensor, value: f64) {
    tch::no_grad(|| drop(weight.shallow_clone().fill_(value)));
}

mod extent {
    use super::*;

    #[test]
    fn nothing_is_cast_before_a_region() {
        assert_eq!(product_kind(), Kind::Float);
        assert_eq!(exp_kind(), Kind::BFloat16);
    }

    #[test]
    fn nothing_is_cast_after_a_region() {
        let before = plain::state();
        drop(enter_bf16());
        assert_eq!(product_kind(), Kind::Float);
        assert_eq!(exp_kind(), Kind::BFloat16);
        assert_eq!(plain::state(), before);
    }

    #[test]
    fn a_panic_ends_the_region() {
        let before = plain::state();
        let caught = panic::catch_unwind(|| {
            let _region = enter_bf16();
            panic!("in the region");
        });
        assert!(caught.is_err());
        assert_eq!(plain::state(), before);
        assert_eq!(exp_kind(), Kind::BFloat16);
    }

    #[test]
    fn a_panic_in_nested_regions_ends_those_it_passes() {
        let _outer = enter_f16();
        let before = plain::state();
        let caught = panic::catch_unwind(|| {
            let _inner = enter_bf16();
            let _innermost = disable();
            panic!("in the innermost region");
        });
        assert!(caught.is_err());
        assert_eq!(plain::state(), before);
        assert_eq!(product_kind(), Kind::Half);
    }

    #[test]
    fn an_error_of_libtorch_in_a_region_leaves_the_region_in_force() {
        let _region = enter_bf16();
        let xs = Tensor::ones([2, 3], FLOAT);
        assert!(xs.f_mm(&xs).is_err());
        assert_eq!(product_kind(), Kind::BFloat16);
        assert_eq!(exp_kind(), Kind::Float);
    }

    #[test]
    fn the_innermost_region_is_in_force() {
        let outer = enter_bf16();
        let inner = enter_f16();
        assert_eq!(product_kind(), Kind::Half);
        let innermost = disable();
        assert_eq!(product_kind(), Kind::Float);
        assert_eq!(exp_kind(), Kind::BFloat16);
        let on_again = enter_bf16();
        assert_eq!(product_kind(), Kind::BFloat16);
        assert_eq!(exp_kind(), Kind::Float);
        drop(on_again);
        assert_eq!(product_kind(), Kind::Float);
        drop(innermost);
        assert_eq!(product_kind(), Kind::Half);
        assert_eq!(exp_kind(), Kind::Float);
        drop(inner);
        assert_eq!(product_kind(), Kind::BFloat16);
        drop(outer);
        assert_eq!(product_kind(), Kind::Float);
    }

    #[test]
    fn guards_can_be_dropped_in_any_order() {
        let before = plain::state();
        let [first, second, third] = [enter_bf16(), enter_f16(), disable()];
        drop(second);
        assert_eq!(product_kind(), Kind::Float);
        drop(first);
        assert_eq!(product_kind(), Kind::Float);
        drop(third);
        assert_eq!(plain::state(), before);
        assert_eq!(product_kind(), Kind::Float);
        assert_eq!(exp_kind(), Kind::BFloat16);
    }

    #[test]
    fn disabling_outside_a_region_changes_nothing() {
        let before = plain::state();
        let region = disable();
        assert_eq!(product_kind(), Kind::Float);
        drop(region);
        assert_eq!(plain::state(), before);
    }

    #[test]
    fn other_threads_do_not_notice_a_region() {
        let _region = enter_bf16();
        let kinds = thread::spawn(|| (product_kind(), exp_kind())).join().unwrap();
        assert_eq!(kinds, (Kind::Float, Kind::BFloat16));
    }

    #[test]
    fn each_thread_has_its_own_region() {
        let barrier = Barrier::new(8);
        let on_thread = |low: Kind| {
            let region = if low == Kind::Half { enter_f16() } else { enter_bf16() };
            barrier.wait();
            let kinds = (product_kind(), exp_kind());
            barrier.wait();
            drop(region);
            (kinds, product_kind())
        };
        thread::scope(|scope| {
            let lows = [Kind::Half, Kind::BFloat16].repeat(4);
            let threads = lows.into_iter().map(|low| (low, scope.spawn(move || on_thread(low))));
            for (low, thread) in threads.collect::<Vec<_>>() {
                assert_eq!(thread.join().unwrap(), ((low, Kind::Float), Kind::Float));
            }
        });
    }
}

mod devices {
    use super::*;

    #[test]
    fn a_device_without_autocast_is_named_in_the_error() {
        for result in [autocast::enter::<bf16>(Device::Vulkan), autocast::disable(Device::Vulkan)] {
            let error = result.unwrap_err();
            assert!(matches!(error, AutocastError::Device { device: Device::Vulkan }));
            assert!(error.to_string().starts_with("Vulkan has no autocast"), "{error}");
        }
    }

    #[test]
    fn a_region_of_another_device_leaves_cpu_operations_alone() {
        for device in [Device::Cuda(0), Device::Mps] {
            let _region = autocast::enter::<f16>(device).unwrap();
            assert_eq!(product_kind(), Kind::Float);
            assert_eq!(exp_kind(), Kind::BFloat16);
        }
    }

    #[test]
    fn regions_of_different_devices_overlap() {
        let before = plain::state();
        let cpu = enter_bf16();
        let cuda = autocast::enter::<f16>(Device::Cuda(1)).unwrap();
        let off = autocast::disable(Device::Cuda(0)).unwrap();
        assert_eq!(product_kind(), Kind::BFloat16);
        drop(cpu);
        assert_eq!(product_kind(), Kind::Float);
        drop(cuda);
        drop(off);
        assert_eq!(plain::state(), before);
    }
}
