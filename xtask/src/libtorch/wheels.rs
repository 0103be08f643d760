//! Python wheels as a source of libraries and headers: what to ask pip for, and what to keep.

use std::path::{Component, Path, PathBuf};

/// The libtorch that the `tch` in the lock file is made for.
pub(super) const TORCH_VERSION: &str = "2.13.0";

/// Where torch's wheel has its headers.
const HEADERS: &str = "torch/include/";

/// One pinned wheel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wheel {
    /// Its file name, which says the project, the version and the platforms.
    pub(super) file: &'static str,
    /// Its SHA-256 in hexadecimal digits.
    pub(super) sha256: &'static str,
    /// What of it is kept.
    pub(super) keeps: Keeps,
}

/// What of a wheel is kept.
#[derive(Clone, Copy, Debug)]
pub(super) enum Keeps {
    /// Torch's headers, and the libraries of these names.
    HeadersAnd(&'static [&'static str]),
    /// The libraries of these names.
    Libraries(&'static [&'static str]),
    /// Every library.
    EveryLibrary,
}

impl Wheel {
    /// Returns what to ask pip for, such as `torch==2.13.0`.
    pub(super) fn requirement(&self) -> String {
        let mut parts = self.file.splitn(3, '-');
        [parts.next(), parts.next()].into_iter().flatten().collect::<Vec<_>>().join("==")
    }

    /// Returns the platforms that the file name lists.
    pub(super) fn platforms(&self) -> impl Iterator<Item = &'static str> {
        let name = self.file.strip_suffix(".whl").unwrap_or(self.file);
        name.rsplit('-').next().into_iter().flat_map(|platforms| platforms.split('.'))
    }
}

impl Keeps {
    /// Returns where an archive member goes in the folder of libtorch, if it is kept.
    pub(super) fn destination(&self, member: &str) -> Option<PathBuf> {
        let path = Path::new(member);
        if member.ends_with('/')
            || !path.components().all(|part| matches!(part, Component::Normal(_)))
        {
            return None;
        }
        if let (Self::HeadersAnd(_), Some(header)) = (self, member.strip_prefix(HEADERS)) {
            return Some(Path::new("include").join(header));
        }
        let name = path.file_name()?.to_str()?;
        let in_lib = path.parent()?.file_name()? == "lib";
        let kept = match self {
            Self::HeadersAnd(names) | Self::Libraries(names) => names.contains(&name),
            Self::EveryLibrary => name.contains(".so"),
        };
        (in_lib && kept).then(|| Path::new("lib").join(name))
    }

    /// Returns the libraries that must come out of the wheel.
    pub(super) fn named(&self) -> &'static [&'static str] {
        match self {
            Self::HeadersAnd(names) | Self::Libraries(names) => names,
            Self::EveryLibrary => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pip_is_asked_for_what_the_file_name_says() {
        let wheel = Wheel {
            file: "nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
            sha256: "",
            keeps: Keeps::EveryLibrary,
        };
        assert_eq!(wheel.requirement(), "nvidia_cuda_runtime==13.0.96");
        let platforms: Vec<_> = wheel.platforms().collect();
        assert_eq!(platforms, ["manylinux2014_x86_64", "manylinux_2_17_x86_64"]);
    }

    #[test]
    fn headers_and_named_libraries_are_kept() {
        let keeps = Keeps::HeadersAnd(&["libc10.so"]);
        let at = |member| keeps.destination(member);
        assert_eq!(at("torch/include/ATen/ATen.h"), Some(PathBuf::from("include/ATen/ATen.h")));
        assert_eq!(at("torch/lib/libc10.so"), Some(PathBuf::from("lib/libc10.so")));
        assert_eq!(at("torch/lib/libtorch_python.so"), None);
        assert_eq!(at("torch/bin/libc10.so"), None);
        assert_eq!(at("torch/include/"), None);
    }

    #[test]
    fn every_library_means_libraries_only() {
        let at = |member| Keeps::EveryLibrary.destination(member);
        assert_eq!(at("nvidia/cu13/lib/libnvrtc.so.13"), Some(PathBuf::from("lib/libnvrtc.so.13")));
        assert_eq!(at("nvidia/cu13/lib/libnvrtc_static.a"), None);
        assert_eq!(at("nvidia/cu13/include/nvrtc.h"), None);
    }

    #[test]
    fn nothing_is_written_outside_the_folder() {
        let keeps = Keeps::HeadersAnd(&["libc10.so"]);
        assert_eq!(keeps.destination("torch/include/../../../etc/passwd"), None);
        assert_eq!(keeps.destination("/torch/lib/libc10.so"), None);
    }
}
