//! The kernels' source code, a part of this library.

/// A file of kernels and the files that it includes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source {
    pub(super) name: &'static str,
    pub(super) text: &'static str,
    pub(super) headers: &'static [(&'static str, &'static str)],
    /// The same compiled to NVIDIA's assembly for all GPUs, ended by a zero.
    pub(super) ptx: &'static str,
}

macro_rules! headers {
    ($($name:literal),*) => {
        &[$(($name, include_str!(concat!("../../../kernels/", $name)))),*]
    };
}

const HEADERS: &[(&str, &str)] = headers![
    "access.cuh",
    "check.cuh",
    "decide.cuh",
    "kernel.cuh",
    "layout.cuh",
    "noise.cuh",
    "norms.cuh",
    "numbers.cuh",
    "reduce.cuh",
    "update.cuh"
];

macro_rules! sources {
    ($($constant:ident: $name:literal),*) => { $(
        pub(crate) const $constant: Source = Source {
            name: concat!($name, ".cu"),
            text: include_str!(concat!("../../../kernels/", $name, ".cu")),
            headers: HEADERS,
            ptx: concat!(include_str!(concat!("../../../kernels/ptx/", $name, ".ptx")), "\0"),
        };
    )* };
}
sources!(GRADIENTS: "gradients", ADAGRAD: "adagrad", ADAM: "adam", LAMB: "lamb", SGD: "sgd");

impl Source {
    /// All of the source code, for telling whether something was compiled from it.
    pub(super) fn whole(&self) -> String {
        let headers = self.headers.iter().flat_map(|(name, text)| [*name, *text]);
        headers.chain([self.name, self.text]).collect::<Vec<_>>().join("\n")
    }
}
