//! The instruction sets that loops are compiled for.
//!
//! A loop is plain code, which the compiler turns into vector instructions for each instruction
//! set. As it has no fused multiply-add, the results are the same in every bit.
#![allow(unsafe_code, reason = "calls code for instructions that not every CPU has")]

use std::sync::OnceLock;

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

/// A loop that is compiled for each instruction set: `run`, and what it calls, must be
/// `#[inline(always)]`.
pub(super) trait Loop {
    fn run(self);
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
            if is_x86_feature_detected!("avx2") {
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
            Kind::Baseline => work.run(),
            // SAFETY: `all` has made sure of the instructions.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { avx2(work) },
            // SAFETY: `all` has made sure of the instructions.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe { avx512(work) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2(work: impl Loop) {
    work.run();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn avx512(work: impl Loop) {
    work.run();
}
