//! The instruction sets that loops are compiled for.
//!
//! A loop is plain code, which the compiler turns into vector instructions for each instruction
//! set. As it has no fused multiply-add, the results are the same in every bit.
#![allow(unsafe_code, reason = "calls code for instructions that not every CPU has")]

use std::sync::OnceLock;

use half::{f16, slice::HalfFloatSliceExt};

/// The variable that names an instruction set, in lower case, to use at most.
const VARIABLE: &str = "TCH_AMP_CPU";

/// An instruction set that this CPU has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InstructionSet(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// What every CPU of the architecture has.
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl std::fmt::Display for InstructionSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A loop that is compiled for each instruction set: `run`, and what it calls, must be
/// `#[inline(always)]`.
pub(super) trait Loop {
    fn run<I: Instructions>(self);
}

/// What no plain code becomes: conversions of `f16`, the same in every bit.
pub(super) trait Instructions {
    /// Both slices have the same length.
    fn from_f16(from: &[f16], into: &mut [f32]);
    /// Rounds to nearest, ties to even. Both slices have the same length.
    fn to_f16(from: &[f32], into: &mut [f16]);
}

struct Baseline;

impl Instructions for Baseline {
    #[inline(always)]
    fn from_f16(from: &[f16], into: &mut [f32]) {
        from.convert_to_f32_slice(into);
    }

    #[inline(always)]
    fn to_f16(from: &[f32], into: &mut [f16]) {
        into.convert_from_f32_slice(from);
    }
}

impl InstructionSet {
    /// The best one, or the one that the environment variable `TCH_AMP_CPU` names: `avx512`, `avx2`
    /// or `baseline`. It is chosen once.
    pub(crate) fn chosen() -> Self {
        static CHOSEN: OnceLock<InstructionSet> = OnceLock::new();
        *CHOSEN.get_or_init(|| {
            let all = Self::all();
            let best = all[all.len() - 1];
            let Some(name) = std::env::var_os(VARIABLE) else { return best };
            let named = all.iter().find(|set| name == set.name());
            named.copied().unwrap_or_else(|| {
                let names: Vec<_> = all.iter().map(|set| set.name()).collect();
                tracing::warn!(
                    target: "tch_amp",
                    "{VARIABLE} is {name:?}, and this CPU has {}: {} is used",
                    names.join(", "), best.name()
                );
                best
            })
        })
    }

    /// Those that this CPU has, the best last.
    pub(crate) fn all() -> Vec<Self> {
        let mut all = vec![Self(Kind::Baseline)];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
                all.push(Self(Kind::Avx2));
            }
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
            {
                all.push(Self(Kind::Avx512));
            }
        }
        all
    }

    fn name(self) -> &'static str {
        match self.0 {
            Kind::Baseline => "baseline",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
        }
    }

    pub(super) fn run(self, work: impl Loop) {
        match self.0 {
            Kind::Baseline => work.run::<Baseline>(),
            // SAFETY: `all` has made sure of the instructions.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { x86::avx2(work) },
            // SAFETY: `all` has made sure of the instructions.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe { x86::avx512(work) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m128i, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_cvtph_ps,
        _mm256_cvtps_ph, _mm256_loadu_ps, _mm256_storeu_ps,
    };

    use half::f16;

    use super::{Baseline, Instructions, Loop};

    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn avx2(work: impl Loop) {
        work.run::<F16c>();
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]
    pub(super) fn avx512(work: impl Loop) {
        work.run::<F16c>();
    }

    /// Instructions of AVX2, which AVX-512 has too. Only `avx2` and `avx512` use it.
    struct F16c;

    impl Instructions for F16c {
        #[inline(always)]
        fn from_f16(from: &[f16], into: &mut [f32]) {
            let ((groups, rest), (into, rest_into)) = (from.as_chunks(), into.as_chunks_mut());
            for (group, into) in groups.iter().zip(into) {
                let (group, into): (&[f16; 8], &mut [f32; 8]) = (group, into);
                // SAFETY: the CPU has F16C (see `F16c`), and both arrays have 8 elements.
                unsafe {
                    let group = _mm_loadu_si128(group.as_ptr().cast::<__m128i>());
                    _mm256_storeu_ps(into.as_mut_ptr(), _mm256_cvtph_ps(group));
                }
            }
            Baseline::from_f16(rest, rest_into);
        }

        #[inline(always)]
        fn to_f16(from: &[f32], into: &mut [f16]) {
            let ((groups, rest), (into, rest_into)) = (from.as_chunks(), into.as_chunks_mut());
            for (group, into) in groups.iter().zip(into) {
                let (group, into): (&[f32; 8], &mut [f16; 8]) = (group, into);
                // SAFETY: the CPU has F16C (see `F16c`), and both arrays have 8 elements.
                unsafe {
                    let group = _mm256_loadu_ps(group.as_ptr());
                    let group = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(group);
                    _mm_storeu_si128(into.as_mut_ptr().cast::<__m128i>(), group);
                }
            }
            Baseline::to_f16(rest, rest_into);
        }
    }
}
