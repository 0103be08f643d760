//! The wheels that libtorch is made of: which, with which SHA-256, and what of them is kept.
//!
//! They are those that `pip install torch==2.13.0` would take for CPython 3.12, and that of torch 2.11.0 to link with.
//! Every machine of one kind gets the same files, whatever Python it runs.

use super::Build;
use super::wheels::{Keeps, Wheel};

/// Returns the wheels that make libtorch on an operating system and processor, if it is offered there.
pub(super) fn wheels_for(build: Build, os: &str, arch: &str) -> Option<&'static [Wheel]> {
    match (build, os, arch) {
        (Build::Cpu, "linux", "x86_64") => Some(CPU_LINUX_X86_64),
        (Build::Cpu, "linux", "aarch64") => Some(CPU_LINUX_AARCH64),
        (Build::Cpu, "macos", "aarch64") => Some(CPU_MACOS_ARM64),
        (Build::Cuda, "linux", "x86_64") => Some(CUDA_LINUX_X86_64),
        (Build::LinkOnly, "linux", "x86_64") => Some(LINK_ONLY_LINUX_X86_64),
        _ => None,
    }
}

/// torch for Linux on x86-64; what is kept of it depends on the build.
const fn torch_linux_x86_64(libraries: &'static [&'static str]) -> Wheel {
    Wheel {
        file: "torch-2.13.0-cp312-cp312-manylinux_2_28_x86_64.whl",
        sha256: "796633c4cdf0fe2cdced72d8f88f22e73dbcfce83132763162f6d4bff13b820b",
        keeps: Keeps::HeadersAnd(libraries),
    }
}

/// CUDA's run-time library: libtorch_cpu is linked to it on Linux, with a GPU or without.
const CUDART_X86_64: Wheel = Wheel {
    file: "nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    sha256: "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
    keeps: Keeps::Libraries(&["libcudart.so.13"]),
};

/// CUDA's profiling library: libtorch_cpu is linked to it on Linux, with a GPU or without.
const CUPTI_X86_64: Wheel = Wheel {
    file: "nvidia_cuda_cupti-13.0.85-py3-none-manylinux_2_25_x86_64.whl",
    sha256: "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8",
    keeps: Keeps::Libraries(&["libcupti.so.13"]),
};

/// A wheel of NVIDIA's whose libraries are all kept.
const fn nvidia(file: &'static str, sha256: &'static str) -> Wheel {
    Wheel { file, sha256, keeps: Keeps::EveryLibrary }
}

const CPU_LINUX_X86_64: &[Wheel] = &[
    torch_linux_x86_64(&["libc10.so", "libgomp.so.1", "libtorch_cpu.so"]),
    CUDART_X86_64,
    CUPTI_X86_64,
];

const CPU_LINUX_AARCH64: &[Wheel] = &[
    Wheel {
        file: "torch-2.13.0-cp312-cp312-manylinux_2_28_aarch64.whl",
        sha256: "572df8be8ffb4599c88cbd6a0726f1f854f4da65d2e3c09f0e2c2283333cd6d4",
        keeps: Keeps::HeadersAnd(&[
            "libarm_compute.so",
            "libarm_compute_graph.so",
            "libc10.so",
            "libgomp.so.1",
            "libnvpl_blas_core.so.0",
            "libnvpl_blas_lp64_gomp.so.0",
            "libnvpl_lapack_core.so.0",
            "libnvpl_lapack_lp64_gomp.so.0",
            "libtorch_cpu.so",
        ]),
    },
    Wheel {
        file: "nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_aarch64.manylinux_2_17_aarch64.whl",
        sha256: "ef9bcbe90493a2b9d810e43d249adb3d02e98dd30200d86607d8d02687c43f55",
        keeps: Keeps::Libraries(&["libcudart.so.13"]),
    },
    Wheel {
        file: "nvidia_cuda_cupti-13.0.85-py3-none-manylinux_2_25_aarch64.whl",
        sha256: "796bd679890ee55fb14a94629b698b6db54bcfd833d391d5e94017dd9d7d3151",
        keeps: Keeps::Libraries(&["libcupti.so.13"]),
    },
];

const CPU_MACOS_ARM64: &[Wheel] = &[Wheel {
    file: "torch-2.13.0-cp312-cp312-macosx_14_0_arm64.whl",
    sha256: "2fe228aba290d14b9f31b049be550dbd469c3fd3013d7a19705b30454da97027",
    keeps: Keeps::HeadersAnd(&[
        "libc10.dylib",
        "libomp.dylib",
        "libtorch.dylib",
        "libtorch_cpu.dylib",
    ]),
}];

/// The versions are those that torch 2.13.0 asks for (`cuda-toolkit` 13.0.3 for the most part).
const CUDA_LINUX_X86_64: &[Wheel] = &[
    torch_linux_x86_64(&[
        "libc10.so",
        "libc10_cuda.so",
        "libcaffe2_nvrtc.so",
        "libgomp.so.1",
        "libtorch.so",
        "libtorch_cpu.so",
        "libtorch_cuda.so",
        "libtorch_cuda_linalg.so",
        "libtorch_nvshmem.so",
    ]),
    CUDART_X86_64,
    CUPTI_X86_64,
    nvidia(
        "nvidia_cublas-13.1.1.3-py3-none-manylinux_2_27_x86_64.whl",
        "37936a16db8fe4ac1f065c2139360608a543a09275cb1a1af612e08cfa065436",
    ),
    nvidia(
        "nvidia_cuda_nvrtc-13.0.88-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
        "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575",
    ),
    nvidia(
        "nvidia_cudnn_cu13-9.20.0.48-py3-none-manylinux_2_27_x86_64.whl",
        "0c45dd8eeb50b603f07995b1b300c62ffe6a1980482b82b3bcf94a4ca9d49304",
    ),
    nvidia(
        "nvidia_cufft-12.0.0.61-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        "6c44f692dce8fd5ffd3e3df134b6cdb9c2f72d99cf40b62c32dde45eea9ddad3",
    ),
    nvidia(
        "nvidia_cufile-1.15.1.6-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        "08a3ecefae5a01c7f5117351c64f17c7c62efa5fffdbe24fc7d298da19cd0b44",
    ),
    nvidia(
        "nvidia_curand-10.4.0.35-py3-none-manylinux_2_27_x86_64.whl",
        "1aee33a5da6e1db083fe2b90082def8915f30f3248d5896bcec36a579d941bfc",
    ),
    nvidia(
        "nvidia_cusolver-12.0.4.66-py3-none-manylinux_2_27_x86_64.whl",
        "0a759da5dea5c0ea10fd307de75cdeb59e7ea4fcb8add0924859b944babf1112",
    ),
    nvidia(
        "nvidia_cusparse-12.6.3.3-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        "2b3c89c88d01ee0e477cb7f82ef60a11a4bcd57b6b87c33f789350b59759360b",
    ),
    nvidia(
        "nvidia_cusparselt_cu13-0.8.1-py3-none-manylinux2014_x86_64.whl",
        "786ce87568c303fadb5afcc7102d454cd3040d75f6f8626f5db460d1871f4dd0",
    ),
    nvidia(
        "nvidia_nccl_cu13-2.29.7-py3-none-manylinux_2_18_x86_64.whl",
        "edd81538446786ec3b73972543e53bb43bcaf0bfc8ef76cb679fcc390ffe136d",
    ),
    nvidia(
        "nvidia_nvjitlink-13.0.88-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
        "13a74f429e23b921c1109976abefacc69835f2f433ebd323d3946e11d804e47b",
    ),
    nvidia(
        "nvidia_nvshmem_cu13-3.4.5-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        "290f0a2ee94c9f3687a02502f3b9299a9f9fe826e6d0287ee18482e78d495b80",
    ),
];

/// What programs are linked with that run where Python has torch 2.11.0; the libraries it needs itself are there.
const LINK_ONLY_LINUX_X86_64: &[Wheel] = &[Wheel {
    file: "torch-2.11.0-cp312-cp312-manylinux_2_28_x86_64.whl",
    sha256: "0f68f4ac6d95d12e896c3b7a912b5871619542ec54d3649cf48cc1edd4dd2756",
    keeps: Keeps::HeadersAnd(&[
        "libc10.so",
        "libc10_cuda.so",
        "libgomp.so.1",
        "libtorch.so",
        "libtorch_cpu.so",
        "libtorch_cuda.so",
    ]),
}];

#[cfg(test)]
mod tests {
    use super::super::wheels::TORCH_VERSION;
    use super::*;

    fn offered() -> impl Iterator<Item = &'static Wheel> {
        [
            CPU_LINUX_X86_64,
            CPU_LINUX_AARCH64,
            CPU_MACOS_ARM64,
            CUDA_LINUX_X86_64,
            LINK_ONLY_LINUX_X86_64,
        ]
        .into_iter()
        .flatten()
    }

    #[test]
    fn every_pin_is_a_sha256_of_a_wheel() {
        for wheel in offered() {
            assert!(wheel.file.ends_with(".whl"), "{wheel:?}");
            assert_eq!(wheel.sha256.len(), 64, "{wheel:?}");
            assert!(
                wheel.sha256.chars().all(|digit| matches!(digit, '0'..='9' | 'a'..='f')),
                "{wheel:?}"
            );
        }
    }

    #[test]
    fn torch_has_the_version_that_the_folder_is_named_after() {
        for wheels in [CPU_LINUX_X86_64, CPU_LINUX_AARCH64, CPU_MACOS_ARM64, CUDA_LINUX_X86_64] {
            assert_eq!(wheels[0].requirement(), format!("torch=={TORCH_VERSION}"));
        }
        assert_eq!(LINK_ONLY_LINUX_X86_64[0].requirement(), "torch==2.11.0");
    }

    #[test]
    fn other_machines_are_not_offered_libtorch() {
        assert!(wheels_for(Build::Cpu, "windows", "x86_64").is_none());
        assert!(wheels_for(Build::Cpu, "macos", "x86_64").is_none());
        assert!(wheels_for(Build::Cuda, "macos", "aarch64").is_none());
    }
}
